"""A run is one execution of one agent for one task or user message; runs form a tree.

``epoch`` is the fencing token: each claim adds one, each verdict in a dead owner's name adds one,
and every write of an owner is guarded by the epoch it was given. ``lane`` is held by at most one
run of an agent of a session (a unique, nullable column: MySQL has no partial unique index), which
keeps an agent's memory single-writer; the next run of that agent gets it when this one ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from coordination.prepared import Update, given

from .session import Session


class RunQuerySet(models.QuerySet["Run"]):
    """Questions that several modules ask."""

    def unfinished(self) -> RunQuerySet:
        """Runs that have not ended."""
        return self.exclude(status__in=Run.TERMINAL)

    def claimable(self) -> RunQuerySet:
        """Queued runs that hold their agent's lane, oldest first."""
        return self.filter(status=Run.Status.QUEUED, lane__isnull=False).order_by("queued_at")


class Run(models.Model):
    """One execution of one agent. Non-terminal runs are queued, owned, or parked on rows."""

    class Status(models.TextChoices):
        QUEUED = "queued"  # waits for a runner, or for the agent's lane
        RUNNING = "running"  # owned by a runner under a lease
        STALLED = "stalled"  # owned, alive, and without progress
        WAITING_CHILD = "waiting_child"  # parked: waits for results, owned by nobody
        WAITING_USER = "waiting_user"  # parked: waits for a person, owned by nobody
        COMPLETED = "completed"
        FAILED = "failed"
        INTERRUPTED = "interrupted"  # the user's stop, only ever that
        TIMEOUT = "timeout"  # its worker was lost

    class Reason(models.TextChoices):
        COMPLETED = "completed"
        ERROR = "error"
        INTERRUPTED = "interrupted"
        LEASE_EXPIRED = "lease_expired"
        CRASHED = "crashed"
        FENCED = "fenced"
        BUDGET = "budget"
        SUPERSEDED = "superseded"

    OWNED = (Status.RUNNING, Status.STALLED)
    PARKED = (Status.WAITING_CHILD, Status.WAITING_USER)
    TERMINAL = (Status.COMPLETED, Status.FAILED, Status.INTERRUPTED, Status.TIMEOUT)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, models.CASCADE, related_name="runs")
    agent_id = models.CharField(max_length=64)
    parent = models.ForeignKey("self", models.CASCADE, null=True, related_name="children")
    root_id = models.UUIDField(db_index=True)  # the run of the user's message: one tree
    depth = models.PositiveSmallIntegerField(default=0)
    task = models.OneToOneField(
        "coordination.InboxMessage", models.CASCADE, null=True, related_name="task_run"
    )
    parent_tool_call_id = models.CharField(max_length=255, blank=True)
    position = models.PositiveBigIntegerField()

    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    reason = models.CharField(max_length=16, choices=Reason, blank=True)
    detail = models.TextField(blank=True)  # what went wrong, for people
    lane = models.CharField(max_length=128, null=True, unique=True)
    epoch = models.PositiveIntegerField(default=0)
    runner_id = models.CharField(max_length=128, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)  # claims for the step to come
    repeatable = models.BooleanField(default=False)  # goes on after the loss of its worker
    hops = models.PositiveIntegerField(default=0)  # agent-to-agent messages; counted on the root

    announced = models.BooleanField(default=False)  # its START stands open in the event log
    saved_seq = models.PositiveBigIntegerField(default=0)  # events after it are of an unsaved step
    usage = models.JSONField(default=dict, blank=True)

    stop_requested_at = models.DateTimeField(null=True)
    stop_requested_by = models.CharField(max_length=150, blank=True)
    stop_reason = models.CharField(max_length=16, choices=Reason, blank=True)
    queued_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    last_progress_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["status", "queued_at"], name="run_claim"),
            models.Index(fields=["session", "status"], name="run_session"),
            models.Index(fields=["runner_id", "status"], name="run_owner"),
            models.Index(fields=["ended_at", "status", "reason"], name="run_ended"),
            models.Index(fields=["session", "position"], name="run_order"),
            models.Index(fields=["queued_at"], name="run_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(status__in=["running", "stalled"]) | Q(lane__isnull=False),
                name="run_owned_holds_lane",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent_id} {self.id}"

    @property
    def is_root(self) -> bool:
        """True for the run of a user's message."""
        return self.parent_id is None

    @property
    def is_terminal(self) -> bool:
        """True once the run has ended."""
        return self.status in self.TERMINAL

    @staticmethod
    def lane_of(session_id: uuid.UUID, agent_id: str) -> str:
        """The lane of an agent: at most one run at a time holds it."""
        return f"{session_id}:{agent_id}"

    def move(self, to: str, *, frm: Iterable[str], **values: Any) -> bool:
        """One conditional UPDATE to another status. True if this call won; the object follows.

        The guard is the status and the epoch this object was read with, so a stale object loses.
        """
        values["status"] = to
        rows = Run.objects.filter(pk=self.pk, epoch=self.epoch, status__in=list(frm))
        if rows.update(**values) != 1:
            return False
        for name, value in values.items():
            setattr(self, name, value)
        return True

    def claim(self, runner_id: str) -> bool:
        """Queued → running under a new epoch. True for the one runner that won."""
        now = timezone.now()
        won = _CLAIM(
            run=self.pk, epoch=self.epoch, runner=runner_id, started=self.started_at or now
        )
        if won:  # the row was read with the session locked, so the rest of it is as it was
            self.status, self.runner_id = self.Status.RUNNING, runner_id
            self.epoch += 1
            self.attempts += 1
            self.started_at, self.last_progress_at = self.started_at or now, now
        return won == 1

    def take_lane(self) -> bool:
        """Try to hold the agent's lane; call it with the session locked. True if it holds it."""
        lane = self.lane_of(self.session_id, self.agent_id)
        if self.lane == lane:
            return True
        if Run.objects.filter(lane=lane).exists():
            return False
        self.lane = lane
        return Run.objects.filter(pk=self.pk, lane=None).update(lane=lane) == 1

    @classmethod
    def request_stop(cls, members: Sequence[Run], *, by: str, reason: str) -> int:
        """Record the intent where none stands yet: ten stops are one. How many are new.

        The objects follow; call it with the session locked, so that they are as their rows.
        """
        first = [run for run in members if run.stop_requested_at is None and not run.is_terminal]
        now = timezone.now()
        for run in first:
            run.stop_requested_at, run.stop_requested_by, run.stop_reason = now, by, reason
        return (
            cls.objects.filter(pk__in=[run.pk for run in first], stop_requested_at=None)
            .unfinished()
            .update(stop_requested_at=Now(), stop_requested_by=by, stop_reason=reason)
        )


_CLAIM = Update(
    lambda: Run.objects.filter(
        pk=given("run"),
        epoch=given("epoch"),
        status=Run.Status.QUEUED,
        lane__isnull=False,
        stop_requested_at=None,
    ),
    status=Run.Status.RUNNING,
    runner_id=given("runner"),
    epoch=F("epoch") + 1,
    attempts=F("attempts") + 1,
    started_at=given("started"),
    last_progress_at=Now(),
)
