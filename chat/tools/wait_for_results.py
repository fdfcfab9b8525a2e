"""``wait_for_results``: wait for tasks that were sent before."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import Field

from coordination.db import patiently
from coordination.models import InboxMessage

from .base import Await, Outcome, ToolContext, ToolError, tool
from .send_message import check_timeout


@tool
async def wait_for_results(
    context: ToolContext,
    message_ids: Annotated[list[str], Field(min_length=1, max_length=64)],
    mode: Annotated[Literal["all", "any"], Field(description="wait for all, or any one")] = "all",
    timeout_seconds: Annotated[float | None, Field(gt=0)] = None,
) -> Outcome:
    """Wait for the results of tasks you have sent, by their message ids."""
    timeout = check_timeout(timeout_seconds)
    try:
        tasks = [uuid.UUID(message_id) for message_id in message_ids]
    except ValueError:
        raise ToolError("unknown_message: message_ids are what send_message returned.") from None
    unknown = set(tasks) - await patiently(_own_tasks, context, tasks)
    if unknown:
        names = ", ".join(str(task) for task in unknown)
        raise ToolError(f"unknown_message: you have sent no task {names}.")
    return Await(tasks, timeout, mode)


def _own_tasks(context: ToolContext, tasks: list[uuid.UUID]) -> set[uuid.UUID]:
    sent = InboxMessage.objects.filter(
        pk__in=tasks,
        session_id=context.run.session_id,
        sender=context.run.agent_id,
        kind__in=[InboxMessage.Kind.TASK, InboxMessage.Kind.REVISION],
    )
    return set(sent.values_list("pk", flat=True))
