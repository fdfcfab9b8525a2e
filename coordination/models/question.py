"""A question to a person. Whoever closes it (answer, stop, expiry, newer message) uses one UPDATE.

The asking run is parked while any of its questions is open; nothing waits in memory anywhere.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models
from django.utils import timezone

from .run import Run
from .session import Session


class Question(models.Model):
    """One question of one tool call, and what became of it."""

    class UiType(models.TextChoices):
        TEXT = "text"
        SELECT = "select"
        MULTI_SELECT = "multi_select"
        CONFIRM = "confirm"
        FORM = "form"
        DATE = "date"
        NUMBER = "number"

    class State(models.TextChoices):
        OPEN = "open"
        ANSWERED = "answered"
        CANCELLED = "cancelled"  # the person declined, or stopped the run
        SUPERSEDED = "superseded"  # a newer message made it moot; never counts as a yes
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, models.CASCADE, related_name="questions")
    run = models.ForeignKey(Run, models.CASCADE, related_name="questions")
    agent_id = models.CharField(max_length=64)
    path = models.JSONField(default=list)  # agent ids from the master down to the asker
    tool_call_id = models.CharField(max_length=255)
    ui_type = models.CharField(max_length=16, choices=UiType)
    question = models.TextField()
    options = models.JSONField(default=list, blank=True)
    fields = models.JSONField(default=list, blank=True)
    default_value = models.JSONField(null=True)
    allow_other = models.BooleanField(default=False)
    response_schema = models.JSONField(default=dict)
    approval = models.JSONField(null=True)  # the tool call that is asked about, as it is shown
    taken_up_at = models.DateTimeField(null=True)  # from here on the approved call may have effects
    state = models.CharField(max_length=16, choices=State, default=State.OPEN)
    answer = models.JSONField(null=True)
    closed_by = models.CharField(max_length=150, blank=True)
    opened_at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["session", "state"], name="question_open"),
            models.Index(fields=["state", "expires_at"], name="question_expiry"),
            models.Index(fields=["opened_at"], name="question_newest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "tool_call_id"], name="question_one_per_call"),
        ]

    def __str__(self) -> str:
        return f"{self.agent_id}: {self.question[:80]}"

    def close(self, to: str, *, by: str, answer: Any = None) -> bool:
        """Open → ``to``. True for the one call that won; every other is told why it lost."""
        now = timezone.now()
        rows = Question.objects.filter(pk=self.pk, state=self.State.OPEN)
        won = rows.update(state=to, closed_by=by, closed_at=now, answer=answer) == 1
        if won:
            self.state, self.closed_by, self.closed_at, self.answer = to, by, now, answer
        return won

    def take_up(self) -> bool:
        """True for the one execution that makes the approved call the first time."""
        rows = Question.objects.filter(pk=self.pk, taken_up_at=None)
        return rows.update(taken_up_at=timezone.now()) == 1
