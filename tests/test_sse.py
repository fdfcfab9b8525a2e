"""Server-sent events: a state where there is no cursor, then the log; nothing missing or twice."""

import asyncio
import gc
import json
import uuid
from contextlib import aclosing

import pytest
from ag_ui.core import MessagesSnapshotEvent
from django.utils import timezone

from chat.models import ApiToken
from chat.transports import sse, streaming
from chat.transports.agui_messages import to_agui
from coordination import prune, streams
from coordination.conf import conf
from coordination.db import db
from coordination.models import Event, Session
from coordination.wakeups import Hub
from tests.clients import EVENT, Caller, claim, eventually, finish, frames, say, take, take_until
from tests.verifier import verify

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub(redis_server, monkeypatch):
    monkeypatch.setattr(conf, "stream_poll", 0.1)
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture
async def alice():
    return await Caller.named("alice")


@pytest.fixture
async def sid(alice):
    return await alice.new_session()


async def post(caller, sid, content="hello"):
    response = await caller.call("post", f"/chat/{sid}/messages", {"content": content})
    assert response.status_code == 202, response.content
    return response.json()["run_id"]


async def connect(caller, sid, query="", **headers):
    """The events of a session, as a client gets them."""
    response = await caller.call("get", f"/chat/{sid}/events{query}", **headers)
    assert response.status_code == 200, response.content
    return frames(response)


async def listen(caller, sid, query="", count=1000, **headers):
    """The next events of a session."""
    async with aclosing(await connect(caller, sid, query, **headers)) as found:
        return await take(found, count)


def kinds(found):
    return [event["type"] for _, event in found]


def said(found):
    return "".join(e["delta"] for _, e in found if e["type"] == "TEXT_MESSAGE_CONTENT")


async def test_nothing_on_the_way_may_hold_the_stream_back(alice, sid):
    response = await alice.call("get", f"/chat/{sid}/events")
    assert response["Content-Type"].startswith("text/event-stream")
    assert response["X-Accel-Buffering"] == "no"
    assert response["Cache-Control"] == "no-cache, no-transform"
    assert not response.has_header("Content-Length")


async def test_without_a_cursor_the_state_comes_first(alice, sid):
    idle = await listen(alice, sid, count=2)
    assert kinds(idle) == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]
    assert idle[0][1]["snapshot"]["status"] == "idle"

    run = await claim(await post(alice, sid))
    await say(run, "half a ", "sentence", message_id=str(uuid.uuid4()), ended=False)
    found = await listen(alice, sid, count=3)
    assert kinds(found) == ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]
    assert found[0][1]["runId"] == str(run.pk)
    assert set(found[1][1]["snapshot"]) == {"status", "run_id", "agents", "questions", "queue"}
    asked, partial = found[2][1]["messages"]
    assert (asked["role"], asked["content"]) == ("user", "hello")
    assert (partial["role"], partial["content"]) == ("assistant", "half a sentence")


async def test_a_run_that_waits_in_the_queue_has_not_started(alice, sid):
    await post(alice, sid)
    found = await listen(alice, sid, count=2)
    assert kinds(found) == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]
    assert found[0][1]["snapshot"]["status"] == "queued"


async def test_the_state_goes_over_into_the_log_without_a_gap_or_a_repeat(alice, sid):
    run = await claim(await post(alice, sid))
    message_id = str(uuid.uuid4())
    await say(run, "abc", message_id=message_id, ended=False)
    stream = await connect(alice, sid)
    found = await take(stream, 3)
    await finish(run)
    found += await take_until(stream, "RUN_FINISHED")
    ids = [seq for seq, _ in found]
    assert ids[:2] == [0, 0]
    assert ids[2:] == list(range(ids[2], ids[2] + len(ids) - 2))


async def test_a_stream_that_is_cut_anywhere_resumes_to_the_letter(alice, sid):
    run = await claim(await post(alice, sid))
    await say(run, *(f"{number} " for number in range(30)), message_id=str(uuid.uuid4()))
    await finish(run)
    whole = await listen(alice, sid, "?cursor=0", count=await db(last_seq, sid))
    assert [seq for seq, _ in whole] == list(range(1, len(whole) + 1))
    assert said(whole) == "".join(f"{number} " for number in range(30))
    for cut in range(1, len(whole), 5):
        rest = await listen(
            alice, sid, count=len(whole) - cut, **{"Last-Event-ID": str(whole[cut - 1][0])}
        )
        assert whole[:cut] + rest == whole


def last_seq(sid):
    return Session.objects.get(pk=sid).last_seq


async def test_the_header_wins_over_the_address(alice, sid):
    run = await claim(await post(alice, sid))
    await finish(run)
    found = await listen(alice, sid, "?cursor=0", count=1, **{"Last-Event-ID": "2"})
    assert found[0][0] == 3


async def test_cut_off_inside_the_state_everything_comes_again(alice, sid):
    run = await claim(await post(alice, sid))
    found = await listen(alice, sid, count=1)
    again = await listen(alice, sid, count=1, **{"Last-Event-ID": str(found[0][0])})
    assert again[0][0] == 1
    assert (await db(Event.objects.filter(session_id=sid, run_id=run.pk).count)) > 0


async def test_of_a_folded_log_the_whole_is_replayed_and_a_part_begins_with_the_state(alice, sid):
    run = await claim(await post(alice, sid))
    await say(run, *(f"{number} " for number in range(30)), message_id=str(uuid.uuid4()))
    await finish(run)
    whole = await listen(alice, sid, "?cursor=0", count=await db(last_seq, sid))
    assert (await db(prune.prune, 0)).removed == 29
    replayed = await listen(alice, sid, "?cursor=0", count=len(whole) - 29)
    verify(event for _, event in replayed)
    assert said(replayed) == said(whole)
    assert kinds(replayed)[-1] == kinds(whole)[-1] == "RUN_FINISHED"
    last = whole[-1][0]
    for cursor in (1, last // 2, last - 1):
        found = await listen(alice, sid, count=2, **{"Last-Event-ID": str(cursor)})
        assert kinds(found) == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]
        assert found[1][0] == last
        assert found[1][1]["messages"][-1]["content"] == said(whole)
    again = await claim(await post(alice, sid))
    following = await listen(alice, sid, count=1, **{"Last-Event-ID": str(last)})
    assert (following[0][0], following[0][1]["runId"]) == (last + 1, str(again.pk))


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "1e3", "999999", "９", "9" * 40])
async def test_a_cursor_that_no_event_has_is_refused(alice, sid, cursor):
    for query, headers in ((f"?cursor={cursor}", {}), ("", {"Last-Event-ID": cursor})):
        if headers and not cursor.isascii():
            continue
        response = await alice.call("get", f"/chat/{sid}/events{query}", **headers)
        assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")


async def test_a_response_has_an_end_and_its_reader_comes_again(alice, sid, monkeypatch):
    """Daphne keeps what a client does not read, so no response may grow without bound."""
    monkeypatch.setattr(conf, "stream_chars", 1000)
    monkeypatch.setattr(streams, "PAGE", 3)
    run = await claim(await post(alice, sid))
    await say(run, *(f"{number} " for number in range(30)), message_id=str(uuid.uuid4()))
    await finish(run)
    whole, responses = [], 0
    while not whole or kinds(whole)[-1] != "RUN_FINISHED":
        cursor = str(whole[-1][0]) if whole else "0"
        whole += await listen(alice, sid, **{"Last-Event-ID": cursor})
        responses += 1
    assert responses > 3
    assert [seq for seq, _ in whole] == list(range(1, len(whole) + 1))


async def test_silence_is_broken_by_comments(alice, sid, monkeypatch):
    monkeypatch.setattr(conf, "stream_keepalive", 0.05)
    response = await alice.call("get", f"/chat/{sid}/events?cursor=0")
    chunks = response.streaming_content
    await db(last_seq, sid)
    seen = [(await anext(chunks)).decode() for _ in range(4)]
    assert seen[0] == f"retry: {sse.RETRY}\n\n"
    assert seen[1:] == [sse.SILENCE] * 3


async def test_a_reader_that_leaves_stops_nothing_and_leaves_nothing(alice, sid, hub):
    run = await claim(await post(alice, sid))

    tasks = [asyncio.create_task(listen(alice, sid)) for _ in range(3)]
    await eventually(lambda: streams.followers() == 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: streams.followers() == 0)
    await finish(run)


async def test_a_stream_that_is_dropped_between_two_events_leaves_nothing(alice, sid, monkeypatch):
    monkeypatch.setattr(conf, "stream_keepalive", 0.05)
    stream = await connect(alice, sid)
    await take(stream, 2)
    batches = streaming.batches(uuid.UUID(sid), 0, asyncio.Event().wait)
    async with aclosing(batches):
        await anext(batches)
    assert streams.followers() == 0
    del stream
    gc.collect()
    await eventually(lambda: streams.followers() == 0)


async def test_streams_of_a_deleted_session_end(alice, sid, monkeypatch):
    monkeypatch.setattr(conf, "stream_keepalive", 0.05)
    task = asyncio.create_task(listen(alice, sid))
    await eventually(streams.followers)
    assert (await alice.call("delete", f"/chat/{sid}")).status_code == 204
    assert kinds(await asyncio.wait_for(task, 20))[0] == "STATE_SNAPSHOT"


@pytest.mark.parametrize("how", ["token", "cookie"])
async def test_streams_end_with_the_right_to_read_them(alice, sid, monkeypatch, how):
    monkeypatch.setattr(conf, "stream_keepalive", 0.05)
    if how == "cookie":
        await alice.client.aforce_login(alice.user)
        response = await alice.client.get(f"/api/chat/{sid}/events")
    else:
        response = await alice.call("get", f"/chat/{sid}/events")
    task = asyncio.create_task(take(frames(response), 1000))
    await eventually(streams.followers)
    if how == "cookie":
        await alice.client.alogout()
    else:
        await db(ApiToken.objects.filter(user=alice.user).update, revoked_at=timezone.now())
    assert kinds(await asyncio.wait_for(task, 20)) == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]


async def test_many_readers_at_every_moment_end_with_the_same_text(alice, sid):
    run = await claim(await post(alice, sid))
    message_id = str(uuid.uuid4())
    pieces = [f"{number} " for number in range(20)]
    await say(run, pieces[0], message_id=message_id, ended=False)

    async def read():
        text = ""
        stream = await connect(alice, sid)
        found = await take_until(stream, "MESSAGES_SNAPSHOT")
        if found[-2][1]["snapshot"]["status"] != "idle":
            found += await take_until(stream, "RUN_FINISHED")
        for _, event in found:
            for shown in event.get("messages", ()):
                text += shown["content"] if shown["id"] == message_id else ""
            text += event.get("delta", "")
        return text

    readers = []
    for piece in pieces[1:]:
        readers += [asyncio.create_task(read()) for _ in range(3)]
        await more(run, message_id, piece)
    await finish(run)
    assert set(await asyncio.gather(*readers)) == {"".join(pieces)}


async def more(run, message_id, piece):
    from coordination import events, vocabulary
    from coordination.transactions import locked

    def write():
        with locked(run.session_id) as session:
            events.append(session, run, vocabulary.text_content(run, message_id, piece))

    await db(write)


def test_our_messages_are_valid_messages_of_agui():
    call = {"type": "tool_call", "tool_call_id": "c1", "name": "ask_user", "args": '{"a": 1}'}
    ours = [
        message("user", "hello", [{"type": "text", "text": "hello"}]),
        message("assistant", "", [call]),
        message("tool", "42", [{"type": "tool_result", "tool_call_id": "c1", "name": "x"}]),
        message("assistant", "half", [], status="partial"),
        message("system", "Stopped.", [{"type": "notice", "kind": "stopped"}]),
        message("tool", "no part", []),
    ]
    theirs = to_agui(ours)
    event = {"type": "MESSAGES_SNAPSHOT", "messages": theirs}
    assert isinstance(EVENT.validate_python(event), MessagesSnapshotEvent)
    assert json.loads(json.dumps(event)) == event
    assert theirs[1]["toolCalls"][0]["function"]["arguments"] == '{"a": 1}'
    assert theirs[2]["toolCallId"] == "c1"
    assert theirs[3]["metadata"] == {"agentsite": {"status": "partial"}}


def message(role, content, parts, status="complete"):
    return {
        "id": str(uuid.uuid4()),
        "role": role,
        "agent_id": "assistant",
        "content": content,
        "parts": parts,
        "status": status,
        "created_at": "2025-06-01T12:00:00+00:00",
    }
