"""The tools of this site. To add one: a file beside these, its line here, its name at an agent.

``base`` says what a tool is: async or plain, repeatable or not, with or without approval. Those of
an MCP server need no line: an agent names ``mcp:server`` (``mcp``).
"""

from __future__ import annotations

from collections.abc import Sequence

from . import mcp
from .ask_user import ask_user
from .base import Tool
from .check_inbox import check_inbox
from .send_message import send_message
from .send_postcard import send_postcard
from .stop_agent import stop_agent
from .wait_for_results import wait_for_results

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        send_message,
        wait_for_results,
        check_inbox,
        stop_agent,
        ask_user,
        send_postcard,
    )
}


async def tools_of(names: Sequence[str]) -> mcp.Offer:
    """The tools behind the names at an agent. Waits for MCP servers, and not in a transaction."""
    own = {name: TOOLS[name] for name in names if mcp.named(name) is None}
    offer = await mcp.offered(names)
    return mcp.Offer({**own, **offer.tools}, offer.missing)


DEMO_TOOLS = (send_postcard.name,)
"""What the scripted model has besides its agent's own: no other is to pretend."""
