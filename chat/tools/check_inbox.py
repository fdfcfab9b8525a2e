"""``check_inbox``: what has arrived and was not delivered yet."""

from __future__ import annotations

from .base import Outcome, TakeIn, ToolContext, tool


@tool
async def check_inbox(context: ToolContext) -> Outcome:  # noqa: ARG001
    """Read what has arrived for you and was not delivered yet."""
    return TakeIn()
