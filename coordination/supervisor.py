"""One worker node: a supervisor process that vouches for N runner processes.

It does what must not depend on a busy runner: it beats for them (no model call, no regular
expression, no GIL of theirs stops the heartbeat), sees a dead one at once and settles its runs as
``crashed``, restarts it, kills one that is deaf to a stop past the grace, and guards everybody
else's runs; and when it starts it settles what it can prove that a dead node of this machine has
left. Orders go down the child's standard input, one JSON object a line; the child's standard output
says once a second that its loop still turns. A supervisor that dies takes its runners along:
they see the end of their input, and leave, and without it nobody would beat for them anyway.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime as dt
import functools
import json
import logging
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db.models.functions import Now

from . import endings, guard, leases, nodes, rendezvous, wakeups
from .conf import conf
from .db import RETRY_PAUSE, db
from .models import Lease, WorkerNode

log = logging.getLogger(__name__)

ALIVE_EVERY = 1.0  # seconds between a runner's signs that its loop turns
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
KILL_AFTER_DRAIN = 5.0  # seconds past AGENT_DRAIN for settling; then a runner is hung


@dataclass(eq=False)
class Child:
    """One runner process."""

    runner_id: str
    process: asyncio.subprocess.Process
    born: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    alive_at: float = 0.0

    def __post_init__(self) -> None:
        self.alive_at = self.born

    def about(self, runs: int) -> dict[str, Any]:
        """What people are shown of it; seconds, as of now."""
        now = asyncio.get_running_loop().time()
        age, quiet = round(now - self.born, 1), round(now - self.alive_at, 1)
        pid = self.process.pid
        return {"id": self.runner_id, "pid": pid, "age": age, "quiet": quiet, "runs": runs}

    def order(self, **order: object) -> None:
        """Write an order; a child that has just died is noticed by its exit, not here."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(order).encode() + b"\n")


class Supervisor:
    """Starts ``processes`` runners with ``command``, each for ``concurrency`` runs at once.

    To the command are added ``--runner ID --node ID --concurrency N``.
    """

    def __init__(self, command: Sequence[str], *, processes: int, concurrency: int) -> None:
        self.command = list(command)
        self.processes = processes
        self.concurrency = concurrency
        self.node_id = nodes.new_node_id()
        self.children: dict[str, Child] = {}
        self.guard = guard.LeaseGuard(name=f"guard {self.node_id}")
        self._stopping = asyncio.Event()
        self._born = 0
        self._reaper: asyncio.Task[None] | None = None
        self._held: dict[int, leases.Held] = {}  # by the last beat
        self._mirroring: asyncio.Task[None] | None = None
        self._mirrors = True  # whether the last mirroring succeeded
        self._signing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Run until ``stop`` was called and every runner has left."""
        keepers: list[asyncio.Future[None]] = [
            asyncio.ensure_future(self._for_ever(self._beat, conf.heartbeat_interval)),
            asyncio.ensure_future(self._for_ever(self._guard, conf.guard_interval)),
            asyncio.ensure_future(self._for_ever(self._end_waits, conf.await_poll)),
            asyncio.ensure_future(self._until_done(lambda: db(self._settle_earlier_lives))),
        ]
        try:
            await asyncio.gather(*(self._keep_one() for _ in range(self.processes)))
        finally:
            keepers += [task for task in (self._reaper, self._mirroring, self._signing) if task]
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            with suppress(TimeoutError):  # a database that hangs holds up no shutdown
                async with asyncio.timeout(KILL_AFTER_DRAIN):
                    await self._for_people(WorkerNode.leave)
            await wakeups.Hub.current().close()

    def stop(self) -> None:
        """Drain: runners finish their step, hand over and leave. Twice: at once."""
        self._stopping.set()
        for child in self.children.values():
            child.order(drain=True)
        if self._reaper is None:
            self._reaper = asyncio.ensure_future(self._kill_the_hung())

    async def _kill_the_hung(self) -> None:
        await asyncio.sleep(conf.drain + KILL_AFTER_DRAIN)
        for child in list(self.children.values()):
            log.error("runner_killed", extra={"runner": child.runner_id, "why": "drain"})
            child.process.kill()

    # -- children ------------------------------------------------------------------------

    async def _keep_one(self) -> None:
        while not self._stopping.is_set():
            child = await self._spawn()
            if self._stopping.is_set():
                child.order(drain=True)
            await self._until_exit(child)
            if not self._stopping.is_set():
                await asyncio.sleep(conf.restart_pause)

    async def _spawn(self) -> Child:
        self._born += 1
        runner_id = f"{self.node_id}.{self._born}"
        process = await asyncio.create_subprocess_exec(
            *self.command,
            "--runner",
            runner_id,
            "--node",
            self.node_id,
            "--concurrency",
            str(self.concurrency),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which drains
        )
        child = self.children[runner_id] = Child(runner_id, process)
        log.info("runner_started", extra={"runner": runner_id, "pid": process.pid})
        return child

    async def _until_exit(self, child: Child) -> None:
        listener = asyncio.ensure_future(self._listen(child))
        code = await child.process.wait()
        del self.children[child.runner_id]
        listener.cancel()
        level = logging.INFO if self._stopping.is_set() and code == 0 else logging.ERROR
        log.log(level, "runner_exited", extra={"runner": child.runner_id, "code": code})
        await self._until_done(lambda: db(self._settle_crashed, child.runner_id))

    async def _listen(self, child: Child) -> None:
        assert child.process.stdout is not None
        while await child.process.stdout.readline():
            child.alive_at = asyncio.get_running_loop().time()

    def _settle_crashed(self, runner_id: str) -> None:
        self._settle(Lease.objects.filter(runner_id=runner_id, released_at=None))

    def _settle_earlier_lives(self) -> None:
        """A worker that is started again need not let the runs of its last life expire."""
        still_open = Lease.objects.filter(released_at=None)
        for node_id in still_open.values_list("node_id", flat=True).distinct():
            if nodes.is_gone(node_id):
                log.warning("node_is_gone", extra={"node": node_id})
                self._settle(still_open.filter(node_id=node_id))

    def _settle(self, crashed: Iterable[Lease]) -> None:
        for lease in crashed:
            endings.lost(lease, end=Lease.End.CRASHED, by=f"supervisor {self.node_id}")
            leases.unmirror(lease.session_id, lease.agent_id, lease.runner_id)

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except Exception:
                log.exception("supervisor_retry")
                await asyncio.sleep(conf.guard_interval)

    # -- beating and guarding ------------------------------------------------------------

    async def _for_ever(self, work: Callable[[], Awaitable[None]], interval: float) -> None:
        """Nodes do not beat in step; what has failed is tried again before the next is due."""
        clock = asyncio.get_running_loop().time
        failing = False
        while True:
            due = clock() + interval * random.uniform(0.9, 1.0)
            try:
                await work()
                failing = False
                due = max(due, clock() + interval / 10)
            except Exception:
                if not failing:  # once, not with every try of an outage
                    log.exception("supervisor_round_failed")
                failing = True
                due = min(due, clock() + RETRY_PAUSE)
            await asyncio.sleep(due - clock())

    async def _beat(self) -> None:
        runner_ids = list(self.children)
        now = asyncio.get_running_loop().time()
        held = await db(leases.renew, runner_ids, self._held)
        orders: dict[str, list[list[object]]] = {runner_id: [] for runner_id in runner_ids}
        for h in held:
            orders[h.runner_id].append([str(h.run_id), h.epoch, h.stop_requested])
        for runner_id, order in orders.items():
            child = self.children.get(runner_id)
            if child is not None:
                child.order(held=order, at=now)
        if self._mirroring is None or self._mirroring.done():  # a Redis that hangs delays no beat
            self._mirroring = asyncio.ensure_future(self._mirror(held))
        if self._signing is None or self._signing.done():  # nor does a row for people
            about = self._about(Counter(h.runner_id for h in held))
            sign = functools.partial(WorkerNode.beat, **about)
            self._signing = asyncio.ensure_future(self._for_people(sign))

    def _about(self, runs: Counter[str]) -> dict[str, Any]:
        load: float | None = None
        with suppress(OSError):
            load = os.getloadavg()[0]
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processes": self.processes,
            "concurrency": self.concurrency,
            "cpus": os.cpu_count() or 1,
            "load": load,
            "runners": [child.about(runs[name]) for name, child in self.children.items()],
        }

    async def _for_people(self, write: Callable[[str], object]) -> None:
        """The node's own row. Nothing depends on it, so nothing fails with it."""
        try:
            await db(write, self.node_id)
        except Exception as error:  # noqa: BLE001
            log.warning("node_row_not_written", extra={"error": repr(error)})

    async def _mirror(self, held: Sequence[leases.Held]) -> None:
        mirrored = await db(leases.mirror, held)
        if mirrored != self._mirrors and leases.redis_configured():
            log.warning("lease_mirror_is_back" if mirrored else "lease_mirror_failed")
        self._mirrors = mirrored

    async def _guard(self) -> None:
        await db(guard.rounds, self.guard)
        await self._kill_the_deaf()

    async def _end_waits(self) -> None:
        await db(rendezvous.expire_due)

    async def _kill_the_deaf(self) -> None:
        """A loop that has not turned since a run of it was fenced will not obey any more."""
        now = asyncio.get_running_loop().time()
        deaf = [c for c in self.children.values() if now - c.alive_at > conf.stop_grace]
        for child in deaf:
            if await db(_has_fenced, child.runner_id, now - child.alive_at):
                log.error("runner_killed", extra={"runner": child.runner_id, "why": "deaf"})
                os.kill(child.process.pid, signal.SIGKILL)


def _has_fenced(runner_id: str, within: float) -> bool:
    since = Now() - dt.timedelta(seconds=within)
    fenced = Lease.objects.filter(runner_id=runner_id, end=Lease.End.FENCED)
    return fenced.filter(released_at__gt=since).exists()


def die_with_parent() -> None:
    """Ask the kernel to end this process with its supervisor, however blocked it is by then.

    Elsewhere than on Linux only the end of standard input says so, to a loop that still turns.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def say_alive() -> None:
    """The runner's side: one line a second on standard output, from its own loop."""
    while True:
        sys.stdout.write("alive\n")
        sys.stdout.flush()
        await asyncio.sleep(ALIVE_EVERY)
