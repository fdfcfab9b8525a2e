"""The tools of this site. To add one: a file beside these, its line here, its name at an agent.

``base`` says what a tool is: async or plain, repeatable or not, with or without approval.
"""

from __future__ import annotations

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

DEMO_TOOLS = (send_postcard.name,)
"""What the scripted model has besides its agent's own: no other is to pretend."""
