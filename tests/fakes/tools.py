"""Tools that behave badly, and one that asks. For tests here, and for nodes (``cluster/tools``).

Plain tools stand in a module, because a process of their own imports them from there.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
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


class OddError(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
