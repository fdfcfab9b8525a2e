"""The agents' panel: every agent that has run in a session, each with its newest run and lease."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.db.models import Max, Q, QuerySet
from django.db.models.functions import Coalesce

from . import events, vocabulary
from .models import Lease, Question, Run, Session


def _iso(at: dt.datetime | None) -> str | None:
    return at.isoformat() if at else None


def agents(session_id: uuid.UUID) -> list[dict[str, Any]]:
    """The ``agents`` of the snapshot, in order of first appearance."""
    newest = _newest_runs(session_id)
    leases = {
        lease.run_id: lease
        for lease in Lease.objects.filter(run__in=[run.pk for run in newest], released_at=None)
    }
    return [_agent(run, leases.get(run.pk)) for run in newest]


def _newest_runs(session_id: uuid.UUID) -> QuerySet[Run]:
    """One run per agent: the one that holds its lane, else the newest that has begun."""
    begun = Q(lane__isnull=False) | Q(started_at__isnull=False)
    of_session = Run.objects.filter(session_id=session_id)
    positions = (
        of_session.exclude(status=Run.Status.QUEUED, lane=None)
        .values("agent_id")
        .annotate(newest=Coalesce(Max("position", filter=begun), Max("position")))
        .values("newest")
    )
    return of_session.filter(position__in=positions).order_by("depth", "agent_id")


def _agent(run: Run, lease: Lease | None) -> dict[str, Any]:
    return {
        "agent_id": run.agent_id,
        "name": run.agent_id,
        "run_id": str(run.pk),
        "parent_run_id": str(run.parent_id) if run.parent_id else None,
        "status": run.status,
        "reason": run.reason or None,
        "lease": lease
        and {
            "runner_id": lease.runner_id,
            "epoch": lease.epoch,
            "beat_at": _iso(lease.beat_at),
            "expires_at": _iso(lease.expires_at),
        },
        "last_progress_at": _iso(run.last_progress_at),
        "task_id": str(run.task_id) if run.task_id else None,
    }


def session_status(session_id: uuid.UUID) -> tuple[str, uuid.UUID | None]:
    """``idle``, ``queued``, ``running`` or ``suspended``, and the current root run if any."""
    live = list(Run.objects.filter(session_id=session_id).unfinished())
    current = next((run for run in live if run.is_root and run.lane), None)
    busy = [run for run in live if run.lane and run.status not in Run.PARKED]
    if current is None:
        return ("running" if busy else "idle"), None
    if not busy and Question.objects.filter(session_id=session_id, state="open").exists():
        return "suspended", current.pk
    if current.status == Run.Status.QUEUED and current.started_at is None:
        return "queued", current.pk
    return "running", current.pk


def publish(session: Session) -> None:
    """Log the panel as this transaction leaves it, once; call it with the session locked."""
    events.append_once(session, "agents", lambda: vocabulary.custom("agents", agents(session.pk)))
