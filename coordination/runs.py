"""A run's life between birth and end: start, claim, save, park, go on. Its end is ``endings``.

A run is queued (waits for a runner, or for its agent's lane), owned (a runner executes it under a
lease), or parked (waits for rows: questions or results; owned by nobody, so nothing of it is lost
with any process). All of it happens with the session's row locked.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, Q, When
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from . import events, panel, vocabulary, wakeups, worklog
from .conf import conf
from .errors import Conflict, Fenced
from .models import InboxMessage, Lease, Question, Run, Session, Wait
from .models.run import RunQuerySet
from .prepared import Rows, Update, Values, given
from .signals import run_ready
from .transactions import locked, unit_of_work

OWNED = Rows(
    lambda: Run.objects.filter(pk=given("run"), epoch=given("epoch"), status__in=Run.OWNED)
)
"""The run, while it is owned under this epoch."""

_QUEUED = Rows(lambda: Run.objects.filter(pk=given("run"), status=Run.Status.QUEUED))
_NEXT = Rows(
    lambda: Run.objects.filter(
        session=given("session"), agent_id=given("agent"), status=Run.Status.QUEUED, lane=None
    ).order_by("position")[:1]
)
_ASKING = Values(
    lambda: Question.objects.filter(run=given("run"), state=Question.State.OPEN).values_list("pk")
)
_WAITING = Values(lambda: Wait.objects.filter(run=given("run"), closed_at=None).values_list("pk"))
_SAVED = Update(
    lambda: Run.objects.filter(pk=given("run")),
    saved_seq=given("seq"),
    attempts=given("attempts"),
    usage=given("usage"),
    last_progress_at=Now(),
)
_ANNOUNCE = Update(lambda: Run.objects.filter(pk=given("run")), announced=given("announced"))


def start(
    session: Session,
    agent_id: str,
    *,
    parent: Run | None = None,
    task: InboxMessage | None = None,
    tool_call_id: str = "",
    run_id: uuid.UUID | None = None,
    repeatable: bool = False,
) -> Run:
    """Give birth to a run, queued. Raises Conflict when its parent is being stopped.

    ``repeatable``: should its worker be lost it goes on from its last saved step, as the run of a
    user's message always does; else its task fails.
    """
    if parent is not None and (parent.stop_requested_at or parent.is_terminal):
        raise Conflict("stopped", "The run that sends this was stopped: no new run is started.")
    run_id = run_id or uuid.uuid4()
    lane = Run.lane_of(session.pk, agent_id)
    free = not Run.objects.filter(lane=lane).exists()
    run = Run.objects.create(
        id=run_id,
        session=session,
        agent_id=agent_id,
        parent=parent,
        root_id=parent.root_id if parent else run_id,
        depth=parent.depth + 1 if parent else 0,
        task=task,
        repeatable=repeatable,
        parent_tool_call_id=tool_call_id,
        position=session.next_position(),
        lane=lane if free else None,
        queued_at=Now(),
    )
    if free:
        make_ready(session, run, has_waited=False)
    return run


def make_ready(session: Session, run: Run, *, has_waited: bool) -> None:
    """The run holds its lane: tell the product, and whoever claims."""
    run_ready.send(Run, session=session, run=run, has_waited=has_waited)
    wake_workers()


def pass_lane(session: Session, agent_id: str) -> Run | None:
    """Give a free lane to the agent's next queued run, if there is one."""
    following = _NEXT.first(session=session.pk, agent=agent_id)
    if following is None or not following.take_lane():
        return None
    make_ready(session, following, has_waited=True)
    return following


@unit_of_work
def again(run: Run, *, by: str) -> Run:
    """An operator's "once more"; the run that is to be executed now. Raises Conflict: why not.

    What has ended stays as it ended: a turn that failed or was lost gets a new run, which goes on
    from the conversation as it stands. A run in the queue is only made known again.
    """
    with locked(run.session_id) as session:
        run = Run.objects.get(pk=run.pk)
        if refusal := why_not_again(run):
            raise Conflict("not_again", refusal)
        if run.status == Run.Status.QUEUED:
            wake_workers()
            worklog.write(session, "woken", f"{run.agent_id}, by {by}", run=run)
            return run
        new = start(session, run.agent_id)
        worklog.write(session, "begun_again", f"{run.agent_id} {run.pk}, by {by}", run=new)
        return new


def why_not_again(run: Run) -> str:
    """Why this run cannot be begun again, in words for the operator; empty where it can."""
    match run.status:
        case Run.Status.QUEUED:
            return "" if run.lane else _("It waits behind another run of its agent.")
        case Run.Status.RUNNING | Run.Status.STALLED:
            return _("It is being executed. Interrupt it first.")
        case Run.Status.WAITING_CHILD | Run.Status.WAITING_USER:
            return _("It waits for results or for a person, and goes on by itself.")
        case Run.Status.COMPLETED:
            return _("It has completed.")
        case Run.Status.INTERRUPTED:
            return _("A person has stopped it. Only a new message begins a new turn.")
    if not run.is_root:
        return _(
            "Its task has been answered for, once and for all. Whoever sent it sends it again."
        )
    if Run.objects.filter(session=run.session_id, parent=None, position__gt=run.position).exists():
        return _("The conversation has gone on since. Only a new message begins a new turn.")
    return ""


def put_first(session: Session, run: Run) -> None:
    """Let a run that waits for its agent's lane be the next; the others stay in order behind it."""
    queued = Run.objects.filter(session=session, agent_id=run.agent_id, status=Run.Status.QUEUED)
    waiting = list(queued.filter(lane=None).order_by("position"))
    places = [other.position for other in waiting]
    for other, place in zip([run, *(w for w in waiting if w != run)], places, strict=True):
        Run.objects.filter(pk=other.pk).update(position=place)


@dataclass(frozen=True)
class Claimable:
    """A queued run. ``alone``: it is on its last attempt, and to have no neighbour in it."""

    run_id: uuid.UUID
    session_id: uuid.UUID
    alone: bool


def claimable(limit: int, *, idle: bool) -> list[Claimable]:
    """What a runner may try to claim, oldest first; ``idle``: it executes nothing now.

    When a process dies nobody knows which of its runs has killed it, so each has lost an attempt.
    The last one is made alone: then it dies of nothing but its own doing. It waits for an idle
    runner for ``AGENT_SOLITUDE``, and has that runner to itself for as long.
    """
    patience = Now() - dt.timedelta(seconds=conf.solitude)
    suspect = Q(attempts__gte=max(1, conf.max_attempts - 1), queued_at__gt=patience)
    rows = Run.objects.claimable().filter(stop_requested_at=None)
    if not idle:
        rows = rows.exclude(suspect)
    marked = rows.annotate(alone=Case(When(suspect, then=True), default=False))
    return [Claimable(*row) for row in marked.values_list("pk", "session_id", "alone")[:limit]]


@unit_of_work
def claim(run_id: uuid.UUID, session_id: uuid.UUID, runner_id: str, node_id: str) -> Run | None:
    """Own a queued run under a new epoch and lease; None when another runner was faster."""
    with locked(session_id) as session:
        run = _QUEUED.first(run=run_id)
        if run is None or not run.claim(runner_id):
            return None
        Lease.objects.create(
            run=run,
            session_id=session.pk,
            agent_id=run.agent_id,
            epoch=run.epoch,
            node_id=node_id,
            runner_id=runner_id,
            acquired_at=Now(),
            beat_at=Now(),
            expires_at=Now() + dt.timedelta(seconds=conf.lease_ttl),
        )
        announce(session, run)
        panel.publish(session)
        return run


def claimed_by(runner_id: str) -> RunQuerySet:
    """The runs that this runner owns, as the rows say."""
    return Run.objects.filter(runner_id=runner_id, status__in=Run.OWNED)


def ancestors(run: Run) -> list[Run]:
    """The run's parents, nearest first: read once for each object, so call it with a fresh one."""
    chain = []
    while run.parent is not None:
        run = run.parent
        chain.append(run)
    return chain


def tree(run: Run) -> list[Run]:
    """The run and all below it, the deepest first."""
    members = [run]
    level = [run.pk]
    while level:
        children = list(Run.objects.filter(parent_id__in=level))
        members += children
        level = [child.pk for child in children]
    return sorted(members, key=lambda member: -member.depth)


def announce(session: Session, run: Run) -> None:
    """Log the START of the run, and of those above it, where none stands open.

    Nothing starts again below a root that has ended: its stream is closed.
    """
    if run.announced:
        return
    members = [*reversed(ancestors(run)), run]
    if members[0].is_terminal:
        return
    for member in members:
        if member.announced:
            continue
        build = vocabulary.run_started if member.is_root else vocabulary.subagent_started
        set_announced(member, True)
        events.append(session, member, build(member))
    run.announced = True


def set_announced(run: Run, announced: bool) -> None:
    """Note whether the run's START stands open in the log."""
    _ANNOUNCE(run=run.pk, announced=announced)
    run.announced = announced


@contextmanager
def owned(run: Run, *, though_stopped: bool = False) -> Iterator[tuple[Session, Run]]:
    """A transaction of the run's owner. Raises Fenced when the caller owns it no longer.

    A run that is to stop counts as lost for everything but its settlement: what a stop has closed
    in the log must not go on in the memory.
    """
    with locked(run.session_id) as session:
        fresh = OWNED.first(run=run.pk, epoch=run.epoch)
        if fresh is None or (fresh.stop_requested_at and not though_stopped):
            raise Fenced
        yield session, fresh


def check_owned(run: Run) -> None:
    """One look at the row before a call begins. Raises Fenced where it may not."""
    if not _MAY_CALL(run=run.pk, epoch=run.epoch):
        raise Fenced


def owned_and_wanted() -> RunQuerySet:
    """The row of a run of which are given its id and epoch: while it is owned and not to stop."""
    owned = Run.objects.filter(pk=given("run"), epoch=given("epoch"), status__in=Run.OWNED)
    return owned.filter(stop_requested_at=None)


_MAY_CALL = Values(lambda: owned_and_wanted().values_list("pk"))


def mark_saved(session: Session, run: Run, usage: dict[str, Any] | None = None) -> None:
    """A step is in memory: what is logged up to here needs no repair. Call it last.

    This claim is the first attempt at whatever comes next.
    """
    run.saved_seq = session.last_seq + events.pending_count(session)
    run.attempts = 1
    if usage is not None:
        run.usage = usage
    _SAVED(run=run.pk, seq=run.saved_seq, attempts=run.attempts, usage=run.usage)


def forget_unsaved(session: Session, run: Run) -> None:
    """What is logged up to here has been closed and needs no further repair."""
    saved_seq = session.last_seq + events.pending_count(session)
    Run.objects.filter(pk=run.pk).update(saved_seq=saved_seq)


def wake_workers() -> None:
    """Hint that there is something to claim, once the transaction commits."""
    wakeups.hint(wakeups.WORKERS, "work")


def park(session: Session, run: Run, status: str) -> bool:
    """Owned → waiting on rows: the lease is given back and the slot is free."""
    owner = run.runner_id
    if not run.move(status, frm=Run.OWNED, runner_id="", attempts=0):
        return False
    Lease.close(run.pk, run.epoch, Lease.End.RELEASED, by=owner)
    panel.publish(session)
    return True


def resume_if_ready(session: Session, run: Run) -> bool:
    """Parked → queued once no question and no wait of the run is open."""
    if _ASKING(run=run.pk) or _WAITING(run=run.pk):
        return False
    if not run.move(Run.Status.QUEUED, frm=Run.PARKED, queued_at=Now()):
        return False
    wake_workers()
    panel.publish(session)
    return True


def add_hop(run: Run) -> int:
    """Count one agent-to-agent message of this turn; the new count."""
    Run.objects.filter(pk=run.root_id).update(hops=F("hops") + 1)
    return Run.objects.values_list("hops", flat=True).get(pk=run.root_id)
