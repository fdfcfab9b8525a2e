"""An OpenAI-compatible provider that does what a script says; see ``provider`` for the words.

As strict as OpenAI about history: each call is answered by a ``tool`` message directly after it,
none is answered that was not made, arguments are a JSON object, no message is empty.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.fakes.provider import (
    Action,
    Answer,
    Connection,
    Exchange,
    FakeProvider,
    Refused,
    Said,
    content_of,
    serve,
    sse,
)

MAX_ID = 40  # characters in the id of a call


# What OpenAI refuses


def validate(request: dict[str, Any]) -> None:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "[] is too short - 'messages'")
    if not request.get("model"):
        raise Refused(400, "you must provide a model parameter")
    awaited: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            _validate_tool_message(index, message, awaited)
            continue
        _all_answered(awaited)
        awaited = _validate_message(index, message)
    _all_answered(awaited)
    for tool in request.get("tools") or []:
        _validate_tool(tool)


def _all_answered(awaited: dict[str, int]) -> None:
    if awaited:
        raise Refused(
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            f"to each 'tool_call_id'. These did not have response messages: {', '.join(awaited)}",
        )


def _validate_message(index: int, message: dict[str, Any]) -> dict[str, int]:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refused(400, f"Invalid value: {role!r}: 'messages[{index}].role'")
    calls = message.get("tool_calls")
    if calls is not None and (role != "assistant" or not calls):
        raise Refused(400, f"Invalid 'messages[{index}].tool_calls'")
    if not _has_content(content) and not calls:
        raise Refused(400, f"Invalid 'messages[{index}].content': empty {role} message")
    awaited: dict[str, int] = {}
    for tool_call in calls or []:
        function = tool_call.get("function") or {}
        if tool_call.get("type") != "function" or not function.get("name"):
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': no function")
        if not tool_call.get("id") or tool_call["id"] in awaited:
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': id missing or twice")
        if len(tool_call["id"]) > MAX_ID:
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': id is too long")
        try:
            arguments = json.loads(function.get("arguments", ""))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': arguments are no JSON")
        awaited[tool_call["id"]] = index
    return awaited


def _validate_tool_message(index: int, message: dict[str, Any], awaited: dict[str, int]) -> None:
    if awaited.pop(message.get("tool_call_id", ""), None) is None:
        raise Refused(
            400,
            f"Invalid 'messages[{index}]': messages with role 'tool' must be a response to a "
            "preceding message with 'tool_calls'",
        )
    if not isinstance(message.get("content"), str | list):
        raise Refused(400, f"Invalid 'messages[{index}].content'")


def _has_content(content: object) -> bool:
    if isinstance(content, list):
        return any(part.get("type") != "text" or part.get("text") for part in content)
    return isinstance(content, str) and bool(content)


def _validate_tool(tool: dict[str, Any]) -> None:
    function = tool.get("function") or {}
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function.get("name", "")):
        raise Refused(400, f"Invalid tool name: {function.get('name')!r}")
    if function.get("parameters", {}).get("type", "object") != "object":
        raise Refused(400, f"Invalid schema for function {function['name']!r}")


# The server


class FakeOpenAI(FakeProvider):
    path = "/v1/chat/completions"

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AGENT_MODEL": "openai-chat:fake",
            "OPENAI_API_KEY": "sk-fake",
            "OPENAI_BASE_URL": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def check(self, request: dict[str, Any], headers: dict[str, str]) -> None:
        if not headers.get("authorization", "").removeprefix("Bearer").strip():
            raise Refused(401, "You didn't provide an API key.", code="invalid_api_key")
        validate(request)

    def said(self, request: dict[str, Any]) -> list[Said]:
        return [Said(m["role"], content_of(m.get("content"))) for m in request["messages"]]

    def error_body(self, refused: Refused) -> dict[str, Any]:
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        error = {"message": refused.message, "type": kind, "param": None, "code": refused.code}
        return {"error": error}

    def answer(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> Answer:
        return OpenAIAnswer(connection, exchange, actions)


class OpenAIAnswer(Answer):
    """Chunks with deltas, the last of them with a finish reason; then usage and ``[DONE]``."""

    def text(self, words: str) -> bytes:
        return self.raw({"content": words})

    def reasoning(self, words: str) -> bytes:
        return self.raw({"reasoning_content": words})

    def call_begins(self, index: int, call_id: str, tool: str) -> bytes:
        head = {"index": index, "id": call_id, "type": "function"}
        return self.raw({"tool_calls": [{**head, "function": {"name": tool, "arguments": ""}}]})

    def call_arguments(self, index: int, piece: str) -> bytes:
        return self.raw({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})

    def raw(self, delta: dict[str, Any]) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])

    def tail(self) -> bytes:
        last = self._chunk([{"index": 0, "delta": {}, "finish_reason": self.finish}])
        if (self.exchange.request.get("stream_options") or {}).get("include_usage"):
            asked, said = self.count()
            counted = {"prompt_tokens": asked, "completion_tokens": said}
            last += self._chunk([], usage={**counted, "total_tokens": asked + said})
        return last + sse("[DONE]")

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        return sse(
            {
                "id": f"chatcmpl-{self.exchange.id}",
                "object": "chat.completion.chunk",
                "created": int(self.exchange.started),
                "model": self.exchange.request["model"],
                "choices": choices,
                **more,
            }
        )


if __name__ == "__main__":
    serve(FakeOpenAI)
