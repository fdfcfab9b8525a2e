"""What the product does when coordination says: a turn begins, a step broke, a run ended.

The receivers run inside the transition's transaction, with the session's row locked.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from chat import memory
from chat.models import Message
from coordination import events, texts, vocabulary
from coordination.models import Run, Session
from coordination.signals import left_open, run_ended, run_ready, step_broken


def queue(session: Session) -> list[dict[str, str]]:
    """The messages that wait, oldest first."""
    rows = Message.objects.filter(
        session_id=session.pk, role=Message.Role.USER, position=None
    ).order_by("created_at")
    return [{"id": str(row.pk), "content": row.content} for row in rows]


def publish_queue(session: Session) -> None:
    """Log the queue as it now is."""
    events.append(session, None, vocabulary.custom("queue", {"items": queue(session)}))


def _enter_conversation(session: Session, run: Run) -> None:
    """The user's message leaves the queue and takes its place in the conversation."""
    waiting = Message.objects.filter(run_id=run.pk, role=Message.Role.USER, position=None)
    if waiting.exists():
        waiting.update(position=session.next_position())


@receiver(run_ready)
def _begin(session: Session, run: Run, has_waited: bool, **_: Any) -> None:
    if run.is_root:
        _enter_conversation(session, run)
        if has_waited:
            publish_queue(session)


@receiver(step_broken)
def _supersede(session: Session, run: Run, items: events.OpenItems, **_: Any) -> None:
    memory.keep_partial(session, run, items, superseded=True)


@receiver(left_open)
def _close_in_log(session: Session, run: Run, root: Run, **_: Any) -> None:
    memory.close_calls_in_log(session, run, root)


@receiver(run_ended)
def _end(session: Session, run: Run, items: events.OpenItems, **_: Any) -> None:
    if run.is_root and run.epoch == 0:
        _enter_conversation(session, run)  # stopped while it was queued: its words are kept
        publish_queue(session)
    memory.keep_partial(session, run, items)
    if run.status != Run.Status.COMPLETED:  # a completed one has ended with words, not calls
        memory.interrupted_calls(session, run)
    if not run.is_root:
        return
    if run.status == Run.Status.INTERRUPTED and run.reason != Run.Reason.SUPERSEDED:
        memory.notice(session, run, "stopped", texts.stopped(session))
    elif run.status in (Run.Status.FAILED, Run.Status.TIMEOUT):
        memory.notice(session, run, "error", run.detail or run.reason)
