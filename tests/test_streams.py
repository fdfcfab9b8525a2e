"""Following a session's log: nothing missing, nothing twice, nothing left behind."""

import asyncio
import json
import uuid
from contextlib import aclosing

import pytest

from coordination import events, streams, wakeups
from coordination.conf import conf
from coordination.db import db
from coordination.models import Event, Session
from coordination.transactions import locked
from coordination.wakeups import Hub
from tests.clients import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub(redis_server):
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture
def quick_poll(monkeypatch):
    monkeypatch.setattr(conf, "stream_poll", 0.05)


@pytest.fixture
def no_poll(monkeypatch):
    monkeypatch.setattr(conf, "stream_poll", 60)


@pytest.fixture
def deaf(monkeypatch):
    """Hints are sent to nobody: what is heard now is heard by the poll."""
    monkeypatch.setattr(wakeups, "_send", lambda group, message: None)


@pytest.fixture
async def session():
    return await db(Session.objects.create)


def _write(session_id, first, count):
    with locked(session_id) as session:
        for number in range(first, first + count):
            events.append(session, None, {"type": "CUSTOM", "name": "n", "value": number})


async def write(session, first, count=1):
    await db(_write, session.pk, first, count)


async def read(session, cursor, count, *, within=20.0):
    """The values of the next ``count`` events."""
    values = []
    async with asyncio.timeout(within), aclosing(follow(session, cursor)) as batches:
        async for batch in batches:
            values += [json.loads(logged.data)["value"] for logged in batch]
            if len(values) >= count:
                return values
    return values


def follow(session, cursor, silence=30.0):
    return streams.follow(session.pk, cursor, silence=silence)


async def reading(session):
    """Until a reader of the session has come to its first wait, and hears its hints."""
    await eventually(streams.followers)
    await streams._Reader.current().feeds[session.pk].opened()
    hub, group = Hub.current(), wakeups.session_group(session.pk)
    heard = asyncio.Event()

    def hear(_hint):
        heard.set()

    hub.subscribe(group, hear)

    def ask():
        hub.post(group, {"type": "wakeup", "group": group, "kind": "probe"})
        return heard.is_set()

    await eventually(ask)
    hub.unsubscribe(group, hear)


@pytest.mark.parametrize("heard_by", ["hint", "poll"])
async def test_a_reader_gets_what_is_written_while_it_waits(request, session, heard_by):
    request.getfixturevalue("no_poll" if heard_by == "hint" else "deaf")
    if heard_by == "poll":
        request.getfixturevalue("quick_poll")
    await write(session, 1, 3)
    task = asyncio.create_task(read(session, 0, 6))
    await reading(session)
    await write(session, 4, 2)
    await write(session, 6, 1)
    assert await task == [1, 2, 3, 4, 5, 6]


async def test_a_hint_with_a_copy_costs_no_query(session, no_poll, monkeypatch):
    task = asyncio.create_task(read(session, 0, 3))
    await reading(session)
    monkeypatch.setattr(events, "after", lambda *args: pytest.fail("the log was read"))
    await write(session, 1, 3)
    assert await task == [1, 2, 3]


@pytest.mark.parametrize("hint_bytes", [0, 1_000_000])
async def test_lost_late_doubled_and_wrong_hints_change_nothing(
    session, monkeypatch, quick_poll, hint_bytes
):
    monkeypatch.setattr(conf, "hint_bytes", hint_bytes)
    hints = []
    monkeypatch.setattr(wakeups, "_send", lambda group, message: hints.append(message))
    task = asyncio.create_task(read(session, 0, 40))
    await reading(session)
    feed = streams._Reader.current().feeds[session.pk]
    for number in range(1, 41):
        await write(session, number)
        if number % 7 == 0:
            for hint in [*reversed(hints), *hints, {"kind": "events", "seq": 10_000}]:
                feed.hear(hint)
                await asyncio.sleep(0)
    assert await task == list(range(1, 41))


async def test_readers_at_any_cursor_get_exactly_what_follows(session, quick_poll):
    await write(session, 1, 30)
    tasks = [asyncio.create_task(read(session, cursor, 60 - cursor)) for cursor in range(31)]
    await eventually(lambda: streams.followers() == 31)
    await write(session, 31, 30)
    for cursor, values in enumerate(await asyncio.gather(*tasks)):
        assert values == list(range(cursor + 1, 61))


async def test_a_slow_reader_gets_all_and_holds_up_nobody(session, quick_poll, monkeypatch):
    monkeypatch.setattr(conf, "stream_buffer", 10)

    async def slowly():
        values = []
        async with aclosing(follow(session, 0)) as batches:
            async for batch in batches:
                values += [json.loads(logged.data)["value"] for logged in batch]
                if len(values) >= 500:
                    return values
                await asyncio.sleep(0.05)
        return values

    slow = asyncio.create_task(slowly())
    quick = asyncio.create_task(read(session, 0, 500))
    await reading(session)
    feed = streams._Reader.current().feeds[session.pk]
    for first in range(1, 500, 20):
        await write(session, first, 20)
    assert await asyncio.wait_for(quick, 20) == list(range(1, 501))
    assert len(feed._ring) <= 10
    assert await asyncio.wait_for(slow, 20) == list(range(1, 501))


async def test_a_ring_of_large_events_stays_small(session, quick_poll, monkeypatch):
    monkeypatch.setattr(streams, "RING_CHARS", 1000)
    task = asyncio.create_task(read(session, 0, 100))
    await reading(session)
    await write(session, 1, 99)
    feed = streams._Reader.current().feeds[session.pk]
    await eventually(lambda: feed._last == 99)
    assert sum(len(logged.data) for logged in feed._ring) <= 1000
    await write(session, 100)
    assert await task == list(range(1, 101))


async def test_silence_is_an_empty_batch(session):
    async with aclosing(follow(session, 0, silence=0.05)) as batches:
        assert list(await anext(batches)) == []
        assert list(await anext(batches)) == []
        await write(session, 1)
        batch = await anext(batches)
    assert [logged.seq for logged in batch] == [1]


def fold(session, *seqs):
    """As a prune does: some rows are part of the one before them now."""
    Event.objects.filter(session=session, seq__in=seqs).delete()
    Session.objects.filter(pk=session.pk).update(first_seq=max(seqs) + 1)


async def test_a_cursor_inside_of_what_was_folded_is_told_so(session):
    await write(session, 1, 10)
    await db(fold, session, 3, 4, 5)
    assert await read(session, 5, 5) == [6, 7, 8, 9, 10]
    for cursor in (1, 3, 4):
        with pytest.raises(streams.Pruned):
            await read(session, cursor, 5)


async def test_what_is_left_is_replayed_from_a_beginning(session, monkeypatch):
    monkeypatch.setattr(streams, "PAGE", 2)
    await write(session, 1, 10)
    await db(fold, session, 3, 4, 5)
    assert await read(session, 0, 7) == [1, 2, 6, 7, 8, 9, 10]
    async with aclosing(streams.follow(session.pk, 1, silence=30, anew=True)) as batches:
        assert [[logged.seq for logged in await anext(batches)] for _ in range(2)] == [
            [2, 6],
            [7, 8],
        ]


async def test_a_fold_in_the_middle_of_a_replay_is_noticed(session, monkeypatch):
    monkeypatch.setattr(streams, "PAGE", 2)
    await write(session, 1, 10)
    for cursor in (0, 1):
        async with aclosing(streams.follow(session.pk, cursor, silence=30)) as batches:
            await anext(batches)
            await db(fold, session, 4 + cursor)
            with pytest.raises(streams.Pruned):
                await anext(batches)
            await db(Session.objects.filter(pk=session.pk).update, first_seq=1)


async def test_following_ends_when_the_session_is_gone(session, quick_poll):
    task = asyncio.create_task(read(session, 0, 1))
    await reading(session)
    await db(Session.objects.filter(pk=session.pk).delete)
    assert await asyncio.wait_for(task, 20) == []
    assert await read(Session(pk=uuid.uuid4()), 0, 1) == []


async def test_readers_that_leave_leave_nothing(session, hub, quick_poll):
    group = wakeups.session_group(session.pk)
    tasks = [asyncio.create_task(read(session, 0, 10)) for _ in range(5)]
    await reading(session)
    await eventually(lambda: streams.followers() == 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    reader = streams._Reader.current()
    assert streams.followers() == 0
    assert reader.feeds == {}
    assert reader._polling is None
    assert group not in hub._handlers
    await eventually(
        lambda: not [t for t in asyncio.all_tasks() if "coordination/streams" in repr(t)]
    )


async def test_an_outage_of_the_database_delays_and_loses_nothing(session, quick_poll, monkeypatch):
    task = asyncio.create_task(read(session, 0, 4))
    await reading(session)
    real = events.last_seqs, events.after

    def away(*args):
        raise OSError("the database is away")

    monkeypatch.setattr(conf, "hint_bytes", 0)
    monkeypatch.setattr(events, "last_seqs", away)
    monkeypatch.setattr(events, "after", away)
    await write(session, 1, 2)
    await asyncio.sleep(0.2)
    assert not task.done()
    monkeypatch.setattr(events, "last_seqs", real[0])
    monkeypatch.setattr(events, "after", real[1])
    await write(session, 3, 2)
    assert await task == [1, 2, 3, 4]


async def test_the_open_run_is_read_from_the_log(session):
    run_id = uuid.uuid4()

    def begin_and_end():
        with locked(session.pk) as held:
            for kind in ("RUN_STARTED", "CUSTOM", "RUN_FINISHED", "RUN_STARTED"):
                Event.objects.create(
                    session=held, seq=held.last_seq + 1, run_id=run_id, type=kind, data="{}"
                )
                held.last_seq += 1
            held.save()

    await db(begin_and_end)
    found = [await db(streams.open_run, session.pk, run_id, cursor) for cursor in range(5)]
    assert [logged and logged.seq for logged in found] == [None, 1, 1, None, 4]
    assert await db(streams.open_run, session.pk, uuid.uuid4(), 4) is None
