"""``stop_agent``: the master stops one of its sub-agents."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from coordination import interrupts, runs
from coordination.errors import Refused
from coordination.models import Run
from coordination.texts import BY_AGENT
from coordination.transactions import unit_of_work

from .base import Outcome, ToolContext, ToolError, Value, tool


@tool
async def stop_agent(
    context: ToolContext, agent_id: Annotated[str, Field(description="a sub-agent at work")]
) -> Outcome:
    """Stop a sub-agent. Its result will say that it was stopped."""
    if agent_id == context.run.agent_id:
        raise ToolError("cycle: you cannot stop yourself; just end your turn.")
    try:
        stopped = await interrupts.proved(
            context.run.session_id, functools.partial(_stop, context.run, agent_id)
        )
    except Refused as refusal:
        raise ToolError(f"{refusal.code}: {refusal.detail}") from None
    return Value({"status": stopped.status, "agent_id": agent_id})


@unit_of_work
def _stop(master: Run, agent_id: str) -> interrupts.Stopped:
    with runs.owned(master) as (session, run):
        return interrupts.mark(session, by=f"{BY_AGENT}{run.agent_id}", agent_id=agent_id)
