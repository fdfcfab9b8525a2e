"""A supervisor keeps its runners, sees a dead one at once, and takes them along when it drains."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from django.db import DatabaseError
from django.utils import timezone

from coordination import interrupts, nodes
from coordination import supervisor as supervisors
from coordination.conf import conf
from coordination.db import db
from coordination.models import Lease, Run, WorkerNode
from coordination.supervisor import Supervisor
from tests.core import again, at_rest, back_in_time, begin, claim, new_chat, post, send, until

pytestmark = [
    pytest.mark.usefixtures("core", "hub"),
    pytest.mark.django_db(transaction=True),
]

CHILD = """
import json, sys, time
print("alive", flush=True)
for line in sys.stdin:
    if "drain" in json.loads(line):
        break
"""
DEAF = "import time\nprint('alive', flush=True)\ntime.sleep(600)"


DIE = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from coordination.nodes import new_node_id
print(new_node_id(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
async def supervised(monkeypatch):
    """Starts a supervisor over children that run this program."""
    monkeypatch.setattr(conf, "heartbeat_interval", 0.1)
    monkeypatch.setattr(conf, "restart_pause", 0.01)
    started = []

    def start(program=CHILD, processes=1):
        command = [sys.executable, "-c", program]
        supervisor = Supervisor(command, processes=processes, concurrency=4)
        started.append((supervisor, asyncio.ensure_future(supervisor.run())))
        return supervisor

    yield start
    for supervisor, task in started:
        supervisor.stop()
        async with asyncio.timeout(10):
            while not task.done():  # one more may just have been born
                for child in list(supervisor.children.values()):
                    with suppress(ProcessLookupError):
                        child.process.kill()
                await asyncio.wait([task], timeout=0.02)


async def children(supervisor, count=1):
    async with asyncio.timeout(10):
        while len(supervisor.children) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return list(supervisor.children.values())


async def test_a_dead_runner_s_runs_are_settled_at_once_and_it_is_replaced(supervised):
    supervisor = supervised()
    (child,) = await children(supervisor)
    chat = await db(new_chat)

    def work():
        master = claim(post(chat), child.runner_id, supervisor.node_id)
        return master, begin(send(master)[1], child.runner_id)

    master, sub = await db(work)
    died = time.monotonic()
    os.kill(child.process.pid, signal.SIGKILL)
    await until(lambda: Run.objects.filter(pk=sub.pk, reason="crashed").exists())
    assert time.monotonic() - died < conf.lease_ttl / 2  # told by the exit, not by the lease
    assert (await db(again, master)).status == "queued"
    await at_rest(chat)
    (other,) = await children(supervisor)
    assert other.runner_id != child.runner_id


async def test_the_beat_renews_for_the_runner(supervised):
    supervisor = supervised()
    (child,) = await children(supervisor)
    run = await db(lambda: claim(post(new_chat()), child.runner_id, supervisor.node_id))
    await until(lambda: Lease.objects.get(run=run).beats >= 2)


async def test_a_supervisor_does_not_beat_for_strangers(supervised):
    supervisor = supervised()
    (child,) = await children(supervisor)
    run = await db(lambda: claim(post(new_chat()), child.runner_id + "0", supervisor.node_id))
    mine = await db(lambda: claim(post(new_chat()), child.runner_id, supervisor.node_id))
    await until(lambda: Lease.objects.get(run=mine).beats >= 2)
    assert (await db(Lease.objects.get, run=run)).beats == 0


async def test_a_runner_that_is_deaf_to_a_fence_is_killed(supervised, monkeypatch):
    monkeypatch.setattr(conf, "stop_grace", 0.2)
    supervisor = supervised(DEAF)
    (child,) = await children(supervisor)
    run = await db(lambda: claim(post(new_chat()), child.runner_id, supervisor.node_id))
    await db(interrupts.request, run.session_id, by="alice")
    async with asyncio.timeout(10):
        await child.process.wait()
    assert child.process.returncode == -signal.SIGKILL
    await until(lambda: again(run).status == "interrupted")


async def test_a_runner_that_is_only_quiet_is_left_alone(supervised, monkeypatch):
    """One of its runs was fenced long ago: that it has survived."""
    monkeypatch.setattr(conf, "stop_grace", 0.05)
    supervisor = supervised(DEAF)
    (child,) = await children(supervisor)

    def fence_one_long_ago():
        run = claim(post(new_chat()), child.runner_id, supervisor.node_id)
        Lease.objects.filter(run=run).update(end="fenced", released_at=timezone.now())
        back_in_time(Lease.objects.filter(run=run), 60, "released_at")

    await db(fence_one_long_ago)
    await asyncio.sleep(0.1)
    await supervisor._kill_the_deaf()
    assert child.process.returncode is None


async def test_stopping_drains_every_runner_and_ends(supervised):
    supervisor = supervised(processes=2)
    members = await children(supervisor, 2)
    supervisor.stop()
    async with asyncio.timeout(10):
        for child in members:
            assert await child.process.wait() == 0
        while supervisor.children:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_guard_of_a_node_judges_other_nodes_runs(supervised, monkeypatch):
    monkeypatch.setattr(conf, "lease_grace", 0.1)
    supervised()
    chat = await db(new_chat)

    def lost():
        from tests.core import expire_leases

        child = begin(send(claim(post(chat), "dead.1", "dead"))[1], "dead.1")
        expire_leases(child)
        return child

    child = await db(lost)
    await until(lambda: Run.objects.filter(pk=child.pk, reason="lease_expired").exists())


async def test_what_a_dead_node_of_this_machine_has_left_is_settled_at_the_start(supervised):
    """Trial 27: not after the lease; and a living neighbour's runs are left alone."""
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await dying.communicate()
    dead, alive = out.decode().strip(), nodes.new_node_id()
    chat = await db(new_chat)

    def left():
        master = claim(post(chat), f"{dead}.1", dead)
        child = begin(send(master)[1], "neighbour")
        Lease.objects.filter(run=child).update(node_id=alive)
        return master, child

    master, child = await db(left)
    supervised()
    await until(lambda: again(master).status == "queued")
    assert (await db(Lease.objects.get, run=master)).end == "crashed"
    assert (await db(again, child)).status == "running"


async def test_an_outage_is_logged_once_and_the_beat_tries_again_soon(supervised, monkeypatch):
    from django.db import OperationalError

    from coordination import leases, supervisor

    tries, said = [], []

    def away(runner_ids, known):
        tries.append(runner_ids)
        raise OperationalError("away")

    monkeypatch.setattr(conf, "heartbeat_interval", 60)
    monkeypatch.setattr(conf, "lease_ttl", 180)
    monkeypatch.setattr(supervisor, "RETRY_PAUSE", 0.01)
    monkeypatch.setattr(leases, "renew", away)
    monkeypatch.setattr(supervisor.log, "exception", lambda text: said.append(text))
    supervised()
    await until(lambda: len(tries) > 3)
    assert said == ["supervisor_round_failed"]


# -- the row for people ----------------------------------------------------------------------------


async def test_a_node_tells_people_who_works_there_and_that_it_has_left(supervised):
    supervisor = supervised(processes=2)
    members = await children(supervisor, 2)
    await db(lambda: claim(post(new_chat()), members[1].runner_id, supervisor.node_id))
    busy = {members[0].runner_id: 0, members[1].runner_id: 1}

    def told():
        row = WorkerNode.objects.filter(pk=supervisor.node_id).first()
        return row if row and {r["id"]: r["runs"] for r in row.runners} == busy else None

    row = await until(told)
    assert [r["pid"] for r in row.runners] == [child.process.pid for child in members]
    assert (row.pid, row.processes, row.concurrency) == (os.getpid(), 2, 4)
    assert row.left_at is None
    await until(lambda: WorkerNode.objects.get(pk=row.pk).beat_at > row.beat_at)
    supervisor.stop()
    left = await until(
        lambda: WorkerNode.objects.filter(pk=row.pk, left_at__gt=row.beat_at).first()
    )
    assert left.runners == []
    await db(WorkerNode.beat, row.pk, **supervisor._about(Counter()))
    assert (await db(WorkerNode.objects.get)).beat_at == left.beat_at


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_row_for_people_neither_fails_nor_delays_a_beat(supervised, monkeypatch, how):
    let_go, tried = threading.Event(), []

    def write(node_id, **about):
        tried.append(node_id)
        if how == "hangs":
            let_go.wait(30)
        raise DatabaseError("away")

    monkeypatch.setattr(WorkerNode, "beat", write)
    supervisor = supervised()
    (child,) = await children(supervisor)
    run = await db(lambda: claim(post(new_chat()), child.runner_id, supervisor.node_id))
    try:
        await until(lambda: tried and Lease.objects.get(run=run).beats >= 5)
        assert len(tried) == 1 or how == "fails"
    finally:
        let_go.set()


async def test_a_row_for_people_delays_no_shutdown(supervised, monkeypatch):
    let_go, tried = threading.Event(), threading.Event()

    def leave(_node_id):
        tried.set()
        let_go.wait(30)

    monkeypatch.setattr(WorkerNode, "leave", leave)
    monkeypatch.setattr(supervisors, "KILL_AFTER_DRAIN", 0.1)
    supervisor = supervised()
    await children(supervisor)
    (running,) = [t for t in asyncio.all_tasks() if t.get_coro().__qualname__ == "Supervisor.run"]
    supervisor.stop()
    try:
        async with asyncio.timeout(20):
            await running
        assert tried.is_set()
    finally:
        let_go.set()
