"""Hints hurry, survive Redis, and decide nothing."""

import asyncio
import uuid

import pytest
from django.db import transaction

from coordination import wakeups
from coordination.db import db
from coordination.wakeups import Hub

pytestmark = [pytest.mark.usefixtures("core"), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
async def listening(hub):
    """A hub whose pings come back."""
    await eventually(lambda: hub.listening)
    return hub


async def eventually(condition, within=15):
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def subscribed(hub, group):
    """What arrives at the group, once it is joined."""
    heard = []
    hub.subscribe(group, heard.append)
    async with asyncio.timeout(15):
        while not heard:
            hub.post(group, {"type": "wakeup", "group": group, "kind": "probe"})
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    heard.clear()
    return heard


def send(group, **fields):
    with transaction.atomic():
        wakeups.hint(group, "test", **fields)


async def test_a_process_knows_whether_hints_reach_it(listening):
    assert wakeups.heard() is True
    listening.heard_at = None
    assert wakeups.heard() is False


async def test_a_hint_arrives_after_its_commit(listening):
    heard = await subscribed(listening, "room")
    await db(send, "room", number=1)
    await eventually(lambda: heard)
    assert (heard[0]["kind"], heard[0]["number"]) == ("test", 1)


async def test_a_hint_of_a_transaction_that_was_undone_is_not_sent(listening):
    heard = await subscribed(listening, "room")

    def undone():
        with transaction.atomic():
            wakeups.hint("room", "test", number=1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await db(undone)
    await db(send, "room", number=2)
    await eventually(lambda: heard)
    assert [h["number"] for h in heard] == [2]


async def test_hints_of_many_transactions_keep_their_order(listening):
    heard = await subscribed(listening, "room")
    for number in range(200):
        await db(send, "room", number=number)
    await eventually(lambda: len(heard) == 200)
    assert [h["number"] for h in heard] == list(range(200))


async def test_who_has_left_hears_nothing(listening):
    heard = await subscribed(listening, "room")
    other = await subscribed(listening, "other")
    listening.unsubscribe("room", heard.append)
    listening.unsubscribe("room", heard.append)  # twice is no error
    await db(send, "room")
    await db(send, "other")
    await eventually(lambda: other)
    assert heard == []


async def test_a_handler_that_fails_harms_no_other(listening):
    heard = await subscribed(listening, "room")

    def fails(hint):
        raise RuntimeError

    listening.subscribe("room", fails)
    await db(send, "room")
    await eventually(lambda: heard)
    await db(send, "room")
    await eventually(lambda: len(heard) == 2)


async def test_the_hub_listens_again_after_redis_was_killed_and_tells_the_gap(
    listening, redis_server, monkeypatch
):
    monkeypatch.setattr(wakeups, "PING_EVERY", 0.1)
    heard = await subscribed(listening, "room")
    gaps = []
    listening.on_gap(lambda: gaps.append(1))
    redis_server.kill()
    await db(send, "room", number="lost")  # neither raises nor blocks
    redis_server.start()

    async def arrives():
        while not any(h.get("number") == "after" for h in heard):
            await db(send, "room", number="after")
            await asyncio.sleep(0.05)

    async with asyncio.timeout(30):
        await arrives()
    await eventually(lambda: gaps, within=30)


async def test_a_ping_that_was_lost_is_a_gap(listening):
    gaps = []
    listening.on_gap(lambda: gaps.append(1))
    last = listening._last_ping
    listening._heard({"number": last + 1})
    await asyncio.sleep(0)
    assert gaps == []
    listening._heard({"number": last + 3})
    await asyncio.sleep(0)
    assert gaps == [1]


async def test_redis_away_costs_a_sender_nothing(listening, redis_server):
    redis_server.freeze()
    try:
        async with asyncio.timeout(0.9):
            for _ in range(50):
                await db(send, "room")
    finally:
        redis_server.thaw()


def test_group_names_take_no_colon_and_are_not_too_long():
    name = wakeups.runner_group("host:name-1-abc.7" + "x" * 200)
    assert ":" not in name
    assert len(name) < 100
    pk = uuid.uuid4()
    assert wakeups.session_group(pk) == wakeups.session_group(str(pk)) == f"session.{pk.hex}"


async def test_a_closed_hub_is_replaced(listening):
    await listening.close()
    assert Hub.current() is not listening
    heard = await subscribed(Hub.current(), "room")
    await db(send, "room")
    await eventually(lambda: heard)
