"""The executions of this process: which runs it owns right now, and how each is told to leave.

First thing a stop looks at. The registry is never asked for a verdict: a runner that is told "look
at this run" reads the row, and only the row makes it obey.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from enum import StrEnum

from .conf import conf
from .models import Run


class Cause(StrEnum):
    """Why an execution is cancelled. Three causes that must never be mixed."""

    INTERRUPT = "interrupt"  # the person's stop: settle as interrupted
    HANDOVER = "handover"  # the worker shuts down: back to the queue, goes on elsewhere
    FENCED = "fenced"  # the run belongs to somebody else: leave and write nothing


@dataclass(eq=False)
class Execution:
    """One run as this process executes it, under one epoch."""

    run: Run
    runner_id: str
    gate: asyncio.Event  # closed while the lease could not be renewed: no new call, no write
    task: asyncio.Task[None] | None = None
    mirrored: asyncio.Task[None] | None = None  # the claim's key is written
    cause: Cause | None = None
    begun: bool = False  # between its first line and its settlement a task can be cancelled
    draining: bool = False  # at the next saved step, hand over
    alone: bool = False  # its runner executes nothing beside it
    claimed_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def begin(self) -> None:
        """The first line of the run's task; a cancellation that came before is raised here."""
        self.begun = True
        if self.cause is not None:
            raise asyncio.CancelledError

    def leave(self) -> None:
        """The run is being settled: from here on a cancellation would only cut that short."""
        self.begun = False

    def cancel(self, cause: Cause) -> None:
        """Cancel once: a second ``cancel()`` would break the settlement of the first.

        A task cancelled before its first line would never run it, nor any ``finally`` of it.
        """
        if self.cause is None:
            self.cause = cause
            if self.begun and self.task is not None:
                self.task.cancel()


class Registry:
    """The executions of one runner, by run."""

    def __init__(self) -> None:
        self._by_run: dict[uuid.UUID, Execution] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    def __contains__(self, run_id: uuid.UUID) -> bool:
        return run_id in self._by_run

    @property
    def is_taken_by_one(self) -> bool:
        """Whether an execution here is to have no neighbour yet."""
        since = asyncio.get_running_loop().time() - conf.solitude
        return any(e.alone and e.claimed_at > since for e in self._by_run.values())

    def add(self, execution: Execution) -> None:
        """Register before the first line of the run is executed."""
        self._by_run[execution.run.pk] = execution

    def remove(self, execution: Execution) -> None:
        """The execution has left, however it did."""
        if self._by_run.get(execution.run.pk) is execution:
            del self._by_run[execution.run.pk]

    def get(self, run_id: uuid.UUID) -> Execution | None:
        """The execution of a run, if it is here."""
        return self._by_run.get(run_id)

    def all(self) -> list[Execution]:
        """All executions of this process."""
        return list(self._by_run.values())
