"""``manage.py check``: what agents name as their tools is there, and has a name of its own.

Nobody is asked: whether an MCP server answers, and what it offers, is what ``doctor`` finds out.
"""

from __future__ import annotations

import shutil
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from chat.agents import AGENTS
from chat.mcp_servers import named
from chat.tools import TOOLS


@register()
def tools_of_agents(**_: Any) -> list[CheckMessage]:
    """Each name at an agent is a line in the table, or of a server in the settings."""
    return [
        _unknown(agent.name, tool)
        for agent in AGENTS.values()
        for tool in agent.tools
        if not _is_known(tool)
    ]


def _is_known(tool: str) -> bool:
    parts = named(tool)
    return tool in TOOLS if parts is None else parts[0] in settings.AGENT_MCP_SERVERS


def _unknown(agent: str, tool: str) -> CheckMessage:
    if (parts := named(tool)) is None:
        return Error(
            f"The agent {agent} has a tool {tool!r} that is not in the table.",
            hint="Add its line to TOOLS in chat/tools/__init__.py.",
            id="chat.E001",
        )
    return Error(
        f"The agent {agent} has tools of an MCP server {parts[0]!r} that is not in the settings.",
        hint="Name the server in AGENT_MCP_SERVERS, or take the tool from the agent.",
        id="chat.E002",
    )


@register()
def mcp_servers(**_: Any) -> list[CheckMessage]:
    """No server's tools could be taken for ours, and each command is a program of this machine."""
    found: list[CheckMessage] = []
    for name, server in settings.AGENT_MCP_SERVERS.items():
        alike = [tool for tool in TOOLS if tool.startswith(f"{name}_")]
        if alike:
            found.append(
                Error(
                    f"A tool of the MCP server {name!r} could have the name of {alike[0]}.",
                    hint="Give the server another name in AGENT_MCP_SERVERS.",
                    id="chat.E003",
                )
            )
        if server.command and shutil.which(server.command, path=server.env.get("PATH")) is None:
            found.append(
                checks.Warning(
                    f"The MCP server {name!r}: there is no program {server.command!r} here.",
                    hint="A worker node needs it; a web node does not.",
                    id="chat.W001",
                )
            )
    return found
