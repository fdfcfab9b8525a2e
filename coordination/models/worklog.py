"""The work log: what an operator or an auditor reads first. Written through ``worklog.write``."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from .session import Session


class WorkLogEntry(models.Model):
    """One line about one session, or about a node (then without a session)."""

    class Level(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        ERROR = "error"

    session = models.ForeignKey(Session, models.CASCADE, null=True, related_name="worklog")
    at = models.DateTimeField(default=timezone.now)
    level = models.CharField(max_length=8, choices=Level, default=Level.INFO)
    kind = models.CharField(max_length=32)
    agent_id = models.CharField(max_length=64, blank=True)
    run_id = models.UUIDField(null=True)
    text = models.TextField()
    # Whose process wrote it, and how the person came in who asked for it. The database has their
    # defaults, too: while nodes are replaced, older ones write without them.
    node_id = models.CharField(max_length=128, blank=True, default="", db_default="")
    door = models.CharField(max_length=16, blank=True, default="", db_default="")

    class Meta:
        indexes = [
            models.Index(fields=["session", "id"], name="worklog_session"),
            models.Index(fields=["level", "at", "kind"], name="worklog_alarms"),
            models.Index(fields=["session", "run_id"], name="worklog_run"),
        ]
        verbose_name_plural = "work log entries"

    def __str__(self) -> str:
        return f"{self.kind}: {self.text[:80]}"
