"""A lease row says who executed a run under which epoch, and until when it is believed alive.

One row per claim, never deleted: the open one (``released_at`` null) is the lease, the closed ones
are its audit. Expiry is by the database's clock. A beat renews all open leases of a supervisor's
runners in one UPDATE; whoever closes the row (owner, supervisor, guard, stop) ends the renewals.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models.functions import Now

from coordination.prepared import Update, given

from .run import Run


class Lease(models.Model):
    """One claim of a run: from ``acquired_at`` to ``released_at``."""

    class End(models.TextChoices):
        RELEASED = "released"  # the owner ended or parked
        HANDED_OVER = "handed_over"  # the owner's worker shut down; the run goes on elsewhere
        CRASHED = "crashed"  # its supervisor saw the runner die
        EXPIRED = "lease_expired"  # a guard found it over
        FENCED = "fenced"  # taken away from an owner that did not obey

    run = models.ForeignKey(Run, models.CASCADE, related_name="leases")
    session_id = models.UUIDField()
    agent_id = models.CharField(max_length=64)
    epoch = models.PositiveIntegerField()
    node_id = models.CharField(max_length=128, db_index=True)
    runner_id = models.CharField(max_length=128)
    acquired_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    beats = models.PositiveIntegerField(default=0)
    expires_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    end = models.CharField(max_length=16, choices=End, blank=True)
    ended_by = models.CharField(max_length=128, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["released_at", "expires_at"], name="lease_guard"),
            models.Index(fields=["runner_id", "released_at"], name="lease_beat"),
            models.Index(fields=["acquired_at"], name="lease_newest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "epoch"], name="lease_one_per_epoch"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch} by {self.runner_id}"

    @classmethod
    def close(cls, run_id: uuid.UUID, epoch: int, end: str, *, by: str) -> bool:
        """Close the open lease of a run's epoch. True if there was one to close."""
        return _CLOSE(run=run_id, epoch=epoch, end=end, by=by) == 1


_CLOSE = Update(
    lambda: Lease.objects.filter(run_id=given("run"), epoch=given("epoch"), released_at=None),
    released_at=Now(),
    end=given("end"),
    ended_by=given("by"),
)
