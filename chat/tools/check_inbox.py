"""``check_inbox``: what has arrived and was not delivered yet."""

from __future__ import annotations

from coordination import inbox
from coordination.db import patiently

from .base import Outcome, ToolContext, Value, tool


@tool
async def check_inbox(context: ToolContext) -> Outcome:
    """Read what has arrived for you and was not delivered yet."""
    messages = await patiently(inbox.deliverable, context.run)
    content = [
        {
            "message_id": str(message.pk),
            "type": message.kind,
            "sender": message.sender,
            "in_reply_to": str(message.in_reply_to_id) if message.in_reply_to_id else None,
            "content": message.content,
            "reason": message.reason,
        }
        for message in messages
    ]
    return Value({"messages": content}, acks=[message.pk for message in messages])
