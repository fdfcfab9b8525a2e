"""A plain function, called in a process of its own: it can be killed, and can die, alone.

    await call(function, *arguments)
    await start(["program", "argument"], environment, longest_line)

Function, arguments and result cross as pickles. A fork server is started with the first call (about
a second) and has Django and the tools loaded, so each call costs a fork: milliseconds. Its child
takes the one end of a pair of sockets, the caller holds the other:

    caller → child   the pickled call
    child → caller   the pickled result, or the exception to raise
    server → caller  the exit status of a child that has ended; too late to matter after a result

``start`` makes a program of the child instead: that end of the sockets is its standard input and
output, and the exit status is the last that comes.

There is one way to kill: the caller closes its end, at once, whatever the child is doing, and the
server sees to the rest (SIGTERM, ``AGENT_TOOL_KILL_GRACE``, SIGKILL; with everything the child has
started). A runner that dies closes all of its ends, so nothing outlives it.

Descriptors 0 and 1 of a runner are its supervisor's pipes. The server has neither: what a function
prints goes to standard error, with the logs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from coordination.conf import conf
from coordination.supervisor import die_with_parent

NUMBER = struct.Struct("!i")  # a length, as multiprocessing's Connection has it; an exit code
RESULT, EXIT = b"r", b"x"  # what comes: a length and a pickle, or an exit code
SERVER = (
    "import django; django.setup(); import chat.tools;"
    "from chat.tools import processes; processes.Server({}).serve()"
)


class Died(Exception):
    """The process ended before it had an answer."""


# -- the caller's side -----------------------------------------------------------------------


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it elsewhere, and kill it if cancelled. Raises what it raises, or Died."""
    reader, writer = await _begin(function, arguments)
    try:
        result = pickle.loads(await _answer_of(reader))  # noqa: S301 - our own child's
    finally:
        writer.transport.abort()  # not close(): that would first send what was not sent yet
    if isinstance(result, Exception):
        raise result
    return result


async def start(
    command: Sequence[str], environment: Mapping[str, str], longest_line: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a program; what it writes and what it reads. ``writer.transport.abort()`` kills it.

    It gets these variables and no others: ours hold secrets. A line of more than ``longest_line``
    bytes is a ValueError to its reader. What comes after the last line, ``how_it_ended`` reads.
    """
    return await _begin(become, (list(command), dict(environment)), longest_line)


async def _begin(
    function: Callable[..., Any], arguments: tuple[Any, ...], longest_line: int = 2**16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    request = pickle.dumps((function, arguments))
    ours, theirs = socket.socketpair()
    with theirs:
        _current.hand_over(theirs)
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours, limit=longest_line)
    writer.write(NUMBER.pack(len(request)) + request)
    return reader, writer


def how_it_ended(last: bytes) -> str:
    """What became of a program, by the last bytes that came of it."""
    if len(last) == 1 + NUMBER.size and last[:1] == EXIT:
        return _how(*NUMBER.unpack(last[1:]))
    return "closed its output"


def _how(status: int) -> str:
    return (
        f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
    )


async def _answer_of(reader: asyncio.StreamReader) -> bytes:
    try:
        kind = await reader.readexactly(1)
        (number,) = NUMBER.unpack(await reader.readexactly(NUMBER.size))
        if kind == RESULT:
            return await reader.readexactly(number)
    except (ConnectionError, asyncio.IncompleteReadError):
        raise Died("the process in which it ran was lost") from None
    raise Died(f"its process {_how(number)} before it had a result")


class _ServerOfThisProcess:
    """The handle of the server. Started when needed, and again should it die."""

    def __init__(self) -> None:
        self.control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def hand_over(self, end: socket.socket) -> None:
        """Give one end of a call's sockets to the server."""
        if self.control is None or self.process is None or self.process.poll() is not None:
            self.control = self._start()
        socket.send_fds(self.control, [b"\0"], [end.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER.format(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        if self.control is not None:
            self.control.close()
        return ours


_current = _ServerOfThisProcess()


# -- the server's side -----------------------------------------------------------------------


@dataclass(eq=False)
class _Child:
    pid: int
    end: socket.socket
    kill_at: float | None = None  # it was told to end, and is made to then

    def signal(self, signum: int) -> None:
        """To the child and everything it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)


class Server:
    """Forks a child for each call that comes over ``control``. Has no thread and no connection."""

    def __init__(self, control: int) -> None:
        self.control = socket.socket(fileno=control)
        self.children: dict[int, _Child] = {}  # by the descriptor of their end
        self.poll = select.poll()
        self.wake_out, self.wake_in = os.pipe()

    def serve(self) -> None:
        """Until the caller's process has ended; then everything that is left is killed."""
        os.set_blocking(self.wake_in, False)
        signal.set_wakeup_fd(self.wake_in)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGINT, signal.SIGTERM):  # its runner drains, and then closes
            signal.signal(signum, signal.SIG_IGN)
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(self.wake_out, select.POLLIN)
        gc.freeze()  # what is loaded stays shared between all children
        while True:
            for descriptor, _ in self.poll.poll(self._longest()):
                if descriptor == self.control.fileno():
                    if not self._take_call():
                        return self._kill_all()
                elif descriptor == self.wake_out:
                    os.read(self.wake_out, 4096)
                    self._reap()
                elif descriptor in self.children:
                    self._end(self.children[descriptor])
            self._kill_the_late()

    def _take_call(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        if not message:
            return False
        end = socket.socket(fileno=descriptors[0])
        end.set_inheritable(False)
        pid = os.fork()
        if pid == 0:
            self._be_child(end)
        with suppress(PermissionError, ProcessLookupError):  # it was faster; both try, none waits
            os.setpgid(pid, pid)
        self.children[end.fileno()] = _Child(pid, end)
        self.poll.register(end, 0)  # no events but that the caller has closed its end
        return True

    def _be_child(self, end: socket.socket) -> NoReturn:
        os.setpgid(0, 0)
        die_with_parent()
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        for child in self.children.values():
            child.end.close()
        self.control.close()
        os.close(self.wake_out)
        os.close(self.wake_in)
        _answer(end)
        os._exit(0)

    def _longest(self) -> float | None:
        due = [child.kill_at for child in self.children.values() if child.kill_at]
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def _end(self, child: _Child) -> None:
        """Its caller is gone. The end stays open until the child is reaped."""
        self.poll.unregister(child.end)
        child.signal(signal.SIGTERM)
        child.kill_at = time.monotonic() + conf.tool_kill_grace

    def _kill_the_late(self) -> None:
        for child in self.children.values():
            if child.kill_at and child.kill_at <= time.monotonic():
                child.signal(signal.SIGKILL)
                child.kill_at = None

    def _reap(self) -> None:
        for child in list(self.children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            child.signal(signal.SIGKILL)  # what it has left behind
            del self.children[child.end.fileno()]
            with suppress(KeyError):
                self.poll.unregister(child.end)
            with child.end, suppress(OSError):
                word = EXIT + NUMBER.pack(os.waitstatus_to_exitcode(status))
                child.end.send(word, socket.MSG_DONTWAIT)  # or who does not read holds up all
                # Closed with something unread in it, it would reset, and that word be lost.
                while child.end.recv(65536, socket.MSG_DONTWAIT):
                    pass

    def _kill_all(self) -> None:
        for child in self.children.values():
            child.signal(signal.SIGKILL)


def _answer(end: socket.socket) -> None:
    """In the child: read the call, make it, write what came of it."""
    from django.db import connections

    with Connection(end.detach()) as connection:
        try:
            function, arguments = connection.recv()
            if function is become:
                become(connection.fileno(), *arguments)
            answer = _pickled(function(*arguments))
        except Exception as error:  # noqa: BLE001 - raised again, by the caller
            error.add_note(traceback.format_exc())
            answer = _pickled(error)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a tool is not the caller's
            answer = pickle.dumps(Died(f"it raised {type(error).__name__}: {error}"))
        connections.close_all()
        sys.stdout.flush()
        with open(connection.fileno(), "wb", closefd=False) as stream:
            stream.write(RESULT + NUMBER.pack(len(answer)) + answer)


def become(end: int, command: list[str], environment: dict[str, str]) -> NoReturn:
    """In the child: be this program from now on, still in its group and bound to the server."""
    os.dup2(end, 0)
    os.dup2(end, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and ignoring is inherited
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - as the settings say
    finally:
        os._exit(127)  # as a shell does for what it cannot start


def _pickled(answer: Any) -> bytes:
    """The pickle, tried out; of what cannot cross, a text that says so."""
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)  # noqa: S301 - our own
    except Exception as error:  # noqa: BLE001 - whatever a class does when it is pickled
        if not isinstance(answer, Exception):
            return pickle.dumps(TypeError(f"its result cannot leave its process: {error}"))
        return pickle.dumps(RuntimeError(f"{type(answer).__name__}: {answer}"))
    return data
