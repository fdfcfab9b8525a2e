"""A command that shows something: once, or again and again; to a person, or to a program.

What is shown is looked up as plain data first (``look``) and made into lines from that
(``lines``), so ``--json`` has whatever a person sees. ``--watch`` paints the terminal's second
screen, as ``less`` does, and leaves the first as it was; into a pipe it writes one look after the
other. A database that is away is told in a line and asked again: whoever watches an outage wants
to see its end.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from abc import abstractmethod
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Never

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
        with _second_screen(self._put) if whole_screen else _until_interrupted():
            while True:
                self._put(self._painted(**options) if whole_screen else self._next(**options))
                time.sleep(options["every"])

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
        return TOP + "".join(f"{line}{REST_OF_LINE}\r\n" for line in whole) + REST_OF_SCREEN

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


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        return


@contextmanager
def _second_screen(put: Callable[[str], None]) -> Iterator[None]:
    """The terminal is given back as it was, also to whoever ends the command by a signal."""
    before = signal.signal(signal.SIGTERM, _leave)
    put(SECOND_SCREEN)
    try:
        with _until_interrupted():
            yield
    finally:
        put(FIRST_SCREEN)
        signal.signal(signal.SIGTERM, before)


def _leave(signum: int, _frame: Any) -> Never:
    sys.exit(128 + signum)
