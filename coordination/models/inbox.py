"""A message from one agent to another, or from the system in an agent's name.

Delivered at least once and in effect once: ``acked_at`` is set in the transaction that appends the
message to its reader's memory, and ``deliveries`` counts the tries before it; a message that has
used them up is a dead letter, for an operator to look at. At most one accepted result per task, by
``accepted_for``: a unique, nullable column. What comes later is kept, flagged ``late``.
``send_key`` makes a retried send one.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from coordination.prepared import Update, given

from .session import Session


class InboxMessage(models.Model):
    """One message of a session. The row is the content; hints carry a preview at most."""

    class Kind(models.TextChoices):
        TASK = "task"
        REVISION = "revision"  # the task again, with remarks
        RESULT = "result"  # always answers a task or a revision
        NOTE = "note"  # what an agent should know and need not answer

    class State(models.TextChoices):
        PENDING = "pending"
        ACKED = "acked"  # in its reader's memory
        DISCARDED = "discarded"  # belongs to a stopped turn; kept for the record
        DEAD = "dead"  # could not be delivered; kept for an operator

    SYSTEM = "system"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, models.CASCADE, related_name="inbox")
    position = models.PositiveBigIntegerField()
    sender = models.CharField(max_length=64)
    recipient = models.CharField(max_length=64)
    kind = models.CharField(max_length=16, choices=Kind)
    content = models.TextField()
    reason = models.CharField(
        max_length=16, blank=True
    )  # why a result is what it is; see Run.Reason
    in_reply_to = models.ForeignKey("self", models.CASCADE, null=True, related_name="replies")
    accepted_for = models.OneToOneField(
        "self", models.CASCADE, null=True, related_name="accepted_result"
    )
    sender_run = models.ForeignKey(
        "coordination.Run", models.CASCADE, null=True, related_name="sent"
    )
    send_key = models.CharField(max_length=320, null=True, unique=True)
    state = models.CharField(max_length=16, choices=State, default=State.PENDING)
    late = models.BooleanField(default=False)
    deliveries = models.PositiveIntegerField(default=0)  # tries; the last one may have succeeded
    created_at = models.DateTimeField(default=timezone.now)
    delivered_at = models.DateTimeField(null=True)
    acked_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["session", "recipient", "state", "position"], name="inbox_pending"
            ),
            models.Index(fields=["session", "position"], name="inbox_order"),
            models.Index(fields=["in_reply_to", "kind"], name="inbox_rendezvous"),
            models.Index(fields=["state", "created_at"], name="inbox_state"),
            models.Index(fields=["created_at"], name="inbox_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(kind="result") | Q(in_reply_to__isnull=False),
                name="result_answers_a_task",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.sender} → {self.recipient}"

    def ack(self) -> bool:
        """True for the one reader whose ack counted; call it where the content is saved.

        A dead letter may still be read by who waits for it; then it is delivered after all.
        """
        return _ACK(message=self.pk) == 1

    def bury(self) -> bool:
        """Pending → dead letter. True for the one call that buried it."""
        rows = InboxMessage.objects.filter(pk=self.pk, state=self.State.PENDING)
        return rows.update(state=self.State.DEAD) == 1

    def redeliver(self) -> bool:
        """Dead letter → pending, with all its tries; an operator's decision. True if this won."""
        rows = InboxMessage.objects.filter(pk=self.pk, state=self.State.DEAD)
        return rows.update(state=self.State.PENDING, deliveries=0) == 1


_UNREAD = (InboxMessage.State.PENDING, InboxMessage.State.DEAD)
_ACK = Update(
    lambda: InboxMessage.objects.filter(pk=given("message"), state__in=_UNREAD),
    state=InboxMessage.State.ACKED,
    delivered_at=Now(),
    acked_at=Now(),
)
