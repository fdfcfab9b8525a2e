"""The AG-UI binding: one request is one run, from RUN_STARTED to its end, valid to the letter."""

import asyncio
import uuid
from contextlib import aclosing

import pytest

from chat.models import ChatSession, Message
from coordination import prune, suspensions
from coordination.conf import conf
from coordination.db import db
from coordination.models import Question, Run, Session
from coordination.suspensions import Ask
from coordination.transactions import locked
from coordination.wakeups import Hub
from tests.clients import Caller, claim, finish, frames, say, take

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


def user_message(content="hello", message_id="m1"):
    return {"id": message_id, "role": "user", "content": content}


def asked(thread_id, *messages, **fields):
    return {"threadId": str(thread_id), "runId": "my-run", "messages": list(messages), **fields}


async def begin(caller, body):
    response = await caller.call("post", "/agui", body)
    assert response.status_code == 200, response.content
    return frames(response)


async def refused(caller, body):
    response = await caller.call("post", "/agui", body)
    assert set(response.json()) == {"code", "detail"}
    return response.status_code, response.json()["code"]


async def the_run(sid):
    """The session's newest root run, once it is there."""
    async with asyncio.timeout(5):
        while True:
            run = await db(Run.objects.filter(session_id=sid).order_by("-position").first)
            if run is not None:
                return run
            await asyncio.sleep(0.02)


def kinds(found):
    return [event["type"] for _, event in found]


async def test_a_run_is_streamed_from_its_beginning_to_its_end(alice, sid):
    found = await begin(alice, asked(sid, user_message("earlier", "m0"), user_message()))
    run = await claim((await the_run(sid)).pk)
    await say(run, "a", "b", message_id=str(uuid.uuid4()))
    await finish(run)
    events = await take(found, 1000)
    assert kinds(events)[0] == "RUN_STARTED"
    assert kinds(events)[-1] == "RUN_FINISHED"
    for event in (events[0][1], events[-1][1]):
        assert (event["threadId"], event["runId"]) == (sid, "my-run")
        assert event["metadata"] == {"agentsite": {"runId": str(run.pk)}}
    assert events[-1][1]["outcome"]["type"] == "success"
    said = await db(lambda: list(Message.objects.filter(session_id=sid, role="user")))
    assert [message.content for message in said] == ["hello"]


async def test_a_new_thread_is_a_new_session_and_a_strangers_is_not_found(alice):
    thread_id = uuid.uuid4()
    found = await begin(alice, asked(thread_id, user_message()))
    await finish(await claim((await the_run(thread_id)).pk))
    assert kinds(await take(found, 1000))[-1] == "RUN_FINISHED"
    assert (await alice.call("get", f"/chat/{thread_id}")).status_code == 200
    mallory = await Caller.named("mallory")
    assert await refused(mallory, asked(thread_id, user_message())) == (404, "not_found")
    assert (await alice.call("delete", f"/chat/{thread_id}")).status_code == 204
    assert await refused(alice, asked(thread_id, user_message())) == (404, "not_found")
    assert await refused(alice, asked("my-thread", user_message())) == (422, "invalid")


async def test_the_same_message_again_is_the_same_run_replayed(alice, sid):
    body = asked(sid, user_message())
    found = await begin(alice, body)
    run = await claim((await the_run(sid)).pk)
    await say(run, "x", message_id=str(uuid.uuid4()))
    await finish(run)
    first = await take(found, 1000)
    assert await take(await begin(alice, body), 1000) == first
    assert await db(Run.objects.filter(session_id=sid).count) == 1
    other = asked(sid, user_message("something else"))
    assert await refused(alice, other) == (409, "id_conflict")


async def test_a_run_that_was_folded_is_replayed_whole(alice, sid):
    body = asked(sid, user_message())
    await begin(alice, body)
    run = await claim((await the_run(sid)).pk)
    await say(run, "a", "b", "c", message_id=str(uuid.uuid4()))
    await finish(run)
    assert (await db(prune.prune, 0)).removed == 2
    found = await take(await begin(alice, body), 1000)
    assert (kinds(found)[0], kinds(found)[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert [event["delta"] for _, event in found if "delta" in event] == ["abc"]


async def test_a_run_that_waits_streams_nothing_of_the_one_before(alice, sid):
    first = await begin(alice, asked(sid, user_message("one", "m1")))
    run = await claim((await the_run(sid)).pk)
    second = await begin(alice, asked(sid, user_message("two", "m2")))
    third = await begin(alice, asked(sid, user_message("three", "m3")))
    waiting = await db(lambda: list(Run.objects.filter(session_id=sid).order_by("position")))
    stopped = await alice.call("post", f"/chat/{sid}/interrupt", {"run_id": str(waiting[2].pk)})
    assert stopped.json()["status"] == "stopped"
    await say(run, "first words", message_id=str(uuid.uuid4()))
    await finish(run)
    assert kinds(await take(first, 1000))[-1] == "RUN_FINISHED"
    run = await claim(waiting[1].pk)
    await say(run, "second words", message_id=str(uuid.uuid4()))
    await finish(run)
    events = await take(second, 1000)
    assert [e["delta"] for _, e in events if "delta" in e] == ["second words"]
    cancelled = await take(third, 1000)
    assert cancelled[-1][1]["outcome"]["type"] == "cancelled"


async def test_a_message_that_is_removed_while_it_waits_ends_its_stream_at_once(alice, sid):
    await begin(alice, asked(sid, user_message("one", "m1")))
    await claim((await the_run(sid)).pk)
    body = asked(sid, user_message("two", "m2"))
    found = await begin(alice, body)
    run = await the_run(sid)
    message = await db(Message.objects.get, run_id=run.pk)
    removed = await alice.call("delete", f"/chat/{sid}/queue/{message.pk}")
    assert removed.status_code == 204
    for stream in (found, await begin(alice, body)):
        events = [event for _, event in await take(stream, 1000)]
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_FINISHED"]
        assert events[-1]["outcome"]["type"] == "cancelled"
        assert events[-1]["metadata"] == {"agentsite": {"runId": str(run.pk)}}
    assert (await db(Run.objects.get, pk=run.pk)).announced is False  # the first turn goes on


async def test_a_failed_run_ends_with_its_error(alice, sid):
    found = await begin(alice, asked(sid, user_message()))
    run = await claim((await the_run(sid)).pk)
    await finish(run, "failed", "error", detail="the provider is away")
    events = await take(found, 1000)
    assert kinds(events)[-1] == "RUN_ERROR"
    assert events[-1][1]["message"] == "the provider is away"


async def test_a_client_that_leaves_stops_nothing(alice, sid):
    async with aclosing(await begin(alice, asked(sid, user_message()))) as found:
        run = await claim((await the_run(sid)).pk)
        await take(found, 1)
    fresh = await db(Run.objects.get, pk=run.pk)
    assert (fresh.status, fresh.stop_requested_at) == (Run.Status.RUNNING, None)


# -- questions ------------------------------------------------------------------------------------


async def ask(run, *questions):
    """The run asks and parks, as the executor does it."""

    def suspend():
        with locked(run.session_id) as session:
            fresh = Run.objects.get(pk=run.pk)
            for number, question in enumerate(questions):
                suspensions.open_question(session, fresh, f"call-{number}", Ask(question))
            memory.park(session, fresh, asked=True)

    from chat import memory

    await db(suspend)
    return await db(lambda: list(Question.objects.filter(run=run).order_by("tool_call_id")))


def resume(*answers):
    return [{"interruptId": str(q.pk), "status": "resolved", "payload": a} for q, a in answers]


async def test_a_question_ends_the_stream_and_its_answer_begins_the_next(alice, sid):
    found = await begin(alice, asked(sid, user_message()))
    run = await claim((await the_run(sid)).pk)
    (question,) = await ask(run, "Which one?")
    events = await take(found, 1000)
    outcome = events[-1][1]["outcome"]
    assert outcome["type"] == "interrupt"
    assert [interrupt["id"] for interrupt in outcome["interrupts"]] == [str(question.pk)]

    body = asked(sid, user_message(), resume=resume((question, "this one")))
    found = await begin(alice, body)
    await finish(await claim(run.pk))
    events = await take(found, 1000)
    assert (kinds(events)[0], kinds(events)[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert events[-1][1]["outcome"]["type"] == "success"
    assert await db(Run.objects.filter(session_id=sid).count) == 1
    assert await refused(alice, body) == (409, "already_answered")


async def test_an_answer_to_one_of_two_questions_leaves_the_other(alice, sid):
    found = await begin(alice, asked(sid, user_message()))
    run = await claim((await the_run(sid)).pk)
    first, second = await ask(run, "One?", "Two?")
    await take(found, 1000)
    events = await take(await begin(alice, asked(sid, resume=resume((first, "yes")))), 1000)
    assert kinds(events) == ["RUN_STARTED", "RUN_FINISHED"]
    interrupts = events[-1][1]["outcome"]["interrupts"]
    assert [interrupt["id"] for interrupt in interrupts] == [str(second.pk)]


async def test_answers_that_cannot_be_are_refused_before_the_stream(alice, sid):
    nobody = Question(pk=uuid.uuid4())
    assert await refused(alice, asked(sid, resume=resume((nobody, "x")))) == (404, "not_found")
    found = await begin(alice, asked(sid, user_message()))
    run = await claim((await the_run(sid)).pk)
    (question,) = await ask(run, "Say it.")
    await take(found, 1000)
    for payload, code in ((5, "invalid_answer"), ("a\x00", "invalid")):
        body = asked(sid, resume=resume((question, payload)))
        assert await refused(alice, body) == (422, code)
    assert (await db(Question.objects.get, pk=question.pk)).state == "open"


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"id": "a", "role": "assistant", "content": "hi"}],
        [user_message(""), ],
        [user_message("a\x00b")],
        [user_message("x", "")],
        [user_message("x", "k" * 129)],
        [user_message([{"type": "image", "source": {"type": "url", "value": "http://x/y.png"}}])],
        [{"id": "a", "role": "nobody", "content": "hi"}],
    ],
)  # fmt: skip
async def test_what_cannot_be_posted_makes_no_session(alice, messages):
    status, code = await refused(alice, asked(uuid.uuid4(), *messages))
    assert (status, code) in {(422, "invalid"), (422, "empty"), (422, "invalid_text")}
    assert await db(Session.objects.count) == await db(ChatSession.objects.count) == 0


async def test_a_message_in_parts_is_its_text(alice, sid):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    found = await begin(alice, asked(sid, user_message(parts)))
    await finish(await claim((await the_run(sid)).pk))
    await take(found, 1000)
    message = await db(Message.objects.get, session_id=sid, role="user")
    assert message.content == "one two"


async def test_a_message_has_a_limit_here_too(alice, sid):
    large = asked(sid, user_message("x" * (conf.message_bytes + 1)))
    assert await refused(alice, large) == (413, "too_large")
