"""The HTTP API: statuses, shapes and refusals of CONTRACT.md section 3."""

import json
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import AsyncClient
from django.utils import timezone

from chat import actions
from chat.models import ApiToken, ChatSession, Message, digest
from chat.transports import errors
from coordination.conf import conf
from coordination.db import db
from coordination.models import Run, Session
from coordination.wakeups import Hub
from tests.clients import Caller, claim, finish

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub(redis_server):
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(conf, "stop_ack", 0.2)


@pytest.fixture
async def alice():
    return await Caller.named("alice")


@pytest.fixture
async def mallory():
    return await Caller.named("mallory")


@pytest.fixture
async def sid(alice):
    return await alice.new_session(title="first")


async def refused(response, status, code):
    """A refusal has one shape, and tells something."""
    awaited = await response
    body = awaited.json()
    assert (awaited.status_code, body["code"]) == (status, code), body
    assert set(body) == {"code", "detail"}
    assert body["detail"]
    assert awaited.headers["Content-Type"].startswith("application/json")
    return awaited


# -- sessions -------------------------------------------------------------------------------------


async def test_a_session_is_made_read_renamed_listed_and_deleted(alice):
    made = await alice.call("post", "/chat", {"title": "plans"})
    assert made.status_code == 201
    item = made.json()
    assert set(item) == {"id", "title", "status", "created_at"}
    assert (item["title"], item["status"]) == ("plans", "idle")
    path = f"/chat/{item['id']}"

    renamed = await alice.call("patch", path, {"title": "<b>other</b>"})
    assert (renamed.status_code, renamed.json()["title"]) == (200, "<b>other</b>")

    shown = (await alice.call("get", path)).json()
    assert set(shown) == {
        "id", "title", "status", "run_id", "messages", "agents", "questions", "queue", "cursor",
    }  # fmt: skip
    assert (shown["title"], shown["status"], shown["run_id"]) == ("<b>other</b>", "idle", None)

    listed = (await alice.call("get", "/chat")).json()
    assert [row["id"] for row in listed["items"]] == [item["id"]]
    assert listed["next"] is None

    gone = await alice.call("delete", path)
    assert (gone.status_code, gone.content) == (204, b"")
    await refused(alice.call("get", path), 404, "not_found")
    assert (await alice.call("get", "/chat")).json()["items"] == []


async def test_a_body_is_not_needed_where_it_says_nothing(alice, sid):
    assert (await alice.call("post", "/chat")).status_code == 201
    stopped = await alice.call("post", f"/chat/{sid}/interrupt")
    assert stopped.json() == {"status": "no_active_run", "runs": []}


async def test_pages_of_sessions_hold_each_once_newest_first(alice, monkeypatch):
    monkeypatch.setattr("chat.transports.api.PAGE", 2)
    made = [await alice.new_session(title=str(number)) for number in range(5)]
    pages = [(await alice.call("get", "/chat")).json()]
    while pages[-1]["next"] is not None:
        pages.append((await alice.call("get", f"/chat?after={pages[-1]['next']}")).json())
    assert [row["id"] for page in pages for row in page["items"]] == made[::-1]
    assert len(pages) == 3


@pytest.mark.parametrize(
    ("accepted", "language"),
    [("zh-CN,zh;q=0.9", "zh-hans"), ("zh-TW", "zh-hans"), ("de,en;q=0.5", "en"), ("", "en")],
)
async def test_agents_speak_the_language_of_whoever_made_the_session(alice, accepted, language):
    headers = {"Accept-Language": accepted}
    made = await alice.call("post", "/chat", {}, **headers)
    session = await db(Session.objects.get, pk=made.json()["id"])
    assert session.language == language


# -- the three verbs ------------------------------------------------------------------------------


async def test_a_message_is_accepted_once_per_key(alice, sid):
    path = f"/chat/{sid}/messages"
    first = await alice.call("post", path, {"content": "hello", "id": "k1"})
    assert first.status_code == 202
    assert set(first.json()) == {"message_id", "run_id", "status"}
    assert first.json()["status"] == "started"
    again = await alice.call("post", path, {"content": "hello", "id": "k1"})
    assert (again.status_code, again.json()) == (202, first.json())
    await refused(alice.call("post", path, {"content": "other", "id": "k1"}), 409, "id_conflict")
    assert await db(Run.objects.filter(session_id=sid).count) == 1
    waits = await alice.call("post", path, {"content": "and this", "id": "k2"})
    assert waits.json()["status"] == "queued"
    await refused(alice.call("post", path, {"content": "no", "on_busy": "reject"}), 409, "busy")


async def test_keys_that_a_database_may_take_for_the_same_are_not(alice, sid):
    path = f"/chat/{sid}/messages"
    keys = ["key", "Key", "key ", "kéy", "ｋｅｙ", "straße", "strasse"]
    posted = [(await alice.call("post", path, {"content": "x", "id": key})).json() for key in keys]
    assert len({answer["message_id"] for answer in posted}) == len(keys)


async def test_stop_says_what_it_stopped(alice, sid):
    posted = (await alice.call("post", f"/chat/{sid}/messages", {"content": "hello"})).json()
    stopped = await alice.call("post", f"/chat/{sid}/interrupt", {"run_id": posted["run_id"]})
    body = stopped.json()
    assert stopped.status_code == 200
    assert body["status"] == "stopped"
    assert [run["run_id"] for run in body["runs"]] == [posted["run_id"]]
    assert set(body["runs"][0]) == {"run_id", "agent_id", "status"}
    again = await alice.call("post", f"/chat/{sid}/interrupt", {"run_id": posted["run_id"]})
    assert again.json()["status"] == "already_finished"
    await refused(
        alice.call("post", f"/chat/{sid}/interrupt", {"run_id": str(uuid.uuid4())}),
        404,
        "not_found",
    )


async def test_a_stop_that_is_not_yet_proved_is_accepted(alice, sid):
    posted = (await alice.call("post", f"/chat/{sid}/messages", {"content": "hello"})).json()
    await claim(posted["run_id"])
    stopped = await alice.call("post", f"/chat/{sid}/interrupt", {})
    assert stopped.json()["status"] == "accepted"


async def test_an_answer_to_no_question_is_not_found(alice, sid):
    for question_id in (str(uuid.uuid4()), "nonsense"):
        await refused(
            alice.call("post", f"/chat/{sid}/respond", {"question_id": question_id}),
            404,
            "not_found",
        )


async def test_what_there_is_to_read_is_read_in_pages(alice, sid):
    posted = (await alice.call("post", f"/chat/{sid}/messages", {"content": "hello"})).json()
    await finish(await claim(posted["run_id"]))
    for what in ("messages", "inbox", "worklog"):
        page = await alice.call("get", f"/chat/{sid}/{what}")
        assert page.status_code == 200, page.content
        assert set(page.json()) == {"items", "next"}
    messages = (await alice.call("get", f"/chat/{sid}/messages")).json()["items"]
    assert messages[0]["content"] == "hello"
    assert set(messages[0]) >= {"id", "role", "agent_id", "content", "parts", "status"}
    entries = (await alice.call("get", f"/chat/{sid}/worklog")).json()["items"]
    assert entries
    assert set(entries[0]) == {"at", "level", "kind", "agent_id", "run_id", "text"}
    await refused(alice.call("get", f"/chat/{sid}/inbox/{SOME_ID}/chain"), 404, "not_found")


# -- the queue ------------------------------------------------------------------------------------


async def test_the_queue_is_read_edited_and_emptied(alice, sid):
    posted = [
        (await alice.call("post", f"/chat/{sid}/messages", {"content": words})).json()
        for words in ("one", "two", "three")
    ]
    await claim(posted[0]["run_id"])
    path = f"/chat/{sid}/queue"
    two = {"id": posted[1]["message_id"], "content": "two"}
    three = {"id": posted[2]["message_id"], "content": "three"}
    assert (await alice.call("get", path)).json() == {"items": [two, three]}
    edited = await alice.call("patch", f"{path}/{two['id']}", {"content": "2"})
    assert (edited.status_code, edited.json()) == (200, {**two, "content": "2"})
    removed = await alice.call("delete", f"{path}/{three['id']}")
    assert (removed.status_code, removed.content) == (204, b"")
    shown = (await alice.call("get", f"/chat/{sid}")).json()
    assert shown["queue"] == [edited.json()]
    assert shown["run_id"] == posted[0]["run_id"]
    await refused(alice.call("delete", f"{path}/{three['id']}"), 409, "already_removed")
    started = f"{path}/{posted[0]['message_id']}"
    await refused(alice.call("patch", started, {"content": "x"}), 409, "already_started")
    await refused(alice.call("delete", started), 409, "already_started")


async def test_what_no_message_can_be_does_not_get_into_the_queue(alice, sid):
    for words in ("one", "two"):
        waits = (await alice.call("post", f"/chat/{sid}/messages", {"content": words})).json()
    path = f"/chat/{sid}/queue/{waits['message_id']}"
    await refused(alice.call("patch", path, {"content": " "}), 422, "empty")
    await refused(alice.call("patch", path, {"content": "a\x00"}), 422, "invalid")
    await refused(alice.call("patch", path, {"content": "x", "id": "k"}), 422, "invalid")
    await refused(alice.call("patch", path, {}), 422, "invalid")
    large = {"content": "x" * (conf.message_bytes + 1)}
    await refused(alice.call("patch", path, large), 413, "too_large")
    assert (await alice.call("get", f"/chat/{sid}/queue")).json()["items"][0]["content"] == "two"


async def test_a_message_of_another_session_is_in_no_queue_here(alice, mallory, sid):
    other = await mallory.new_session()
    for words in ("one", "two"):
        theirs = (await mallory.call("post", f"/chat/{other}/messages", {"content": words})).json()
    for message_id in (theirs["message_id"], str(uuid.uuid4()), "nonsense"):
        path = f"/chat/{sid}/queue/{message_id}"
        await refused(alice.call("patch", path, {"content": "mine"}), 404, "not_found")
        await refused(alice.call("delete", path), 404, "not_found")
    queue = (await mallory.call("get", f"/chat/{other}/queue")).json()["items"]
    assert queue == [{"id": theirs["message_id"], "content": "two"}]


# -- who asks -------------------------------------------------------------------------------------

SOME_ID = "0e5a6c1e-6a0e-4c0e-9f0a-5f2f4a1a7b10"
VERBS = [
    ("get", "/chat/{sid}", None),
    ("patch", "/chat/{sid}", {"title": "mine now"}),
    ("delete", "/chat/{sid}", None),
    ("post", "/chat/{sid}/messages", {"content": "hello"}),
    ("post", "/chat/{sid}/interrupt", {}),
    ("post", "/chat/{sid}/respond", {"question_id": SOME_ID}),
    ("get", "/chat/{sid}/events", None),
    ("get", "/chat/{sid}/events?cursor=0", None),
    ("get", "/chat/{sid}/events?cursor=999999", None),
    ("get", "/chat/{sid}/messages", None),
    ("get", "/chat/{sid}/inbox", None),
    ("get", f"/chat/{{sid}}/inbox/{SOME_ID}/chain", None),
    ("get", "/chat/{sid}/worklog", None),
    ("get", "/chat/{sid}/queue", None),
    ("patch", f"/chat/{{sid}}/queue/{SOME_ID}", {"content": "mine now"}),
    ("delete", f"/chat/{{sid}}/queue/{SOME_ID}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), VERBS)
async def test_a_strangers_session_is_one_that_never_was(
    alice, mallory, sid, method, path, body, django_assert_num_queries
):
    theirs = await refused(mallory.call(method, path.format(sid=sid), body), 404, "not_found")
    unknown = await refused(
        mallory.call(method, path.format(sid=uuid.uuid4()), body), 404, "not_found"
    )
    nonsense = await refused(mallory.call(method, path.format(sid="x"), body), 404, "not_found")
    assert theirs.content == unknown.content == nonsense.content
    chat = await db(ChatSession.objects.get, pk=sid)
    assert (chat.title, chat.deleted_at) == ("first", None)
    assert await db(Message.objects.filter(session=chat).count) == 0


async def test_a_strangers_session_is_no_cursor_either(mallory, sid):
    for known in (sid, str(uuid.uuid4())):
        told = await refused(mallory.call("get", f"/chat?after={known}"), 422, "invalid_cursor")
        assert known not in told.content.decode()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [*VERBS, ("get", "/chat", None), ("post", "/chat", {}), ("post", "/agui", {})],
)
async def test_without_a_user_nothing_is_told(sid, method, path, body):
    nobody = Caller(None, "")
    for headers in ({}, {"Authorization": ""}, {"Authorization": "Bearer nonsense"}):
        nobody.client = AsyncClient()
        told = await refused(
            nobody.call(method, path.format(sid=sid), body, **headers), 401, "unauthenticated"
        )
        assert told["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "change",
    [
        {"revoked_at": timezone.now()},
        {"expires_at": timezone.now() - timedelta(seconds=1)},
        {"digest": digest("another")},
    ],
)
async def test_a_token_that_is_over_opens_nothing(alice, sid, change):
    await db(ApiToken.objects.filter(user=alice.user).update, **change)
    await refused(alice.call("get", f"/chat/{sid}"), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [*(verb for verb in VERBS if "999999" not in verb[1]), ("get", "/chat", None),
     ("post", "/chat", {}), ("post", "/agui", {}), ("put", "/chat", {})],
)  # fmt: skip
async def test_a_token_that_may_read_changes_nothing(alice, sid, method, path, body):
    alice.token = await db(ApiToken.issue, alice.user, "", ApiToken.Scope.READ)
    answer = alice.call(method, path.format(sid=sid), body)
    if method == "get":
        unknown = SOME_ID in path  # a message that is not there is not there for readers, either
        assert (await answer).status_code == (404 if unknown else 200)
    elif method == "put":
        await refused(answer, 405, "method_not_allowed")
    else:
        told = await refused(answer, 403, "insufficient_scope")
        assert "--scope write" in told.json()["detail"]
    chat = await db(ChatSession.objects.get, pk=sid)
    assert (chat.title, chat.deleted_at) == ("first", None)
    assert await db(Message.objects.count) == 0
    assert await db(ChatSession.objects.count) == 1


async def test_a_token_dies_with_its_user(alice, sid):
    await db(get_user_model().objects.filter(pk=alice.user.pk).update, is_active=False)
    await refused(alice.call("get", f"/chat/{sid}"), 401, "unauthenticated")


async def test_a_cookie_needs_the_csrf_token_where_something_changes(alice, sid):
    browser = AsyncClient(enforce_csrf_checks=True)
    await browser.aforce_login(alice.user)
    assert (await browser.get(f"/api/chat/{sid}")).status_code == 200

    def post(**headers):
        path, body = f"/api/chat/{sid}/messages", json.dumps({"content": "hi"})
        return browser.post(path, body, content_type="application/json", headers=headers)

    await refused(post(), 403, "forbidden")
    browser.cookies["csrftoken"] = "a" * 32
    assert (await post(**{"X-CSRFToken": "a" * 32})).status_code == 202


async def test_a_wrong_token_is_not_mended_by_a_good_cookie(alice, sid):
    browser = AsyncClient()
    await browser.aforce_login(alice.user)
    wrong = browser.get(f"/api/chat/{sid}", headers={"Authorization": "Bearer nonsense"})
    await refused(wrong, 401, "unauthenticated")


# -- what is refused ------------------------------------------------------------------------------


async def test_a_message_has_a_limit_that_is_named(alice, sid):
    path = f"/chat/{sid}/messages"
    fits = "é" * (conf.message_bytes // 2)
    assert (await alice.call("post", path, {"content": fits})).status_code == 202
    over = await refused(alice.call("post", path, {"content": fits + "x"}), 413, "too_large")
    assert str(conf.message_bytes) in over.json()["detail"]
    await refused(alice.call("post", path, {"content": "x" * 20_000_000}), 413, "too_large")


@pytest.mark.parametrize(
    "body",
    [
        b'{"content": "a\\u0000b"}',
        b'{"content": "\\ud800"}',
        b'{"content": "a", "id": "\\udc00"}',
        b'{"content": "a", "extra": 1}',
        b'{"content": 5}',
        b'{"content": "a", "on_busy": "later"}',
        b'{"content": "a", "id": "' + b"k" * 129 + b'"}',
        b"{}",
        b"[]",
        b"null",
        b'"text"',
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused(alice, sid, body):
    await refused(alice.call("post", f"/chat/{sid}/messages", body), 422, "invalid")
    assert await db(Message.objects.filter(session_id=sid).count) == 0


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1} trailing'])
async def test_a_body_that_is_no_json_is_malformed(alice, sid, body):
    await refused(alice.call("post", f"/chat/{sid}/messages", body), 400, "malformed")


@pytest.mark.parametrize("payload", ['"a\\u0000"', "NaN", '{"a": ["\\ud800"]}', "1e999"])
async def test_an_answer_that_cannot_be_stored_is_refused(alice, sid, payload):
    body = f'{{"question_id": "{uuid.uuid4()}", "payload": {payload}}}'.encode()
    await refused(alice.call("post", f"/chat/{sid}/respond", body), 422, "invalid")


async def test_deeply_nested_payloads_break_nothing(alice, sid):
    body = f'{{"question_id": "{uuid.uuid4()}", "payload": {"[" * 900}{"]" * 900}}}'.encode()
    response = await alice.call("post", f"/chat/{sid}/respond", body)
    assert response.status_code in (400, 404, 422)


async def test_what_the_framework_refuses_is_json_too(alice, sid):
    wrong = await refused(alice.call("put", f"/chat/{sid}", {}), 405, "method_not_allowed")
    assert "GET" in wrong.headers["Allow"]
    for path in ("/nothing", "/chat/", "/", f"/chat/{sid}/nothing", "/chat/a/b/c/d"):
        await refused(alice.call("get", path), 404, "not_found")


@pytest.mark.parametrize("content", ["", " \n\t"])
async def test_an_empty_message_is_no_message(alice, sid, content):
    await refused(alice.call("post", f"/chat/{sid}/messages", {"content": content}), 422, "empty")


def test_what_is_refused_before_a_view_is_found_is_json_below_the_api_only(rf):
    for handler, status in ((errors.handler400, 400), (errors.handler404, 404)):
        answer = handler(rf.get("/api/chat"), Exception("secret"))
        assert (answer.status_code, set(json.loads(answer.content))) == (status, {"code", "detail"})
        assert handler(rf.get("/elsewhere"), Exception())["Content-Type"].startswith("text/html")
    assert json.loads(errors.handler500(rf.get("/api/chat")).content)["code"] == "error"


async def test_long_titles_are_refused_and_strange_ones_kept(alice):
    await refused(alice.call("post", "/chat", {"title": "x" * 201}), 422, "invalid")
    strange = "<script>alert(1)</script> \u202e 𝕏 \u2028"
    assert (await alice.call("post", "/chat", {"title": strange})).json()["title"] == strange


async def test_a_database_that_is_away_is_said(alice, sid, monkeypatch):
    async def away(*args, **kwargs):
        raise OperationalError(2002, "secret address")

    monkeypatch.setattr(actions, "post_message", away)
    answer = await refused(
        alice.call("post", f"/chat/{sid}/messages", {"content": "hi"}), 503, "unavailable"
    )
    assert b"secret" not in answer.content


async def test_our_own_fault_is_json_and_keeps_its_secrets(alice, sid, monkeypatch):
    async def broken(*args, **kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(actions, "stop", broken)
    answer = await refused(alice.call("post", f"/chat/{sid}/interrupt", {}), 500, "error")
    assert b"secret" not in answer.content


# -- tokens ---------------------------------------------------------------------------------------


async def test_api_token_prints_a_token_that_works_and_stores_its_hash(capsys):
    await db(call_command, "api_token", "carol", "--create", "--name", "laptop")
    token = capsys.readouterr().out.strip()
    row = await db(ApiToken.objects.get, name="laptop")
    assert row.digest == digest(token)
    assert (await Caller(None, token).call("get", "/chat")).status_code == 200
    assert not await db(
        lambda: get_user_model().objects.get(username="carol").has_usable_password()
    )


def test_api_token_does_not_make_users_unasked():
    with pytest.raises(CommandError, match="--create"):
        call_command("api_token", "nobody")


@pytest.mark.parametrize(
    ("life", "days"), [("90m", 90 / 1440), ("12h", 0.5), ("30d", 30), ("8w", 56)]
)
def test_a_token_may_have_an_end_and_a_scope(capsys, life, days):
    call_command("api_token", "carol", "--create", "--scope", "read", "--expires", life)
    row = ApiToken.objects.get(digest=digest(capsys.readouterr().out.strip()))
    assert row.scope == "read"
    assert row.is_valid
    assert abs(row.expires_at - row.created_at - timedelta(days=days)) < timedelta(seconds=5)


@pytest.mark.parametrize("life", ["0d", "-1d", "d", "30", "3y", "99999w"])
def test_an_end_that_is_none_makes_no_token(life):
    with pytest.raises(CommandError, match="30d"):
        call_command("api_token", "carol", "--create", f"--expires={life}")
    assert not ApiToken.objects.exists()


def test_tokens_are_listed_without_their_secret_and_revoked_once(capsys):
    for name, more in (("laptop", []), ("robot", ["--scope", "read"]), ("old", [])):
        call_command("api_token", "carol", "--create", "--name", name, *more)
    laptop, robot, old = ApiToken.objects.order_by("pk")
    ApiToken.objects.filter(pk=old.pk).update(expires_at=timezone.now())
    secrets = capsys.readouterr().out.split()
    call_command("api_token", "carol", "--revoke", str(laptop.pk))
    assert "is revoked" in capsys.readouterr().out
    call_command("api_token", "carol", "--revoke", str(laptop.pk))
    assert "was revoked before" in capsys.readouterr().out
    call_command("api_token", "carol", "--list")
    said = capsys.readouterr().out
    assert [line.split()[1:4] for line in said.splitlines()[1:]] == [
        ["laptop", "write", "revoked"], ["robot", "read", "valid"], ["old", "write", "expired"],
    ]  # fmt: skip
    assert not any(text in said for row in (laptop, robot, old) for text in [row.digest, *secrets])
    call_command("api_token", "dave", "--create")
    with pytest.raises(CommandError, match="no token"):
        call_command("api_token", "dave", "--revoke", str(robot.pk))
    robot.refresh_from_db()
    assert robot.is_valid


def test_tokens_are_told_to_programs(capsys):
    def told(*argv):
        call_command("api_token", "carol", "--create", "--json", *argv)
        return json.loads(capsys.readouterr().out)

    made = told("--name", "robot", "--expires", "30d")
    secret = made.pop("token")
    assert ApiToken.objects.get(pk=made["id"]).digest == digest(secret)
    assert (made["name"], made["scope"], made["state"]) == ("robot", "write", "valid")
    assert told("--list") == [made]
    revoked = told("--revoke", str(made["id"]))
    assert (revoked["state"], revoked["revoked_now"]) == ("revoked", True)
    assert told("--revoke", str(made["id"])) == {**revoked, "revoked_now": False}
