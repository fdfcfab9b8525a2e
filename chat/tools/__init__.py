"""The tools of this site. To add one: a file beside these, its line here, its name at an agent."""

from __future__ import annotations

from .ask_user import ask_user
from .base import Tool
from .check_inbox import check_inbox
from .send_message import send_message
from .stop_agent import stop_agent
from .wait_for_results import wait_for_results

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (send_message, wait_for_results, check_inbox, stop_agent, ask_user)
}
