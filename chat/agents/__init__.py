"""The agents of this site. To add one: a file beside these, and its line in the table.

Names are lower case letters, digits and underscores; ``name-2`` is a second agent of the same kind
with a memory of its own.
"""

from __future__ import annotations

from . import assistant, researcher, reviewer, strategist
from .base import Agent, kind_of

MASTER = assistant.AGENT.name

AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (assistant.AGENT, researcher.AGENT, strategist.AGENT, reviewer.AGENT)
}

SUB_AGENTS = tuple(name for name in AGENTS if name != MASTER)


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
