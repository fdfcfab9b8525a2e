"""Our messages as AG-UI's: the only place that knows both shapes.

AG-UI has one field for a text and one for tool calls where we have ``parts``, and it puts what a
tool returned into a message of its own. What an AG-UI client has no field for (``status``) travels
as metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]


def to_agui(messages: Iterable[Mapping[str, Any]]) -> list[Json]:
    """The messages of a snapshot, fit for ``MESSAGES_SNAPSHOT``."""
    return [_message(message) for message in messages]


def _message(message: Mapping[str, Any]) -> Json:
    ours: Json = {"id": message["id"], "role": message["role"], "content": message["content"]}
    if message["status"] != "complete":
        ours["metadata"] = {"agentsite": {"status": message["status"]}}
    match message["role"]:
        case "assistant":
            ours["name"] = message["agent_id"]
            calls = [_call(part) for part in _parts(message, "tool_call")]
            if calls:
                ours["toolCalls"] = calls
        case "tool":
            result = next(iter(_parts(message, "tool_result")), {})
            ours["toolCallId"] = str(result.get("tool_call_id", message["id"]))
        case "user" | "system":
            pass
        case _:
            ours["role"] = "system"
    return ours


def _parts(message: Mapping[str, Any], kind: str) -> list[Json]:
    return [part for part in message["parts"] if part.get("type") == kind]


def _call(part: Mapping[str, Any]) -> Json:
    args = part.get("args", "")
    return {
        "id": str(part["tool_call_id"]),
        "type": "function",
        "function": {
            "name": str(part["name"]),
            "arguments": args if isinstance(args, str) else json.dumps(args),
        },
    }


def text_of(content: Any) -> str | None:
    """The text of a user's message; None where a part of it is no text."""
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        return None
    return "".join(part.text for part in content)
