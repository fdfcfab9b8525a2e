"""What the executor sees of a model: one step goes in, a stream of events comes out.

A step is one request to a provider. ``stream_step`` starts nothing by itself; the request begins
with the iteration and ends with ``StepCompleted``, a ``ModelError``, or the end of the ``async
with``. Leaving the block is what closes the provider's HTTP stream, so always use it:

    async with model.stream_step(history, instructions=..., tools=...) as step:
        async for event in step:
            ...

A response may hold several texts between tool calls; to the reader they are one message, and the
concatenated ``TextDelta`` are ``text_of(response)``, to the letter. The same holds for the
``ToolCallArgs`` of a call and the ``args`` of its part, which are always a JSON string.

No model library is imported here at run time: it takes more than a second.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart


@dataclass(frozen=True)
class ToolSpec:
    """A tool the model may call. ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """What a step cost. ``estimated`` where the provider did not say: a stopped one never does."""

    provider: str
    model: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    tool_call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgs:
    tool_call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    tool_call_id: str


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """The last event, exactly once, when the provider's stream ended well."""

    response: ModelResponse
    usage: Usage


StepEvent = (
    TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArgs | ToolCallEnded | StepCompleted
)


class ModelError(Exception):
    """A step that cannot be completed. ``detail`` says what happened and what to do next.

    ``code`` is one of: ``unknown_model``, ``provider_auth``, ``provider_quota``,
    ``provider_rate_limit``, ``provider_unavailable``, ``provider_silent``, ``provider_context``,
    ``provider_refused``, ``provider_protocol``. ``retryable`` means that the same request may
    succeed later, after ``retry_after`` seconds where the provider named them.
    """

    def __init__(
        self, code: str, detail: str, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(code, detail, retryable, retry_after)
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclass
class _Call:
    tool_call_id: str
    name: str
    args: str = ""
    ended: bool = False

    @property
    def is_whole(self) -> bool:
        if self.ended:
            return True
        try:
            return isinstance(json.loads(self.args), dict)
        except ValueError:
            return False


@dataclass
class _SoFar:
    """What has passed by in a stream, in order. Kept so that a stopped step leaves its words."""

    parts: list[list[str] | _Call] = field(default_factory=list)
    calls: dict[str, _Call] = field(default_factory=dict)
    output_tokens: float = 0.0

    def note(self, event: StepEvent) -> None:
        match event:
            case TextDelta(text):
                last = self.parts[-1] if self.parts else None
                if isinstance(last, list):
                    last.append(text)
                else:
                    self.parts.append([text])
                self.output_tokens += estimate_tokens(text)
            case ReasoningDelta(text):
                self.output_tokens += estimate_tokens(text)
            case ToolCallStarted(tool_call_id, name):
                call = self.calls[tool_call_id] = _Call(tool_call_id, name)
                self.parts.append(call)
            case ToolCallArgs(tool_call_id, delta):
                self.calls[tool_call_id].args += delta
                self.output_tokens += estimate_tokens(delta)
            case ToolCallEnded(tool_call_id):
                self.calls[tool_call_id].ended = True


class StepStream(ABC):
    """One request under way: iterate it once, inside ``async with``."""

    def __init__(self, *, provider: str, model: str, input_tokens: int) -> None:
        self._provider = provider
        self._model = model
        self._input_tokens = input_tokens
        self._so_far = _SoFar()
        self._completed: StepCompleted | None = None
        self._running = self._watch()

    @abstractmethod
    def _events(self) -> AsyncGenerator[StepEvent, None]:
        """The step itself, as each kind of model does it."""

    async def _watch(self) -> AsyncGenerator[StepEvent, None]:
        async with aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, StepCompleted):
                    self._completed = event
                else:
                    self._so_far.note(event)
                yield event

    def __aiter__(self) -> AsyncIterator[StepEvent]:
        return self._running

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the provider's stream. Harmless when it has ended."""
        await self._running.aclose()

    def usage_so_far(self) -> Usage:
        """The usage of the step, estimated while the provider has not said it."""
        if self._completed is not None:
            return self._completed.usage
        return Usage(
            provider=self._provider,
            model=self._model,
            input_tokens=self._input_tokens,
            output_tokens=round(self._so_far.output_tokens),
            estimated=True,
        )

    def response_so_far(self) -> ModelResponse:
        """The response as far as it came, fit for a history.

        A call whose arguments are not whole is left out, since no provider would accept it. A call
        that is whole is kept: it must be answered (with "interrupted") before the next step.
        """
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.usage import RequestUsage

        if self._completed is not None:
            return self._completed.response
        parts: list[ModelResponsePart] = []
        for part in self._so_far.parts:
            if not isinstance(part, _Call):
                parts.append(TextPart("".join(part)))
            elif part.is_whole:
                parts.append(ToolCallPart(part.name, part.args, part.tool_call_id))
        usage = self.usage_so_far()
        return ModelResponse(
            parts=parts,
            usage=RequestUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
            model_name=self._model,
            provider_name=self._provider,
            state="interrupted",
        )


class StepModel(Protocol):
    """A model by its name. One object serves any number of steps at once, on any event loop."""

    @property
    def name(self) -> str: ...

    def stream_step(
        self,
        history: Sequence[ModelMessage],
        *,
        instructions: str,
        tools: Sequence[ToolSpec],
        silence_timeout: float | None = None,
    ) -> StepStream:
        """One step. A provider that sends nothing for ``silence_timeout`` seconds is given up."""
        ...

    def check(self) -> None:
        """Raise ``ModelError`` if it is plain, without a request, that no step can work."""
        ...


def text_of(response: ModelResponse) -> str:
    """What a reader sees of a response: its texts, one after the other."""
    return "".join(part.content for part in response.parts if part.part_kind == "text")


def estimate_tokens(text: str) -> float:
    """Roughly a token to four letters, and one to each character outside ASCII."""
    if text.isascii():
        return len(text) / 4
    return sum(0.25 if char < "\x80" else 1.0 for char in text)


def estimate_input_tokens(history: Sequence[ModelMessage], instructions: str) -> int:
    """A cheap guess at what a request costs, for steps that end before the provider says it."""
    tokens = estimate_tokens(instructions)
    for message in history:
        for part in message.parts:
            content = getattr(part, "content", None) or getattr(part, "args", None)
            if content is not None:
                tokens += estimate_tokens(content if isinstance(content, str) else str(content))
    return round(tokens)
