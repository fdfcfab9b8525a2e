"""The session's event log: one row per AG-UI event, dense and in commit order per session.

``data`` is the event's JSON as it goes over the wire, so that a reader passes it on unread.
"""

from __future__ import annotations

from django.db import models

from .session import Session


class Event(models.Model):
    """One event; ``(session, seq)`` is the cursor."""

    session = models.ForeignKey(Session, models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    run_id = models.UUIDField(null=True)
    type = models.CharField(max_length=32)
    data = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["session", "seq"], name="event_cursor")]

    def __str__(self) -> str:
        return f"{self.session_id}/{self.seq} {self.type}"
