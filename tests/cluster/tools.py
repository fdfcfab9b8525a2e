"""Tools that misbehave, for the agents of a tested site: slow, deaf, deadly.

The strategist may also send tasks here, so that a tree can be three deep.
"""

import asyncio
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

from chat.agents import AGENTS, MASTER
from chat.agents.base import Agent
from chat.tools import TOOLS
from chat.tools.base import ToolContext, tool
from tests.fakes.tools import FAKES


@tool
async def work(context: ToolContext, seconds: float) -> str:
    """Take a while, and obey a cancellation."""
    await asyncio.sleep(seconds)
    return "worked"


@tool
async def block_the_loop(context: ToolContext, seconds: float) -> str:
    """What an asynchronous tool must not do."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "blocked"


@tool
async def hold_the_gil(context: ToolContext, seconds: float) -> str:
    """Regular expressions that let no other thread of this process run while they match."""
    end = time.monotonic() + seconds
    letters = 20
    while (left := end - time.monotonic()) > 0:
        begun = time.monotonic()
        re.match("(a|aa)+$", "a" * letters + "b")
        if 3 * (time.monotonic() - begun) < left:
            letters += 1
    return "held"


@tool
async def die(context: ToolContext) -> str:
    """The process is gone, and whoever else was in it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(repeatable=False)
async def effect(context: ToolContext, seconds: float = 0) -> str:
    """One line in a file for each time that it took effect; then it takes a while to say so."""
    _note(context.idempotency_key)
    await asyncio.sleep(seconds)
    return "done"


def _note(effect: str) -> None:
    with Path(os.environ["TEST_EFFECTS"]).open("a") as effects:
        effects.write(f"{effect}\n")


def give() -> None:
    """Let every agent call them; and the master those that each test of tools has."""
    TOOLS.update({tool.name: tool for tool in FAKES})
    master = AGENTS[MASTER]
    more = (*master.tools, *(tool.name for tool in FAKES))
    AGENTS[MASTER] = replace(master, tools=more)
    given = (work, block_the_loop, hold_the_gil, die, effect)
    TOOLS.update({tool.name: tool for tool in given})
    names = tuple(tool.name for tool in given)
    for kind, agent in AGENTS.items():
        more = (*names, "send_message") if kind == "strategist" else names
        AGENTS[kind] = replace(agent, tools=(*agent.tools, *more))
    # One that has an MCP server's tools, so that only its tests start the server.
    AGENTS["courier"] = Agent("courier", "You carry.", ("mcp:fake",))
