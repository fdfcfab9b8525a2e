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
import functools
import itertools
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from . import endings, runs, wakeups, worklog
from .conf import conf
from .db import db
from .errors import NotFound
from .models import Run, Session
from .transactions import locked, unit_of_work

RECHECK = (0.02, 0.05)  # seconds: the poll behind the proof's wake-up; the last one repeats


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
) -> Stopped:
    """Record the intent on every unfinished run that is meant; how things stand with the commit.

    Without ``run_id`` and ``agent_id``: the run that is current now, never a later one. Raises
    NotFound for a run or an agent that this session does not have.
    """
    with locked(session_id) as session:
        return mark(session, by=by, run_id=run_id, agent_id=agent_id)


def mark(
    session: Session,
    *,
    by: str,
    run_id: uuid.UUID | None = None,
    agent_id: str | None = None,
    reason: str = Run.Reason.INTERRUPTED,
) -> Stopped:
    """As ``request``, inside a transaction that holds the session already."""
    live = list(Run.objects.filter(session=session).unfinished().order_by("-depth"))
    tops = _tops(session, live, run_id, agent_id)
    members = _below(tops, live)
    if not members:
        return Stopped("already_finished" if tops else "no_active_run", _as_they_stand(tops))
    names = ", ".join(sorted({member.agent_id for member in members}))
    worklog.write(session, "stop_requested", f"{names}, by {by}", run=tops[0])
    Run.request_stop(members, by=by, reason=reason)
    _tell_owners(members)
    for member in members:  # a child before its parent
        endings.end_unowned(session, member, by=by)
    ended = all(member.is_terminal for member in members)
    return Stopped("stopped" if ended else "accepted", _as_they_stand(members))


def _tops(
    session: Session, live: list[Run], run_id: uuid.UUID | None, agent_id: str | None
) -> list[Run]:
    """What is meant: a run, an agent, or what is current. All that is live is in ``live``."""
    of_session = Run.objects.filter(session=session)
    if run_id is not None:
        named = [run for run in live if run.pk == run_id] or list(of_session.filter(pk=run_id))
        if not named:
            raise NotFound("not_found", "There is no such run in this session.")
        return named
    if agent_id is not None:
        newest = of_session.filter(agent_id=agent_id).order_by("-position").first()
        if newest is None:
            raise NotFound("not_found", f"No agent {agent_id} has run in this session.")
        # Of the master, whose queue is the person's, only the run that is current.
        meant = [r for r in live if r.agent_id == agent_id and (r.lane or not r.is_root)]
        return meant or [newest]
    # Sub-agents that outlived their master's turn are what is left to stop.
    current = [run for run in live if run.is_root and run.lane]
    return current or [run for run in live if not run.is_root]


def _below(tops: list[Run], live: list[Run]) -> list[Run]:
    """The unfinished runs of these trees, the deepest first."""
    roots = {top.pk for top in tops if top.is_root}
    below = {run.pk for top in tops if not top.is_root for run in runs.tree(top)}
    return [run for run in live if run.root_id in roots or run.pk in below]


def _tell_owners(members: list[Run]) -> None:
    """The owners' own groups first, then everyone's, once the transaction commits."""
    by_owner: dict[str, list[str]] = {}
    for run in members:
        if run.runner_id:
            by_owner.setdefault(run.runner_id, []).append(str(run.pk))
    for runner_id, ids in by_owner.items():
        wakeups.hint(wakeups.runner_group(runner_id), "interrupt", runs=ids)
    if by_owner:
        every = [id_ for ids in by_owner.values() for id_ in ids]
        wakeups.hint(wakeups.EVERYONE, "interrupt", runs=every)


def _as_they_stand(members: list[Run]) -> list[StoppedRun]:
    ordered = sorted(members, key=lambda run: (run.depth, run.position))
    return [StoppedRun(run.pk, run.agent_id, run.status) for run in ordered]


def states(run_ids: list[uuid.UUID]) -> list[StoppedRun]:
    """The runs as they stand."""
    return _as_they_stand(list(Run.objects.filter(pk__in=run_ids)))


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
    ask = functools.partial(request, session_id, by=by, run_id=run_id, agent_id=agent_id)
    return await proved(session_id, ask)


async def proved(session_id: uuid.UUID, ask: Callable[[], Stopped]) -> Stopped:
    """What ``ask`` records, as it stands when the rows prove it, or ``AGENT_STOP_ACK`` is over."""
    proof = _Proof(session_id)
    try:
        now = await db(ask)
        return await proof.wait(now) if now.status == "accepted" else now
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

    async def wait(self, accepted: Stopped) -> Stopped:
        loop = asyncio.get_running_loop()
        run_ids = [run.run_id for run in accepted.runs]
        deadline = loop.time() + conf.stop_ack
        for pause in itertools.chain(RECHECK, itertools.repeat(RECHECK[-1])):
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, min(pause, deadline - loop.time()))):
                    await self._event.wait()
            self._event.clear()
            now = await db(states, run_ids)
            if all(run.status in Run.TERMINAL for run in now):
                return Stopped("stopped", now)
            if loop.time() >= deadline:
                return Stopped("accepted", now)
        raise AssertionError("unreachable")
