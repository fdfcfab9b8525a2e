"""``check_inbox``: what has arrived and was not delivered yet."""

from __future__ import annotations

from .base import Outcome, TakeIn, tool


@tool
async def check_inbox() -> Outcome:
    """Read what has arrived for you and was not delivered yet."""
    return TakeIn()
