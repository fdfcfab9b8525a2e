"""One runner: a process with one asyncio loop and many runs. It claims, executes, and lets go.

What a runner does is told to it by rows. Hints, its supervisor's orders and the event writer's
refusals all end in ``look``: read the row, and obey only that. A run leaves in one of four ways: it
ended or parked (the executor's own doing), the person stopped it, the worker hands it over, or it
belongs to somebody else by now, and then nothing more is written.

Its supervisor is in ``supervisor``; what a run does is injected (``execute``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from . import endings, events, leases, runs, wakeups
from .conf import conf
from .db import db, settled
from .errors import CommitUnknown, Fenced
from .leases import Held
from .models import Run
from .registry import Cause, Execution, Registry

log = logging.getLogger(__name__)

Execute = Callable[[Execution, events.Writer], Awaitable[None]]


class Runner:
    """Claims queued runs and executes up to ``concurrency`` of them at once."""

    def __init__(self, execute: Execute, *, runner_id: str, node_id: str, concurrency: int) -> None:
        self.execute = execute
        self.runner_id = runner_id
        self.node_id = node_id
        self.concurrency = concurrency
        self.registry = Registry()
        self.writer = events.Writer(on_refused=lambda run_id: self.look_soon([run_id]))
        self._work = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self._renewed_at = asyncio.get_running_loop().time()
        self._draining = False
        self._orphans: set[uuid.UUID] = set()
        self._claiming: uuid.UUID | None = None  # it may be ours by now, and is about to start
        self._helpers: set[asyncio.Task[Any]] = set()

    # -- life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``drain`` has been called and everything has left."""
        hub = wakeups.Hub.current()
        hub.subscribe(wakeups.WORKERS, lambda _: self._work.set())
        hub.subscribe(wakeups.EVERYONE, self._hinted)
        hub.subscribe(wakeups.runner_group(self.runner_id), self._hinted)
        hub.on_gap(self._missed_hints)
        watch = asyncio.ensure_future(self._watch_lease())
        try:
            while not self._draining:
                await self._claim_some()
                await self._wait_for_work()
            await self._drained()
        finally:
            watch.cancel()
            await hub.close()

    def drain(self) -> None:
        """Stop claiming and hand over at the next saved step; a second call hurries."""
        if self._draining:
            for execution in self.registry.all():
                execution.cancel(Cause.HANDOVER)
        self._draining = True
        for execution in self.registry.all():
            execution.draining = True
        self._work.set()

    async def _drained(self) -> None:
        deadline = asyncio.get_running_loop().time() + conf.drain
        while len(self.registry) and asyncio.get_running_loop().time() < deadline:
            await self._sleep_until_change(0.1)
        for execution in self.registry.all():
            execution.cancel(Cause.HANDOVER)
        tasks = [execution.task for execution in self.registry.all() if execution.task]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sleep_until_change(self, longest: float) -> None:
        with suppress(TimeoutError):  # not wait_for: Python 3.11's may swallow a cancellation
            async with asyncio.timeout(longest):
                await self._work.wait()
        self._work.clear()

    # -- claiming ------------------------------------------------------------------------

    async def _wait_for_work(self) -> None:
        await self._sleep_until_change(conf.claim_poll)

    async def _claim_some(self) -> None:
        free = self.concurrency - len(self.registry)
        if free <= 0 or self._draining or not self._gate.is_set():
            return
        try:
            for found in await db(runs.claimable, free, idle=not len(self.registry)):
                if self.registry.is_taken_by_one or (found.alone and len(self.registry)):
                    continue
                await self._claim(found)
        except Exception:
            log.exception("claim_failed", extra={"runner": self.runner_id})
            await asyncio.sleep(conf.claim_poll)

    async def _claim(self, found: runs.Claimable) -> None:
        self._claiming = found.run_id
        ids = found.run_id, found.session_id
        try:
            run = await db(runs.claim, *ids, self.runner_id, self.node_id)
        except CommitUnknown:
            run = await settled(runs.claimed_by(self.runner_id).filter(pk=found.run_id).first)
        finally:
            self._claiming = None
        if run is not None:
            self._start(run, alone=found.alone)

    def _start(self, run: Run, *, alone: bool = False) -> None:
        execution = Execution(run, self.runner_id, self._gate, draining=self._draining, alone=alone)
        self.registry.add(execution)
        execution.task = asyncio.ensure_future(self._carry_out(execution))
        mine = Held(run.pk, run.session_id, run.agent_id, self.runner_id, run.epoch)
        execution.mirrored = self._background(db(leases.mirror, [mine]))

    # -- executing -----------------------------------------------------------------------

    async def _carry_out(self, execution: Execution) -> None:
        run = execution.run
        try:
            execution.begin()
            await self.execute(execution, self.writer)
        except Fenced:
            execution.leave()
            await self._leave_as_the_row_says(execution)
        except CommitUnknown:  # what this execution knows may be wrong: on from the rows
            execution.leave()
            await self._leave(execution, Cause.HANDOVER)
        except asyncio.CancelledError:
            await self._leave(execution, execution.cause or Cause.HANDOVER)
        except Exception as error:
            execution.leave()
            log.exception("run_failed", extra=_names(run))
            await self._keep_words(run)
            await self._settle(execution, endings.failed, f"{type(error).__name__}: {error}")
        finally:
            self.writer.forget(run)
            self.registry.remove(execution)
            self._work.set()
            self._background(self._unmirror(execution))

    async def _leave_as_the_row_says(self, execution: Execution) -> None:
        """A write was refused: because of a stop, or because somebody else owns the run now."""
        run = execution.run
        fresh = await settled(Run.objects.filter(pk=run.pk, epoch=run.epoch).first)
        if fresh is None or fresh.status not in Run.OWNED:
            await self._leave(execution, Cause.FENCED)
        elif fresh.stop_requested_at:
            await self._leave(execution, Cause.INTERRUPT)
        else:
            await self._settle(execution, endings.failed, "its events could not be logged")

    async def _leave(self, execution: Execution, cause: Cause) -> None:
        if cause is Cause.FENCED:
            log.warning("run_left_fenced", extra=_names(execution.run))
            return
        await self._keep_words(execution.run)
        end = endings.stopped if cause is Cause.INTERRUPT else endings.handed_over
        await self._settle(execution, end)

    async def _keep_words(self, run: Run) -> None:
        """Log what was said and is not in the log yet; a settlement keeps what is."""
        try:
            await self.writer.flush(run)
        except Fenced:  # the stop has closed the log already: what is in it is what was said
            log.debug("flush_refused", extra=_names(run))

    async def _settle(self, execution: Execution, end: Callable[..., bool], *args: Any) -> None:
        """The short last step; should it fail, ``_settle_orphans`` does it later."""
        try:
            await settled(end, execution.run, *args, by=self.runner_id)
        except Exception:
            log.exception("settle_failed", extra=_names(execution.run))

    async def _unmirror(self, execution: Execution) -> None:
        run = execution.run
        if execution.mirrored:
            await execution.mirrored  # or a run of milliseconds would leave its key behind
        await db(leases.unmirror, run.session_id, run.agent_id, self.runner_id)

    # -- being told ----------------------------------------------------------------------

    def look_soon(self, run_ids: list[uuid.UUID]) -> None:
        """Read the rows of these runs and obey them. What says so may be wrong; rows are not."""
        if any(run_id in self.registry for run_id in run_ids):
            self._background(self._look(run_ids))

    async def _look(self, run_ids: list[uuid.UUID]) -> None:
        executions = {run_id: self.registry.get(run_id) for run_id in run_ids}
        rows = await db(_intents, run_ids)
        for run_id, execution in executions.items():
            if execution is None or self.registry.get(run_id) is not execution:
                continue  # what was read may be older than an execution that began meanwhile
            match rows.get(run_id):
                case (epoch, status, stop) if epoch == execution.run.epoch and status in Run.OWNED:
                    if stop:
                        execution.cancel(Cause.INTERRUPT)
                case (epoch, status, _) if epoch == execution.run.epoch:
                    pass  # it has parked or ended by its own doing and is about to leave
                case _:
                    execution.cancel(Cause.FENCED)

    def _hinted(self, hint: wakeups.Hint) -> None:
        if hint.get("kind") == "interrupt":
            self.look_soon([uuid.UUID(run_id) for run_id in hint.get("runs", [])])

    def _missed_hints(self) -> None:
        self._work.set()
        self.look_soon([execution.run.pk for execution in self.registry.all()])

    def obey(self, order: dict[str, Any]) -> None:
        """An order of the supervisor: a beat with what this runner holds, or "drain"."""
        if order.get("drain"):
            self.drain()
            return
        self._renewed_at = order["at"]
        if self._renewed_lately():  # an old order says that it was, and not that it is
            self._gate.set()
        self._background(self._settle_orphans({uuid.UUID(row[0]) for row in order["held"]}))
        held = {uuid.UUID(run_id): (epoch, stop) for run_id, epoch, stop in order["held"]}
        doubtful = [
            execution.run.pk
            for execution in self.registry.all()
            if held.get(execution.run.pk) != (execution.run.epoch, False)
        ]
        self.look_soon(doubtful)

    async def _settle_orphans(self, held: set[uuid.UUID]) -> None:
        """A lease of ours that nothing here executes, two beats in a row, would live for ever.

        It happens when a settlement failed, as when the database went away in that moment.
        """
        orphans = {run_id for run_id in held if run_id not in self.registry} - {self._claiming}
        for run_id in orphans & self._orphans:
            await db(endings.abandoned, run_id, self.runner_id)
        self._orphans = orphans

    async def _watch_lease(self) -> None:
        """No beat for too long: suspend (no new call, no write) rather than die."""
        while True:
            await asyncio.sleep(conf.heartbeat_interval / 4)
            if self._gate.is_set() and not self._renewed_lately():
                log.warning("lease_not_renewed", extra={"runner": self.runner_id})
                self._gate.clear()

    def _renewed_lately(self) -> bool:
        """Whether the leases last for another moment, by the supervisor's word.

        Both processes read the machine's one monotonic clock.
        """
        silent = asyncio.get_running_loop().time() - self._renewed_at
        return silent < conf.lease_ttl - conf.heartbeat_interval / 2

    def _background(self, work: Awaitable[Any]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(_logged(work))
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task


async def _logged(work: Awaitable[Any]) -> None:
    try:
        await work
    except Exception:
        log.exception("runner_background_failed")


def _intents(run_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[int, str, bool]]:
    rows = Run.objects.filter(pk__in=run_ids).values_list(
        "pk", "epoch", "status", "stop_requested_at"
    )
    return {pk: (epoch, status, stop is not None) for pk, epoch, status, stop in rows}


def _names(run: Run) -> dict[str, str]:
    return {"session": str(run.session_id), "run": str(run.pk), "agent": run.agent_id}


async def read_orders(obey: Callable[[dict[str, Any]], None], closed: Callable[[], None]) -> None:
    """Read the supervisor's orders, one JSON object a line, from standard input.

    The end of the pipe is the supervisor's death, and with it the end of the heartbeat.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        obey(json.loads(line))
    closed()
