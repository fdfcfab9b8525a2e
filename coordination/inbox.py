"""The inbox: messages between agents, sent once, delivered once in effect, in order per sender.

A task is born together with the run that executes it. A result is written by the transaction that
ends that run; the unique ``accepted_for`` makes it the only one. Delivery is the ack inside the
transaction that appends the message to the reader's memory, so a crash between the two is no loss
and no repetition. Each try is counted before it is made; a message that has used up its tries
stands in nobody's way any more, and its reader is told.
"""

from __future__ import annotations

import uuid

from django.db import connection
from django.db.models import F, Q, QuerySet

from . import events, rendezvous, runs, vocabulary, worklog
from .conf import conf
from .errors import Conflict, Invalid
from .models import InboxMessage, Run, Session
from .prepared import Insert, Rows, Values, given
from .texts import dead_letter, discarded, missing_results
from .transactions import locked, unit_of_work

TASKS = (InboxMessage.Kind.TASK, InboxMessage.Kind.REVISION)
_INSERT = Insert(InboxMessage)


def send_task(
    session: Session,
    run: Run,
    *,
    to: str,
    content: str,
    kind: str,
    tool_call_id: str,
    repeatable: bool = False,
) -> InboxMessage:
    """Send a task (or a revision) and start the run that executes it.

    ``run`` is the sender, owned by the caller. The same tool call sends once, however often it is
    repeated. A revision answers the last result for which its sender has such a task. Raises
    Invalid for what breaks a rule, Conflict for a full inbox or a stopped turn.
    """
    key = f"{run.pk}:{tool_call_id}"
    sent = InboxMessage.objects.filter(send_key=key).first()
    if sent is not None:
        if (sent.recipient, sent.content, sent.kind) != (to, content, kind):
            raise Conflict("id_conflict", "This call has already sent another message.")
        return sent
    _check(session, run, to=to, content=content, kind=kind)
    message = InboxMessage.objects.create(
        session=session,
        position=session.next_position(),
        sender=run.agent_id,
        sender_run=run,
        recipient=to,
        kind=kind,
        content=content,
        in_reply_to=_revised(session, run, to) if kind == InboxMessage.Kind.REVISION else None,
        send_key=key,
    )
    events.append(session, run, vocabulary.inbox_written(message))
    runs.start(
        session, to, parent=run, task=message, tool_call_id=tool_call_id, repeatable=repeatable
    )
    return message


def _check(session: Session, run: Run, *, to: str, content: str, kind: str) -> None:
    if kind not in TASKS:
        raise Invalid("reserved_type", f"The type {kind!r} is reserved; use task or revision.")
    if not content.strip():
        raise Invalid("empty", "The task is empty. Say what the sub-agent is to do.")
    check_size(content)
    on_the_way = [run, *runs.ancestors(run)]
    if to in {above.agent_id for above in on_the_way}:
        path = " → ".join([*(above.agent_id for above in reversed(on_the_way)), to])
        raise Invalid("cycle", f"{to} is waiting above you ({path}): this would never end.")
    if run.depth + 1 > conf.max_depth:
        raise Invalid("too_deep", f"Sub-agents nest at most {conf.max_depth} deep.")
    if runs.add_hop(run) > conf.max_hops:
        raise Invalid("too_many_messages", f"A turn sends at most {conf.max_hops} messages.")
    pending = InboxMessage.objects.filter(
        session=session, recipient=to, state=InboxMessage.State.PENDING
    )
    if pending.count() >= conf.inbox_limit:
        raise Conflict(
            "inbox_full",
            f"{to} has {conf.inbox_limit} pending messages. Wait for results before sending more.",
        )


def check_size(content: str) -> None:
    """Raises Invalid where a message is larger than the limit."""
    size = len(content.encode("utf-8", "replace"))
    if size > conf.message_bytes:
        raise Invalid(
            "too_large", f"A message has at most {conf.message_bytes} bytes, and this one {size}."
        )


def _revised(session: Session, run: Run, to: str) -> InboxMessage:
    """What a revision is about: the agent's last result, or the task that it is still at."""
    tasks = InboxMessage.objects.filter(
        session=session, sender=run.agent_id, recipient=to, kind__in=TASKS
    )
    last = tasks.order_by("-position").first()
    if last is None:
        raise Invalid("nothing_to_revise", f"{to} has had no task from you. Send a task first.")
    return InboxMessage.objects.filter(accepted_for=last).first() or last


def post_result(
    session: Session, run: Run, content: str, *, sender: str, reason: str
) -> InboxMessage | None:
    """Answer the run's task, in the transaction that ends the run.

    The accepted result is the first; a later one is stored as ``late``. A result of a stopped turn
    is kept and discarded: no model reads it. So is a task that its run has ended without reading.
    None when the run answers no task.
    """
    task = run.task
    if task is None:
        return None
    if run.status != Run.Status.COMPLETED:
        unread = InboxMessage.objects.filter(pk=task.pk, state=InboxMessage.State.PENDING)
        unread.update(state=InboxMessage.State.DISCARDED)
    late = not is_outstanding(task.pk)
    message = InboxMessage(
        session=session,
        position=session.next_position(),
        sender=sender,
        sender_run=run,
        recipient=task.sender,
        kind=InboxMessage.Kind.RESULT,
        content=content,
        reason=reason,
        in_reply_to=task,
        accepted_for=None if late else task,
        late=late,
    )
    asker = run.parent
    stopped = asker is not None and (asker.stop_requested_at or asker.status == "interrupted")
    if stopped:
        message.state = InboxMessage.State.DISCARDED
    _INSERT(message)
    events.append(session, run, vocabulary.inbox_written(message))
    if stopped:
        worklog.write(session, "result_discarded", discarded(session), run=run)
    elif not message.late:
        rendezvous.result_arrived(session, task)
    return message


def deliverable(run: Run) -> list[InboxMessage]:
    """What the run is to read before its next model call, oldest first.

    Its own task; and what else waits for its agent, but for the tasks of other runs.
    """
    return _WAITING(session=run.session_id, agent=run.agent_id, task=run.task_id)


def waiting() -> QuerySet[InboxMessage]:
    """The rows of ``deliverable``, in no order, of a run of which are given: its session, its
    agent and its task.
    """
    pending = InboxMessage.objects.filter(
        session_id=given("session"), recipient=given("agent"), state=InboxMessage.State.PENDING
    )
    return pending.filter(~Q(kind__in=TASKS) | Q(pk=given("task")))


_WAITING = Rows(lambda: waiting().order_by("position"))


@unit_of_work
def begin_delivery(run: Run) -> list[uuid.UUID]:
    """Choose what the run takes in now, and count the try; bury what has had all its tries.

    Everything at once; but one by one where a try has failed before, so that a message that kills
    its reader takes no other along. A transaction of its own, so that such a try counts. The run's
    own task is not chosen and not counted: it is bounded by the run's attempts. Raises Fenced.
    """
    if not _mail(run):
        return []
    with runs.owned(run) as (session, fresh):
        mail = _mail(fresh)
        for message in mail:
            if message.deliveries >= conf.inbox_tries and message.bury():
                _tell_of_dead_letter(session, fresh, message)
        living = [message for message in mail if message.deliveries < conf.inbox_tries]
        careful = any(message.deliveries for message in living)
        chosen = [message.pk for message in (living[:1] if careful else living)]
        InboxMessage.objects.filter(pk__in=chosen).update(deliveries=F("deliveries") + 1)
        return chosen


def _mail(run: Run) -> list[InboxMessage]:
    return [message for message in deliverable(run) if message.pk != run.task_id]


def _tell_of_dead_letter(session: Session, run: Run, message: InboxMessage) -> None:
    worklog.write(
        session,
        "dead_letter",
        f"{message} {message.pk}: {conf.inbox_tries} tries",
        level="error",
        run=run,
    )
    if message.kind != InboxMessage.Kind.NOTE:  # of a note nobody is told again
        _note(session, run, dead_letter(session, message))


@unit_of_work
def redeliver(message: InboxMessage, *, by: str) -> bool:
    """Give a dead letter all its tries again. False where it is none (any more)."""
    with locked(message.session_id) as session:
        won = message.redeliver()
        if won:
            worklog.write(
                session, "redelivered", f"{message} {message.pk} by {by}", run=message.sender_run
            )
        return won


_CHAIN = """
WITH RECURSIVE up (id, parent, hops) AS (
  SELECT id, in_reply_to_id, 0 FROM {table} WHERE id = %s
  UNION ALL
  SELECT m.id, m.in_reply_to_id, up.hops + 1 FROM {table} m JOIN up ON m.id = up.parent
  WHERE up.hops < %s
), down (id, hops) AS (
  SELECT id, 0 FROM up WHERE hops = (SELECT MAX(hops) FROM up)
  UNION ALL
  SELECT m.id, down.hops + 1 FROM {table} m JOIN down ON m.in_reply_to_id = down.id
  WHERE down.hops < %s
)
SELECT id FROM down
"""


def chain(message: InboxMessage, *, hops: int, limit: int | None = None) -> list[InboxMessage]:
    """The reply tree that holds the message, its root first: two queries, however deep it is.

    Revisions make it as long as a conversation: it begins at most ``hops`` above the message and
    ends twice as far below that, with at most ``limit`` messages, or all of these.
    """
    meta = InboxMessage._meta  # noqa: SLF001 - public, though it looks private
    key = meta.pk.get_db_prep_value(message.pk, connection)
    sql, values = _CHAIN.format(table=meta.db_table), [key, hops, 2 * hops]
    if limit is not None:
        sql, values = f"{sql} LIMIT %s", [*values, limit]
    members = [row.pk for row in InboxMessage.objects.raw(sql, values)]
    rows = InboxMessage.objects.filter(pk__in=members).select_related("task_run")
    return list(rows.order_by("position"))


def is_outstanding(task_id: uuid.UUID) -> bool:
    """True while the task has no accepted result."""
    return not _ACCEPTED(task=task_id)


_ACCEPTED = Values(
    lambda: InboxMessage.objects.filter(accepted_for=given("task")).values_list("pk")
)


def discard_for(session: Session, run: Run) -> None:
    """A stopped run reads nothing more: what waits for its turn is kept and never delivered."""
    stale = InboxMessage.objects.filter(
        session=session,
        recipient=run.agent_id,
        state=InboxMessage.State.PENDING,
        in_reply_to__sender_run__root_id=run.root_id,
    ).exclude(kind__in=TASKS)  # a task's fate is its own run's
    if stale.update(state=InboxMessage.State.DISCARDED):
        worklog.write(session, "result_discarded", discarded(session), run=run)


def note_missing_results(session: Session, run: Run, tasks: list[uuid.UUID]) -> bool:
    """Tell the run, once in a turn, which results its tail has waited for in vain."""
    key = f"{run.root_id}:{run.pk}:tail"
    if InboxMessage.objects.filter(send_key=key).exists():
        return False
    recipients = InboxMessage.objects.filter(pk__in=tasks).order_by("position")
    agents = list(dict.fromkeys(recipients.values_list("recipient", flat=True)))
    _note(session, run, missing_results(session, agents), key=key)
    return True


def _note(session: Session, run: Run, content: str, *, key: str | None = None) -> None:
    """What the system tells the run's agent; once for a ``key``."""
    message = InboxMessage.objects.create(
        session=session,
        position=session.next_position(),
        sender=InboxMessage.SYSTEM,
        recipient=run.agent_id,
        kind=InboxMessage.Kind.NOTE,
        content=content,
        send_key=key,
    )
    events.append(session, run, vocabulary.inbox_written(message))
