"""What nobody means and somebody sends: refused, or kept and shown as the text that it is."""

import json
import uuid
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model

from chat.models import ChatSession, Message
from coordination.db import db
from coordination.models import Question
from coordination.wakeups import Hub
from tests.clients import Caller, claim
from tests.test_websocket import Socket

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = str(uuid.UUID(int=1))
NUL, HALF = "a\x00b", "a\ud800b"
LARGE = "x" * 20_000_000
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)> {{ 7 * 7 }} \u202e ]]> '\"&amp;"


def agui(**changes):
    message = {"id": "m", "role": "user", "content": "hello"}
    message |= {name: changes.pop(name) for name in ("id", "content") if name in changes}
    return {"threadId": NOWHERE, "runId": "r", "messages": [message], **changes}


# Each place for text in a body of the API.
PLACES = {
    "title": ("post", "/chat", lambda text: {"title": text}),
    "new title": ("patch", "/chat/{sid}", lambda text: {"title": text}),
    "message": ("post", "/chat/{sid}/messages", lambda text: {"content": text}),
    "key": ("post", "/chat/{sid}/messages", lambda text: {"content": "a", "id": text}),
    "waiting": ("patch", f"/chat/{{sid}}/queue/{NOWHERE}", lambda text: {"content": text}),
    "run": ("post", "/chat/{sid}/interrupt", lambda text: {"run_id": text}),
    "agent": ("post", "/chat/{sid}/interrupt", lambda text: {"agent_id": text}),
    "question": ("post", "/chat/{sid}/respond", lambda text: {"question_id": text}),
    "answer": (
        "post", "/chat/{sid}/respond", lambda text: {"question_id": NOWHERE, "payload": [text]},
    ),
    "form": (
        "post", "/chat/{sid}/respond", lambda text: {"question_id": NOWHERE, "payload": {text: 1}},
    ),
    "AG-UI message": ("post", "/agui", lambda text: agui(content=text)),
    "AG-UI key": ("post", "/agui", lambda text: agui(id=text)),
    "AG-UI thread": ("post", "/agui", lambda text: agui(threadId=text)),
    "AG-UI answer": (
        "post", "/agui", lambda text: agui(resume=[
            {"interruptId": NOWHERE, "status": "resolved", "payload": text}
        ]),
    ),
}  # fmt: skip
FRAMES = [
    lambda text: {"type": "message", "content": text},
    lambda text: {"type": "message", "content": "a", "id": text},
    lambda text: {"type": "respond", "question_id": NOWHERE, "payload": {"a": text}},
    lambda text: {"type": "interrupt", "agent_id": text},
    lambda text: {"type": text},
]


@pytest.fixture(autouse=True)
async def hub(redis_server):
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture
async def alice():
    return await Caller.named("alice")


@pytest.fixture
async def sid(alice):
    return await alice.new_session(title="first")


async def nothing_has_changed(sid):
    def look():
        assert [str(chat.pk) for chat in ChatSession.objects.all()] == [sid]
        assert ChatSession.objects.get().title == "first"
        assert not Message.objects.exists()

    await db(look)


@pytest.mark.parametrize("place", PLACES)
async def test_text_that_no_column_holds_is_refused_wherever_it_stands(alice, sid, place):
    method, path, body = PLACES[place]
    for text, statuses in ((NUL, (404, 422)), (HALF, (404, 422)), (LARGE, (413,))):
        answer = await alice.call(method, path.format(sid=sid), body(text))
        assert answer.status_code in statuses, (text[:9], answer.content)
        assert set(answer.json()) == {"code", "detail"}
        assert len(answer.content) < 2000  # it does not give back what it does not take
    if place == "AG-UI answer":
        return  # its session is made: the answer is looked at only then
    await nothing_has_changed(sid)


@pytest.mark.parametrize("number", range(len(FRAMES)))
async def test_frames_that_nobody_can_mean_are_refused_and_the_socket_lives(alice, sid, number):
    async with await Socket.of(alice, sid) as socket:
        for ref, text in (("nul", NUL), ("half", HALF), ("large", LARGE)):
            reply = await socket.ask(ref, **FRAMES[number](text)) if ref != "large" else None
            if reply is None:
                await socket.send(ref=ref, **FRAMES[number](text))
                reply = await socket.reply(None)  # it is not even looked into
            assert set(reply["error"]) == {"code", "detail"}, ref
        assert (await socket.ask("s", type="interrupt"))["ok"]["status"] == "no_active_run"
    await nothing_has_changed(sid)


@pytest.mark.parametrize(
    "text", ["%00", "%ED%A0%80", "9" * 5000, "-1", "1e9", "%F0%9F%98%80", "..%2F..", MARKUP]
)
async def test_addresses_that_nobody_can_mean_find_nothing(alice, sid, text):
    for path in (
        f"/chat/{text}", f"/chat/{text}/messages", f"/chat/{text}/events",
        f"/chat/{sid}/inbox/{text}/chain",
    ):  # fmt: skip
        assert (await alice.call("get", path)).status_code == 404, path
    for path in (
        f"/chat?after={text}", f"/chat/{sid}/messages?before={text}",
        f"/chat/{sid}/inbox?after={text}", f"/chat/{sid}/worklog?after={text}",
        f"/chat/{sid}/events?cursor={text}",
    ):  # fmt: skip
        assert (await alice.call("get", path)).status_code == 422, path
    nobodys = await alice.call("get", f"/chat/{sid}/messages?agent_id={text}")
    assert nobodys.json() == {"items": [], "next": None}


async def test_markup_and_many_lines_are_kept_to_the_letter_and_are_no_page(alice, sid):
    said = "\n".join(f"{number} {MARKUP}" for number in range(10_000))
    assert (await alice.call("patch", f"/chat/{sid}", {"title": MARKUP})).status_code == 200
    posted = await alice.call("post", f"/chat/{sid}/messages", {"content": said, "id": MARKUP})
    await claim(posted.json()["run_id"])
    shown = await alice.call("get", f"/chat/{sid}")
    assert shown.json()["title"] == MARKUP
    assert shown.json()["messages"][0]["content"] == said
    assert shown["Content-Type"].startswith("application/json")
    assert shown["X-Content-Type-Options"] == "nosniff"


async def test_an_answer_is_kept_to_the_letter(alice, sid):
    posted = await alice.call("post", f"/chat/{sid}/messages", {"content": "hello"})
    run = await claim(posted.json()["run_id"])

    def ask():
        return Question.objects.create(
            session_id=sid, run=run, agent_id="assistant", tool_call_id="c", ui_type="text",
            question=MARKUP, options=[], expires_at=run.queued_at.replace(year=9999),
        )  # fmt: skip

    question = await db(ask)
    body = {"question_id": str(question.pk), "payload": MARKUP}
    assert (await alice.call("post", f"/chat/{sid}/respond", body)).status_code == 202
    await db(question.refresh_from_db)
    assert (question.question, question.answer) == (MARKUP, MARKUP)


def test_a_body_that_is_too_deep_to_read_is_refused_by_the_page_too(client):
    client.force_login(get_user_model().objects.create_user("ann"))
    answer = client.post("/rendered/", "[" * 100_000, content_type="application/json")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("text", "status"), [(NUL, 422), (HALF, 422), (LARGE, 400), (MARKUP, 200), ("[" * 50_000, 200)]
)
def test_the_pages_own_calls_take_anything(client, text, status):
    client.force_login(get_user_model().objects.create_user("ann"))
    body = json.dumps({"texts": [text]})
    answer = client.post("/rendered/", body, content_type="application/json")
    assert answer.status_code == status
    assert "<script>" not in answer.content.decode()
    client.logout()
    form = {"username": text[:50].encode(errors="replace"), "password": "x"}
    assert client.post("/accounts/login/", form).status_code == 200
    link = quote(text[:50], "", errors="replace")
    assert client.get(f"/signin/{link}/").status_code in (404, 410)
