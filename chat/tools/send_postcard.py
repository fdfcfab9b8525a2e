"""``send_postcard``: sends nothing. The demo shows an approval with it, and a plain tool."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import tool


@tool(repeatable=False, requires_approval=True)
def send_postcard(
    to: Annotated[str, Field(min_length=1, max_length=80)],
    text: Annotated[str, Field(min_length=1, max_length=500)],
    copies: Annotated[int, Field(ge=1, le=10)] = 1,
) -> dict[str, object]:
    """Send a postcard. (A demonstration: nothing leaves this machine.)"""
    return {"status": "sent", "to": to, "text": text, "copies": copies}
