"""The WebSocket: each frame is answered, events come beside, and Stop waits for nobody."""

import asyncio
import json
import uuid

import pytest
from channels.testing import WebsocketCommunicator
from django.db import OperationalError

from agentsite.asgi import application
from chat import actions
from chat.models import ApiToken
from chat.transports import websocket
from coordination import prune, streams
from coordination.conf import conf
from coordination.db import db
from coordination.models import Run
from coordination.wakeups import Hub
from tests.clients import EVENT, Caller, claim, eventually, finish, say

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub(redis_server, monkeypatch):
    monkeypatch.setattr(conf, "stream_poll", 0.1)
    monkeypatch.setattr(conf, "stop_ack", 0.3)
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture
async def alice():
    return await Caller.named("alice")


@pytest.fixture
async def sid(alice):
    return await alice.new_session()


class Socket:
    """One connection: replies and events, each in their own list."""

    def __init__(self, sid, query="", headers=(), extensions=None):
        self.line = WebsocketCommunicator(
            application, f"/ws/chat/{sid}/{query}", headers=list(headers)
        )
        self.line.scope["extensions"] = extensions or {}
        self.events = []
        self.replies = []

    @classmethod
    async def of(cls, caller, sid, query=""):
        header = (b"authorization", f"Bearer {caller.token}".encode())
        socket = cls(sid, query, [header])
        connected, _ = await socket.line.connect(timeout=20)
        assert connected
        return socket

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc_info):
        await self.line.disconnect()

    async def receive(self, timeout=20):
        frame = json.loads(await self.line.receive_from(timeout=timeout))
        if "event" in frame:
            EVENT.validate_python(frame["event"])
            self.events.append((frame["id"], frame["event"]))
        else:
            self.replies.append(frame)
        return frame

    async def reply(self, ref):
        while True:
            for frame in self.replies:
                if frame["ref"] == ref:
                    return frame
            await self.receive()

    async def ask(self, ref="r", **frame):
        await self.send(ref=ref, **frame)
        return await self.reply(ref)

    async def send(self, **frame):
        await self.line.send_to(text_data=json.dumps(frame))

    async def until(self, kind):
        while not self.events or self.events[-1][1]["type"] != kind:
            await self.receive()
        return self.events


async def refusal(socket):
    connected, code = await socket.line.connect(timeout=20)
    assert not connected
    return code


# -- who may ---------------------------------------------------------------------------------------


async def test_without_a_user_no_socket_opens(sid):
    assert await refusal(Socket(sid)) == 4401
    assert await refusal(Socket(sid, headers=[(b"authorization", b"Bearer no")])) == 4401
    assert await refusal(Socket(sid, headers=[(b"authorization", b"nonsense")])) == 4401


async def test_a_strangers_session_is_one_that_never_was(sid):
    mallory = await Caller.named("mallory")
    header = [(b"authorization", f"Bearer {mallory.token}".encode())]
    for session_id in (sid, uuid.uuid4(), "nonsense"):
        assert await refusal(Socket(session_id, headers=header)) == 4404
        assert await refusal(Socket(session_id, "?cursor=99999", headers=header)) == 4404


async def test_a_server_that_can_say_why_says_it(sid):
    socket = Socket(sid, extensions={"websocket.http.response": {}})
    await socket.line.send_input({"type": "websocket.connect"})
    start = await socket.line.receive_output(20)
    body = await socket.line.receive_output(20)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert json.loads(body["body"])["code"] == "unauthenticated"
    await socket.line.wait()


async def test_a_browser_comes_in_by_its_cookie(alice, sid):
    await alice.client.aforce_login(alice.user)
    cookie = alice.client.cookies["sessionid"].value
    headers = [(b"cookie", f"sessionid={cookie}".encode()), (b"origin", b"http://localhost:8000")]
    socket = Socket(sid, headers=headers)
    assert (await socket.line.connect(timeout=20))[0]
    async with socket:
        assert (await socket.ask(type="interrupt"))["ok"]["status"] == "no_active_run"
    elsewhere = [headers[0], (b"origin", b"https://evil.example")]
    connected, _ = await Socket(sid, headers=elsewhere).line.connect(timeout=20)
    assert not connected


async def test_a_token_that_may_read_follows_and_changes_nothing(alice, sid):
    reader = Caller(alice.user, await db(ApiToken.issue, alice.user, "", ApiToken.Scope.READ))
    async with await Socket.of(reader, sid) as socket:
        await socket.until("MESSAGES_SNAPSHOT")
        for frame in (
            {"type": "message", "content": "hi"},
            {"type": "interrupt"},
            {"type": "respond", "question_id": str(uuid.uuid4())},
        ):
            refused = (await socket.ask(frame["type"], **frame))["error"]
            assert refused["code"] == "insufficient_scope"
            assert "--scope write" in refused["detail"]
        assert "ok" in await socket.ask("a", type="ack", id=0)
    assert await db(Run.objects.filter(session_id=sid).count) == 0


@pytest.mark.parametrize("query", ["?cursor=x", "?cursor=99999", "?window=0", "?window=x"])
async def test_numbers_that_are_none_open_nothing(alice, sid, query):
    header = [(b"authorization", f"Bearer {alice.token}".encode())]
    assert await refusal(Socket(sid, query, headers=header)) == 4422


# -- verbs ----------------------------------------------------------------------------------------


async def test_a_conversation_over_one_socket(alice, sid):
    async with await Socket.of(alice, sid) as socket:
        await socket.until("MESSAGES_SNAPSHOT")
        posted = (await socket.ask("m", type="message", content="hello", id="k"))["ok"]
        assert set(posted) == {"message_id", "run_id", "status"}
        run = await claim(posted["run_id"])
        await say(run, "a", "b", message_id=str(uuid.uuid4()))
        stopped = await socket.ask("s", type="interrupt")
        assert stopped["ok"]["status"] == "accepted"
        await finish(run, "interrupted", "interrupted")
        events = await socket.until("RUN_FINISHED")
        ids = [seq for seq, _ in events if seq]
        assert ids == list(range(ids[0], ids[0] + len(ids)))
        again = await socket.ask("m2", type="message", content="hello", id="k")
        assert again["ok"] == posted
        other = await socket.ask("m3", type="message", content="other", id="k")
        assert other["error"]["code"] == "id_conflict"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "malformed"),
        ("[]", "malformed"),
        ("[" * 100_000, "malformed"),
        ("{}", "unknown_type"),
        ('{"type": "shout"}', "unknown_type"),
        ('{"type": ["message"]}', "unknown_type"),
        ('{"type": "message"}', "invalid"),
        ('{"type": "message", "content": "a", "extra": 1}', "invalid"),
        ('{"type": "message", "content": "a\\u0000"}', "invalid"),
        ('{"type": "message", "content": "\\ud800"}', "invalid"),
        ('{"type": "message", "content": " "}', "empty"),
        ('{"type": "ack", "id": -1}', "invalid"),
        ('{"type": "interrupt", "ref": NaN}', "invalid"),
        ('{"type": "interrupt", "ref": {"a": 1}}', "invalid"),
        ('{"type": "respond", "question_id": "x"}', "not_found"),
        ('{"type": "interrupt", "run_id": "x"}', "not_found"),
    ],
)
async def test_a_frame_that_cannot_be_meant_is_answered_and_the_socket_lives(
    alice, sid, text, code
):
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        await socket.line.send_to(text_data=text)
        while not socket.replies:
            await socket.receive()
        assert socket.replies[0]["error"]["code"] == code
        assert socket.replies[0]["error"]["detail"]
        assert (await socket.ask(type="interrupt"))["ok"]["status"] == "no_active_run"
    assert await db(Run.objects.filter(session_id=sid).count) == 0


async def test_a_database_that_is_away_opens_nothing(alice, sid, monkeypatch):
    async def away(*args):
        raise OperationalError(2002, "secret address")

    monkeypatch.setattr(actions, "find_session", away)
    header = [(b"authorization", f"Bearer {alice.token}".encode())]
    assert await refusal(Socket(sid, headers=header)) == websocket.TRY_AGAIN_LATER


async def test_bytes_and_large_frames_are_answered_too(alice, sid):
    async with await Socket.of(alice, sid) as socket:
        frame = {"type": "message", "content": "x" * (conf.message_bytes + 1), "ref": 1}
        await socket.send(**frame)
        assert (await socket.reply(1))["error"]["code"] == "too_large"
        await socket.line.send_to(bytes_data=b'{"type": "interrupt", "ref": 2}')
        assert (await socket.reply(2))["ok"]["status"] == "no_active_run"
        await socket.line.send_to(bytes_data=b"\xff\xfe")
        assert (await socket.reply(None))["error"]["code"] == "malformed"


async def test_our_own_fault_is_answered_without_its_secrets(alice, sid, monkeypatch):
    async def broken(*args, **kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(actions, "post_message", broken)
    async with await Socket.of(alice, sid) as socket:
        answer = await socket.ask(type="message", content="hi")
    assert answer["error"]["code"] == "error"
    assert "secret" not in json.dumps(answer)


async def test_messages_keep_their_order(alice, sid):
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        for number in range(20):
            await socket.send(type="message", content=str(number), ref=number)
        for number in range(20):
            assert "ok" in await socket.reply(number)
        shown = (await alice.call("get", f"/chat/{sid}")).json()
    said = [m["content"] for m in shown["messages"]] + [m["content"] for m in shown["queue"]]
    assert said == [str(number) for number in range(20)]


async def test_a_stop_overtakes_frames_that_wait(alice, sid, monkeypatch):
    posted = (await alice.call("post", f"/chat/{sid}/messages", {"content": "first"})).json()
    release = asyncio.Event()
    real = actions.post_message

    async def slow(*args, **kwargs):
        await release.wait()
        return await real(*args, **kwargs)

    monkeypatch.setattr(actions, "post_message", slow)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        for number in range(5):
            await socket.send(type="message", content=str(number), ref=number)
        stopped = await socket.ask("s", type="interrupt", run_id=posted["run_id"])
        assert stopped["ok"]["status"] == "stopped"
        assert not [reply for reply in socket.replies if reply["ref"] != "s"]
        release.set()
        await socket.reply(4)


async def test_a_stop_right_after_a_message_stops_that_message(alice, sid, monkeypatch):
    real = actions.post_message

    async def slow(*args, **kwargs):
        await asyncio.sleep(0.2)
        return await real(*args, **kwargs)

    monkeypatch.setattr(actions, "post_message", slow)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        await socket.send(type="message", content="oops", ref="m")
        stopped = await socket.ask("s", type="interrupt")
        posted = (await socket.reply("m"))["ok"]
    assert stopped["ok"]["status"] == "stopped"
    assert [run["run_id"] for run in stopped["ok"]["runs"]] == [posted["run_id"]]
    run = await db(Run.objects.get, pk=posted["run_id"])
    assert run.status == Run.Status.INTERRUPTED


async def test_a_stop_never_takes_the_message_that_waits_behind_the_turn(alice, sid, monkeypatch):
    running = (await alice.call("post", f"/chat/{sid}/messages", {"content": "first"})).json()
    real = actions.post_message

    async def slow(*args, **kwargs):
        await asyncio.sleep(0.2)
        return await real(*args, **kwargs)

    monkeypatch.setattr(actions, "post_message", slow)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        await socket.send(type="message", content="and then this", ref="m")
        stopped = (await socket.ask("s", type="interrupt"))["ok"]
        posted = (await socket.reply("m"))["ok"]
    assert [run["run_id"] for run in stopped["runs"]] == [running["run_id"]]
    run = await db(Run.objects.get, pk=posted["run_id"])
    assert (run.status, run.stop_requested_at) == (Run.Status.QUEUED, None)


async def test_a_socket_has_a_bounded_number_of_frames_under_way(alice, sid, monkeypatch):
    release = asyncio.Event()

    async def stuck(*args, **kwargs):
        await release.wait()
        raise RuntimeError("never mind")

    monkeypatch.setattr(actions, "post_message", stuck)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        for number in range(websocket.VERBS_AT_ONCE + 1):
            await socket.send(type="message", content="x", ref=number)
        over = await socket.reply(websocket.VERBS_AT_ONCE)
        assert over["error"]["code"] == "too_many_frames"
        stopped = await socket.ask("s", type="interrupt", run_id=str(uuid.uuid4()))
        assert stopped["error"]["code"] == "not_found"
        release.set()
        await socket.reply(0)


async def test_what_was_asked_for_is_done_though_the_socket_is_gone(alice, sid, monkeypatch):
    real = actions.post_message

    async def slow(*args, **kwargs):
        await asyncio.sleep(0.2)
        return await real(*args, **kwargs)

    monkeypatch.setattr(actions, "post_message", slow)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        await socket.send(type="message", content="keep this")
        await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        while not await db(Run.objects.filter(session_id=sid).exists):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- events ---------------------------------------------------------------------------------------


async def write(alice, sid, pieces):
    posted = await alice.call("post", f"/chat/{sid}/messages", {"content": "go"})
    run = await claim(posted.json()["run_id"])
    await say(run, *pieces, message_id=str(uuid.uuid4()))
    await finish(run)


async def test_a_cursor_resumes_after_it(alice, sid):
    await write(alice, sid, "abcdef")
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        whole = list(await socket.until("RUN_FINISHED"))
    for cut in range(1, len(whole), 3):
        async with await Socket.of(alice, sid, f"?cursor={whole[cut - 1][0]}") as socket:
            assert whole[:cut] + await socket.until("RUN_FINISHED") == whole


async def test_a_cursor_inside_of_what_was_folded_gets_the_state_first(alice, sid):
    await write(alice, sid, "abcdef")
    await db(prune.prune, 0)
    async with await Socket.of(alice, sid, "?cursor=2") as socket:
        found = await socket.until("MESSAGES_SNAPSHOT")
        assert found[-1][1]["messages"][-1]["content"] == "abcdef"
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        found = await socket.until("RUN_FINISHED")
        assert [e["delta"] for _, e in found if "delta" in e] == ["abcdef"]


async def test_a_window_holds_the_server_back(alice, sid):
    await write(alice, sid, [str(number) for number in range(30)])
    async with await Socket.of(alice, sid, "?cursor=0&window=4") as socket:
        for _ in range(4):
            await socket.receive()
        assert await socket.line.receive_nothing(0.3)
        await socket.send(type="ack", id=socket.events[1][0])
        for _ in range(2):
            await socket.receive()
        assert len(socket.events) == 6
        assert await socket.line.receive_nothing(0.3)
        stopped = await socket.ask("s", type="interrupt")  # and Stop is not held back
        assert stopped["ok"]["status"] == "no_active_run"
        while socket.events[-1][1]["type"] != "RUN_FINISHED":
            await socket.send(type="ack", id=socket.events[-1][0])
            await socket.receive()
        ids = [seq for seq, _ in socket.events]
        assert ids == list(range(1, len(ids) + 1))


async def test_a_socket_that_leaves_leaves_nothing(alice, sid):
    sockets = [await Socket.of(alice, sid) for _ in range(3)]
    for socket in sockets:
        await socket.until("MESSAGES_SNAPSHOT")
    await eventually(lambda: streams.followers() == 3)
    for socket in sockets:
        await socket.line.disconnect()
    await eventually(lambda: streams.followers() == 0)


async def test_sockets_of_a_deleted_session_close(alice, sid, monkeypatch):
    monkeypatch.setattr(conf, "stream_keepalive", 0.05)
    async with await Socket.of(alice, sid, "?cursor=0") as socket:
        assert (await alice.call("delete", f"/chat/{sid}")).status_code == 204
        async with asyncio.timeout(20):
            while (output := await socket.line.receive_output(20))["type"] != "websocket.close":
                pass
        assert output["code"] == 4404
