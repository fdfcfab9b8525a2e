"""The rows of coordination. The database decides: each verdict is one conditional UPDATE here."""

from .event import Event
from .inbox import InboxMessage
from .lease import Lease
from .node import WorkerNode
from .question import Question
from .run import Run
from .session import Session
from .wait import Wait, WaitItem
from .worklog import WorkLogEntry

__all__ = [
    "Event",
    "InboxMessage",
    "Lease",
    "Question",
    "Run",
    "Session",
    "Wait",
    "WaitItem",
    "WorkLogEntry",
    "WorkerNode",
]
