"""A rendezvous as rows: a parked run waits for the results of tasks it sent.

A wait holds a row, not a worker slot. It is closed by the transaction that satisfies it (a result,
the deadline, a stop); ``paused_at`` stops its clock while a question stands below it. The tail of a
finished turn is a wait too, one that belongs to no tool call.
"""

from __future__ import annotations

from django.db import models

from .inbox import InboxMessage
from .run import Run


class Wait(models.Model):
    """One wait of one run: for all, or for any, of its items."""

    class Mode(models.TextChoices):
        ALL = "all"
        ANY = "any"

    run = models.ForeignKey(Run, models.CASCADE, related_name="waits")
    session_id = models.UUIDField()
    tool_call_id = models.CharField(max_length=255, blank=True)  # blank: the tail of a turn
    mode = models.CharField(max_length=8, choices=Mode, default=Mode.ALL)
    opened_at = models.DateTimeField()
    deadline_at = models.DateTimeField()
    paused_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)
    timed_out = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["closed_at", "deadline_at"], name="wait_due"),
            models.Index(fields=["opened_at"], name="wait_newest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "tool_call_id", "opened_at"], name="wait_call"),
        ]

    def __str__(self) -> str:
        return f"{self.mode} of {self.run_id}"


class WaitItem(models.Model):
    """One task whose result is waited for."""

    wait = models.ForeignKey(Wait, models.CASCADE, related_name="items")
    task = models.ForeignKey(InboxMessage, models.CASCADE, related_name="wait_items")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["wait", "task"], name="wait_item_once"),
        ]

    def __str__(self) -> str:
        return str(self.task_id)
