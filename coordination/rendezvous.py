"""Rendezvous: a run waits for results by ``in_reply_to``: for one, for all, or for any.

A wait is rows, and the waiting run is parked: no slot, no connection, no memory. The transaction
that writes a result closes the waits it satisfies and queues their run; the deadline is a poll of
every node, one indexed query for all waits (``expire_due``). A timeout promotes to asynchronous:
the result stays in the inbox and is delivered later, once. While a question stands open below a
waiting run its clock stands still. The clock is the database's: a node whose own is wrong ends no
wait too soon.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, QuerySet
from django.db.models.functions import Now

from . import runs
from .conf import conf
from .errors import NotFound
from .models import InboxMessage, Question, Run, Session, Wait, WaitItem
from .prepared import Rows, given
from .transactions import locked, unit_of_work

TAIL = ""  # the tool_call_id of a wait that belongs to the end of a turn


@dataclass(frozen=True)
class Outcome:
    """What became of one awaited task: the fields of CONTRACT.md section 5."""

    status: str  # result, lost, failed, interrupted, timeout
    task_id: uuid.UUID
    result: InboxMessage | None = None

    def as_json(self) -> dict[str, Any]:
        """What the model is given."""
        answer: dict[str, Any] = {"status": self.status, "message_id": str(self.task_id)}
        if self.result is not None:
            answer["result_id"] = str(self.result.pk)
            answer["in_reply_to"] = str(self.result.in_reply_to_id)
            answer["sender"] = self.result.sender
            answer["content"] = self.result.content
            answer["reason"] = self.result.reason
        else:
            answer["in_reply_to"] = None
            answer["content"] = (
                "No result yet. The task goes on; its result will be delivered to you later, once."
            )
        return answer


_STATUS_OF_REASON = {
    Run.Reason.COMPLETED: "result",
    Run.Reason.LEASE_EXPIRED: "lost",
    Run.Reason.CRASHED: "lost",
    Run.Reason.FENCED: "lost",
    Run.Reason.INTERRUPTED: "interrupted",
    Run.Reason.SUPERSEDED: "interrupted",
}


def open_wait(
    session: Session,
    run: Run,
    *,
    tool_call_id: str,
    tasks: Sequence[uuid.UUID],
    mode: str = Wait.Mode.ALL,
    timeout: float,
) -> Wait:
    """Wait for the results of ``tasks``; ``timeout`` in seconds.

    The wait is born closed where it is satisfied already, so an answer within milliseconds is
    never missed. Raises NotFound for a task this agent has not sent.
    """
    sent = InboxMessage.objects.filter(
        session=session,
        pk__in=tasks,
        sender=run.agent_id,
        kind__in=[InboxMessage.Kind.TASK, InboxMessage.Kind.REVISION],
    )
    known = set(sent.values_list("pk", flat=True))
    unknown = [str(task) for task in tasks if task not in known]
    if unknown:
        raise NotFound("unknown_message", f"You have sent no task {', '.join(unknown)}.")
    wait = Wait.objects.create(
        run=run,
        session_id=session.pk,
        tool_call_id=tool_call_id,
        mode=mode,
        opened_at=Now(),
        deadline_at=Now() + dt.timedelta(seconds=timeout),
        paused_at=Now() if _question_below(run) else None,
    )
    WaitItem.objects.bulk_create(WaitItem(wait=wait, task_id=task) for task in dict.fromkeys(tasks))
    if _satisfied(wait):
        _close(wait, timed_out=False)
    return wait


def _satisfied(wait: Wait) -> bool:
    counted = wait.items.aggregate(tasks=Count("pk"), answered=Count("task__accepted_result"))
    tasks, answered = counted["tasks"], counted["answered"]
    return bool(answered == tasks or (wait.mode == Wait.Mode.ANY and answered > 0))


def _close(wait: Wait, *, timed_out: bool) -> bool:
    """True for the one call that closed it."""
    rows = Wait.objects.filter(pk=wait.pk, closed_at=None)
    return rows.update(closed_at=Now(), timed_out=timed_out) == 1


def result_arrived(session: Session, task: InboxMessage) -> None:
    """Close the waits this task's result satisfies, and let their runs go on."""
    waits = Wait.objects.filter(items__task=task, closed_at=None).select_related("run")
    for wait in waits:
        if _satisfied(wait) and _close(wait, timed_out=False):
            runs.resume_if_ready(session, wait.run)


def withdraw(run: Run) -> None:
    """Close the waits of a run that has ended."""
    Wait.objects.filter(run=run, closed_at=None).update(closed_at=Now())


_NEWEST = Rows(
    lambda: Wait.objects.filter(run=given("run"), tool_call_id=given("call")).order_by("-pk")[:1]
)


def collect(run: Run, tool_call_id: str) -> list[Outcome]:
    """What the newest wait of this call brought, taking its results out of the inbox.

    Call it in the transaction that appends the outcomes to the memory: a result is acked exactly
    where it is used. One that was delivered by another way meanwhile is reported again, not lost.
    """
    wait = _NEWEST.first(run=run.pk, call=tool_call_id)
    if wait is None:
        return []
    outcomes = []
    for item in wait.items.select_related("task__accepted_result").order_by("pk"):
        result = getattr(item.task, "accepted_result", None)
        if result is None:
            outcomes.append(Outcome("timeout", item.task_id))
            continue
        result.ack()
        status = _STATUS_OF_REASON.get(Run.Reason(result.reason), "failed")
        outcomes.append(Outcome(status, item.task_id, result))
    return outcomes


def outstanding(run: Run) -> list[uuid.UUID]:
    """Tasks this run's agent has sent in this turn and that nobody has answered."""
    tasks = InboxMessage.objects.filter(
        sender_run__root_id=run.root_id,
        sender=run.agent_id,
        kind__in=[InboxMessage.Kind.TASK, InboxMessage.Kind.REVISION],
        accepted_result=None,
    )
    return list(tasks.order_by("position").values_list("pk", flat=True))


def tail_left(run: Run) -> float:
    """Seconds that the tail of this turn still has: one limit, however often it is waited."""
    tails = Wait.objects.filter(run=run, tool_call_id=TAIL).order_by("pk")
    first = tails.annotate(now=Now()).values_list("deadline_at", "now").first()
    if first is None:
        return conf.tail_limit
    deadline, now = first
    return (deadline - now).total_seconds()


@unit_of_work
def expire_due(limit: int = 100) -> int:
    """End the waits whose time is over; how many. Every node does this for all."""
    ended = 0
    for wait_id, session_id in list(_due().values_list("pk", "session_id")[:limit]):
        ended += _expire(wait_id, session_id)
    return ended


def _due() -> QuerySet[Wait]:
    return Wait.objects.filter(closed_at=None, paused_at=None, deadline_at__lte=Now())


def _expire(wait_id: int, session_id: uuid.UUID) -> bool:
    with locked(session_id) as session:
        # Between the look and the lock a question may have been opened, or a result have come.
        wait = _due().select_related("run").filter(pk=wait_id).first()
        if wait is None or not _close(wait, timed_out=True):
            return False
        runs.resume_if_ready(session, wait.run)
        return True


# -- the clocks of those above a question ----------------------------------------------------


def _question_below(run: Run) -> bool:
    open_ones = Question.objects.filter(session_id=run.session_id, state=Question.State.OPEN)
    return any(
        run.pk in {above.pk for above in runs.ancestors(question.run)}
        for question in open_ones.select_related("run")
    )


def pause_above(run: Run) -> None:
    """A question was opened by ``run``: the waiting runs above it have time."""
    above = [ancestor.pk for ancestor in runs.ancestors(run)]
    Wait.objects.filter(run__in=above, closed_at=None, paused_at=None).update(paused_at=Now())


def go_on_above(run: Run) -> None:
    """A question of ``run`` was closed: clocks go on where no other one stands below."""
    for ancestor in runs.ancestors(run):
        if _question_below(ancestor):
            continue
        paused = Wait.objects.filter(run=ancestor, closed_at=None, paused_at__isnull=False)
        stood_still = Now() - F("paused_at")
        paused.update(deadline_at=F("deadline_at") + stood_still)
        paused.update(paused_at=None)
