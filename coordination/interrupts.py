"""Interrupt: the person's stop of a whole tree of runs, wherever they run.

The intent is a row first: one transaction marks every unfinished run of the tree, ends those that
nobody owns, closes their questions and forbids births. Only then the owners are told: this process
(``registry``), the owners' groups, everybody. Behind the broadcast each runner reads the intents of
its runs with every beat, before each model and tool call, and with every token it logs. ``stopped``
is said only when every run of the tree has ended.

"Interrupt" is only ever this. What AG-UI and LangGraph call so is a question: ``suspensions``.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass

from . import endings, panel, runs, wakeups, worklog
from .conf import conf
from .db import db
from .errors import NotFound
from .models import Run, Session
from .transactions import locked, unit_of_work

RECHECK = (0.005, 0.01, 0.02, 0.05)  # seconds: the poll behind the proof's wake-up, then the last


@dataclass(frozen=True)
class StoppedRun:
    """One run of the stopped tree, as it stood when the answer was given."""

    run_id: uuid.UUID
    agent_id: str
    status: str


@dataclass(frozen=True)
class Stopped:
    """``stopped`` (proved), ``accepted`` (recorded), ``already_finished`` or ``no_active_run``."""

    status: str
    runs: list[StoppedRun]


@unit_of_work
def request(
    session_id: uuid.UUID,
    *,
    by: str,
    run_id: uuid.UUID | None = None,
    agent_id: str | None = None,
    reason: str = Run.Reason.INTERRUPTED,
) -> list[uuid.UUID]:
    """Record the intent on every unfinished run that is meant; their ids, and of ended targets.

    Without ``run_id`` and ``agent_id``: the run that is current now, never a later one. Raises
    NotFound for a run or an agent that this session does not have.
    """
    with locked(session_id) as session:
        return mark(session, by=by, run_id=run_id, agent_id=agent_id, reason=reason)


def mark(
    session: Session,
    *,
    by: str,
    run_id: uuid.UUID | None = None,
    agent_id: str | None = None,
    reason: str = Run.Reason.INTERRUPTED,
) -> list[uuid.UUID]:
    """As ``request``, inside a transaction that holds the session already."""
    tops = _tops(session, run_id, agent_id)
    members = {member.pk: member for top in tops for member in runs.tree(top)}
    live = [member for member in members.values() if not member.is_terminal]
    if not live:
        return [top.pk for top in tops]
    names = ", ".join(sorted({member.agent_id for member in live}))
    worklog.write(session, "stop_requested", f"{names}, by {by}", run=tops[0])
    for member in live:
        member.refresh_from_db()
        if member.is_terminal:
            continue  # ended with a parent a moment ago
        endings.stop_run(session, member, by=by, reason=reason)
        if member.runner_id:
            group = wakeups.runner_group(member.runner_id)
            wakeups.hint(group, "interrupt", runs=[str(member.pk)])
            wakeups.hint(wakeups.EVERYONE, "interrupt", runs=[str(member.pk)])
    panel.publish(session)
    return [member.pk for member in live]


def _tops(session: Session, run_id: uuid.UUID | None, agent_id: str | None) -> list[Run]:
    of_session = Run.objects.filter(session=session)
    if run_id is not None:
        named = of_session.filter(pk=run_id)
        if not named:
            raise NotFound("not_found", "There is no such run in this session.")
        return list(named)
    if agent_id is not None:
        if not of_session.filter(agent_id=agent_id).exists():
            raise NotFound("not_found", f"No agent {agent_id} has run in this session.")
        live = list(of_session.filter(agent_id=agent_id).unfinished().exclude(lane=None))
        queued = list(of_session.filter(agent_id=agent_id, parent__isnull=False).unfinished())
        return live + [run for run in queued if run not in live]
    current = list(of_session.filter(parent=None, lane__isnull=False).unfinished())
    # Sub-agents that outlived their master's turn are what is left to stop.
    return current or list(of_session.filter(parent__isnull=False).unfinished())


def states(run_ids: list[uuid.UUID]) -> list[StoppedRun]:
    """The runs as they stand."""
    rows = Run.objects.filter(pk__in=run_ids).order_by("depth", "position")
    return [StoppedRun(*row) for row in rows.values_list("pk", "agent_id", "status")]


def _any_marked(run_ids: list[uuid.UUID]) -> bool:
    """False where all of them had ended before the stop came."""
    return Run.objects.filter(pk__in=run_ids, stop_requested_at__isnull=False).exists()


async def stop(
    session_id: uuid.UUID,
    *,
    by: str,
    run_id: uuid.UUID | None = None,
    agent_id: str | None = None,
) -> Stopped:
    """Stop, and wait up to ``AGENT_STOP_ACK`` for the rows to prove it.

    Idempotent: ten stops are one, and each is answered with what is true for its runs.
    """
    proof = _Proof(session_id)
    try:
        before: set[uuid.UUID] = set()
        if run_id is not None:
            before = {s.run_id for s in await db(states, [run_id]) if s.status in Run.TERMINAL}
        run_ids = await db(request, session_id, by=by, run_id=run_id, agent_id=agent_id)
        if not run_ids:
            return Stopped("no_active_run", [])
        if before.issuperset(run_ids) or not await db(_any_marked, run_ids):
            return Stopped("already_finished", await db(states, run_ids))
        return await proof.wait(run_ids)
    finally:
        proof.close()


class _Proof:
    """Waits for runs to end: woken by the session's events, with a poll behind."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self._event = asyncio.Event()
        self._group = wakeups.session_group(session_id)
        self._hub = wakeups.Hub.current()
        self._hub.subscribe(self._group, self._wake)

    def _wake(self, _: wakeups.Hint) -> None:
        self._event.set()

    def close(self) -> None:
        self._hub.unsubscribe(self._group, self._wake)

    async def wait(self, run_ids: list[uuid.UUID]) -> Stopped:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + conf.stop_ack
        looks = 0
        while True:
            now = await db(states, run_ids)
            if all(state.status in Run.TERMINAL for state in now):
                return Stopped("stopped", now)
            left = deadline - loop.time()
            if left <= 0:
                return Stopped("accepted", now)
            pause = RECHECK[min(looks, len(RECHECK) - 1)]
            looks += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await self._event.wait()
            self._event.clear()
