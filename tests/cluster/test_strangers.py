"""Another user, and no user, on every call, stream, socket and id (trial 45)."""

import statistics
import time
import uuid

import pytest
from websockets.exceptions import InvalidStatus

from tests.cluster.client import Api, Chat, custom, finished, first

NOBODY = None
BODIES = {
    "/messages": {"content": "hello", "on_busy": "interrupt"},
    "/respond": {"question_id": str(uuid.uuid4()), "payload": "yes"},
    "/queue/{message_id}": {"content": "mine now"},
    "": {"title": "mine now"},
}


@pytest.fixture
def suspended(site):
    """A session of alice's: a question is open, a message has been sent between agents."""
    delegate = {"to": "researcher", "content": "$SCRIPT"}
    chat = site.session("alice")
    script = site.play(
        assistant=[
            [
                {"call": "send_message", "args": delegate},
                {"call": "ask_user", "args": {"question": "Shall I?", "ui_type": "confirm"}},
            ],
            [{"text": "done"}],
        ],
        researcher=[[{"text": "found"}]],
    )
    with chat.events() as reader:
        chat.post(script)
        reader.until(custom("ax", agentId="researcher"))
        reader.until(custom("question", state="open"))
        reader.until(first("RUN_FINISHED"))
    return chat


def calls(site, sid, mid):
    """Every call of the API that names a session, from its own description."""
    paths = site.api().http.get("/api/openapi.json").json()["paths"]
    for path, verbs in paths.items():
        for verb in verbs:
            if "{sid}" in path:
                body = BODIES.get(path.partition("{sid}")[2]) if verb != "get" else None
                yield verb.upper(), path.format(sid=sid, mid=mid, message_id=mid), body


def agui_input(sid):
    message = {"id": str(uuid.uuid4()), "role": "user", "content": "hello"}
    return {
        "threadId": sid,
        "runId": "run",
        "state": {},
        "messages": [message],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }


def answered(url, token, method, path, body):
    response = Api(url, token).http.request(method, path, json=body)
    return response.status_code, response.json()


def test_strangers_find_nothing_and_change_nothing(site, suspended):
    message = suspended.inbox()[0]["id"]
    before = suspended.snapshot()
    eve = site.token("eve")
    tried = 0
    for url in (site.web(1), site.web(2)):
        for method, path, body in calls(site, suspended.id, message):
            unknown = path.replace(suspended.id, str(uuid.uuid4())).replace(
                message, str(uuid.uuid4())
            )
            there = answered(url, eve, method, path, body)
            assert there[0] == 404, (method, path, there)
            assert there == answered(url, eve, method, unknown, body)
            for token in (NOBODY, "wrong"):
                assert answered(url, token, method, path, body)[0] == 401, (method, path)
            tried += 1
        for token, status in ((eve, 404), (NOBODY, 401)):
            found = answered(url, token, "POST", "/api/agui", agui_input(suspended.id))
            assert found[0] == status, found
    assert tried >= 2 * 11
    assert suspended.snapshot() == before


def test_a_stranger_has_no_list_and_no_new_session_without_a_name(site, suspended):
    listed = site.api("eve").call("GET", "/chat")["items"]
    assert suspended.id not in {item["id"] for item in listed}
    for method in ("GET", "POST"):
        assert answered(site.web(1), NOBODY, method, "/api/chat", None)[0] == 401


@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_strangers_get_no_socket(site, suspended, server, request):
    url = site.web(1) if server == "daphne" else request.getfixturevalue("uvicorn_url")
    # Daphne can only close a handshake, and that is 403 whatever the reason.
    expected = {"daphne": (403, 403), "uvicorn": (404, 401)}[server]
    for token, status in zip((site.token("eve"), NOBODY), expected, strict=True):
        statuses = set()
        for sid in (suspended.id, str(uuid.uuid4())):
            with pytest.raises(InvalidStatus) as refused:
                Chat(Api(url, token), sid).socket()
            statuses.add(refused.value.response.status_code)
        assert statuses == {status}


def test_ids_of_others_are_unknown_in_ones_own_session(site, suspended):
    """A run, a question, a message: none is reached through another session."""
    snapshot = suspended.snapshot()
    (question,) = snapshot["questions"]
    mine = site.session("eve", web=2)
    for method, call, body in (
        ("POST", "/interrupt", {"run_id": snapshot["run_id"]}),
        ("POST", "/interrupt", {"agent_id": "researcher"}),
        ("POST", "/respond", {"question_id": question["id"], "payload": True}),
        ("GET", f"/inbox/{suspended.inbox()[0]['id']}/chain", None),
    ):
        path = f"/api/chat/{mine.id}{call}"
        status, _ = answered(site.web(2), mine.api.token, method, path, body)
        assert status == 404, path
    assert suspended.snapshot() == snapshot
    with suspended.events() as reader:
        run_id = suspended.respond(question["id"], payload=True)["run_id"]
        reader.until(finished(run_id))


def test_the_time_of_the_answer_does_not_tell_either(site, suspended):
    eve = site.api("eve")
    took: dict[str, list[float]] = {suspended.id: [], str(uuid.uuid4()): []}
    for _ in range(60):
        for sid, times in took.items():
            begun = time.perf_counter()
            assert eve.http.get(f"/api/chat/{sid}").status_code == 404
            times.append(time.perf_counter() - begun)
    theirs, nobodys = map(statistics.median, took.values())
    # One more query would be half as long again.
    assert abs(theirs - nobodys) < max(theirs, nobodys) / 3, (theirs, nobodys)
