"""A runner claims, obeys rows, and lets go of every run in exactly one way."""

import asyncio
import dataclasses
import json
import threading
import uuid

import pytest

from coordination import endings, interrupts, leases, runs, worker
from coordination.conf import conf
from coordination.db import db
from coordination.models import Lease, Run
from coordination.worker import Runner
from tests.core import again, at_rest, ended, judge, new_chat, node, post, until
from tests.fakes.step_model import Gate, ScriptedModel

pytestmark = [
    pytest.mark.usefixtures("core", "hub"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
async def chat(transactional_db, hub):
    return await db(new_chat)


async def queued(chat, content="hello"):
    return await db(post, chat, content)


@pytest.mark.parametrize("heard_by", ["hint", "poll"])
async def test_a_runner_finds_work(request, chat, monkeypatch, heard_by):
    if heard_by == "poll":
        request.getfixturevalue("no_hints")
    async with node(ScriptedModel()) as it:
        await until(lambda: it.runner.registry is not None)
        if heard_by == "hint":
            await asyncio.sleep(0.5)  # its groups are joined
            monkeypatch.setattr(conf, "claim_poll", 60)
            await asyncio.sleep(0.1)  # and it waits for the hint alone
        run = await queued(chat)
        assert (await ended(run)).status == "completed"


async def test_a_runner_takes_no_more_than_it_has_room_for(no_hints):
    chats = [await db(new_chat) for _ in range(3)]
    gates = [Gate() for _ in chats]
    model = ScriptedModel(assistant=[[gate] for gate in gates])
    async with node(model, concurrency=2) as it:
        waiting = [await queued(one) for one in chats]
        await gates[0].reached()
        await gates[1].reached()
        for _ in range(3):
            await it.runner._claim_some()
        assert len(it.runner.registry) == 2
        assert len(model.requests) == 2
        gates[0].open()
        await gates[2].reached()
        for gate in gates:
            gate.open()
        for run in waiting:
            assert (await ended(run)).status == "completed"


async def test_a_bug_in_the_executor_fails_the_run_and_nothing_else(chat):
    async def execute(execution, writer):
        raise ZeroDivisionError("by zero")

    runner = Runner(execute, runner_id="r1", node_id="n1", concurrency=2)
    task = asyncio.ensure_future(runner.run())
    run = await ended(await queued(chat))
    assert (run.status, run.reason) == ("failed", "error")
    assert "ZeroDivisionError" in run.detail
    await at_rest(chat)
    other = await ended(await queued(chat, "again"))
    assert other.status == "failed"
    runner.drain()
    async with asyncio.timeout(10):
        await task


async def test_a_drained_runner_leaves_and_claims_nothing_more(chat):
    async with node(ScriptedModel()) as it:
        it.runner.drain()
        run = await queued(chat)
        await it.runner._claim_some()
        assert (await db(again, run)).status == "queued"


async def test_an_order_to_drain_comes_with_the_beat(chat):
    async with node(ScriptedModel()) as it:
        it.runner.obey({"drain": True})
        assert it.runner._draining


async def test_a_lease_that_is_not_renewed_closes_the_gate_and_a_beat_opens_it(monkeypatch, chat):
    monkeypatch.setattr(conf, "lease_ttl", 0.3)
    monkeypatch.setattr(conf, "heartbeat_interval", 0.05)
    async with node(ScriptedModel()) as it:
        it.beating = False
        await until(lambda: not it.runner._gate.is_set())
        run = await queued(chat)
        await it.runner._claim_some()
        assert (await db(again, run)).status == "queued"  # it owns enough already
        it.order([], ago=1)
        assert not it.runner._gate.is_set()  # it was read late: the lease may be over by now
        it.order([])
        assert it.runner._gate.is_set()


@pytest.mark.parametrize("how", ["requeued", "settled", "claimed"])
async def test_a_run_that_is_somebody_else_s_by_now_is_left(chat, no_hints, how):
    gate = Gate()
    model = ScriptedModel(assistant=[["a", gate]])
    async with node(model) as it:
        it.beating = False
        it.runner.concurrency = 0
        run = await queued(chat)
        it.runner.concurrency = 1
        await gate.reached()
        it.runner.concurrency = 0

        def take_away():
            judge(run)
            if how == "claimed":
                assert runs.claim(run.pk, chat.pk, "r9", "n9")
            elif how == "settled":
                interrupts.request(chat.pk, by="alice")

        await db(take_away)
        before = await db(again, run)
        it.runner.look_soon([run.pk])
        await until(lambda: not len(it.runner.registry))
        now = await db(again, run)
        assert (now.status, now.epoch, now.runner_id) == (
            before.status,
            before.epoch,
            before.runner_id,
        )


async def test_a_lease_that_nothing_here_executes_is_settled_at_the_second_beat(chat, no_hints):
    async with node(ScriptedModel()) as it:
        it.beating = False
        it.runner.concurrency = 0
        run = await queued(chat)
        claimed = await db(runs.claim, run.pk, chat.pk, "r1", "n1")
        assert claimed is not None
        await it.beat()
        await asyncio.gather(*it.runner._helpers)
        assert (await db(again, run)).status == "running"
        await it.beat()
        await asyncio.gather(*it.runner._helpers)
        assert (await db(again, run)).status == "queued"
        it.runner.concurrency = 1
        assert (await ended(run)).status == "completed"


@pytest.mark.parametrize("patience", [30, 0])
async def test_a_last_attempt_is_made_alone_or_after_a_while_beside_others(
    no_hints, monkeypatch, patience
):
    """Whether it, or a neighbour, has killed the processes in which it was tried before."""
    monkeypatch.setattr(conf, "solitude", patience)
    gates = [Gate(), Gate(), Gate()]
    chats = [await db(new_chat) for _ in gates]
    model = ScriptedModel(assistant=[[gate] for gate in gates])
    async with node(model) as it:
        busy = await queued(chats[0])
        await gates[0].reached()
        it.runner.concurrency = 0
        suspect = await queued(chats[1])
        last = Run.objects.filter(pk=suspect.pk)
        await db(last.update, attempts=conf.max_attempts - 1)
        it.runner.concurrency = 16
        if not patience:
            await gates[1].reached()
            return
        await asyncio.gather(*[it.runner._claim_some() for _ in range(3)])
        assert (await db(again, suspect)).status == "queued"
        gates[0].open()
        await gates[1].reached()
        other = await queued(chats[2])
        await asyncio.gather(*[it.runner._claim_some() for _ in range(3)])
        assert (await db(again, other)).status == "queued"
        gates[1].open()
        await gates[2].reached()
        gates[2].open()
        for run in (busy, suspect, other):
            assert (await ended(run)).status == "completed"


async def test_a_claim_that_is_being_answered_is_no_orphan(chat, no_hints, monkeypatch):
    """It has committed, and its runner has not heard so yet: beats may come meanwhile."""
    real = runs.claim
    committed, go_on = threading.Event(), threading.Event()

    def claim(*args):
        run = real(*args)
        committed.set()
        assert go_on.wait(10)
        return run

    monkeypatch.setattr(runs, "claim", claim)
    async with node(ScriptedModel()) as it:
        it.beating = False
        run = await queued(chat)
        await asyncio.to_thread(committed.wait, 10)
        for _ in range(3):
            await it.beat()
            await asyncio.gather(*it.runner._helpers)
        assert (await db(again, run)).epoch == 1
        go_on.set()
        assert (await ended(run)).status == "completed"


async def test_a_look_that_is_older_than_an_execution_ends_nothing(chat, no_hints, monkeypatch):
    gate = Gate()
    old = asyncio.Event()

    async def stale(intents, run_ids):
        await old.wait()
        return {}  # as it was when the run was another's

    async with node(ScriptedModel(assistant=[[gate]])) as it:
        run = await queued(chat)
        await gate.reached()
        with monkeypatch.context() as patched:
            patched.setattr(worker, "db", stale)
            looking = asyncio.ensure_future(it.runner._look([run.pk]))
            await asyncio.sleep(0)
        now = it.runner.registry.get(run.pk)
        it.runner.registry.add(dataclasses.replace(now))  # left, and claimed again here
        old.set()
        await looking
        assert it.runner.registry.get(run.pk).cause is None
        it.runner.registry.add(now)
        gate.open()
        assert (await ended(run)).status == "completed"


async def test_a_settlement_that_the_database_refused_is_made_up_for(chat, monkeypatch):
    from django.db import OperationalError

    gate = Gate()
    real = endings.stopped
    failures = [1]

    def stopped(*args, **kwargs):
        if failures and failures.pop():
            raise OperationalError("away")
        return real(*args, **kwargs)

    monkeypatch.setattr(endings, "stopped", stopped)
    monkeypatch.setattr(conf, "database_patience", 0)
    async with node(ScriptedModel(assistant=[["a", gate]])):
        run = await queued(chat)
        await gate.reached()
        await interrupts.stop(chat.pk, by="alice")
        assert (await ended(run)).status == "interrupted"
    await at_rest(chat)


async def test_a_claim_writes_its_key_at_once_and_not_with_the_first_beat(chat):
    gate = Gate()
    async with node(ScriptedModel(assistant=[[gate]])) as it:
        it.beating = False
        await queued(chat)
        await gate.reached()
        await until(lambda: leases._redis().get(leases.key(chat.pk, "assistant")))
        gate.open()
        await until(lambda: leases._redis().get(leases.key(chat.pk, "assistant")) is None)


async def test_a_run_that_left_gives_its_key_back(chat):
    async with node(ScriptedModel()) as it:
        run = await queued(chat)
        held = leases.Held(run.pk, chat.pk, "assistant", it.runner.runner_id, 1, False)
        await db(leases.mirror, [held])
        await ended(run)
        await until(lambda: leases._redis().get(leases.key(chat.pk, "assistant")) is None)


async def test_hints_that_make_no_sense_are_survived(chat):
    async with node(ScriptedModel()) as it:
        it.runner._hinted({"kind": "interrupt"})
        it.runner._hinted({"kind": "something"})
        it.runner.look_soon([uuid.uuid4()])
        it.order([[str(uuid.uuid4()), 1, True]])
        assert (await ended(await queued(chat))).status == "completed"


async def test_the_supervisor_s_end_is_seen_at_the_end_of_the_pipe(monkeypatch, tmp_path):
    import os

    read, write = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(read, "rb"))
    orders, closed = [], asyncio.Event()
    reading = asyncio.ensure_future(worker.read_orders(orders.append, closed.set))
    os.write(write, json.dumps({"drain": True}).encode() + b"\n")
    async with asyncio.timeout(5):
        while not orders:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not closed.is_set()
    os.close(write)
    async with asyncio.timeout(5):
        await closed.wait()
        await reading
    assert orders == [{"drain": True}]


async def test_two_runners_share_the_work_and_never_a_run(no_hints):
    chats = [await db(new_chat) for _ in range(6)]
    model = ScriptedModel()
    async with node(model, "r1"), node(model, "r2"):
        waiting = [await queued(one) for one in chats]
        for run in waiting:
            assert (await ended(run)).epoch == 1
    assert await db(Lease.objects.count) == len(chats)
    assert len(model.requests) == len(chats)
