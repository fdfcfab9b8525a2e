"""Every way a run ends, and everything that follows from it, in one transaction.

Whoever settles (the owner, a stop, a supervisor, a guard) comes through here: the row, the lease,
what stands open in the log, the accepted result, the waits it satisfies, the lane, the terminal
event, ``ax`` and the work log are written together or not at all. The conditional UPDATE decides;
a second settlement finds nothing to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from . import (
    events,
    inbox,
    panel,
    rendezvous,
    runs,
    suspensions,
    texts,
    usage,
    vocabulary,
    worklog,
)
from .conf import conf
from .errors import Fenced
from .models import Lease, Question, Run, Session
from .signals import left_open, run_ended, step_broken
from .transactions import locked, unit_of_work

_UNFINISHED = (Run.Status.QUEUED, *Run.OWNED, *Run.PARKED)
USER_STOPS = (Run.Reason.INTERRUPTED, Run.Reason.SUPERSEDED)
_LEVEL = {"completed": "info", "interrupted": "info", "failed": "error", "timeout": "error"}


def settle(
    session: Session,
    run: Run,
    status: str,
    *,
    reason: str,
    by: str,
    detail: str = "",
    result: str = "",
    lease_end: str = Lease.End.RELEASED,
) -> bool:
    """End a run, with the session locked. False when it had ended, or moved on, before.

    ``result`` is the run's own answer; a run that did not complete is answered for by the system.
    """
    if run.lane or not run.is_root:  # a turn that never began may not begin inside of another
        runs.announce(session, run)
    items = events.unsaved(run)
    values = {
        "reason": reason,
        "detail": detail[:2000],
        "ended_at": timezone.now(),
        "lane": None,
        "runner_id": "",
        "usage": run.usage,
    }
    epoch = run.epoch
    if lease_end != Lease.End.RELEASED:
        values["epoch"] = epoch + 1  # taken away: whatever the owner still holds is void
    if not run.move(status, frm=_UNFINISHED, **values):
        return False
    Lease.close(run.pk, epoch, lease_end, by=by)
    close_open_items(session, run, items)
    completed = status == Run.Status.COMPLETED
    if not completed:  # who completes asks nothing and waits for nothing
        suspensions.withdraw(session, run, _question_state(reason), by=by)
        rendezvous.withdraw(run)
    run_ended.send(Run, session=session, run=run, items=items)
    if status == Run.Status.INTERRUPTED:
        inbox.discard_for(session, run)
    below = [] if completed and not run.is_root else runs.tree(run)[:-1]
    if not completed:
        _stop_orphans(session, run, below)
    _answer_task(session, run, result)
    _log_end(session, run, below)
    runs.pass_lane(session, run.agent_id)
    if not run.is_root:
        suspensions.announce_suspension(session, run)
    return True


def _question_state(reason: str) -> str:
    superseded = reason == Run.Reason.SUPERSEDED
    return Question.State.SUPERSEDED if superseded else Question.State.CANCELLED


def close_open_items(session: Session, run: Run, items: events.OpenItems) -> None:
    """Log the END of what the run has opened, so that every reader's view is whole."""
    for message_id in items.reasoning:
        events.append(session, run, *vocabulary.reasoning_end(run, message_id))
    for message_id in items.texts:
        events.append(session, run, vocabulary.text_end(run, message_id))
    for call_id in items.calls:
        events.append(session, run, vocabulary.tool_call_end(run, call_id))


def _stop_orphans(session: Session, run: Run, below: Sequence[Run]) -> None:
    """Nobody will read what they do: a run that has not completed leaves nobody at work.

    Their stop closes what they have open in the log: nothing may stand open at the root's end.
    """
    orphans = [child for child in below if not child.is_terminal]
    if not orphans:
        return
    reason = run.reason if run.reason in USER_STOPS else Run.Reason.ERROR
    Run.request_stop(orphans, by="system", reason=reason)
    for child in orphans:
        if child.status in Run.OWNED:
            close_open_items(session, child, events.unsaved(child))
        end_unowned(session, child, by="system")


def end_unowned(session: Session, run: Run, *, by: str) -> None:
    """A stopped run that nobody owns ends right here; an owner is told, and settles."""
    if run.status in Run.OWNED:
        return
    run.refresh_from_db()  # what was settled a moment ago may have told the log about this one
    _settle_stopped(session, run, by=by)


def _settle_stopped(
    session: Session, run: Run, *, by: str, lease_end: str = Lease.End.RELEASED
) -> bool:
    """``interrupted`` is the person's stop, only ever that; an orphan's end is a failure."""
    by_user = run.stop_reason in USER_STOPS
    return settle(
        session,
        run,
        Run.Status.INTERRUPTED if by_user else Run.Status.FAILED,
        reason=run.stop_reason,
        detail="" if by_user else "The run that asked for this has ended.",
        by=by,
        lease_end=lease_end,
    )


def _answer_task(session: Session, run: Run, result: str) -> None:
    if run.task_id is None:
        return
    completed = run.status == Run.Status.COMPLETED
    inbox.post_result(
        session,
        run,
        result if completed else texts.in_an_agents_name(session, run),
        sender=run.agent_id if completed else "system",
        reason=run.reason,
    )


def _log_end(session: Session, run: Run, below: Sequence[Run]) -> None:
    """``ax``, the work log and the panel, and last the terminal event: nothing follows it."""
    events.append(session, run, vocabulary.agent_exit(run))
    worklog.write(
        session,
        f"run_{run.status}",
        f"{run.agent_id}: {run.reason}" + (f" ({run.detail})" if run.detail else ""),
        level=_LEVEL[run.status],
        run=run,
    )
    panel.publish(session)
    if run.is_root:
        if run.announced:
            _close_subagents(session, run, below)
            events.append(session, run, _terminal_event(session, run, usage.of_turn(run, below)))
            _log_turns_that_never_began(session)
    elif run.announced:
        if run.status == Run.Status.COMPLETED:
            events.append(session, run, vocabulary.subagent_finished(run))
        else:
            error = vocabulary.subagent_error(run, run.detail or run.reason, run.reason)
            events.append(session, run, error)


def _terminal_event(session: Session, run: Run, used: list[dict[str, Any]]) -> dict[str, Any]:
    match run.status:
        case Run.Status.COMPLETED:
            return vocabulary.run_finished(run, {"type": "success"}, used)
        case Run.Status.INTERRUPTED:
            notice = {"kind": "stopped", "reason": run.reason, "text": texts.stopped(session)}
            return vocabulary.run_finished(run, {"type": "cancelled"}, used, notice)
        case _:
            return vocabulary.run_error(run.detail or run.reason, run.reason, used)


def _log_turns_that_never_began(session: Session) -> None:
    """Turns that were stopped while they waited: AG-UI's runs do not nest, so theirs come now."""
    ended = Run.objects.filter(session=session, status=Run.Status.INTERRUPTED)
    for run in ended.filter(parent=None, announced=False).order_by("position"):
        runs.set_announced(run, True)
        finished = vocabulary.run_finished(run, {"type": "cancelled"}, [])
        events.append(session, run, vocabulary.run_started(run), finished)


def _close_subagents(session: Session, root: Run, below: Sequence[Run]) -> None:
    """AG-UI ends a run only when nothing in it stands open. Who goes on is heard no more."""
    for member in below:
        if member.is_terminal or not member.announced:
            continue
        if root.status == Run.Status.COMPLETED:  # else its orphans were closed when they were told
            close_open_items(session, member, events.unsaved(member))
        else:
            left_open.send(Run, session=session, run=member, root=root)
        events.append(
            session,
            member,
            vocabulary.subagent_finished(member, [])
            if root.status == Run.Status.COMPLETED
            else vocabulary.subagent_error(member, root.reason, root.reason),
        )
        runs.set_announced(member, False)


# -- the owner's ways out --------------------------------------------------------------------


@unit_of_work
def stopped(run: Run, *, by: str) -> bool:
    """The owner has obeyed a stop. False when somebody settled it before."""
    try:
        with runs.owned(run, though_stopped=True) as (session, fresh):
            fresh.usage = run.usage
            return _settle_stopped(session, fresh, by=by)
    except Fenced:
        return False


@unit_of_work
def failed(run: Run, detail: str, *, reason: str = Run.Reason.ERROR, by: str) -> bool:
    """The owner could not go on. A stop that came first is a stop. False: settled before."""
    try:
        with runs.owned(run, though_stopped=True) as (session, fresh):
            fresh.usage = run.usage
            if fresh.stop_requested_at:
                return _settle_stopped(session, fresh, by=by)
            return settle(session, fresh, Run.Status.FAILED, reason=reason, detail=detail, by=by)
    except Fenced:
        return False


@unit_of_work
def handed_over(run: Run, *, by: str) -> bool:
    """The owner leaves (a worker's shutdown, never a stop): the run goes back to the queue."""
    try:
        with runs.owned(run, though_stopped=True) as (session, fresh):
            if fresh.stop_requested_at:
                return _settle_stopped(session, fresh, by=by)
            fresh.attempts -= 1  # a shutdown is no failed attempt
            fresh.usage = run.usage
            return _requeue(session, fresh, lease_end=Lease.End.HANDED_OVER, by=by)
    except Fenced:
        return False


# -- in a lost owner's name ------------------------------------------------------------------


def _held_run(lease: Lease) -> Run | None:
    """The run, if it is still owned under this lease's epoch."""
    return runs.OWNED.first(run=lease.run_id, epoch=lease.epoch)


@unit_of_work
def lost(lease: Lease, *, end: str, by: str) -> bool:
    """Judge the run of a lease whose owner is gone: ``crashed`` or ``lease_expired``.

    False when the lease is no longer open, its owner or another judge was faster; or when a beat
    has come since the judge looked.
    """
    with locked(lease.session_id) as session:
        held = Lease.objects.select_for_update().filter(pk=lease.pk, released_at=None)
        if end == Lease.End.EXPIRED:  # a beat may have come since the judge looked
            held = held.filter(expires_at__lt=Now())
        if held.first() is None:
            return False
        run = _held_run(lease)
        if run is None:
            return False
        return _judge(session, run, end=end, by=by)


def abandoned(run_id: uuid.UUID, runner_id: str) -> bool:
    """A runner finds a lease of its own that it does not execute: judge it as crashed."""
    lease = Lease.objects.filter(run_id=run_id, runner_id=runner_id, released_at=None).first()
    return lease is not None and lost(lease, end=Lease.End.CRASHED, by=runner_id)


def _judge(session: Session, run: Run, *, end: str, by: str) -> bool:
    if run.stop_requested_at:
        won = _settle_stopped(session, run, by=by, lease_end=end)
    elif (run.is_root or run.repeatable) and run.attempts < conf.max_attempts:
        won = _requeue(session, run, lease_end=end, by=by)
    else:
        expired = end == Lease.End.EXPIRED
        won = settle(
            session,
            run,
            Run.Status.TIMEOUT if expired else Run.Status.FAILED,
            reason=Run.Reason.LEASE_EXPIRED if expired else Run.Reason.CRASHED,
            detail=texts.lost_master(session, run) if run.is_root else "",
            by=by,
            lease_end=end,
        )
    if won:
        worklog.write(session, end, f"{run.agent_id}, judged by {by}", level="warning", run=run)
    return won


@unit_of_work
def fence(lease: Lease, *, by: str) -> bool:
    """Take a run away from an owner that ignored a stop past the grace. False: it has obeyed."""
    with locked(lease.session_id) as session:
        run = _held_run(lease)
        if run is None or run.stop_requested_at is None:
            return False
        won = _settle_stopped(session, run, by=by, lease_end=Lease.End.FENCED)
        if won:
            worklog.write(session, "fenced", f"by {by}", level="warning", run=run)
        return won


@unit_of_work
def overran(lease: Lease, *, by: str) -> bool:
    """Take a run away from an owner that did not end it at ``AGENT_RUN_LIMIT``. False: it has."""
    with locked(lease.session_id) as session:
        run = _held_run(lease)
        if run is None or run.stop_requested_at:
            return False
        values = {"reason": Run.Reason.BUDGET, "detail": over_the_limit()}
        won = settle(session, run, Run.Status.FAILED, **values, by=by, lease_end=Lease.End.FENCED)
        if won:
            worklog.write(session, "fenced", f"by {by}", level="warning", run=run)
        return won


def over_the_limit() -> str:
    """What a run has done that was executed for too long."""
    return f"more than {conf.run_limit:g} seconds of work in one run"


def _requeue(session: Session, run: Run, *, lease_end: str, by: str) -> bool:
    items = events.unsaved(run)
    epoch = run.epoch
    values = {
        "runner_id": "",
        "attempts": run.attempts,
        "usage": run.usage,
        "queued_at": Now(),
        "epoch": epoch + 1,
    }
    if not run.move(Run.Status.QUEUED, frm=Run.OWNED, **values):
        return False
    Lease.close(run.pk, epoch, lease_end, by=by)
    close_open_items(session, run, items)
    step_broken.send(Run, session=session, run=run, items=items)
    runs.forget_unsaved(session, run)
    worklog.write(session, "requeued", f"{lease_end} by {by}", run=run)
    runs.wake_workers()
    panel.publish(session)
    return True
