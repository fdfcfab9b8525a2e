"""An MCP server that works, written with the protocol's own library.

    python tests/fakes/mcp_server.py stdio         over standard input and output
    python tests/fakes/mcp_server.py http PORT     over HTTP at /mcp

What it notices it writes as a line into the file that ``MCP_NOTES`` names.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("fake", log_level="CRITICAL")
READ_ONLY = ToolAnnotations(read_only_hint=True)


def note(line: str) -> None:
    with Path(os.environ["MCP_NOTES"]).open("a") as notes:
        notes.write(f"{line}\n")


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def effect(amount: int) -> str:
    """Have an effect, once for each call."""
    note(f"effect {amount}")
    return f"done {amount}"


@server.tool()
async def wait() -> str:
    """Wait until it is cancelled, and note it."""
    below = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    note(f"waiting {os.getpid()} {below.pid}")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "late"


@server.tool()
def die() -> str:
    """End the server's process in the middle of a call."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such shelf")


@server.tool(structured_output=False)
def show(kind: str, size: int = 10) -> Any:
    """Results of each kind."""
    match kind:
        case "image":
            return Image(data=b"x" * size, format="png")
        case "nothing":
            return []
        case "nul":
            return "a\x00b"
        case _:
            return "y" * size


@server.tool()
def environment() -> list[str]:
    """The names of the variables it was given."""
    return sorted(os.environ)


@server.tool()
async def learn(context: Context) -> str:
    """Have one tool more from now on, and say so."""

    @server.tool()
    def learned() -> str:
        """A new one."""
        return "I know"

    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "learned"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stdio"]:
            server.run()
        case ["http", port]:
            server.run("streamable-http", port=int(port))
