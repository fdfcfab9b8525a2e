"""The work log: the row, the event and the log line in one call."""

from __future__ import annotations

import logging

from . import events, vocabulary
from .models import Run, Session, WorkLogEntry
from .prepared import Insert

log = logging.getLogger("agentsite.work")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_INSERT = Insert(WorkLogEntry)


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
        },
    )
