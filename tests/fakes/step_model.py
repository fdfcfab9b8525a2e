"""A model whose every word, gate and fault is scripted, so that a race can be placed exactly.

    model = ScriptedModel(assistant=[["Hel", gate, "lo"], [call("ask_user", question="?")]])

A step is a list: a text is a delta; ``think`` is reasoning; ``call`` is a tool call, with a gate
inside its arguments if it gets one; a ``Gate`` says that it was reached and waits until it is
opened; an exception is raised; anything callable is called there (and awaited). Steps are used in
order per agent; past the last one, an agent says "done". Each history is checked as a strict
provider would check it.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chat.llm.protocol import (
    ReasoningDelta,
    StepCompleted,
    StepEvent,
    StepStream,
    TextDelta,
    ToolCallArgs,
    ToolCallEnded,
    ToolCallStarted,
    ToolSpec,
    Usage,
)
from tests.fakes.openai_server import validate

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

INPUT_TOKENS = 10
OUTPUT_TOKENS = 5


class Gate:
    """A place in a script: ``reached`` says that a step waits here, ``open`` lets it go on."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()
        self.left: BaseException | None = None  # with what a waiting step was cancelled

    def open(self) -> None:
        self._opened.set()

    async def reached(self) -> None:
        async with asyncio.timeout(10):
            await self._reached.wait()

    async def wait(self) -> None:
        self._reached.set()
        try:
            await self._opened.wait()
        except BaseException as error:
            self.left = error
            raise


@dataclass
class Thought:
    text: str


@dataclass
class Call:
    name: str
    arguments: str
    call_id: str
    gate: Gate | None = None


def think(text: str) -> Thought:
    return Thought(text)


def call(name: str, *, call_id: str = "", gate: Gate | None = None, **arguments: Any) -> Call:
    return Call(name, json.dumps(arguments), call_id or f"call-{uuid.uuid4().hex[:8]}", gate)


def raw_call(name: str, arguments: str, *, call_id: str = "") -> Call:
    """A call whose arguments are whatever the model made of them."""
    return Call(name, arguments, call_id or f"call-{uuid.uuid4().hex[:8]}")


Action = str | Thought | Call | Gate | BaseException | Callable[[], Any]
Step = Sequence[Any]  # of Action


@dataclass
class Request:
    """What a step was given."""

    agent: str
    history: list[ModelMessage]
    tools: list[str]
    instructions: str
    closed: bool = False  # the stream was left

    @property
    def said(self) -> str:
        """Everything in it, as one text to look into."""
        return json.dumps(to_openai(self.history), ensure_ascii=False)


@dataclass
class ScriptedModel:
    """Implements ``chat.llm.protocol.StepModel``."""

    steps: dict[str, list[Step]]
    requests: list[Request] = field(default_factory=list)
    default: Step = ("done",)
    name: str = "scripted"

    def __init__(self, **steps: Any) -> None:
        self.steps = {agent.replace("_", "-"): list(script) for agent, script in steps.items()}
        self.requests = []

    def check(self) -> None:
        pass

    def of(self, agent: str) -> list[Request]:
        return [request for request in self.requests if request.agent == agent]

    def stream_step(
        self,
        history: Sequence[ModelMessage],
        *,
        instructions: str,
        tools: Sequence[ToolSpec],
        silence_timeout: float | None = None,
    ) -> StepStream:
        found = re.search(r'You are the agent "([^"]+)"', instructions)
        assert found is not None
        names = [tool.name for tool in tools]
        request = Request(found.group(1), list(history), names, instructions)
        self.requests.append(request)
        check_strict(history)
        script = self.steps.get(request.agent) or []
        return _Stream(request, script.pop(0) if script else self.default)


class _Stream(StepStream):
    def __init__(self, request: Request, script: Step) -> None:
        super().__init__(provider="scripted", model="scripted", input_tokens=INPUT_TOKENS)
        self.request = request
        self.script = script

    async def aclose(self) -> None:
        self.request.closed = True
        await super().aclose()

    async def _events(self) -> AsyncGenerator[StepEvent, None]:
        for action in self.script:
            match action:
                case str():
                    yield TextDelta(action)
                case Thought(text):
                    yield ReasoningDelta(text)
                case Call():
                    async for event in _call_events(action):
                        yield event
                case Gate():
                    await action.wait()
                case BaseException():
                    raise action
                case _:
                    result = action()
                    if inspect.isawaitable(result):
                        await result
        yield StepCompleted(_response(self.script), Usage("scripted", "scripted", 10, 5))


async def _call_events(made: Call) -> AsyncGenerator[StepEvent, None]:
    yield ToolCallStarted(made.call_id, made.name)
    middle = len(made.arguments) // 2
    yield ToolCallArgs(made.call_id, made.arguments[:middle])
    if made.gate is not None:
        await made.gate.wait()
    yield ToolCallArgs(made.call_id, made.arguments[middle:])
    yield ToolCallEnded(made.call_id)


def _response(script: Step) -> ModelResponse:
    from pydantic_ai.messages import (
        ModelResponse,
        ModelResponsePart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
    )

    parts: list[ModelResponsePart] = []
    for action in script:
        match action:
            case str() if parts and isinstance(parts[-1], TextPart):
                parts[-1] = TextPart(parts[-1].content + action)
            case str():
                parts.append(TextPart(action))
            case Thought(text):
                parts.append(ThinkingPart(text))
            case Call():
                parts.append(ToolCallPart(action.name, action.arguments, action.call_id))
    return ModelResponse(parts=parts, model_name="scripted", provider_name="scripted")


# What a strict provider refuses


def to_openai(history: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """The history as an OpenAI-like provider gets it."""
    messages: list[dict[str, Any]] = []
    for message in history:
        if message.kind == "response":
            text = "".join(p.content for p in message.parts if p.part_kind == "text")
            calls = [
                {
                    "id": p.tool_call_id,
                    "type": "function",
                    "function": {"name": p.tool_name, "arguments": p.args_as_json_str()},
                }
                for p in message.parts
                if p.part_kind == "tool-call"
            ]
            messages.append({"role": "assistant", "content": text})
            if calls:
                messages[-1]["tool_calls"] = calls
            continue
        for part in message.parts:
            if part.part_kind == "tool-return":
                content = part.model_response_str()
                messages.append(
                    {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
                )
            elif part.part_kind == "user-prompt":
                messages.append({"role": "user", "content": part.content})
            else:
                raise AssertionError(f"unexpected in a history: {part}")
    return messages


def check_strict(history: Sequence[ModelMessage]) -> None:
    """Raise for what an OpenAI-like or an Anthropic-like provider would answer with 400."""
    messages = to_openai(history)
    validate({"model": "scripted", "messages": messages})
    assert messages[0]["role"] == "user", "a conversation begins with its user"
    assert messages[-1]["role"] != "assistant", "nothing is asked: the assistant spoke last"
    ids = [c["id"] for m in messages for c in m.get("tool_calls", ())]
    assert len(ids) == len(set(ids)), "a call id is used twice"
    for before, after in itertools.pairwise(messages):
        # Anthropic merges neighbours of one role, but a call's results come first after it.
        if before.get("tool_calls"):
            assert after["role"] == "tool", "a call is not answered directly after it"
