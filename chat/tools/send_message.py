"""``send_message``: the master sends a task, and may wait for its result within its turn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chat.agents import AGENTS, MASTER, SUB_AGENTS, find_agent
from chat.agents.base import Agent
from coordination import inbox, runs
from coordination.conf import conf
from coordination.db import patiently
from coordination.errors import Refused
from coordination.models import InboxMessage
from coordination.transactions import unit_of_work

from .base import Await, Outcome, ToolContext, ToolError, Value, tool


@tool
async def send_message(
    context: ToolContext,
    to: Annotated[str, Field(description="a sub-agent, or name-2 for a second one of its kind")],
    content: Annotated[str, Field(description="the whole task: the sub-agent sees nothing else")],
    type: Annotated[  # noqa: A002
        Literal["task", "revision"],
        Field(description="revision: a task again, with remarks, to who holds its memory"),
    ] = "task",
    await_result: Annotated[bool, Field(description="wait for the result in this turn")] = False,
    await_timeout_seconds: Annotated[float | None, Field(gt=0)] = None,
) -> Outcome:
    """Send a task to a sub-agent. Returns at once unless await_result is true."""
    agent = check_recipient(context, to)
    timeout = check_timeout(await_timeout_seconds)
    try:
        message = await patiently(_send, context, to, content, type, agent.repeatable)
    except Refused as refusal:
        raise ToolError(f"{refusal.code}: {refusal.detail}") from None
    if await_result:
        return Await([message.pk], timeout)
    return Value(_sent(message))


def check_recipient(context: ToolContext, to: str) -> Agent:
    """The agent behind the name. Raises ToolError, by name, for whoever cannot be sent a task."""
    if to == context.run.agent_id:
        raise ToolError(f"cycle: {to} cannot send a task to itself.")
    kind = find_agent(to)
    if kind is None:
        raise ToolError(
            f"unknown_agent: there is no {to!r}. Choose one of {', '.join(SUB_AGENTS)}."
        )
    if kind is AGENTS[MASTER]:
        raise ToolError("cycle: the master is not sent tasks; your last message is your result.")
    return kind


def check_timeout(seconds: float | None) -> float:
    """The wait in seconds. Raises ToolError where it is over the maximum."""
    if seconds is None:
        return conf.await_default
    if seconds > conf.await_max:
        raise ToolError(f"timeout_too_long: at most {conf.await_max:g} seconds can be awaited.")
    return seconds


def _sent(message: InboxMessage) -> dict[str, Any]:
    return {
        "status": "sent",
        "message_id": str(message.pk),
        "in_reply_to": None,
        "content": "Sent. The result will be delivered to you later, as an [inbox] message.",
    }


@unit_of_work
def _send(
    context: ToolContext, to: str, content: str, kind: str, repeatable: bool = False
) -> InboxMessage:
    with runs.owned(context.run) as (session, run):
        return inbox.send_task(
            session,
            run,
            to=to,
            content=content,
            kind=kind,
            tool_call_id=context.call_id,
            repeatable=repeatable,
        )
