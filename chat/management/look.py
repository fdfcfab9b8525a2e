"""A command that shows something: once, or again and again; to a person, or to a program.

What is shown is looked up as plain data first (``look``) and made into lines from that
(``lines``), so ``--json`` has whatever a person sees. ``--watch`` paints the terminal's second
screen, as ``less`` does, and leaves the first as it was; into a pipe it writes one look after the
other. A database that is away is told in a line and asked again: whoever watches an outage wants
to see its end.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from abc import abstractmethod
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

from django.db import DatabaseError, InterfaceError, connection

from chat import terminal

WATCH_EVERY = 2.0  # seconds: a person reads no faster, and a look costs a few statements
SECOND_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # no cursor; a long line is cut, not wrapped
FIRST_SCREEN = "\x1b[?7h\x1b[?25h\x1b[?1049l"
TOP, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class LookCommand(terminal.TerminalCommand):
    """Exit 0 also when Ctrl-C ends a watch: that is how one ends."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_json(parser)
        parser.add_argument("--watch", action="store_true", help="look again and again")
        parser.add_argument(
            "--every",
            type=_pause,
            default=WATCH_EVERY,
            metavar="SECONDS",
            help=f"between two looks of --watch ({WATCH_EVERY:g})",
        )

    @abstractmethod
    def look(self, *args: Any, **options: Any) -> Any:
        """What there is, as JSON has it. Raises CommandError for what was asked wrongly."""

    @abstractmethod
    def lines(self, found: Any, *args: Any, **options: Any) -> Iterable[str]:
        """The same for people."""

    def handle(self, *args: Any, **options: Any) -> None:
        if options["watch"]:
            self._watch(**options)
        elif options["json"]:
            self.dump(self.look(**options))
        else:
            for line in self.lines(self.look(**options), **options):
                self.stdout.write(line)

    def _watch(self, **options: Any) -> None:
        self.look(**options)  # what was asked wrongly is said at once, on the first screen
        whole_screen = self.stdout.isatty() and not options["json"]
        show = self._painted if whole_screen else self._next
        with leaving() as left, self._second_screen() if whole_screen else nullcontext():
            while True:
                self._put(show(**options))
                if left.wait(options["every"]):
                    break
        sys.exit(left.code)

    @contextmanager
    def _second_screen(self) -> Iterator[None]:
        self._put(SECOND_SCREEN)
        try:
            yield
        finally:
            self._put(FIRST_SCREEN)

    def _next(self, **options: Any) -> str:
        """One look for a pipe: a line of JSON, or lines and an empty one."""
        found, fault = self._ask(**options)
        if options["json"]:
            return json.dumps({"error": fault} if fault else found, ensure_ascii=False) + "\n"
        return "\n".join([fault] if fault else [*self.lines(found, **options), ""]) + "\n"

    def _painted(self, **options: Any) -> str:
        """One look over the last one, as much of it as fits the terminal."""
        found, fault = self._ask(**options)
        told = [self.style.ERROR(fault)] if fault else list(self.lines(found, **options))
        room = shutil.get_terminal_size().lines - 2
        if len(told) > room:
            told[room - 1 :] = [f"… {len(told) - room + 1} lines more"]
        clock = datetime.now().astimezone().strftime("%H:%M:%S")
        head = f"{clock}, every {options['every']:g} s; Ctrl-C ends"
        whole = [self.style.HTTP_NOT_MODIFIED(head), *told]
        return TOP + "".join(f"{line}{REST_OF_LINE}\n" for line in whole) + REST_OF_SCREEN

    def _ask(self, **options: Any) -> tuple[Any, str]:
        """What there is, or what the database says instead."""
        try:
            return self.look(**options), ""
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            return None, f"The database does not answer: {terminal.one_line(str(error), 200)}"

    def _put(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()


def _pause(text: str) -> float:
    try:
        pause = float(text)
    except ValueError:
        pause = 0
    if not 0.1 <= pause <= 3600:
        raise ArgumentTypeError(f"{text!r}: a number of seconds from 0.1 to 3600")
    return pause


class Left:
    """Whether somebody has told the command to end; ``code`` is what it then exits with.

    A pipe, not an Event: a signal's handler may find its own thread inside of the Event's lock.
    """

    def __init__(self) -> None:
        self.code = 0
        self._reader, self._writer = os.pipe()

    def tell(self, code: int) -> None:
        """Safe in a signal's handler."""
        self.code = code
        os.write(self._writer, b".")

    def wait(self, pause: float) -> bool:
        """Rest for so many seconds, or until it was told."""
        return bool(select.select([self._reader], [], [], pause)[0])

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def leaving() -> Iterator[Left]:
    """Ctrl-C and SIGTERM end it after the look that is under way; a second one at once.

    KeyboardInterrupt would be lost where it comes up inside of a callback or a destructor.
    """
    left = Left()
    before: dict[signal.Signals, Any] = {}

    def leave(number: int, _frame: Any) -> None:
        signum = signal.Signals(number)
        left.tell(0 if signum == signal.SIGINT else 128 + signum)
        signal.signal(signum, before[signum])

    for signum in (signal.SIGINT, signal.SIGTERM):
        before[signum] = signal.signal(signum, leave)
    try:
        yield left
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        left.close()
