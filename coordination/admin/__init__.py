"""The admin: a dashboard, and read-only windows on nodes, runs, messages, questions and the logs.

All of it is history or the business of running processes, so nothing can be added, changed or
deleted here; the few actions are named on their windows. What people look for, who answered whom
and who held what when, is one click away. Lists are read with their relations, and trees level by
level, so that no page asks once per row.
"""

from . import leases, messages, nodes, questions, runs, sessions

__all__ = ["leases", "messages", "nodes", "questions", "runs", "sessions"]
