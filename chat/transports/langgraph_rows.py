"""Threads, states and runs: our rows in LangGraph's shape.

A thread is a session, its state the conversation with the master, a run the run of one message. A
run that waits for a person is ``interrupted``, as one that was stopped; it is ``pending`` and
``running`` again under the same id once it was answered.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Exists, OuterRef

from chat import snapshots
from chat.agents import AGENTS, MASTER
from chat.models import ChatSession
from coordination import panel
from coordination.errors import NotFound
from coordination.models import Run

from .langgraph_messages import Json, interrupt, message
from .langgraph_parts import INTERRUPT

THREAD_STATUS = {
    "idle": "idle",
    "queued": "busy",
    "running": "busy",
    "suspended": "interrupted",
}
RUN_STATUS = {
    Run.Status.QUEUED: "pending",
    Run.Status.RUNNING: "running",
    Run.Status.STALLED: "running",
    Run.Status.WAITING_CHILD: "running",
    Run.Status.WAITING_USER: "running",  # while others of its tree are at work
    Run.Status.COMPLETED: "success",
    Run.Status.FAILED: "error",
    Run.Status.INTERRUPTED: "interrupted",
    Run.Status.TIMEOUT: "timeout",
}
OURS = {"graph_id": MASTER, "assistant_id": MASTER}  # metadata that every thread has


def assistant() -> Json:
    """The one assistant there is."""
    agent = AGENTS[MASTER]
    epoch = "1970-01-01T00:00:00+00:00"  # it comes with the site: no row, no date
    return {
        "assistant_id": agent.name,
        "graph_id": agent.name,
        "name": agent.name,
        "description": agent.description,
        "version": 1,
        "config": {},
        "context": {},
        "metadata": {},
        "created_at": epoch,
        "updated_at": epoch,
    }


# -- threads ----------------------------------------------------------------------------------


def values(snapshot: Mapping[str, Any]) -> Json:
    """The state's values."""
    return {"messages": [message(ours) for ours in snapshot["messages"]]}


def thread(session_id: uuid.UUID) -> Json:
    """A thread. Raises NotFound."""
    snapshot = snapshots.snapshot(session_id)
    return {
        "thread_id": snapshot["id"],
        "status": THREAD_STATUS[snapshot["status"]],
        "metadata": {"title": snapshot["title"], **OURS},
        "values": values(snapshot),
        "interrupts": {run_id: asked for run_id, _, asked in _asked(snapshot)},
        "created_at": snapshot["created_at"],
        "updated_at": _changed_at(snapshot),
    }


def state(session_id: uuid.UUID) -> Json:
    """The thread's state; its checkpoint is named by the cursor of the log. Raises NotFound."""
    snapshot = snapshots.snapshot(session_id)
    checkpoint = {
        "thread_id": snapshot["id"],
        "checkpoint_ns": "",
        "checkpoint_id": str(snapshot["cursor"]),
        "checkpoint_map": None,
    }
    empty = {"error": None, "checkpoint": None, "state": None, "result": None}
    asked = list(_asked(snapshot))
    return {
        "values": values(snapshot),
        "next": [MASTER] if snapshot["run_id"] else [],
        "checkpoint": checkpoint,
        "parent_checkpoint": None,
        "metadata": {},
        "created_at": _changed_at(snapshot),
        "tasks": [
            {"id": run_id, "name": agent_id, "interrupts": interrupts, **empty}
            for run_id, agent_id, interrupts in asked
        ],
        "interrupts": [one for _, _, interrupts in asked for one in interrupts],
    }


def _asked(snapshot: Mapping[str, Any]) -> Iterable[tuple[str, str, list[Json]]]:
    """The runs that ask, each with its agent and its questions."""
    by_run: dict[tuple[str, str], list[Json]] = {}
    for question in snapshot["questions"]:
        asker = question["run_id"], question["agent_id"]
        by_run.setdefault(asker, []).append(interrupt(question))
    return [(*asker, interrupts) for asker, interrupts in by_run.items()]


def _changed_at(snapshot: Mapping[str, Any]) -> str:
    last = snapshot["messages"][-1:] or [snapshot]
    return str(last[0]["created_at"])


def threads(owner_id: Any, query: Any) -> list[Json]:
    """The owner's threads that fit a ``ThreadSearch``."""
    found = itertools.islice(
        _ids(owner_id, query.metadata or {}, query.ids, query.status, query.sort_order),
        query.offset,
        query.offset + query.limit,
    )
    return [thread(session_id) for session_id in list(found)]


def _ids(
    owner_id: Any,
    metadata: Json,
    ids: list[uuid.UUID] | None,
    status: str | None,
    order: str,
) -> Iterable[uuid.UUID]:
    rows = ChatSession.objects.filter(owner=owner_id, deleted_at=None)
    others = {name: wanted for name, wanted in metadata.items() if name != "title"}
    if not others.items() <= OURS.items():
        return []
    if "title" in metadata:
        rows = rows.filter(title=str(metadata["title"]))
    if ids is not None:
        rows = rows.filter(pk__in=ids)
    if status is not None:
        live = Run.objects.filter(session=OuterRef("pk"), lane__isnull=False)
        rows = rows.filter(~Exists(live) if status == "idle" else Exists(live))
    sign = "" if order == "asc" else "-"
    found = rows.order_by(f"{sign}created_at", f"{sign}pk").values_list("pk", flat=True)
    return (pk for pk in found if status in (None, "idle") or _status(pk) == status)


def _status(session_id: uuid.UUID) -> str:
    return THREAD_STATUS[panel.session_status(session_id)[0]]


# -- runs -------------------------------------------------------------------------------------


def find_run(session_id: uuid.UUID, run_id: uuid.UUID | None) -> Run:
    """The run of one of the thread's messages. Raises NotFound."""
    rows = Run.objects.filter(session=session_id, parent=None)
    found = rows.filter(pk=run_id).first() if run_id else None
    if found is None:
        raise NotFound("not_found", "There is no such run in this thread.")
    return found


def run(session_id: uuid.UUID, run_id: uuid.UUID) -> Json:
    """A run as it stands. Raises NotFound."""
    return _run(find_run(session_id, run_id), panel.session_status(session_id))


def runs(session_id: uuid.UUID, *, status: str | None, limit: int, offset: int) -> list[Json]:
    """The thread's runs, newest first."""
    now = panel.session_status(session_id)
    rows = Run.objects.filter(session=session_id, parent=None).order_by("-position")
    told = (_run(row, now) for row in rows.iterator())
    fitting = (one for one in told if status in (None, one["status"]))
    return list(itertools.islice(fitting, offset, offset + limit))


def _run(row: Run, now: tuple[str, uuid.UUID | None]) -> Json:
    asks = now == ("suspended", row.pk)
    stopped = row.status == Run.Status.INTERRUPTED
    return {
        "run_id": str(row.pk),
        "thread_id": str(row.session_id),
        "assistant_id": row.agent_id,
        "status": "interrupted" if asks else RUN_STATUS[Run.Status(row.status)],
        "metadata": {},
        "multitask_strategy": "enqueue",  # what was asked for has had its effect, and is not kept
        "cancel_reason": row.reason if stopped else None,
        "created_at": row.queued_at.isoformat(),
        "updated_at": (row.ended_at or row.last_progress_at or row.queued_at).isoformat(),
    }


def result(session_id: uuid.UUID, run_id: uuid.UUID) -> Json:
    """What a run that is over, or asks, has come to: the values, its questions, or its error."""
    row = find_run(session_id, run_id)
    if row.status in (Run.Status.FAILED, Run.Status.TIMEOUT):
        return {"__error__": {"error": row.reason, "message": row.detail or row.reason}}
    snapshot = snapshots.snapshot(session_id)
    if (snapshot["status"], snapshot["run_id"]) != ("suspended", str(row.pk)):
        return values(snapshot)
    asked = [interrupt(question) for question in snapshot["questions"]]
    return {**values(snapshot), INTERRUPT: asked}


def is_over(row: Run) -> bool:
    """True if nothing more will come of the run before somebody answers."""
    return row.is_terminal or panel.session_status(row.session_id) == ("suspended", row.pk)
