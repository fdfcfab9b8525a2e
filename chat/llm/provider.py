"""Models of real providers, by their Pydantic AI name: ``openai-chat:gpt-…``, ``anthropic:…``.

One request at a time through ``pydantic_ai.direct``; the agent's loop, its checkpoints and its
retries are ours. The provider's client therefore retries nothing by itself: a retry that nobody
asked for would double a request behind the back of whoever counts them.

Clients belong to the event loop that opened their connections, so they are kept per loop.

Two clocks watch a request. Connecting has a time limit of its own; after that only silence ends
it (``silence_timeout``), however long the answer takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .protocol import (
    ModelError,
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
    estimate_input_tokens,
)

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        ModelResponseStreamEvent,
        ToolCallPart,
    )
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.providers import Provider
    from pydantic_ai.usage import RequestUsage

CONNECT_TIMEOUT = 10.0
"""A provider that does not even accept the connection is down, not thinking."""

READ_TIMEOUT = 3600.0
"""Never the one to fire: silence is measured here, in events, not by the socket."""

DEFAULT_SILENCE_TIMEOUT = 300.0
"""For callers that name none. Reasoning models may think for minutes before the first token."""

SHARE_THE_CLIENT = frozenset(
    {"anthropic", "deepseek", "ollama", "openai", "openai-chat", "openai-responses", "openrouter"}
)
"""Providers that take our HTTP client. The others bring their own, with their own time limits."""


ANYONES_ID = re.compile("[a-zA-Z0-9_-]{1,40}")
"""Ids of calls that each provider takes: Anthropic limits the letters, OpenAI the length."""


class ProviderModel:
    """One model of one provider."""

    def __init__(self, name: str, *, silence_timeout: float = DEFAULT_SILENCE_TIMEOUT) -> None:
        self._name = name
        self._silence_timeout = silence_timeout
        _refuse_unknown(name)

    @property
    def name(self) -> str:
        return self._name

    def check(self) -> None:
        _build(self._name, _Clients())

    def stream_step(
        self,
        history: Sequence[ModelMessage],
        *,
        instructions: str,
        tools: Sequence[ToolSpec],
        silence_timeout: float | None = None,
    ) -> StepStream:
        return ProviderStream(
            self._name,
            history,
            instructions=instructions,
            tools=tools,
            silence_timeout=silence_timeout or self._silence_timeout,
        )


class ProviderStream(StepStream):
    """A request to a provider, translated event by event."""

    def __init__(
        self,
        name: str,
        history: Sequence[ModelMessage],
        *,
        instructions: str,
        tools: Sequence[ToolSpec],
        silence_timeout: float,
    ) -> None:
        provider, _, model = name.partition(":")
        super().__init__(
            provider=provider,
            model=model,
            input_tokens=estimate_input_tokens(history, instructions),
        )
        self._name = name
        self._history = list(history)
        self._instructions = instructions
        self._tools = tools
        self._silence_timeout = silence_timeout

    async def _events(self) -> AsyncGenerator[StepEvent, None]:
        from pydantic_ai.direct import model_request_stream

        model = model_for_this_loop(self._name)
        translation = _Translation(taken_ids=_tool_call_ids(self._history))
        try:
            request = model_request_stream(
                model, self._history, model_request_parameters=self._parameters()
            )
            async with AsyncExitStack() as stack:
                async with self._within_silence():
                    stream = await stack.enter_async_context(request)
                chunks = aiter(stream)
                while True:
                    try:
                        async with self._within_silence():
                            chunk = await anext(chunks)
                    except StopAsyncIteration:
                        break
                    for event in translation.translate(chunk):
                        yield event
                response = stream.get()
            _refuse_unfinished(model, response)
            events, response = translation.finish(response)
            for event in events:
                yield event
            yield StepCompleted(response, self._usage(response.usage))
        except ModelError:
            raise
        except Exception as error:
            raise _explain(error, self._name) from error

    def _parameters(self) -> ModelRequestParameters:
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        return ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name,
                    description=tool.description,
                    parameters_json_schema=tool.parameters,
                    # Strict mode would rewrite our schemas and make each optional field required.
                    strict=False,
                )
                for tool in self._tools
            ],
            instruction_parts=(
                [InstructionPart(content=self._instructions)] if self._instructions else []
            ),
        )

    def _within_silence(self) -> _Silence:
        return _Silence(self._silence_timeout, self._name)

    def _usage(self, usage: RequestUsage) -> Usage:
        if not usage.has_values():
            return self.usage_so_far()
        return Usage(
            provider=self._provider,
            model=self._model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.output_reasoning_tokens or None,
            cached_tokens=usage.cache_read_tokens or None,
        )


class _Silence:
    """``asyncio.timeout`` that names the culprit."""

    def __init__(self, seconds: float, model: str) -> None:
        self._seconds = seconds
        self._model = model
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:  # noqa: PYI036
        try:
            await self._timeout.__aexit__(*exc_info)
        except TimeoutError as error:
            raise ModelError(
                "provider_silent",
                f"{self._model} sent nothing for {self._seconds:g} s and was given up. "
                "Try again, or choose another model with AGENT_MODEL.",
                retryable=True,
            ) from error


@dataclass
class _OpenCall:
    tool_call_id: str
    sent: str = ""


@dataclass
class _Translation:
    """Pydantic AI's events in, ours out; and the response with the ids and arguments we announced.

    Arguments that come as an object (some providers) are announced as one JSON string at the end.
    Calls end together with the response: parallel calls may arrive interleaved.
    """

    taken_ids: set[str]
    calls: dict[int, _OpenCall] = field(default_factory=dict)

    def translate(self, chunk: ModelResponseStreamEvent) -> list[StepEvent]:
        match chunk.event_kind:
            case "part_start":
                part = chunk.part
                match part.part_kind:
                    case "text":
                        return [TextDelta(part.content)] if part.content else []
                    case "thinking":
                        return [ReasoningDelta(part.content)] if part.content else []
                    case "tool-call":
                        call = self.calls[chunk.index] = _OpenCall(self._free_id(part.tool_call_id))
                        started = ToolCallStarted(call.tool_call_id, part.tool_name)
                        return [started, *self._args(call, part.args)]
            case "part_delta":
                delta = chunk.delta
                match delta.part_delta_kind:
                    case "text":
                        return [TextDelta(delta.content_delta)] if delta.content_delta else []
                    case "thinking":
                        return [ReasoningDelta(delta.content_delta)] if delta.content_delta else []
                    case "tool_call" if chunk.index in self.calls:
                        return self._args(self.calls[chunk.index], delta.args_delta)
        return []

    def finish(self, response: ModelResponse) -> tuple[list[StepEvent], ModelResponse]:
        """The last events, and the response that agrees with all of them."""
        events: list[StepEvent] = []
        parts = list(response.parts)
        for index, part in enumerate(parts):
            if part.part_kind != "tool-call":
                continue
            call = self.calls.get(index)
            if call is None:
                call = self.calls[index] = _OpenCall(self._free_id(part.tool_call_id))
                events.append(ToolCallStarted(call.tool_call_id, part.tool_name))
            args = _as_json(part)
            if not args.startswith(call.sent):
                raise ModelError(
                    "provider_protocol",
                    f"The provider changed the arguments of {part.tool_name} while it sent them. "
                    "Try again.",
                    retryable=True,
                )
            events += self._args(call, args[len(call.sent) :])
            parts[index] = dataclasses.replace(part, args=args, tool_call_id=call.tool_call_id)
        events += [ToolCallEnded(call.tool_call_id) for _, call in sorted(self.calls.items())]
        return events, dataclasses.replace(response, parts=parts)

    def _args(self, call: _OpenCall, delta: object) -> list[StepEvent]:
        if not isinstance(delta, str) or not delta:
            return []
        call.sent += delta
        return [ToolCallArgs(call.tool_call_id, delta)]

    def _free_id(self, proposed: str) -> str:
        """Local servers like to number their calls from zero in each response.

        And what one provider uses as an id, such as ``functions.look:0``, another one refuses.
        """
        if not ANYONES_ID.fullmatch(proposed) or proposed in self.taken_ids:
            proposed = f"call_{uuid.uuid4().hex}"
        self.taken_ids.add(proposed)
        return proposed


def _as_json(part: ToolCallPart) -> str:
    if isinstance(part.args, str):
        return part.args if part.args.strip() else "{}"
    return json.dumps(part.args or {}, ensure_ascii=False)


def _tool_call_ids(history: Sequence[ModelMessage]) -> set[str]:
    return {
        part.tool_call_id
        for message in history
        if message.kind == "response"
        for part in message.parts
        if part.part_kind == "tool-call"
    }


def _refuse_unfinished(model: Model, response: ModelResponse) -> None:
    """A stream may end in silence. What was cut off must not pass for an answer."""
    from pydantic_ai.models.openai import OpenAIChatModel

    details = response.provider_details or {}
    if response.finish_reason == "content_filter" and not response.parts:
        reason = details.get("refusal") or "its content filter stopped the answer"
        raise ModelError(
            "provider_refused", f"The provider refused to answer: {reason}. Say it differently."
        )
    # Pydantic AI takes a missing finish reason for "stop"; only the raw details tell them apart.
    cut_off = type(model) is OpenAIChatModel and "finish_reason" not in details
    if response.state != "complete" or (cut_off and response.finish_reason == "stop"):
        raise ModelError(
            "provider_protocol",
            "The provider's stream broke off before the answer was finished. Try again.",
            retryable=True,
        )
    if not response.parts:
        raise ModelError(
            "provider_protocol", "The provider sent an empty answer. Try again.", retryable=True
        )


# Clients and models, per event loop


@dataclass
class _Clients:
    http: httpx2.AsyncClient | None = None
    providers: dict[str, Provider[Any]] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()


def model_for_this_loop(name: str) -> Model:
    clients = _clients.setdefault(asyncio.get_running_loop(), _Clients())
    if name not in clients.models:
        clients.models[name] = _build(name, clients)
    return clients.models[name]


async def close_clients() -> None:
    """Close the connections of the running loop: the last thing a worker does with models."""
    clients = _clients.pop(asyncio.get_running_loop(), None)
    if clients is not None and clients.http is not None:
        await clients.http.aclose()


def _refuse_unknown(name: str) -> None:
    from pydantic_ai.providers import infer_provider_class

    prefix, colon, model = name.partition(":")
    if not colon or not model:
        raise ModelError(
            "unknown_model",
            f"{name!r} is no model name. Set AGENT_MODEL to `demo`, or to `provider:model`, "
            "for example `openai-chat:gpt-4o` or `anthropic:claude-sonnet-4-5`.",
        )
    try:
        infer_provider_class(prefix)
    except ValueError:
        raise ModelError(
            "unknown_model",
            f"{prefix!r} in {name!r} is no provider that Pydantic AI knows. Among those that work: "
            "demo, openai-chat, openai, anthropic, deepseek, openrouter, ollama.",
        ) from None
    except ImportError as error:
        raise ModelError("unknown_model", f"{name} needs a package: {error}") from error


def _build(name: str, clients: _Clients) -> Model:
    from pydantic_ai.models import infer_model

    def provider(prefix: str) -> Provider[Any]:
        if prefix not in clients.providers:
            clients.providers[prefix] = _build_provider(prefix, clients)
        return clients.providers[prefix]

    try:
        return infer_model(name, provider)
    except ModelError:
        raise
    except Exception as error:
        raise _explain(error, name) from error


def _build_provider(prefix: str, clients: _Clients) -> Provider[Any]:
    import httpx2
    from pydantic_ai.models import create_async_httpx2_client
    from pydantic_ai.providers import infer_provider, infer_provider_class

    if prefix not in SHARE_THE_CLIENT:
        return infer_provider(prefix)
    if clients.http is None:
        clients.http = create_async_httpx2_client(
            timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        )
    provider_class: Any = infer_provider_class(prefix)
    provider: Provider[Any] = provider_class(http_client=clients.http)
    if isinstance(getattr(provider.client, "max_retries", None), int):
        provider.client.max_retries = 0
    return provider


# Errors


@dataclass(frozen=True)
class _Reading:
    kinds: type[Exception] | tuple[type[Exception], ...]
    code: str
    sentence: str
    retryable: bool = False


def _explain(error: Exception, name: str) -> ModelError:
    """Whatever went wrong at the provider, as one of our codes and a sentence with a next step."""
    said = _what_it_said(error)
    reading = next(reading for reading in _readings() if isinstance(error, reading.kinds))
    if reading.code == "unknown_model" and "api" in said.lower() and "key" in said.lower():
        return ModelError("provider_auth", f"{name}: {said.partition(' To try ')[0]}")
    return ModelError(
        reading.code,
        reading.sentence.format(name=name, said=said),
        reading.retryable,
        getattr(error, "retry_after", None),
    )


@cache
def _readings() -> tuple[_Reading, ...]:
    """The first that fits counts: a kind of error stands above the kinds it belongs to."""
    from pydantic_ai import exceptions as e

    return (
        _Reading(
            e.ModelAuthenticationError,
            "provider_auth",
            "The provider refused the credentials for {name} ({said}). "
            "Check the API key in its environment variable.",
        ),
        _Reading(
            e.ModelNotFoundError,
            "unknown_model",
            "The provider does not know {name} ({said}). Check AGENT_MODEL and the base URL.",
        ),
        _Reading(
            e.ModelQuotaExceededError,
            "provider_quota",
            "The account for {name} has no quota left ({said}). Top it up or change the key.",
        ),
        _Reading(
            e.ModelRateLimitError,
            "provider_rate_limit",
            "{name} is limiting our rate ({said}). Wait a moment and try again.",
            retryable=True,
        ),
        _Reading(
            e.ModelContextWindowExceededError,
            "provider_context",
            "The conversation is too long for {name} ({said}). Start a new chat.",
        ),
        _Reading(
            (e.ModelRequestRejectedError, e.ContentFilterError),
            "provider_refused",
            "{name} refused the request ({said}). Say it differently, or start a new chat.",
        ),
        _Reading(
            (e.ModelUnavailableError, e.ModelServerError),
            "provider_unavailable",
            "{name} failed on the provider's side ({said}). Try again in a moment.",
            retryable=True,
        ),
        _Reading(
            e.ModelConnectionError,
            "provider_unavailable",
            "The connection to {name} failed ({said}). Check the network and the base URL.",
            retryable=True,
        ),
        _Reading((e.UserError, ImportError), "unknown_model", "{name} cannot be used: {said}"),
        _Reading(
            Exception,
            "provider_protocol",
            "{name} answered in a way that cannot be read ({said}). Try again; if it stays, "
            "the server is not compatible.",
            retryable=True,
        ),
    )


def _what_it_said(error: Exception) -> str:
    """The provider's own words where there are some, short enough for a person."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            status = getattr(error, "status_code", None)
            return _short(f"{status}: {message}" if status else message)
    cause = error.__cause__
    text = str(error) or type(error).__name__
    if cause is not None and cause.__cause__ is not None and str(cause.__cause__):
        text = f"{text} {cause.__cause__}"
    return _short(text)


def _short(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
