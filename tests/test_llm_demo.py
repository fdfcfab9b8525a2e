"""The scripted model, played through a conversation as the executor would lead it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from chat.llm import (
    ModelError,
    StepCompleted,
    StepEvent,
    TextDelta,
    ToolCallArgs,
    ToolSpec,
    get_model,
    is_demo,
    text_of,
)
from chat.llm.demo import DELAY, DemoModel, pieces

ASK = ToolSpec("ask_user", "", {"type": "object"})
SEND = ToolSpec("send_message", "", {"type": "object"})


class Conversation:
    """A history that grows step by step, as the executor's does."""

    def __init__(self, agent: str = "assistant", tools: Sequence[ToolSpec] = (SEND, ASK)) -> None:
        self.history: list[ModelMessage] = []
        self.instructions = f'You are helpful.\nYou are the agent "{agent}".'
        self.tools = tools

    async def say(self, *words: str) -> ModelResponse:
        return await self.step([UserPromptPart(text) for text in words])

    async def give_back(self, *results: Any) -> ModelResponse:
        """A result for each call of the last response, in order."""
        calls = calls_of(self.history[-1])
        assert len(calls) == len(results)
        return await self.step(
            [
                ToolReturnPart(made.tool_name, result, made.tool_call_id)
                for made, result in zip(calls, results, strict=True)
            ]
        )

    async def step(self, parts: Sequence[Any]) -> ModelResponse:
        self.history.append(ModelRequest(parts))
        response = completed(await self.events()).response
        self.history.append(response)
        return response

    async def events(self) -> list[StepEvent]:
        model = DemoModel(delay=0)
        async with model.stream_step(
            self.history, instructions=self.instructions, tools=self.tools
        ) as stream:
            return [event async for event in stream]


def completed(events: list[StepEvent]) -> StepCompleted:
    last = events[-1]
    assert isinstance(last, StepCompleted)
    return last


def calls_of(message: ModelMessage) -> list[ToolCallPart]:
    return [part for part in message.parts if isinstance(part, ToolCallPart)]


def question_of(response: ModelResponse) -> dict[str, Any]:
    (asked,) = calls_of(response)
    assert asked.tool_name == "ask_user"
    return asked.args_as_dict(raise_if_invalid=True)


def result(content: str, status: str = "result") -> dict[str, Any]:
    return {"status": status, "message_id": "m2", "in_reply_to": "m1", "content": content}


@pytest.mark.parametrize(
    ("words", "choice"),
    [("How do we grow in Europe?", "Go deeper"), ("怎样提高用户增长？", "继续深入")],
)
async def test_a_question_is_a_whole_multi_agent_turn(words, choice):
    chat = Conversation()
    plan = await chat.say(words)
    tasks = [made.args_as_dict() for made in calls_of(plan)]
    assert [task["to"] for task in tasks] == ["researcher", "strategist"]
    assert all(task["await_result"] and task["type"] == "task" for task in tasks)
    assert all(words in task["content"] for task in tasks)

    synthesis = await chat.give_back(result("fact 1"), json.dumps(result("option A")))
    assert "fact 1" in text_of(synthesis)
    assert "option A" in text_of(synthesis)
    question = question_of(synthesis)
    assert question["ui_type"] == "select"
    assert choice in question["options"]

    final = await chat.give_back({"status": "resolved", "answer": choice})
    assert choice in text_of(final)
    assert not calls_of(final)

    again = await chat.say(words)
    assert len(calls_of(again)) == 2, "a new question begins a new turn"
    ids = [made.tool_call_id for message in chat.history for made in calls_of(message)]
    assert len(ids) == len(set(ids))


async def test_the_stream_is_the_response():
    chat = Conversation()
    chat.history = [ModelRequest([UserPromptPart("What about 你好 and\n\nbread? ")])]
    events = await chat.events()
    response = completed(events).response
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == text_of(response)
    assert len(events) > 40, "word by word"
    for made in calls_of(response):
        deltas = [
            e.delta
            for e in events
            if isinstance(e, ToolCallArgs) and e.tool_call_id == made.tool_call_id
        ]
        assert "".join(deltas) == made.args
    again = completed(await chat.events()).response
    assert again.parts == response.parts, "the same words, the same answer"


async def test_its_history_can_be_saved_and_loaded():
    chat = Conversation()
    await chat.say("Which bread?")
    await chat.give_back(result("a"), result("b"))
    saved = ModelMessagesTypeAdapter.dump_json(chat.history)
    chat.history = ModelMessagesTypeAdapter.validate_json(saved)
    assert "rye" in text_of(await chat.give_back({"status": "resolved", "payload": "rye"}))


@pytest.mark.parametrize("words", ["hello", "Hi!", "你好", "谢谢！"])
async def test_small_talk_says_what_to_try(words):
    response = await Conversation().say(words)
    assert not calls_of(response)
    assert "AGENT_MODEL" in text_of(response)
    assert ("演示" in text_of(response)) == (not words.isascii())


@pytest.mark.parametrize(
    ("words", "ui_type"),
    [
        ("ask text", "text"),
        ("ask", "text"),
        ("ask select", "select"),
        ("ask multi", "multi_select"),
        ("ask confirm", "confirm"),
        ("ask form", "form"),
        ("ask date", "date"),
        ("ask number", "number"),
        ("问我 表单", "form"),
        ("问我 日期", "date"),
    ],
)
async def test_each_kind_of_question_can_be_asked_for(words, ui_type):
    chat = Conversation()
    question = question_of(await chat.say(words))
    assert question["ui_type"] == ui_type
    assert question["question"]
    assert ("options" in question) == (ui_type in ("select", "multi_select"))
    assert ("fields" in question) == (ui_type == "form")


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ({"status": "resolved", "answer": ["Cost", "Risk"]}, "Cost, Risk"),
        ({"status": "resolved", "payload": {"value": True}}, "yes"),
        ({"status": "resolved", "answer": {"name": "X", "budget": 3}}, "name: X, budget: 3"),
        ({"answer": 0}, "0"),
        ("just a string", "just a string"),
        ('{"answer": "from JSON"}', "from JSON"),
        (17, "17"),
    ],
)
async def test_the_answer_is_shown_whatever_its_shape(returned, shown):
    chat = Conversation()
    await chat.say("ask form")
    assert shown in text_of(await chat.give_back(returned))


CARD = {"to": "Ada", "text": "Hi", "copies": 1}


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ({"status": "sent", **CARD}, "Sent to Ada: “Hi”"),
        (
            {"arguments_changed_by_user": CARD, "result": {"status": "sent", **CARD}},
            "as you changed it",
        ),
        ({"status": "denied", "reason": "too late"}, "too late"),
        ({"status": "denied", "reason": None}, "do not send it"),
        ({"status": "expired", "detail": "…"}, "do not send it"),
    ],
)
async def test_a_postcard_needs_the_person_s_approval(returned, shown):
    chat = Conversation(tools=[ASK, SEND, ToolSpec("send_postcard", "", {"type": "object"})])
    (made,) = calls_of(await chat.say("Please send a postcard"))
    assert made.tool_name == "send_postcard"
    assert shown in text_of(await chat.give_back(returned))


async def test_a_cancelled_question_is_no_answer():
    chat = Conversation()
    await chat.say("ask confirm")
    assert "did not choose" in text_of(await chat.give_back({"status": "cancelled"}))


@pytest.mark.parametrize("words", ["long", "write a long text", "长", "写一篇长文"])
async def test_a_long_text_can_be_stopped_in_mid_sentence(words):
    response = await Conversation().say(words)
    assert 300 < len(pieces(text_of(response))) < 600
    model = DemoModel(delay=0.001)
    history: list[ModelMessage] = [ModelRequest([UserPromptPart(words)])]
    stream = model.stream_step(history, instructions="", tools=[])

    async def read() -> None:
        async with stream:
            async for _ in stream:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    partial = text_of(stream.response_so_far())
    assert partial
    assert text_of(response).startswith(partial)
    assert partial != text_of(response)


@pytest.mark.parametrize(
    "words", ["What is our long-term plan?", "怎样实现增长？", "How long is it?", "长期计划是什么"]
)
async def test_ordinary_words_are_no_keywords(words):
    assert len(calls_of(await Conversation().say(words))) == 2


@pytest.mark.parametrize("words", ["please check this in the background", "放到后台评审"])
async def test_a_background_task_is_commented_when_it_arrives(words):
    chat = Conversation()
    (made,) = calls_of(await chat.say(words))
    task = made.args_as_dict()
    assert (task["to"], task["await_result"]) == ("reviewer", False)
    done = await chat.give_back({"status": "sent", "message_id": "m1"})
    assert not calls_of(done)
    comment = await chat.say("[inbox] result from reviewer (in reply to m1): line 1\nline 2")
    assert "line 2" in text_of(comment)
    assert not calls_of(comment)


@pytest.mark.parametrize("words", ["please revise the plan", "修订一下方案"])
async def test_a_draft_goes_back_to_the_one_who_remembers_it(words):
    chat = Conversation()
    (made,) = calls_of(await chat.say(words))
    first = made.args_as_dict()
    (made,) = calls_of(await chat.give_back(result("draft one")))
    second = made.args_as_dict()
    assert [first["type"], second["type"]] == ["task", "revision"]
    assert first["to"] == second["to"] == "strategist"
    compared = await chat.give_back(result("draft two"))
    assert not calls_of(compared)
    assert "draft one" in text_of(compared)
    assert "draft two" in text_of(compared)


async def test_a_draft_that_was_lost_is_not_sent_back():
    chat = Conversation()
    await chat.say("revise")
    response = await chat.give_back({"status": "lost", "content": "gone"})
    assert [made.tool_name for made in calls_of(response)] == ["ask_user"]


async def test_mail_beside_other_things_is_shown_with_them():
    chat = Conversation()
    response = await chat.say("[inbox] result from reviewer (in reply to m): early", "Which bread?")
    assert "early" in text_of(response)
    assert len(calls_of(response)) == 2
    made = [ToolReturnPart(c.tool_name, result("r"), c.tool_call_id) for c in calls_of(response)]
    mixed = "[inbox] note from a: one\n[inbox] result from b (in reply to x): two"
    response = await chat.step([*made, UserPromptPart(mixed)])
    assert "> one" in text_of(response)
    assert "> two" in text_of(response)
    assert question_of(response)


@pytest.mark.parametrize("words", ["fail", "请失败"])
async def test_it_can_fail_in_mid_sentence(words):
    chat = Conversation()
    chat.history = [ModelRequest([UserPromptPart(words)])]
    with pytest.raises(ModelError) as caught:
        await chat.events()
    assert caught.value.code == "provider_unavailable"


@pytest.mark.parametrize("status", ["timeout", "lost", "failed", "interrupted", "odd"])
async def test_what_went_wrong_with_a_sub_agent_is_said(status):
    chat = Conversation()
    await chat.say("Which bread?")
    response = await chat.give_back(result("fine"), result("", status))
    assert "**strategist**" in text_of(response)


@pytest.mark.parametrize("agent", ["researcher", "researcher-2", "strategist", "reviewer"])
@pytest.mark.parametrize("form", ["{}", "[inbox] task from assistant (id m1): {}"])
async def test_a_sub_agent_answers_its_task(agent, form):
    response = await Conversation(agent, [ASK]).say(form.format("Collect the facts: bread"))
    assert "Collect the facts: bread" in text_of(response)
    assert agent in text_of(response)
    assert not calls_of(response)
    other = await Conversation(agent, [ASK]).say(form.format("Collect the facts: cheese"))
    assert text_of(other) != text_of(response)


@pytest.mark.parametrize("words", ["let the researcher ask me", "让研究员来问我"])
async def test_a_sub_agent_can_ask_the_person(words):
    (made,) = calls_of(await Conversation().say(words))
    task = made.args_as_dict()
    assert task["to"] == "researcher"
    sub_agent = Conversation("researcher", [ASK])
    assert question_of(await sub_agent.say(task["content"]))["ui_type"] == "select"
    done = await sub_agent.give_back({"status": "resolved", "answer": "Asia"})
    assert "Asia" in text_of(done)


USER, EMPTY = UserPromptPart("Which bread?"), ModelRequest([])
CALL = ModelResponse([ToolCallPart("send_message", '{"to": "researcher"', "c1")])


@pytest.mark.parametrize(
    "history",
    [
        [],
        [EMPTY],
        [ModelRequest([USER]), ModelResponse([])],
        [ModelRequest([USER]), ModelResponse([TextPart("half")], state="interrupted"), EMPTY],
        [ModelRequest([USER]), CALL, ModelRequest([ToolReturnPart("send_message", None, "c1")])],
        [ModelRequest([ToolReturnPart("ask_user", {"status": "interrupted"}, "gone")])],
        [ModelRequest([ToolReturnPart("stop_agent", "ok", "gone")])],
        [ModelRequest([UserPromptPart("[inbox]")])],
        [ModelRequest([UserPromptPart(["a", "list"])])],
        [CALL],
    ],
)
@pytest.mark.parametrize("agent", ["assistant", "researcher"])
async def test_an_odd_history_is_answered_all_the_same(agent, history):
    chat = Conversation(agent)
    chat.history = history
    assert completed(await chat.events()).response.parts


async def test_a_turn_that_was_cut_off_is_played_again():
    chat = Conversation()
    half = ModelResponse([TextPart("(Demo")], state="interrupted")
    chat.history = [ModelRequest([USER]), half]
    assert len(calls_of(completed(await chat.events()).response)) == 2


async def test_the_demo_is_known_by_name():
    assert get_model("demo").name == "demo"
    assert is_demo("demo")
    assert not is_demo("openai-chat:gpt-4o")
    get_model("demo").check()
    assert DELAY > 0


def test_importing_the_package_brings_neither_django_nor_the_model_library():
    unwanted = "{'django', 'pydantic_ai', 'openai', 'coordination'}"
    code = f"import sys, chat.llm; sys.exit(str({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
