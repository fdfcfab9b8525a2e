"""What may stand where a person has pressed Tab: commands, options, and the ids of rows.

The shell asks with the words so far, the last one unfinished. Each parser says what it takes, and
the names of its arguments say which rows they mean: nothing is listed twice. Each Tab starts a
process and may ask the database once; one that is away has no words to offer.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from django.contrib.auth.models import User
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import DatabaseError, InterfaceError
from django.db.models import Model, QuerySet

from chat import terminal
from chat.agents import SUB_AGENTS
from chat.models import ChatSession
from coordination.models import InboxMessage

M = TypeVar("M", bound=Model)

OFFERED = 30  # rows: more fill a screen and are narrowed by another character


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of ``words`` may become; ``words`` are those after ``manage.py``."""
    *before, begun = words or [""]
    if not before:
        return _fitting(sorted(get_commands()), begun)
    parser = _parser(before[0])
    if parser is None:
        return []
    actions = parser._actions  # noqa: SLF001 - argparse has no other list of them
    options = {name: action for action in actions for name in action.option_strings}
    takes = options.get(before[-1])
    if takes is not None and takes.nargs != 0:
        return _values(takes, begun)
    if begun.startswith("-"):
        return _fitting(sorted(options), begun)
    given = _positionals_given(before[1:], options)
    positional = [action for action in actions if not action.option_strings][given:]
    return _values(positional[0], begun) if positional else []


def _parser(name: str) -> ArgumentParser | None:
    app = get_commands().get(name)
    if app is None:
        return None
    command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
    return command.create_parser("manage.py", name)


def _positionals_given(words: Sequence[str], options: dict[str, Action]) -> int:
    """How many of the words are neither options nor their values."""
    given, value_follows = 0, False
    for word in words:
        if value_follows:
            value_follows = False
        elif word.startswith("-"):
            action = options.get(word)
            value_follows = action is not None and action.nargs != 0
        else:
            given += 1
    return given


def _values(action: Action, begun: str) -> list[str]:
    if action.choices is not None:
        return _fitting([str(choice) for choice in action.choices], begun)
    rows = ROWS.get(action.dest)
    if rows is None:
        return []
    try:
        return list(rows(begun))
    except (DatabaseError, InterfaceError):
        return []


def _fitting(words: Iterable[str], begun: str) -> list[str]:
    return [word for word in words if word.startswith(begun)]


def _sessions(begun: str) -> list[str]:
    """Those with work under way, unless more of an id is there already; else the newest."""
    busy = _fitting((str(chat.pk) for chat in terminal.busy_sessions()), begun)
    if busy:
        return busy[:OFFERED]
    rows = ChatSession.objects.filter(deleted_at=None)
    return _ids(rows, "session__id", begun)


def _messages(begun: str) -> list[str]:
    return _ids(InboxMessage.objects.all(), "id", begun)


def _ids(rows: QuerySet[M], field: str, begun: str) -> list[str]:
    fitting = terminal.starting(rows, field, begun) if begun else rows
    if fitting is None:
        return []
    return [str(row.pk) for row in fitting.order_by("-created_at").only("pk")[:OFFERED]]


def _users(begun: str) -> list[str]:
    rows = User.objects.filter(username__startswith=begun, is_active=True).order_by("username")
    return list(rows.values_list("username", flat=True)[:OFFERED])


ROWS: dict[str, Callable[[str], list[str]]] = {
    "session": _sessions,
    "message": _messages,
    "user": _users,
    "agent": lambda begun: _fitting(SUB_AGENTS, begun),
}
"""By the name of an argument, in whatever command it stands."""
