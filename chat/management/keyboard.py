"""Lines from a person or a pipe, one at a time, without holding up the event loop.

A read cannot be taken back: a thread sits in it until a line comes. So a read that its asker has
given up stays out, and the next asker gets that line. At a terminal ``input`` reads, with editing
and history; from a pipe the bytes are read here, because a thread that holds Python's own stdin
must not be alive when the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

try:
    import readline  # noqa: F401 - editing and history, by being imported
    import termios
except ImportError:  # not on this system
    termios = None  # type: ignore[assignment]

CHUNK = 65536


class Keyboard:
    """Standard input. ``read`` gives a line, or None at its end."""

    def __init__(self, *, interactive: bool) -> None:
        self.interactive = interactive
        self._loop = asyncio.get_running_loop()
        self._out: asyncio.Future[str | None] | None = None
        self._rest = b""
        self._terminal = termios.tcgetattr(sys.stdin) if interactive and termios else None

    def read(self, prompt: str) -> asyncio.Future[str | None]:
        """The next line. Wait for the future with ``asyncio.wait``, which does not cancel it."""
        if self._out is None or self._out.done():
            self._out = self._loop.create_future()
            reader = threading.Thread(target=self._read, args=(prompt, self._out), daemon=True)
            reader.start()
        elif self.interactive:  # the line is still being typed, below what was said meanwhile
            sys.stdout.write(prompt)
            sys.stdout.flush()
        return self._out

    def close(self) -> None:
        """Leave the terminal as it was, though a thread may be reading from it."""
        if self._terminal is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal)

    def _read(self, prompt: str, out: asyncio.Future[str | None]) -> None:
        line: str | None
        try:
            line = input(prompt) if self.interactive else self._line()
        except (EOFError, OSError, ValueError):
            line = None
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody asks any more
            self._loop.call_soon_threadsafe(_give, out, line)

    def _line(self) -> str | None:
        while b"\n" not in self._rest:
            chunk = os.read(sys.stdin.fileno(), CHUNK)
            if not chunk:
                break
            self._rest += chunk
        line, newline, self._rest = self._rest.partition(b"\n")
        if not line and not newline:
            return None
        return line.decode(errors="replace").removesuffix("\r")


def _give(out: asyncio.Future[str | None], line: str | None) -> None:
    if not out.done():
        out.set_result(line)
