"""What the model may call, and what it is told when it breaks a rule: a text, at once."""

import json
import uuid

import pytest

from chat.agents import AGENTS, MASTER, SUB_AGENTS, find_agent, instructions_for
from chat.executor import finish
from chat.tools import TOOLS
from chat.tools.base import Await, TakeIn, ToolContext, ToolError, Value, tool
from coordination import interrupts
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Fenced
from coordination.models import InboxMessage, Run
from coordination.suspensions import Ask
from tests.core import again, begin, claim, judge, new_chat, post, send

pytestmark = [
    pytest.mark.usefixtures("core", "no_hints"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
async def master(transactional_db):
    return await db(lambda: claim(post(new_chat())))


async def make(run, name, call_id="c1", **arguments):
    return await TOOLS[name](ToolContext(run, call_id), json.dumps(arguments))


async def refusal(run, name, **arguments):
    with pytest.raises(ToolError) as error:
        await make(run, name, **arguments)
    return str(error.value)


async def test_sending_returns_at_once(master):
    outcome = await make(master, "send_message", to="researcher", content="look")
    message = await db(InboxMessage.objects.get)
    assert outcome.content["status"] == "sent"
    assert outcome.content["message_id"] == str(message.pk)
    assert set(outcome.content) >= {"status", "message_id", "in_reply_to", "content"}


async def test_awaiting_waits_for_what_was_sent(master):
    outcome = await make(
        master,
        "send_message",
        to="researcher-2",
        content="look",
        await_result=True,
        await_timeout_seconds=7,
    )
    message = await db(InboxMessage.objects.get)
    assert outcome == Await([message.pk], 7)


async def test_a_wait_without_a_timeout_has_the_default(master):
    outcome = await make(master, "send_message", to="researcher", content="look", await_result=True)
    assert outcome.timeout == conf.await_default


BAD = [
    ({"to": "nobody", "content": "x"}, "unknown_agent"),
    ({"to": "researcher-1", "content": "x"}, "unknown_agent"),
    ({"to": "researcher-100", "content": "x"}, "unknown_agent"),
    ({"to": "Researcher", "content": "x"}, "unknown_agent"),
    ({"to": "", "content": "x"}, "unknown_agent"),
    ({"to": "researcher; drop", "content": "x"}, "unknown_agent"),
    ({"to": "assistant", "content": "x"}, "cycle"),
    ({"to": "assistant-2", "content": "x"}, "cycle"),
    ({"to": "researcher", "content": " "}, "empty"),
    ({"to": "researcher", "content": "x", "type": "result"}, "type"),
    ({"to": "researcher", "content": "x", "type": "system"}, "type"),
    ({"to": "researcher", "content": "x", "sender": "system"}, "sender"),
    ({"to": "researcher", "content": "x", "in_reply_to": "y"}, "in_reply_to"),
    ({"to": "researcher"}, "content"),
    ({"content": "x"}, "to"),
    ({"to": "researcher", "content": "x", "await_timeout_seconds": 301}, "timeout_too_long"),
    ({"to": "researcher", "content": "x", "await_timeout_seconds": 0}, "await_timeout_seconds"),
    ({"to": "researcher", "content": "x", "await_timeout_seconds": -1}, "await_timeout_seconds"),
    ({"to": ["researcher"], "content": "x"}, "to"),
]


@pytest.mark.parametrize(("arguments", "word"), BAD, ids=lambda value: str(value)[:40])
async def test_a_rule_that_is_broken_is_named_and_nothing_was_sent(master, arguments, word):
    assert word in await refusal(master, "send_message", **arguments)
    assert not await db(InboxMessage.objects.exists)
    assert await db(Run.objects.count) == 1


async def test_a_message_that_is_too_large_is_refused_with_the_limit(master):
    said = await refusal(master, "send_message", to="researcher", content="x" * (5 * 1024 * 1024))
    assert str(conf.message_bytes) in said


@pytest.mark.parametrize("text", ["\x00", "a\ud800b"])
async def test_text_that_no_column_takes_is_refused_and_not_a_crash(master, text):
    said = await refusal(master, "send_message", to="researcher", content=f"look {text}")
    assert "invalid_text" in said


@pytest.mark.parametrize("arguments", ["{", "[]", "null", "1", '"x"', '{"a": NaN}', "{}}"])
async def test_arguments_that_are_no_object_are_a_text_to_the_model(master, arguments):
    with pytest.raises(ToolError):
        await TOOLS["send_message"](ToolContext(master, "c1"), arguments)


async def test_only_the_master_has_tools_that_send_and_wait():
    for name, agent in AGENTS.items():
        for forbidden in ("send_message", "wait_for_results", "stop_agent"):
            assert (forbidden in agent.tools) == (name == MASTER)
        assert "ask_user" in agent.tools
        assert "check_inbox" in agent.tools


async def test_only_own_tasks_are_waited_for(master):
    other = await db(lambda: claim(post(new_chat("bob")), "r5"))
    foreign, _ = await db(send, other)
    mine, child = await db(send, master)
    assert await make(master, "wait_for_results", message_ids=[str(mine.pk)]) == Await(
        [mine.pk], conf.await_default, "all"
    )
    await db(lambda: finish(begin(child, "r2"), "found", "r2"))
    result = await db(InboxMessage.objects.get, kind="result")
    for bad in (foreign.pk, result.pk, uuid.uuid4(), "x"):
        said = await refusal(master, "wait_for_results", message_ids=[str(mine.pk), str(bad)])
        assert "unknown_message" in said
    assert "message_ids" in await refusal(master, "wait_for_results", message_ids=[])
    assert "mode" in await refusal(
        master, "wait_for_results", message_ids=[str(mine.pk)], mode="some"
    )
    assert "timeout_too_long" in await refusal(
        master, "wait_for_results", message_ids=[str(mine.pk)], timeout_seconds=301
    )


async def test_the_inbox_is_read_where_it_is_saved(master):
    assert await make(master, "check_inbox") == TakeIn()


async def test_a_sub_agent_is_stopped_by_its_name(master, hub):
    _, child = await db(send, master)
    outcome = await make(master, "stop_agent", agent_id="researcher")
    assert outcome.content["status"] == "stopped"
    now = await db(again, child)
    assert now.status == "interrupted"
    assert now.stop_requested_by == "agent:assistant"
    assert "user" not in (await db(InboxMessage.objects.get, kind="result")).content.lower()


async def test_a_zombie_stops_nobody(master, hub):
    await db(lambda: begin(send(master)[1], "r2"))
    await db(judge, master)
    with pytest.raises(Fenced):
        await make(master, "stop_agent", agent_id="researcher")
    assert not await db(Run.objects.filter(stop_requested_at__isnull=False).exists)


async def test_nobody_and_oneself_are_not_stopped(master, hub):
    assert "not_found" in await refusal(master, "stop_agent", agent_id="nobody")
    assert "cycle" in await refusal(master, "stop_agent", agent_id="assistant")
    assert (await db(again, master)).stop_requested_at is None


@pytest.mark.parametrize("why", ["stopped", "lost"])
async def test_a_run_that_is_no_longer_owned_sends_nothing(master, why):
    if why == "stopped":
        await db(interrupts.request, master.session_id, by="alice")
    else:
        await db(judge, master)
    with pytest.raises(Fenced):
        await make(master, "send_message", to="researcher", content="x")
    assert not await db(InboxMessage.objects.exists)


GOOD_QUESTIONS = [
    {"question": "?"},
    {"question": "?", "ui_type": "select", "options": ["a", "b"]},
    {"question": "?", "ui_type": "select", "options": [{"value": "a", "label": "A"}]},
    {"question": "?", "ui_type": "select", "allow_other": True},
    {"question": "?", "ui_type": "form", "fields": [{"name": "n"}]},
    {"question": "?", "ui_type": "confirm", "default_value": True},
    {"question": "?", "ui_type": "number", "default_value": 7},
    {"question": "?", "ui_type": "select", "options": ["a"], "default_value": "a"},
    {"question": "?", "ui_type": "form", "fields": [{"name": "n"}], "default_value": {"n": "x"}},
]
BAD_QUESTIONS = [
    {},
    {"question": ""},
    {"question": "?", "ui_type": "slider"},
    {"question": "?", "ui_type": "select"},
    {"question": "?", "ui_type": "select", "options": ["a", "a"]},
    {"question": "?", "ui_type": "form"},
    {"question": "?", "ui_type": "form", "fields": [{"name": ""}]},
    {"question": "?", "unknown": 1},
    {"question": "?", "ui_type": "form", "fields": [{"name": "n", "type": "select"}]},
    {"question": "?", "ui_type": "number", "default_value": "seven"},
    {"question": "?", "ui_type": "date", "default_value": "tomorrow"},
    {"question": "?", "ui_type": "confirm", "default_value": "yes"},
    {"question": "?", "ui_type": "select", "options": ["a"], "default_value": "b"},
    {"question": "?", "ui_type": "multi_select", "options": ["a"], "default_value": "a"},
]


@pytest.mark.parametrize("arguments", GOOD_QUESTIONS, ids=str)
async def test_a_question_is_asked(master, arguments):
    outcome = await make(master, "ask_user", **arguments)
    assert isinstance(outcome, Ask)
    assert outcome.question == "?"


@pytest.mark.parametrize("arguments", BAD_QUESTIONS, ids=str)
async def test_a_question_that_nobody_could_answer_is_not_asked(master, arguments):
    assert await refusal(master, "ask_user", **arguments)


async def test_two_fields_of_one_name_are_not_asked(master):
    fields = [{"name": "n"}, {"name": "n"}]
    assert await refusal(master, "ask_user", question="?", ui_type="form", fields=fields)


async def test_a_tool_is_its_signature(master):
    @tool
    async def add(context: ToolContext, a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    assert (add.name, add.description) == ("add", "Add two numbers.")
    assert add.spec.parameters["required"] == ["a"]
    assert await add(ToolContext(master, "c1"), '{"a": 1}') == Value(3)
    with pytest.raises(ToolError):
        await add(ToolContext(master, "c1"), '{"a": 1, "c": 1}')


@pytest.mark.parametrize("name", TOOLS)
def test_a_schema_is_an_object_with_a_description(name):
    spec = TOOLS[name].spec
    assert spec.parameters["type"] == "object"
    assert spec.description
    assert "context" not in spec.parameters.get("properties", {})


def test_every_agent_knows_its_name_and_its_tools():
    for name in (*AGENTS, "researcher-2"):
        assert f'You are the agent "{name}".' in instructions_for(name)
        agent = find_agent(name)
        assert agent is not None
        assert set(agent.tools) <= set(TOOLS)
    for name in SUB_AGENTS:
        assert name in instructions_for(MASTER)
