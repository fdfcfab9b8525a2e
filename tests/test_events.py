"""The log: dense, in commit order, whole; one writer's trouble is nobody else's."""

import asyncio
import json
import threading
import uuid

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, transaction

from coordination import endings, events, interrupts, usage, vocabulary
from coordination.conf import conf
from coordination.db import db
from coordination.errors import CommitUnknown, Fenced
from coordination.events import Writer
from coordination.models import Event, Session
from coordination.transactions import locked
from tests.core import EVENT, again, begin, claim, in_threads, logged, new_chat, post, send

pytestmark = [pytest.mark.usefixtures("core", "no_hints")]
in_transaction = pytest.mark.django_db
for_real = pytest.mark.django_db(transaction=True)


def custom(number):
    return vocabulary.custom("n", number)


def numbers(session_id):
    return [e["value"] for e in logged(session_id, "CUSTOM") if e["name"] == "n"]


@pytest.fixture
async def run(transactional_db):
    return await db(lambda: claim(post(new_chat())))


# -- inside a transition -------------------------------------------------------------------------


@in_transaction
def test_what_a_transaction_undoes_was_never_logged():
    session = Session.objects.create()

    def undone():
        with locked(session.pk) as held:
            events.append(held, None, custom(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        undone()
    with locked(session.pk) as held:
        events.append(held, None, custom(2))
    assert numbers(session.pk) == [2]
    assert Session.objects.get().last_seq == 1


@for_real
def test_many_writers_of_a_session_leave_no_hole(redis_server):
    session = Session.objects.create()

    def write(first):
        for n in range(5):
            with locked(session.pk) as held:
                events.append(held, None, custom(first + n), custom(first + n + 100))

    assert in_threads(*[lambda f=f: write(f) for f in (0, 10, 20)]) == [None] * 3
    seqs = list(Event.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, 31))


@in_transaction
def test_a_cursor_is_taken_once():
    session = Session.objects.create()
    common = {"session": session, "seq": 1, "type": "CUSTOM", "data": "{}"}
    Event.objects.create(**common)
    with pytest.raises(IntegrityError), transaction.atomic():
        Event.objects.create(**common)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "😀", "\u2028", '"\\'])
def test_any_text_becomes_json_that_a_column_takes(text):
    assert (
        json.loads(events.dumps({"delta": text}))["delta"]
        == text.encode("utf-8", "replace").decode()
    )


@in_transaction
def test_the_log_is_read_after_a_cursor():
    session = Session.objects.create()
    with locked(session.pk) as held:
        events.append(held, None, *[custom(n) for n in range(5)])
    assert [e.seq for e in events.after(session.pk, 2)] == [3, 4, 5]
    assert [e.seq for e in events.after(session.pk, 0, limit=2)] == [1, 2]
    assert events.bounds(session.pk) == (0, 5)
    assert events.last_seqs([session.pk]) == {session.pk: 5}


# -- what stands open ----------------------------------------------------------------------------


@in_transaction
def test_folding_finds_what_stands_open_and_what_it_holds():
    run = claim(post(new_chat()))
    items = events.fold(
        [
            vocabulary.text_start(run, "t1"),
            vocabulary.text_content(run, "t1", "a"),
            vocabulary.text_content(run, "t1", "b"),
            vocabulary.text_start(run, "t2"),
            vocabulary.text_content(run, "t2", "c"),
            vocabulary.text_end(run, "t2"),
            *vocabulary.reasoning_start(run, "r1"),
            vocabulary.reasoning_content(run, "r1", "hm"),
            *vocabulary.reasoning_start(run, "r2"),
            *vocabulary.reasoning_end(run, "r2"),
            vocabulary.tool_call_start(run, "c1", "f", "t1"),
            vocabulary.tool_call_args(run, "c1", '{"a"'),
            vocabulary.tool_call_start(run, "c2", "g", "t1"),
            vocabulary.tool_call_end(run, "c2"),
            vocabulary.tool_call_start(run, "c3", "h", "t1"),
            vocabulary.tool_call_end(run, "c3"),
            vocabulary.tool_call_result(run, "m", "c3", "done"),
        ]
    )
    assert items.texts == {"t1": "ab"}
    assert items.ended_texts == {"t2": "c"}
    assert items.reasoning == {"r1": "hm"}
    assert items.calls == {"c1": {"name": "f", "message_id": "t1", "args": '{"a"'}}
    assert list(items.ended_calls) == ["c2"]


@in_transaction
def test_every_word_of_the_vocabulary_is_valid_ag_ui():
    chat = new_chat()
    master = claim(post(chat))
    task, child = send(master)
    child = begin(child, "r2")
    _, grandchild = send(child, "reviewer")
    for run in (master, child, grandchild):
        run.usage = {"provider": "p", "model": "m", "input_tokens": 1, "output_tokens": 2}
        used = usage.of_turn(run, [])
        for event in [
            vocabulary.text_start(run, "t"),
            vocabulary.text_content(run, "t", "a"),
            vocabulary.text_end(run, "t"),
            *vocabulary.reasoning_start(run, "r"),
            vocabulary.reasoning_content(run, "r", "a"),
            *vocabulary.reasoning_end(run, "r"),
            vocabulary.tool_call_start(run, "c", "f", "t"),
            vocabulary.tool_call_args(run, "c", "{}"),
            vocabulary.tool_call_end(run, "c"),
            vocabulary.tool_call_result(run, "m", "c", "x"),
            vocabulary.run_started(run),
            vocabulary.run_finished(run, {"type": "success"}, used, "ok"),
            vocabulary.run_finished(run, {"type": "cancelled"}, []),
            vocabulary.run_error("broken", "error", used),
            vocabulary.agent_exit(run),
            vocabulary.inbox_written(task),
        ]:
            EVENT.validate_python(event)
    for run in (child, grandchild):
        for event in [
            vocabulary.subagent_started(run),
            vocabulary.subagent_finished(run),
            vocabulary.subagent_finished(run, []),
            vocabulary.subagent_finished(run, ["q"]),
            vocabulary.subagent_error(run, "broken", "error"),
        ]:
            EVENT.validate_python(event)


# -- the writer ----------------------------------------------------------------------------------


@for_real
async def test_neighbouring_deltas_of_one_message_become_one_row(run, monkeypatch):
    writer = Writer()
    busy = _slow(monkeypatch)
    writer.put(run, vocabulary.text_start(run, "t"))
    await asyncio.to_thread(busy.wait_until_begun)
    for word in "abc":
        writer.put(run, vocabulary.text_content(run, "t", word))
    writer.put(run, vocabulary.text_content(run, "u", "x"))
    writer.put(run, vocabulary.text_content(run, "t", "d"))
    busy.go_on()
    await writer.flush(run)
    deltas = [e["delta"] for e in await db(logged, run.session_id, "TEXT_MESSAGE_CONTENT")]
    assert deltas == ["abc", "x", "d"]


class _Slow:
    """The first commit of the writer waits to be let go."""

    def __init__(self):
        self.begun, self.gone_on = threading.Event(), threading.Event()

    def wait_until_begun(self):
        assert self.begun.wait(10)

    def go_on(self):
        self.gone_on.set()


def _slow(monkeypatch):
    slow = _Slow()
    real = events._commit_streams

    def commit(streams, attempt):
        slow.begun.set()
        assert slow.gone_on.wait(10)
        return real(streams, attempt)

    monkeypatch.setattr(events, "_commit_streams", commit)
    return slow


@for_real
async def test_one_commit_carries_all_sessions(run, monkeypatch):
    others = [await db(lambda: claim(post(new_chat()))) for _ in range(3)]
    commits = []
    slow = _slow(monkeypatch)
    held = events._commit_streams

    def commit(streams, attempt):
        commits.append(len(streams))
        return held(streams, attempt)

    monkeypatch.setattr(events, "_commit_streams", commit)
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "t"))
    await asyncio.to_thread(slow.wait_until_begun)
    for other in others:
        writer.put(other, vocabulary.text_start(other, "t"))
    slow.go_on()
    for other in others:
        await writer.flush(other)
        assert len(await db(logged, other.session_id, "TEXT_MESSAGE_START")) == 1
    assert commits == [1, 3]


@for_real
async def test_a_flush_waits_for_its_own_run_and_not_for_a_busy_neighbour(run):
    other = await db(lambda: claim(post(new_chat())))
    writer = Writer()
    talking = True

    async def talk():
        while talking:
            writer.put(other, vocabulary.text_content(other, "t", "bla "))
            await asyncio.sleep(0)

    talker = asyncio.ensure_future(talk())
    writer.put(run, vocabulary.text_start(run, "t"))
    async with asyncio.timeout(10):
        await writer.flush(run)
    assert len(await db(logged, run.session_id, "TEXT_MESSAGE_START")) == 1
    talking = False
    await talker
    await writer.flush(other)


@for_real
@pytest.mark.parametrize("error", [OperationalError(2006, "gone"), InterfaceError("closed")])
async def test_an_outage_is_waited_out_and_nothing_is_lost_or_doubled(run, monkeypatch, error):
    real = events._commit_streams
    failures = [error, error]

    def commit(streams, attempt):
        if failures:
            raise failures.pop()
        return real(streams, attempt)

    monkeypatch.setattr(events, "_commit_streams", commit)
    monkeypatch.setattr(events, "RETRY_PAUSE", 0)
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "t"), vocabulary.text_content(run, "t", "a"))
    await asyncio.sleep(0)
    writer.put(run, vocabulary.text_content(run, "t", "b"))
    await writer.flush(run)
    words = [e["delta"] for e in await db(logged, run.session_id, "TEXT_MESSAGE_CONTENT")]
    assert "".join(words) == "ab"


@for_real
@pytest.mark.parametrize("was_committed", [True, False])
async def test_a_lost_answer_to_a_commit_doubles_nothing(run, monkeypatch, was_committed):
    real = events._commit_streams
    lost = []

    def commit(streams, attempt):
        if not lost:
            lost.append(attempt)
            if was_committed:
                real(streams, attempt)
            raise CommitUnknown(2013, "lost")
        return real(streams, attempt)

    monkeypatch.setattr(events, "_commit_streams", commit)
    monkeypatch.setattr(events, "RETRY_PAUSE", 0)
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "t"), vocabulary.text_content(run, "t", "a"))
    await writer.flush(run)
    assert [e["delta"] for e in await db(logged, run.session_id, "TEXT_MESSAGE_CONTENT")] == ["a"]


@for_real
async def test_an_event_that_cannot_be_logged_harms_its_own_run_alone(run, monkeypatch):
    other = await db(lambda: claim(post(new_chat())))
    real = events._commit_streams

    def commit(streams, attempt):
        if any(stream.run.pk == other.pk for stream in streams):
            raise IntegrityError("bad")
        return real(streams, attempt)

    slow = _slow(monkeypatch)
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "s"))
    await asyncio.to_thread(slow.wait_until_begun)
    monkeypatch.setattr(events, "_commit_streams", commit)
    writer.put(run, vocabulary.text_start(run, "t"))
    writer.put(other, vocabulary.text_start(other, "t"))
    slow.go_on()
    await writer.flush(run)
    with pytest.raises(Fenced):
        await writer.flush(other)
    assert len(await db(logged, run.session_id, "TEXT_MESSAGE_START")) == 2


@for_real
@pytest.mark.parametrize("why", ["stopped", "lost", "ended"])
async def test_a_run_that_may_log_no_more_is_told_so(run, why):
    changes = {
        "stopped": lambda: interrupts.request(run.session_id, by="alice"),
        "lost": lambda: endings.handed_over(run, by="r1"),
        "ended": lambda: endings.failed(run, "broken", by="r1"),
    }
    await db(changes[why])
    before = await db(lambda: len(logged(run.session_id)))
    refused: list[uuid.UUID] = []
    writer = Writer(on_refused=refused.append)
    writer.put(run, vocabulary.text_start(run, "late"))
    with pytest.raises(Fenced):
        await writer.flush(run)
    assert refused == [run.pk]
    assert await db(lambda: len(logged(run.session_id))) == before


@for_real
async def test_a_stopped_run_does_not_hold_up_its_neighbours(run):
    other = await db(lambda: claim(post(new_chat())))
    await db(interrupts.request, run.session_id, by="alice")
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "late"))
    writer.put(other, vocabulary.text_start(other, "t"))
    await writer.flush(other)
    assert len(await db(logged, other.session_id, "TEXT_MESSAGE_START")) == 1
    assert await db(logged, run.session_id, "TEXT_MESSAGE_START") == []


@for_real
async def test_a_word_in_the_log_is_progress(run):
    before = (await db(again, run)).last_progress_at
    assert before is not None
    writer = Writer()
    writer.put(run, vocabulary.text_start(run, "t"))
    await writer.flush(run)
    after = (await db(again, run)).last_progress_at
    assert after is not None
    assert after > before


@for_real
async def test_the_writer_and_a_transition_number_together(run):
    writer = Writer()

    def transition(n):
        with locked(run.session_id) as session:
            events.append(session, run, custom(n))

    for n in range(10):
        writer.put(run, vocabulary.text_content(run, f"t{n}", "x"))
        await db(transition, n)
    await writer.flush(run)
    seqs = await db(lambda: list(Event.objects.order_by("seq").values_list("seq", flat=True)))
    assert seqs == list(range(1, len(seqs) + 1))


@for_real
def test_a_hint_carries_a_copy_only_while_it_is_small(monkeypatch):
    from coordination import wakeups

    sent = []
    monkeypatch.setattr(wakeups, "_send", lambda group, message: sent.append(message))
    session = Session.objects.create()
    for limit in (10_000, 0):
        monkeypatch.setattr(conf, "hint_bytes", limit)
        with locked(session.pk) as held:
            events.append(held, None, custom(1))
    assert [message["seq"] for message in sent] == [1, 2]
    assert [len(message.get("events", ())) for message in sent] == [1, 0]
