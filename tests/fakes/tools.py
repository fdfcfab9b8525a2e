"""Tools that behave badly, and one that asks. For tests here, and for nodes (``cluster/apps.py``).

Plain tools stand in a module, because a process of their own imports them from there.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from chat.tools.base import ToolContext, ToolError, tool
from coordination.errors import Fenced
from coordination.suspensions import Ask


@tool
def plain(context: ToolContext, text: str, times: int = 1) -> dict[str, Any]:
    """Say where it runs, print, and give the text back."""
    print("printed by a tool")
    sys.stdin.read()
    return {"pid": os.getpid(), "key": context.idempotency_key, "text": text * times}


@tool
def hang(context: ToolContext, folder: str, deaf: bool = False) -> str:
    """Leave the ids of the process and of one it has started, and hang."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    below = subprocess.Popen(["sleep", "600"])
    Path(folder, context.call_id).write_text(f"{os.getpid()} {below.pid}\n")
    time.sleep(600)
    return "late"


@tool
def crash(context: ToolContext, how: str) -> Any:
    """End badly, in each way there is."""
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "sys.exit":
            sys.exit("done here")
        case "unpicklable":
            return lambda: None
        case "raise":
            raise LookupError("no such shelf")
        case "odd":
            raise OddError(1, 2)
        case "refuse":
            raise ToolError("ask somebody else")
        case "fenced":
            raise Fenced("gone")
    return Ask(question="which?")


@tool
async def swallow(context: ToolContext, until: str) -> str:
    """Ignore every cancellation until a file is there."""
    gate = Path(until)
    while not _is_there(gate):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    _sign(gate)
    return "late"


@tool
async def block(context: ToolContext, until: str) -> str:
    """Let nothing else run in this process until a file is there."""
    _wait_for(Path(until))
    return "late"


def _is_there(file: Path) -> bool:
    return file.exists()


def _sign(file: Path) -> None:
    file.write_text("seen")


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)


@tool(repeatable=False, requires_approval=True)
def pay(context: ToolContext, ledger: str, amount: int, hang: bool = False) -> str:
    """Write a line into a file."""
    with Path(ledger).open("a") as lines:
        lines.write(f"{amount}\n")
    if hang:
        time.sleep(600)
    return f"paid {amount}"


class OddError(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


FAKES = (plain, hang, crash, swallow, block, pay)
