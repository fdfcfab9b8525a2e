"""A row for each worker node, for people: who is there, how busy, and when it was last heard of.

Its supervisor writes it beside each beat. No verdict ever reads it: who is lost is told by leases,
whose renewal neither waits for this row nor fails with it, so it may be old or missing while its
node lives. A node that was killed grows silent here; one that left says so (``left_at``).
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models.functions import Now


class WorkerNode(models.Model):
    """One life of one supervisor, and its runners as of its last beat."""

    id = models.CharField(max_length=128, primary_key=True)  # as ``nodes.new_node_id`` makes it
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    processes = models.PositiveIntegerField()  # runners it keeps
    concurrency = models.PositiveIntegerField()  # runs at once in each
    cpus = models.PositiveIntegerField()
    load = models.FloatField(null=True)  # the machine's average of a minute, where there is one
    runners = models.JSONField(default=list, blank=True)  # see ``supervisor.Child.about``
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    left_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.host} {self.pid}"

    @classmethod
    def beat(cls, node_id: str, **about: Any) -> None:
        """Write what is known of a node by now: one UPDATE; before the first, an INSERT.

        A beat that comes after ``leave`` changes nothing.
        """
        if not cls.objects.filter(pk=node_id, left_at=None).update(beat_at=Now(), **about):
            new = WorkerNode(pk=node_id, started_at=Now(), beat_at=Now(), **about)
            WorkerNode.objects.bulk_create([new], ignore_conflicts=True)

    @classmethod
    def leave(cls, node_id: str) -> bool:
        """Say that a node has ended in order. True for the call that said so."""
        return cls.objects.filter(pk=node_id, left_at=None).update(left_at=Now(), runners=[]) == 1
