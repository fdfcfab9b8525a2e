"""The tools of this site. To add one: a file beside these, its line here, its name at an agent.

``base`` says what a tool is: async or plain, repeatable or not, with or without approval. Those of
an MCP server need no line: an agent names ``mcp:server`` (``mcp``).
``docs/add-a-tool.md`` has whole examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from . import mcp
from .base import Tool

NAMES = (  # of the tools, and of the files they are in
    "send_message",
    "wait_for_results",
    "check_inbox",
    "stop_agent",
    "ask_user",
    "send_postcard",
)

TOOLS: dict[str, Tool] = {
    name: getattr(import_module(f".{name}", __name__), name) for name in NAMES
}


async def tools_of(names: Sequence[str]) -> mcp.Offer:
    """The tools behind the names at an agent. Waits for MCP servers, and not in a transaction."""
    own = {name: TOOLS[name] for name in names if mcp.named(name) is None}
    offer = await mcp.offered(names)
    return mcp.Offer({**offer.tools, **own}, offer.missing)  # a stranger's never stands for ours


DEMO_TOOLS = ("send_postcard",)
"""What the scripted model has besides its agent's own: no other is to pretend."""
