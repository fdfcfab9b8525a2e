"""A provider with Anthropic's Messages wire that does what a script says; see ``provider``.

As strict as Anthropic about history: the first message is the user's and the last one too; each
``tool_use`` is answered in the very next message, before anything else in it, and nothing else is;
no text is blank; a thinking block carries the signature that it was given here. Neighbours of one
role are taken, as the real one does, but a result in the second of them is too late.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
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

Block = dict[str, Any]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}

BLOCK_FIELDS = {
    "text": {"text", "citations", "cache_control"},
    "tool_use": {"id", "name", "input", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"thinking", "signature"},
}

BLOCKS_OF = {"user": {"text", "tool_result"}, "assistant": {"text", "tool_use", "thinking"}}


def signature_of(thinking: str) -> str:
    """What only this provider could have put under these words."""
    return hashlib.sha256(f"signed: {thinking}".encode()).hexdigest()


# What Anthropic refuses


def refuse(where: str, what: str) -> Refused:
    return Refused(400, f"{where}: {what}")


def validate(request: dict[str, Any]) -> None:
    """Raise Refused, in Anthropic's words where they are known."""
    for name in ("model", "max_tokens", "messages"):
        if not request.get(name):
            raise refuse(name, "Field required")
    if not isinstance(request["max_tokens"], int) or request["max_tokens"] < 1:
        raise refuse("max_tokens", "Input should be greater than or equal to 1")
    _validate_system(request.get("system", ""))
    _validate_tools(request.get("tools") or [])
    messages: list[dict[str, Any]] = request["messages"]
    blocks = [_validate_message(f"messages.{n}", m) for n, m in enumerate(messages)]
    if messages[0]["role"] != "user":
        raise refuse("messages", 'first message must use the "user" role')
    if messages[-1]["role"] == "assistant":
        _refuse_prefill(blocks[-1])
    _validate_pairs(messages, blocks)
    if not request.get("tools") and any(_of(here, "tool_use") for here in blocks):
        raise refuse("tools", "requests which include `tool_use` blocks must define tools")


def _validate_system(system: Any) -> None:
    if isinstance(system, list):
        for number, block in enumerate(system):
            _validate_text(f"system.{number}", block)
    elif not isinstance(system, str):
        raise refuse("system", "Input should be a valid string or list")


def _validate_message(where: str, message: dict[str, Any]) -> list[Block]:
    if set(message) != {"role", "content"}:
        raise refuse(where, f"Extra inputs are not permitted, or missing: {sorted(message)}")
    role, content = message["role"], message["content"]
    if role not in BLOCKS_OF:
        raise refuse(f"{where}.role", f'Unexpected role "{role}"')
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not blocks:
        raise refuse(where, f"{role} messages must have non-empty content")
    for number, block in enumerate(blocks):
        _validate_block(f"{where}.content.{number}", block, role)
    return list(blocks)


def _validate_block(where: str, block: Block, role: str) -> None:
    kind = block.get("type", "")
    if kind not in BLOCKS_OF[role]:
        raise refuse(where, f"`{kind}` blocks are not permitted in {role} messages")
    if extra := set(block) - BLOCK_FIELDS[kind] - {"type"}:
        raise refuse(where, f"Extra inputs are not permitted: {extra}")
    match kind:
        case "text":
            _validate_text(where, block)
        case "tool_use":
            _validate_tool_use(where, block)
        case "tool_result":
            _validate_tool_result(where, block)
        case "thinking" if block.get("signature") != signature_of(block["thinking"]):
            raise refuse(where, "Invalid `signature` in `thinking` block")


def _validate_text(where: str, block: Block) -> None:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise refuse(where, "Input should be a text block")
    if not block["text"]:
        raise refuse(where, "text content blocks must be non-empty")
    if not block["text"].strip():
        raise refuse(where, "text content blocks must contain non-whitespace text")


def _validate_tool_use(where: str, block: Block) -> None:
    for name, longest in (("id", ""), ("name", "{1,128}")):
        pattern = f"[a-zA-Z0-9_-]{longest or '+'}"
        if not re.fullmatch(pattern, str(block.get(name, ""))):
            raise refuse(f"{where}.tool_use.{name}", f"String should match pattern '^{pattern}$'")
    if not isinstance(block.get("input"), dict):
        raise refuse(f"{where}.tool_use.input", "Input should be a valid dictionary")


def _validate_tool_result(where: str, block: Block) -> None:
    content = block.get("content", "")
    if isinstance(content, list):
        for number, inner in enumerate(content):
            _validate_text(f"{where}.tool_result.content.{number}", inner)
    elif not isinstance(content, str):
        raise refuse(f"{where}.tool_result.content", "Input should be a valid string or list")


def _refuse_prefill(blocks: list[Block]) -> None:
    if str(blocks[-1].get("text", "")).rstrip() != blocks[-1].get("text", ""):
        raise refuse("messages", "final assistant content cannot end with trailing whitespace")
    raise Refused(
        400,
        "This model does not support assistant message prefill. "
        "The conversation must end with a user message.",
    )


def _validate_pairs(messages: list[dict[str, Any]], blocks: list[list[Block]]) -> None:
    """Every call is answered once, in the very next message and first there; nothing else is."""
    used: set[str] = set()
    awaited: list[str] = []
    for number, here in enumerate(blocks):
        where = f"messages.{number}"
        leading = [block["tool_use_id"] for block in _leading_results(here)]
        results = [block["tool_use_id"] for block in _of(here, "tool_result")]
        for result in results:
            if result not in awaited:
                raise refuse(where, f"unexpected `tool_use_id` found in `tool_result`: {result}")
        if len(set(results)) < len(results):
            raise refuse(where, "each tool_use must have a single result")
        if missing := [call_id for call_id in awaited if call_id not in leading]:
            raise refuse(
                f"messages.{number - 1}",
                "`tool_use` ids were found without `tool_result` blocks immediately after: "
                + ", ".join(missing),
            )
        awaited = [block["id"] for block in _of(here, "tool_use")]
        if len(set(awaited)) < len(awaited) or used & set(awaited):
            raise refuse(where, "`tool_use` ids must be unique")
        used |= set(awaited)
    assert messages[-1]["role"] == "user", "so nothing is awaited any more"


def _of(blocks: list[Block], kind: str) -> list[Block]:
    return [block for block in blocks if block["type"] == kind]


def _leading_results(blocks: list[Block]) -> Iterator[Block]:
    for block in blocks:
        if block["type"] != "tool_result":
            return
        yield block


def _validate_tools(tools: list[dict[str, Any]]) -> None:
    names = [tool.get("name", "") for tool in tools]
    if len(set(names)) < len(names):
        raise refuse("tools", "Tool names must be unique.")
    for number, tool in enumerate(tools):
        where = f"tools.{number}.custom"
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", names[number]):
            raise refuse(f"{where}.name", "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'")
        schema = tool.get("input_schema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise refuse(f"{where}.input_schema.type", "Input should be 'object'")
        if not isinstance(schema.get("properties", {}), dict):
            raise refuse(f"{where}.input_schema", "JSON schema is invalid")
        if {"oneOf", "allOf", "anyOf"} & set(schema):
            raise refuse(f"{where}.input_schema", "does not support oneOf, allOf, or anyOf here")


# The server


class FakeAnthropic(FakeProvider):
    path = "/v1/messages"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AGENT_MODEL": "anthropic:fake",
            "ANTHROPIC_API_KEY": "sk-ant-fake",
            "ANTHROPIC_BASE_URL": self.origin,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def check(self, request: dict[str, Any], headers: dict[str, str]) -> None:
        bearer = headers.get("authorization", "").removeprefix("Bearer").strip()
        if not headers.get("x-api-key") and not bearer:  # which of them depends on the client
            raise Refused(401, "x-api-key header is required")
        if not headers.get("anthropic-version"):
            raise refuse("anthropic-version", "header is required")
        validate(request)

    def said(self, request: dict[str, Any]) -> list[Said]:
        said = [Said("system", content_of(request.get("system")))]
        for message in request["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            said += [Said("tool", content_of(b.get("content"))) for b in _of(blocks, "tool_result")]
            if message["role"] == "assistant" or _of(blocks, "text"):
                said.append(Said(message["role"], content_of(_of(blocks, "text"))))
        return said

    def error_body(self, refused: Refused) -> dict[str, Any]:
        kind = ERROR_TYPES.get(refused.status, "api_error")
        error = {"type": kind, "message": refused.message}
        return {"type": "error", "error": error, "request_id": "req_fake"}

    def answer(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> Answer:
        return AnthropicAnswer(connection, exchange, actions)


class AnthropicAnswer(Answer):
    """Blocks one after the other, each begun and ended; a piece of another kind ends the last."""

    def __init__(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> None:
        super().__init__(connection, exchange, actions)
        self._index = -1
        self._open = ""  # the kind of block that is under way
        self._thought = ""

    def head(self) -> bytes:
        message = {
            "id": f"msg_{self.exchange.id}",
            "type": "message",
            "role": "assistant",
            "model": self.exchange.request["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.count()[0], "output_tokens": 1},
        }
        return _event("message_start", message=message) + _event("ping")

    def text(self, words: str) -> bytes:
        begun = self._begin("text", text="") if self._open != "text" else b""
        return begun + self._delta("text_delta", text=words)

    def reasoning(self, words: str) -> bytes:
        begun = b""
        if self._open != "thinking":
            begun = self._begin("thinking", thinking="", signature="")
        self._thought += words
        return begun + self._delta("thinking_delta", thinking=words)

    def call_begins(self, index: int, call_id: str, tool: str) -> bytes:
        return self._begin("tool_use", id=call_id, name=tool, input={})

    def call_arguments(self, index: int, piece: str) -> bytes:
        return self._delta("input_json_delta", partial_json=piece)

    def tail(self) -> bytes:
        said = self.count()[1]
        stop = STOP_REASONS.get(self.finish or "", self.finish)
        delta = {"stop_reason": stop, "stop_sequence": None}
        last = _event("message_delta", delta=delta, usage={"output_tokens": said})
        return self._end() + last + _event("message_stop")

    def _begin(self, kind: str, **block: Any) -> bytes:
        ended = self._end()
        self._open = kind
        self._index += 1
        block = {"type": kind, **block}
        return ended + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **delta})

    def _end(self) -> bytes:
        kind, self._open = self._open, ""
        signed = b""
        if kind == "thinking":
            signed = self._delta("signature_delta", signature=signature_of(self._thought))
            self._thought = ""
        return signed + _event("content_block_stop", index=self._index) if kind else b""


def _event(kind: str, **data: Any) -> bytes:
    return sse({"type": kind, **data}, kind)


if __name__ == "__main__":
    serve(FakeAnthropic)
