"""The agents' panel: every agent that has run in a session, each with its newest run and lease."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection
from typing import Any

from django.db.models import FilteredRelation, Max, Q, QuerySet
from django.db.models.functions import Coalesce

from . import events, vocabulary
from .models import Question, Run, Session
from .prepared import Values, given

COLUMNS = (
    *("pk", "agent_id", "parent_id", "status", "reason", "last_progress_at", "task_id"),
    *("held__runner_id", "held__epoch", "held__beat_at", "held__expires_at"),
)


def _iso(at: dt.datetime | None) -> str | None:
    return at.isoformat() if at else None


def agents(session_id: uuid.UUID) -> list[dict[str, Any]]:
    """The ``agents`` of the snapshot, in order of first appearance."""
    rows = _NEWEST(session=session_id)
    return [_agent(dict(zip(COLUMNS, row, strict=True))) for row in rows]


def _newest_runs() -> QuerySet[Run, tuple[Any, ...]]:
    """One run per agent, with its lease: the one that holds its lane, else the newest begun."""
    begun = Q(lane__isnull=False) | Q(started_at__isnull=False)
    of_session = Run.objects.filter(session_id=given("session"))
    positions = (
        of_session.exclude(status=Run.Status.QUEUED, lane=None)
        .values("agent_id")
        .annotate(newest=Coalesce(Max("position", filter=begun), Max("position")))
        .values("newest")
    )
    held = FilteredRelation("leases", condition=Q(leases__released_at=None))
    rows = of_session.filter(position__in=positions).annotate(held=held)
    return rows.order_by("depth", "agent_id").values_list(*COLUMNS)


_NEWEST = Values(_newest_runs)


def _agent(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "agent_id": row["agent_id"],
        "name": row["agent_id"],
        "run_id": str(row["pk"]),
        "parent_run_id": str(row["parent_id"]) if row["parent_id"] else None,
        "status": row["status"],
        "reason": row["reason"] or None,
        "lease": row["held__runner_id"]
        and {
            "runner_id": row["held__runner_id"],
            "epoch": row["held__epoch"],
            "beat_at": _iso(row["held__beat_at"]),
            "expires_at": _iso(row["held__expires_at"]),
        },
        "last_progress_at": _iso(row["last_progress_at"]),
        "task_id": str(row["task_id"]) if row["task_id"] else None,
    }


Status = tuple[str, uuid.UUID | None]


def session_status(session_id: uuid.UUID) -> Status:
    """``idle``, ``queued``, ``running`` or ``suspended``, and the current root run if any."""
    return session_statuses([session_id])[session_id]


def session_statuses(session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """The same for many, in as many statements as for one."""
    live: dict[uuid.UUID, list[Run]] = {session_id: [] for session_id in session_ids}
    for run in Run.objects.filter(session_id__in=session_ids).unfinished():
        live[run.session_id].append(run)
    waiting = [pk for pk, runs in live.items() if runs]
    asked = Question.objects.filter(session_id__in=waiting, state=Question.State.OPEN)
    asking = set(asked.values_list("session_id", flat=True)) if waiting else set()
    return {pk: _status(runs, is_asking=pk in asking) for pk, runs in live.items()}


def _status(live: list[Run], *, is_asking: bool) -> Status:
    current = next((run for run in live if run.is_root and run.lane), None)
    busy = [run for run in live if run.lane and run.status not in Run.PARKED]
    if current is None:
        return ("running" if busy else "idle"), None
    if not busy and is_asking:
        return "suspended", current.pk
    if current.status == Run.Status.QUEUED and current.started_at is None:
        return "queued", current.pk
    return "running", current.pk


def publish(session: Session) -> None:
    """Log the panel as this transaction leaves it, once; call it with the session locked."""
    events.append_once(session, "agents", lambda: vocabulary.custom("agents", agents(session.pk)))
