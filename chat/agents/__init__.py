"""The agents of this site. To add one: a file beside these, and its line in the table.

Names are lower case letters, digits and underscores; ``name-2`` is a second agent of the same kind
with a memory of its own. ``docs/add-an-agent.md`` has a whole example.
"""

from __future__ import annotations

from importlib import import_module

from .base import Agent, kind_of

MODULES = (
    "assistant",  # the first is the master
    "researcher",
    "strategist",
    "reviewer",
)

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (import_module(f".{name}", __name__).AGENT for name in MODULES)
}

MASTER, *_others = AGENTS
SUB_AGENTS = tuple(_others)


def find_agent(agent_id: str) -> Agent | None:
    """The kind of agent behind an id such as ``researcher-2``; None where there is none."""
    kind = kind_of(agent_id)
    return AGENTS.get(kind) if kind else None


def instructions_for(agent_id: str) -> str:
    """The system prompt of one agent: who it is, what it does, and whom the master can ask."""
    agent = find_agent(agent_id)
    assert agent is not None, f"no agent {agent_id}"
    lines = [f'You are the agent "{agent_id}".', agent.instructions]
    if "send_message" in agent.tools:
        lines.append("Your sub-agents:")
        lines += [f"- {name}: {AGENTS[name].description}" for name in SUB_AGENTS]
    return "\n".join(lines)
