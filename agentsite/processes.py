"""Child processes that never outlive us.

A child is told by the kernel when its parent dies (``PR_SET_PDEATHSIG``), so that even kill -9 of
``serve`` or of a test leaves nothing behind. The kernel ties this to the *thread* that started the
child: start children from a thread that lives as long as they should, best the main one.

Each child leads a process group. A Ctrl-C in the terminal reaches only us, and we decide who ends
in which order; ending a child ends whatever it started too.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1


class ProcessFault(RuntimeError):
    """A process did not start, or ended by itself. The text says which, and its last words."""


class Child:
    """One process that we started. All signals go to it by its own id."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.returncode is None

    def send(self, signum: signal.Signals) -> None:
        """To this process alone. Popen never signals an id that was given to another process."""
        self._process.send_signal(signum)

    def send_all(self, signum: signal.Signals) -> None:
        """To this process and everything below it, the parent first."""
        if not self.alive:
            return
        family = [self.pid, *descendants(self.pid)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)

    def kill(self) -> None:
        """Like a machine that loses power: no handler runs, nothing is tidied up."""
        self.send_all(signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout: float = 10) -> bool:
        """SIGTERM, wait, SIGKILL. True if it ended by itself."""
        clean = self.ask_to_stop().wait(timeout)
        self._end_group()
        self._process.wait()
        return clean

    def ask_to_stop(self) -> "Child":
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a frozen process would never read the first
        return self

    def wait(self, timeout: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return not self.alive

    def last_words(self, lines: int = 15) -> str:
        return last_lines(self.log, lines)

    def _end_group(self) -> None:
        # The group's id cannot have a new owner while a member lives, and with no member it is a
        # ProcessLookupError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def spawn(
    argv: Sequence[str | Path],
    *,
    name: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_parent_death: signal.Signals = signal.SIGTERM,
    keep_open: Sequence[int] = (),
) -> Child:
    """Start a child in a process group of its own. What it prints is appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            process_group=0,
            pass_fds=tuple(keep_open),
            # Runs between fork and exec, so it may do nothing but call the kernel.
            preexec_fn=_bound_to(os.getpid(), on_parent_death),  # noqa: PLW1509
        )
    return Child(name, process, log)


def _bound_to(parent: int, signum: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)

    return bind


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs; parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


def children(pid: int) -> list[int]:
    """The processes that it has started itself, and that are not dead yet."""
    return [child for child, parent in _parents() if parent == pid]


def _parents() -> Iterator[tuple[int, int]]:
    """Each process that is not dead yet, with its parent."""
    if not Path("/proc/self/stat").exists():
        yield from _parents_by_ps()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended while we looked
            # The second field is the program's name in brackets, and may hold anything.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] != "Z":
                yield int(stat.parent.name), int(fields[1])


def _parents_by_ps() -> Iterator[tuple[int, int]]:
    """For systems without /proc."""
    argv = ["/bin/ps", "-axo", "pid=,ppid=,state="]
    listing = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        pid, parent, state = line.split()[:3]
        if not state.startswith("Z"):
            yield int(pid), int(parent)


def last_lines(file: Path, lines: int) -> str:
    if not file.exists():
        return ""
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


def until(
    ready: Callable[[], bool], *, child: Child | None = None, what: str, timeout: float = 60
) -> None:
    """Ask again and again, and stop asking when the one who should answer has died."""
    deadline = time.monotonic() + timeout
    while not ready():
        if child is not None and not child.alive:
            raise ProcessFault(
                f"{what}: ended with {child.returncode} instead of starting\n{child.last_words()}"
            )
        if time.monotonic() > deadline:
            words = f"\n{child.last_words()}" if child else ""
            raise ProcessFault(f"{what}: no answer within {timeout:g} s{words}")
        time.sleep(0.01)


def free_port() -> int:
    """A loopback port that nobody uses. Not from the range that the kernel gives to outgoing
    connections: there one could be taken while the node that owns it is being restarted.
    """
    for _ in range(200):
        port = random.randrange(20000, 30000)
        if port_is_free(port):
            return port
    raise ProcessFault("no free port between 20000 and 30000 on 127.0.0.1")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
