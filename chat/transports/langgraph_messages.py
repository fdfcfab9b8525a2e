"""Our messages and questions as LangGraph's: the only place that knows both shapes.

Messages are LangChain's dicts. Arguments of a tool call are an object there and text here: what is
no object (yet, or never) is an ``invalid_tool_calls`` entry, as LangChain has it. What it has no
field for (``status``) stands in ``response_metadata``. A question is LangGraph's interrupt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

TYPES = {"user": "human", "assistant": "ai", "tool": "tool"}


def message(ours: Mapping[str, Any]) -> Json:
    """A message of a snapshot."""
    kind = TYPES.get(ours["role"], "system")
    calls = [part for part in ours["parts"] if part.get("type") == "tool_call"]
    match kind:
        case "ai":
            theirs = ai_message(ours["id"], ours["agent_id"], ours["content"], calls)
        case "tool":
            result: Json = next((p for p in ours["parts"] if p.get("type") == "tool_result"), {})
            call_id = str(result.get("tool_call_id", ours["id"]))
            theirs = tool_message(ours["id"], call_id, result.get("name"), ours["content"])
        case _:
            theirs = _message(ours["id"], kind, ours["content"])
    if ours["status"] != "complete":
        theirs["response_metadata"] = {"status": ours["status"]}
    return theirs


def _message(message_id: str, kind: str, content: str, name: str | None = None) -> Json:
    return {
        "id": message_id,
        "type": kind,
        "name": name,
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
    }


def ai_message(
    message_id: str, name: str, content: str, calls: Iterable[Mapping[str, Any]]
) -> Json:
    """What an agent said; ``calls`` are parts of ours (``tool_call_id``, ``name``, ``args``)."""
    good, bad = [], []
    for call in calls:
        args = _object(call["args"])
        theirs = {"id": call["tool_call_id"], "name": call["name"]}
        if args is None:
            error = {"error": "The arguments are no JSON object."}
            bad.append({**theirs, "args": call["args"], "type": "invalid_tool_call", **error})
        else:
            good.append({**theirs, "args": args, "type": "tool_call"})
    return {
        **_message(message_id, "ai", content, name),
        "tool_calls": good,
        "invalid_tool_calls": bad,
    }


def _object(args: Any) -> Json | None:
    try:
        value = json.loads(args or "{}") if isinstance(args, str) else args
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def chunk(message_id: str, name: str, content: str, calls: Iterable[Json] = ()) -> Json:
    """A piece of what an agent says: chunks of one id add up to its message."""
    return {
        **_message(message_id, "AIMessageChunk", content, name),
        "tool_calls": [],
        "invalid_tool_calls": [],
        "tool_call_chunks": [{**call, "type": "tool_call_chunk"} for call in calls],
    }


def tool_message(message_id: str, call_id: str, name: str | None, content: str) -> Json:
    """What a tool returned."""
    return {
        **_message(message_id, "tool", content, name),
        "tool_call_id": call_id,
        "status": "success",
    }


def interrupt(question: Mapping[str, Any]) -> Json:
    """An open question; its id is the key of a ``resume`` that answers several."""
    return {
        "id": question["id"],
        "value": dict(question),
        "response_schema": question["response_schema"],
    }
