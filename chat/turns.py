"""What the product does when coordination says: a turn begins, a step broke, a run ended.

The receivers run inside the transition's transaction, with the session's row locked.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet
from django.dispatch import receiver

from chat import memory
from chat.models import Message
from coordination import events, texts, vocabulary
from coordination.models import Run, Session
from coordination.signals import left_open, run_ended, run_ready, step_broken


def waiting(session_id: uuid.UUID) -> QuerySet[Message]:
    """The user's messages that wait in the queue."""
    return Message.objects.filter(
        session_id=session_id,
        role=Message.Role.USER,
        position=None,
        status=Message.Status.COMPLETE,
    )


def queue(session_id: uuid.UUID) -> list[dict[str, str]]:
    """The messages that wait, in the order in which their turns will come."""
    rows = {row.run_id: row for row in waiting(session_id)}
    order = Run.objects.filter(pk__in=rows).order_by("position").values_list("pk", flat=True)
    return [queue_item(rows[pk]) for pk in order]


def queue_item(message: Message) -> dict[str, str]:
    """An item of the queue, as CONTRACT.md has it."""
    return {"id": str(message.pk), "content": message.content}


def publish_queue(session: Session, **removed: str) -> None:
    """Log the queue as it now is. What has left it has become a turn, but for the ``removed``."""
    value = {"items": queue(session.pk), **removed}
    events.append(session, None, vocabulary.custom("queue", value))


def _enter_conversation(session: Session, run: Run) -> bool:
    """The user's message leaves the queue and takes its place. False where none waited."""
    message = waiting(session.pk).filter(run_id=run.pk)
    if message.update(position=session.last_position + 1) != 1:
        return False
    session.next_position()
    return True


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
    if run.is_root and not run.announced:  # it never began, so it leaves nothing but its words
        if _enter_conversation(session, run):
            publish_queue(session)
        return
    memory.keep_partial(session, run, items)
    if run.status != Run.Status.COMPLETED:  # a completed one has ended with words, not calls
        memory.interrupted_calls(session, run)
    if not run.is_root:
        return
    if run.status == Run.Status.INTERRUPTED and run.reason != Run.Reason.SUPERSEDED:
        memory.notice(session, run, "stopped", texts.stopped(session))
    elif run.status in (Run.Status.FAILED, Run.Status.TIMEOUT):
        memory.notice(session, run, "error", run.detail or run.reason)
