"""The name of a worker node says which life of which process it is, so that others can look it up.

    {host}-{pid}-{started}-{boot}-{namespace}

``boot`` is the kernel's, ``started`` the process's start in its ticks, ``namespace`` the one in
which ``pid`` counts. Containers share host names and pids, and a restarted worker may get the pid
of the one before it: only where boot and namespace are this process's own does the kernel answer
for that pid, and only the start tells its next owner apart. What cannot be proved is the guard's.
"""

from __future__ import annotations

import functools
import os
import socket
import uuid
from pathlib import Path

PROC = Path("/proc")
HOST_CHARS = 32  # the name of a runner's group, which this is the start of, has 99


def new_node_id() -> str:
    """The name of this process as a node. Without Linux's ``/proc`` it is unique and says less."""
    host = socket.gethostname()[:HOST_CHARS]
    place, started = _place(), _started(os.getpid())
    if place is None or started is None:
        return f"{host}-{os.getpid()}-{uuid.uuid4().hex}"
    return f"{host}-{os.getpid()}-{started}-{place}"


@functools.cache
def _own_id() -> str:
    return new_node_id()


_joined: list[str] = []


def join(node_id: str) -> None:
    """This process is part of that node: a runner is its supervisor's."""
    _joined[:] = [node_id]


def here() -> str:
    """The node that this process is, or is part of: a worker's, a web node's or a command's."""
    return _joined[0] if _joined else _own_id()


def short(node_id: str) -> str:
    """Host and pid: enough for people to tell the nodes of today apart."""
    return node_id.rsplit("-", 3)[0]


def is_gone(node_id: str) -> bool:
    """True where the kernel proves that this node's process has ended."""
    parts = node_id.rsplit("-", 4)
    place = _place()
    if place is None or len(parts) != 5 or "-".join(parts[3:]) != place:
        return False
    pid, started = int(parts[1]), parts[2]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # somebody's process: whose, its start says
    now_there = _started(pid)
    return now_there is not None and now_there != started


def _place() -> str | None:
    """Where a pid means one process: a boot of a kernel, and a namespace of it."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    return f"{boot.replace('-', '')[:12]}-{namespace:x}"


def _started(pid: int) -> str | None:
    """When the process was started, in ticks since the boot; None where that is not to be seen."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets that may hold anything; the 22nd is the start.
    return f"{int(stat.rpartition(')')[2].split()[19]):x}"
