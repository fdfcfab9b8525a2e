"""Real HTTP, real client library, scripted provider: what the executor gets from a step."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartStartEvent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from chat.llm import (
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
    close_models,
    get_model,
    text_of,
)
from chat.llm.provider import _Translation
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.provider import Action, FakeProcess, call, text

MODEL = "openai-chat:fake"
TOOL = ToolSpec(
    "send_message",
    "Give a task to another agent.",
    {"type": "object", "properties": {"to": {"type": "string"}, "content": {"type": "string"}}},
)
HELLO: list[ModelMessage] = [ModelRequest([UserPromptPart("hello")])]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture(autouse=True)
async def closed_afterwards() -> Any:
    yield
    await close_models()


def step(history: Sequence[ModelMessage] = HELLO, **more: Any) -> StepStream:
    return get_model(MODEL).stream_step(
        history, instructions='You are the agent "assistant".', tools=[TOOL], **more
    )


async def events_of(stream: StepStream) -> list[StepEvent]:
    async with stream:
        return [event async for event in stream]


async def stopped_after(seconds: float, stream: StepStream) -> list[StepEvent]:
    """What a reader has read when it is stopped."""
    events: list[StepEvent] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401  (a comprehension would lose them)
    return events


async def play(provider: FakeOpenAI, *actions: Action, **more: Any) -> list[StepEvent]:
    provider.script = lambda request: actions
    return await events_of(step(**more))


async def failure(provider: FakeOpenAI, *actions: Action, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await play(provider, *actions, **more)
    return caught.value


def completed(events: list[StepEvent]) -> StepCompleted:
    last = events[-1]
    assert isinstance(last, StepCompleted)
    assert sum(isinstance(event, StepCompleted) for event in events) == 1
    return last


def streamed_text(events: list[StepEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def streamed_args(events: list[StepEvent]) -> dict[str, str]:
    """Announced calls by id, with the arguments as they were streamed."""
    args: dict[str, str] = {}
    for event in events:
        match event:
            case ToolCallStarted(tool_call_id, _):
                assert tool_call_id not in args
                args[tool_call_id] = ""
            case ToolCallArgs(tool_call_id, delta):
                args[tool_call_id] += delta
    return args


def calls_of(response: ModelResponse) -> list[ToolCallPart]:
    return [part for part in response.parts if isinstance(part, ToolCallPart)]


# Streaming


async def test_text_arrives_piece_by_piece_and_adds_up_to_the_response(provider):
    events = await play(provider, text("Good"), text(" "), text("day, 你好"), {"usage": [7, 3]})
    assert [e for e in events if isinstance(e, TextDelta)] == [
        TextDelta("Good"),
        TextDelta(" "),
        TextDelta("day, 你好"),
    ]
    end = completed(events)
    assert text_of(end.response) == streamed_text(events) == "Good day, 你好"
    assert (end.usage.input_tokens, end.usage.output_tokens) == (7, 3)
    assert (end.usage.provider, end.usage.model) == ("openai-chat", "fake")
    assert not end.usage.estimated


async def test_the_first_token_is_not_held_back(provider):
    provider.script = lambda request: [text("first"), {"hang": "gate"}, text("second")]
    async with step() as stream:
        events = aiter(stream)
        assert await asyncio.wait_for(anext(events), 2) == TextDelta("first")
        provider.release("gate")
        assert await anext(events) == TextDelta("second")


async def test_arguments_add_up_to_the_arguments_of_the_response(provider):
    tasks = [{"to": "researcher", "content": "查 “A”"}, {"to": "strategist", "content": "B"}]
    events = await play(
        provider, text("I ask."), *[call("send_message", task, fragments=5) for task in tasks]
    )
    response = completed(events).response
    assert streamed_args(events) == {c.tool_call_id: c.args for c in calls_of(response)}
    assert [c.args_as_dict(raise_if_invalid=True) for c in calls_of(response)] == tasks
    started = [e.tool_call_id for e in events if isinstance(e, ToolCallStarted)]
    ended = [e.tool_call_id for e in events if isinstance(e, ToolCallEnded)]
    assert started == ended == [c.tool_call_id for c in calls_of(response)]


async def test_text_after_a_call_still_adds_up(provider):
    events = await play(provider, text("one "), call("send_message", {"to": "a"}), text("two"))
    response = completed(events).response
    assert len([part for part in response.parts if isinstance(part, TextPart)]) == 2
    assert streamed_text(events) == text_of(response) == "one two"


async def test_parallel_calls_may_arrive_interleaved(provider):
    def delta(index: int, arguments: str, **head: Any) -> Action:
        function = {"arguments": arguments, **({"name": "send_message"} if head else {})}
        return {"delta": {"tool_calls": [{"index": index, "function": function, **head}]}}

    events = await play(
        provider,
        delta(0, '{"to"', id="a", type="function"),
        delta(1, '{"to": "y', id="b", type="function"),
        delta(0, ': "x"}'),
        delta(1, '"}'),
        {"finish": "tool_calls"},
    )
    assert streamed_args(events) == {"a": '{"to": "x"}', "b": '{"to": "y"}'}
    assert [c.args for c in calls_of(completed(events).response)] == ['{"to": "x"}', '{"to": "y"}']


def test_arguments_that_come_as_an_object_are_announced_as_json():
    part = ToolCallPart("send_message", {"to": "研究员"}, "c1")
    translation = _Translation(taken_ids=set())
    events = translation.translate(PartStartEvent(index=0, part=part))
    last, response = translation.finish(ModelResponse([part]))
    assert streamed_args([*events, *last]) == {"c1": '{"to": "研究员"}'}
    assert [c.args for c in calls_of(response)] == ['{"to": "研究员"}']


@pytest.mark.parametrize("args", ["", "{}"])
async def test_a_call_without_arguments_has_an_empty_object(provider, args):
    events = await play(provider, call("check_inbox", args))
    (made,) = calls_of(completed(events).response)
    assert streamed_args(events) == {made.tool_call_id: "{}"}
    assert made.args == "{}"


@pytest.mark.parametrize("proposed", ["", "call_0"])
async def test_a_missing_or_repeated_id_is_replaced(provider, proposed):
    history: list[ModelMessage] = [
        *HELLO,
        ModelResponse([ToolCallPart("send_message", "{}", "call_0")]),
        ModelRequest([ToolReturnPart("send_message", {"status": "sent"}, "call_0")]),
    ]
    calls = [call("send_message", {"to": "a"}, id=proposed) for _ in range(2)]
    events = await play(provider, *calls, history=history)
    ids = [c.tool_call_id for c in calls_of(completed(events).response)]
    assert ids == list(streamed_args(events))
    assert len(set(ids)) == 2
    assert "call_0" not in ids
    assert all(ids)


async def test_reasoning_is_told_apart_from_text(provider):
    events = await play(provider, {"reasoning": "let me see"}, text("yes"))
    assert events[0] == ReasoningDelta("let me see")
    assert text_of(completed(events).response) == "yes"


async def test_a_provider_that_counts_nothing_is_estimated(provider):
    events = await play(provider, text("four letters a token, roughly"), {"usage": [0, 0]})
    usage = completed(events).usage
    assert usage.estimated
    assert usage.output_tokens > 0
    assert usage.input_tokens > 0


# What the provider is sent


async def test_instructions_tools_and_history_arrive(provider):
    history: list[ModelMessage] = [
        *HELLO,
        ModelResponse([TextPart("I ask."), ToolCallPart("send_message", '{"to": "a"}', "c1")]),
        ModelRequest(
            [
                ToolReturnPart("send_message", {"status": "result", "content": "42"}, "c1"),
                UserPromptPart("[inbox] note from b: hi"),
            ]
        ),
    ]
    await play(provider, text("ok"), history=history)
    (exchange,) = provider.log()
    assert exchange.agent == "assistant"
    sent = exchange.request
    assert [m["role"] for m in sent["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert sent["messages"][3]["content"] == '{"status":"result","content":"42"}'
    assert sent["tools"][0]["function"]["parameters"] == TOOL.parameters
    assert sent["stream"] is True


async def test_without_instructions_there_is_no_empty_message(provider):
    provider.script = lambda request: [text("ok")]
    await events_of(get_model(MODEL).stream_step(HELLO, instructions="", tools=[]))
    (exchange,) = provider.log()
    assert [m["role"] for m in exchange.request["messages"]] == ["user"]
    assert "tools" not in exchange.request


async def test_what_a_step_returned_is_accepted_in_the_next_one(provider):
    first = completed(await play(provider, text("a"), call("send_message", {"to": "b"})))
    (made,) = calls_of(first.response)
    answer = ModelRequest([ToolReturnPart(made.tool_name, "fine", made.tool_call_id)])
    second = await play(provider, text("b"), history=[*HELLO, first.response, answer])
    assert text_of(completed(second).response) == "b"


# Errors


@pytest.mark.parametrize(
    ("action", "code", "retryable"),
    [
        ({"error": 401, "code": "invalid_api_key"}, "provider_auth", False),
        ({"error": 403}, "provider_auth", False),
        ({"error": 404, "code": "model_not_found"}, "unknown_model", False),
        ({"error": 429}, "provider_rate_limit", True),
        ({"error": 429, "code": "insufficient_quota"}, "provider_quota", False),
        ({"error": 400, "code": "context_length_exceeded"}, "provider_context", False),
        ({"error": 400}, "provider_refused", False),
        ({"error": 500}, "provider_unavailable", True),
        ({"error": 503}, "provider_unavailable", True),
    ],
)
async def test_each_refusal_has_its_code_and_the_providers_words(provider, action, code, retryable):
    error = await failure(provider, {**action, "message": "the very words"})
    assert (error.code, error.retryable) == (code, retryable)
    assert "the very words" in error.detail
    assert len(provider.log()) == 1, "nobody but the executor retries"


async def test_the_wait_that_the_provider_asks_for_is_passed_on(provider):
    error = await failure(provider, {"error": 429, "retry_after": 3})
    assert error.retry_after == 3


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        ([text("half"), {"error": 500, "message": "the very words"}], "provider_unavailable"),
        ([text("half"), {"bad_json": True}], "provider_protocol"),
        ([text("half"), {"break": True}], "provider_unavailable"),
        ([text("half"), {"finish": None}], "provider_protocol"),
        ([], "provider_protocol"),
        ([{"finish": "content_filter"}], "provider_refused"),
    ],
    ids=["error in the stream", "bad json", "cut", "no finish reason", "empty", "content filter"],
)
async def test_a_stream_that_ends_badly_is_an_error_not_an_answer(provider, actions, code):
    error = await failure(provider, *actions)
    assert error.code == code
    assert error.detail


async def test_nobody_listens_there(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with pytest.raises(ModelError) as caught:
        await events_of(step())
    assert (caught.value.code, caught.value.retryable) == ("provider_unavailable", True)


async def test_a_missing_key_says_which_variable(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        await events_of(step())
    assert caught.value.code == "provider_auth"
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        get_model(MODEL).check()


@pytest.mark.parametrize("name", ["nonsense", "nosuch:model", "openai-chat:"])
def test_an_unknown_name_says_what_would_work(name):
    with pytest.raises(ModelError, match="demo") as caught:
        get_model(name)
    assert caught.value.code == "unknown_model"


async def test_a_history_that_is_not_complete_is_refused_by_the_strict_provider(provider):
    history: list[ModelMessage] = [
        *HELLO,
        ModelResponse([ToolCallPart("send_message", "{}", "c1")]),
        ModelRequest([UserPromptPart("and?")]),
    ]
    error = await failure(provider, text("never"), history=history)
    assert error.code == "provider_refused"
    assert "tool_call_id" in error.detail
    assert provider.log()[0].outcome == "refused"


# Silence and stop


@pytest.mark.parametrize(
    "actions",
    [[{"silent": True}], [{"hang": ""}], [text("half a "), {"hang": ""}]],
    ids=["no headers", "headers only", "in the middle"],
)
async def test_a_silent_provider_is_given_up_and_hung_up_on(provider, actions):
    started = time.monotonic()
    error = await failure(provider, *actions, silence_timeout=0.2)
    assert error.code == "provider_silent"
    assert error.retryable
    assert time.monotonic() - started < 2
    provider.wait_for(lambda log: log[0].outcome == "closed", timeout=2)


async def test_a_slow_provider_is_not_silent(provider):
    slowly = [text(f"{n} ", delay=0.08) for n in range(8)]
    events = await play(provider, *slowly, silence_timeout=0.3)
    assert streamed_text(events) == "0 1 2 3 4 5 6 7 "


@pytest.mark.parametrize(
    "actions",
    [[{"silent": True}], [{"tokens": 5, "rate": 0}, {"hang": ""}], [{"tokens": 900, "rate": 50}]],
    ids=["waiting for headers", "waiting for a chunk", "in full flow"],
)
async def test_cancelling_the_reader_closes_the_stream_at_once(provider, actions):
    provider.script = lambda request: actions
    reader = asyncio.create_task(events_of(step()))
    await asyncio.to_thread(provider.wait_for, len)
    await asyncio.sleep(0.1)
    cancelled = time.time()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    (exchange,) = await asyncio.to_thread(provider.wait_for, lambda log: log[0].ended)
    assert exchange.outcome == "closed"
    assert exchange.ended is not None
    assert exchange.ended - cancelled < 0.1


async def test_leaving_the_block_closes_the_stream(provider):
    provider.script = lambda request: [text("one"), {"hang": ""}]
    async with step() as stream:
        await anext(aiter(stream))
        left = time.time()
    (exchange,) = await asyncio.to_thread(provider.wait_for, lambda log: log[0].ended)
    assert exchange.outcome == "closed"
    assert exchange.ended is not None
    assert exchange.ended - left < 0.1


async def test_a_stopped_step_leaves_what_was_read(provider):
    provider.script = lambda request: [
        text("half "),
        text("a sentence"),
        call("send_message", {"to": "a"}, fragments=1),
        call("send_message", '{"to": "b', fragments=1),
        {"hang": ""},
    ]
    stream = step()
    read = await stopped_after(0.5, stream)
    partial = stream.response_so_far()
    assert partial.state == "interrupted"
    assert text_of(partial) == streamed_text(read) == "half a sentence"
    assert [c.args for c in calls_of(partial)] == ['{"to": "a"}'], "only the whole call is kept"
    usage = stream.usage_so_far()
    assert usage.estimated
    assert usage.output_tokens >= 4


async def test_the_partial_answer_is_accepted_in_the_next_request(provider):
    provider.script = lambda request: [text("half"), {"hang": ""}]
    stream = step()
    await stopped_after(0.3, stream)
    again: list[ModelMessage] = [
        *HELLO,
        stream.response_so_far(),
        ModelRequest([UserPromptPart("go on")]),
    ]
    events = await play(provider, text("yes"), history=again)
    assert text_of(completed(events).response) == "yes"


def test_each_event_loop_has_its_own_connections(provider):
    provider.script = lambda request: [text("ok")]

    async def once() -> str:
        events = await events_of(step())
        await close_models()
        return streamed_text(events)

    assert [asyncio.run(once()) for _ in range(2)] == ["ok", "ok"]


# The fake as cluster tests use it


async def test_a_program_walks_through_agents_and_steps(monkeypatch):
    with FakeProcess() as process:
        for name, value in process.env.items():
            monkeypatch.setenv(name, value)
        marker = process.define(
            "rendezvous",
            {
                "assistant": [
                    [call("send_message", {"to": "researcher", "content": "look: $PROGRAM"})],
                    [text("it says $RESULTS")],
                ],
                "researcher": [[text("found it", delay=0.005)]],
            },
        )
        history: list[ModelMessage] = [ModelRequest([UserPromptPart(f"please {marker}")])]
        first = completed(await events_of(step(history))).response
        (made,) = calls_of(first)
        task = made.args_as_dict()["content"]
        assert marker in task
        researcher = get_model(MODEL).stream_step(
            [ModelRequest([UserPromptPart(task)])],
            instructions='You are the agent "researcher-2".',
            tools=[],
        )
        found = text_of(completed(await events_of(researcher)).response)
        answer = ModelRequest([ToolReturnPart(made.tool_name, found, made.tool_call_id)])
        last = completed(await events_of(step([*history, first, answer])))
        assert text_of(last.response) == "it says found it"
        log = process.log(containing=marker)
        assert [(e.agent, e.step, e.outcome) for e in log] == [
            ("assistant", 0, "completed"),
            ("researcher-2", 0, "completed"),
            ("assistant", 1, "completed"),
        ]
        assert log[1].ended is not None
        assert log[1].ended <= log[2].started
