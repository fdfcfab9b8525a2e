"""A session is one conversation's stream and lock; whose it is and what was said is chat's.

Whoever changes anything in a session first locks this row (``transactions.locked``), so verdicts
of one session are serial on every node, and the events they log are numbered in commit order.
"""

from __future__ import annotations

import uuid

from django.db import models


class Session(models.Model):
    """One conversation: a counter for its events and one for the order of its rows."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    language = models.CharField(max_length=16, default="en")
    last_seq = models.PositiveBigIntegerField(default=0)
    first_seq = models.PositiveBigIntegerField(default=1)  # what is before it has been folded
    last_position = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="session_newest")]

    def __str__(self) -> str:
        return str(self.id)

    def next_position(self) -> int:
        """The next place in the session's order; ``transactions.locked`` keeps the count."""
        self.last_position += 1
        return self.last_position
