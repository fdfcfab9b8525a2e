"""What the commands of the terminal share: finding a row, tables, plain text, one event loop.

A row is found by its id or by any start of it that fits only one. Whatever a model has written is
shown through ``plain``: an escape sequence in an answer must not reach the operator's terminal.
Colours are the callers'; widths are counted before them, and a Chinese character has two columns.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import getpass
import itertools
import json
import logging
import os
import re
import signal
import sys
import unicodedata
from argparse import ArgumentParser
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError
from django.db.models import Model, QuerySet

from chat.models import ChatSession
from coordination import leases, worklog
from coordination.errors import Refused
from coordination.models import InboxMessage, Run
from coordination.wakeups import Hub

M = TypeVar("M", bound=Model)
T = TypeVar("T")

INTERRUPTED = 128 + signal.SIGINT  # the exit code of a command that Ctrl-C has ended
SHOWN = 5  # of the ids that an ambiguous start fits
SHORT = 8  # characters of an id in a table: enough to be typed, and to be told apart
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TerminalCommand(BaseCommand):
    """A command that a person types beside a running site. What goes wrong is one line."""

    requires_system_checks = []  # a site that is configured badly must still be stoppable
    log_level = logging.WARNING

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run it; refusals and a database that is away become one clear line."""
        try:
            with quiet_logs(self.log_level), worklog.through("terminal"):
                return super().execute(*args, **options)
        except Refused as refusal:
            raise CommandError(refusal.detail) from refusal
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(
                f"The database does not do this: {error}. `manage.py doctor` says more; on a new "
                "database `manage.py migrate` comes first."
            ) from error
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def add_json(self, parser: ArgumentParser) -> None:
        """The option of all commands that only show something."""
        parser.add_argument("--json", action="store_true", help="for programs")

    def dump(self, value: Any) -> None:
        """The answer for programs."""
        self.stdout.write(json.dumps(value, ensure_ascii=False, indent=2))

    def status_style(self, status: str, reason: str = "") -> Callable[[str], str]:
        """Alive, ended well, and lost are told apart at a glance."""
        if status in ("completed", "acked", "alive"):
            return self.style.SUCCESS
        if status in ("failed", "timeout", "silent") or reason in (
            "lease_expired",
            "crashed",
            "fenced",
        ):
            return self.style.ERROR
        if status in ("stalled", "interrupted", "discarded", "absent", "over"):
            return self.style.WARNING
        return _as_it_is


def _as_it_is(text: str) -> str:
    return text


@contextmanager
def quiet_logs(level: int) -> Iterator[None]:
    """While a person looks at this terminal, the log keeps to itself what is not for them."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(max(level, before))
    try:
        yield
    finally:
        root.setLevel(before)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own; the hints it has queued are sent before it ends."""

    async def whole() -> T:
        try:
            return await work
        finally:
            await Hub.current().close()

    return asyncio.run(whole())


def operator() -> str:
    """Who acts here, for the record: the person at this machine."""
    try:
        return f"operator {getpass.getuser()}"[:150]
    except (KeyError, OSError):  # a container's user may have no name
        return f"operator {os.getuid()}"


# -- finding ---------------------------------------------------------------------------------


def find(rows: QuerySet[M], field: str, text: str, *, what: str, hint: str) -> M:
    """The one row whose id begins so. Raises CommandError for none and for several."""
    fitting = starting(rows, field, text)
    if fitting is None:
        raise CommandError(f"{text!r} is not the id of a {what}, nor the start of one. {hint}")
    found = list(fitting[: SHOWN + 1])
    if not found:
        raise CommandError(f"There is no {what} {text}. {hint}")
    if len(found) > 1:
        several = ", ".join(str(row.pk) for row in found[:SHOWN])
        more = ", …" if len(found) > SHOWN else ""
        raise CommandError(f"{text} fits several: {several}{more}. Type more of it.")
    return found[0]


def starting(rows: QuerySet[M], field: str, text: str) -> QuerySet[M] | None:
    """The rows whose id begins so; None where no id does."""
    start = text.strip().lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{1,32}", start):
        return None
    return rows.filter(**{f"{field}__startswith": _hyphenated(start)})


def _hyphenated(start: str) -> str:
    """The start of a UUID as its text has it: some databases compare texts, some hexadecimals."""
    cuts = (0, 8, 12, 16, 20, 32)
    return "-".join(start[a:b] for a, b in itertools.pairwise(cuts) if start[a:b])


def find_session(text: str) -> ChatSession:
    """Anybody's session, deleted ones too: what runs in them can be seen and stopped."""
    return find(
        ChatSession.objects.select_related("owner", "session"),
        "session__id",
        text,
        what="session",
        hint="`manage.py agents` lists those with work under way.",
    )


def find_message(text: str) -> InboxMessage:
    """A message between agents, of any session."""
    return find(
        InboxMessage.objects.all(),
        "id",
        text,
        what="message between agents",
        hint="`manage.py agents SESSION` shows each agent's task.",
    )


def busy_sessions() -> list[ChatSession]:
    """Sessions in which something has not ended, the oldest first."""
    unfinished = Run.objects.unfinished().values("session")
    rows = ChatSession.objects.filter(session__in=unfinished).select_related("owner")
    return list(rows.order_by("created_at"))


def database_now() -> dt.datetime:
    """The clock that leases live by, which need not be this machine's."""
    return leases.database_now() or dt.datetime.now(dt.UTC)


# -- showing ---------------------------------------------------------------------------------


def plain(text: str) -> str:
    """The text without what a terminal would obey."""
    return _CONTROLS.sub("", text)


def one_line(text: str, limit: int = 72) -> str:
    """The text on one line, cut to ``limit`` columns."""
    line = " ".join(plain(text).split())
    if width(line) <= limit:
        return line
    while width(line) >= limit:
        line = line[:-1]
    return f"{line}…"


def width(text: str) -> int:
    """The columns that a terminal needs for it."""
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, columns: int) -> str:
    """The text with spaces up to this width."""
    return text + " " * max(0, columns - width(text))


Cell = str | tuple[str, Callable[[str], str]]


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Lines of aligned columns; a cell may bring its colour."""
    texts = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    for row in [list(head), *rows]:
        cells = [
            _colour(cell)(pad(_text(cell), columns))
            for cell, columns in zip(row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _colour(cell: Cell) -> Callable[[str], str]:
    return _as_it_is if isinstance(cell, str) else cell[1]


def seconds(span: float) -> str:
    """A span of time as a person says it."""
    if abs(span) < 10:
        return f"{span:.1f} s"
    for size, unit, upto in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172800)):
        if abs(span) < upto:
            return f"{span / size:.0f} {unit}"
    return f"{span / 86400:.0f} d"


def since(at: dt.datetime | str | None, now: dt.datetime) -> str:
    """How long ago; a dash where it never was."""
    if at is None:
        return "-"
    moment = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
    return seconds((now - moment).total_seconds())
