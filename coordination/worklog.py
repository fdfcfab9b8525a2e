"""The work log: the row, the event and the log line in one call.

Each row says where it comes from: the node that wrote it, and, where a person has asked for it, the
``door`` they came through (page, api, websocket, terminal, admin). Readers of the conversation are
not told: it is for who runs the site.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from . import events, nodes, vocabulary
from .models import Run, Session, WorkLogEntry
from .prepared import Insert

log = logging.getLogger("agentsite.work")

door: ContextVar[str] = ContextVar("door", default="")
"""How the person came in for whom this task works; whoever lets them in sets it."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_INSERT = Insert(WorkLogEntry)


@contextmanager
def through(name: str) -> Iterator[None]:
    """Whatever is written in here was asked for through this door."""
    token = door.set(name)
    try:
        yield
    finally:
        door.reset(token)


def write(
    session: Session | None, kind: str, text: str, *, level: str = "info", run: Run | None = None
) -> None:
    """Say what happened. With ``session`` (its row locked) readers see it as an event too."""
    agent_id = run.agent_id if run else ""
    _INSERT(
        WorkLogEntry(
            session=session,
            level=level,
            kind=kind,
            agent_id=agent_id,
            run_id=run.pk if run else None,
            text=text,
            node_id=nodes.here(),
            door=door.get(),
        )
    )
    if session is not None:
        value = {
            "level": level,
            "kind": kind,
            "agentId": agent_id,
            "runId": str(run.pk) if run else None,
            "text": text,
        }
        events.append(session, run, vocabulary.custom("work_log", value))
    log.log(
        _LEVELS[level],
        kind,
        extra={
            "text": text,
            "session": str(session.pk) if session else None,
            "run": str(run.pk) if run else None,
            "agent": agent_id,
            "door": door.get() or None,
        },
    )
