"""A turn, step by step: what is saved, what is said, and how it goes on somewhere else."""

import asyncio
import dataclasses
import itertools
import json
import threading
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from chat import actions, memory
from chat.executor import finish
from chat.llm import ModelError
from chat.models import Message
from chat.tools import TOOLS
from chat.tools.base import tool
from coordination import endings, interrupts, rendezvous
from coordination.conf import conf
from coordination.db import db
from coordination.models import InboxMessage, Lease, Question, Run, Wait
from tests.core import (
    again,
    assert_at_rest,
    at_rest,
    back_in_time,
    begin,
    claim,
    ended,
    expire_leases,
    in_threads,
    judge,
    logged,
    new_chat,
    node,
    post,
    reaches,
    respond_with,
    send,
    until,
)
from tests.fakes.step_model import Gate, ScriptedModel, call, raw_call, think

pytestmark = [pytest.mark.usefixtures("core"), pytest.mark.django_db(transaction=True)]


@pytest.fixture
async def chat(transactional_db, hub):
    return await db(new_chat)


@pytest.fixture
def offered(monkeypatch):
    """Offer tools of a test to the master."""
    from chat.agents import AGENTS, MASTER

    def offer(*tools):
        agent = AGENTS[MASTER]
        names = (*agent.tools, *(t.name for t in tools))
        monkeypatch.setitem(AGENTS, MASTER, dataclasses.replace(agent, tools=names))
        for made in tools:
            monkeypatch.setitem(TOOLS, made.name, made)

    return offer


async def say(chat, content="hello", **more):
    posted = await actions.post_message(chat, content, by="alice", **more)
    return await db(Run.objects.get, pk=posted.run_id)


async def answers(chat, run):
    rows = Message.objects.filter(session=chat.pk, run_id=run.pk, role="assistant")
    return await db(lambda: list(rows.order_by("position").values_list("content", flat=True)))


async def test_an_answer_streams_and_is_saved_to_the_letter(chat):
    words = ["Hel", "lo, ", "wörld 🌍", "\n", "  ", "end"]
    async with node(ScriptedModel(assistant=[[think("hm"), *words]])):
        run = await ended(await say(chat))
    assert run.status == "completed"
    assert run.usage["total_tokens"] == 15
    assert await answers(chat, run) == ["".join(words)]
    await at_rest(chat)


async def test_half_a_character_of_a_provider_does_not_break_the_turn(chat):
    """Some providers cut a pair of surrogates in two."""
    step = ["a\ud83d", "\ude00b", think("\ud800"), raw_call("check_inbox", '{"\ud800": 1}')]
    model = ScriptedModel(assistant=[step])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    assert (await answers(chat, run))[0] == "a\ufffd\ufffdb"
    await at_rest(chat)


async def test_a_provider_may_use_the_ids_of_its_calls_again(chat):
    """Some number the calls of each response from one."""
    look = [call("check_inbox", call_id="call_0"), call("check_inbox", call_id="call_0")]
    ask = [call("ask_user", call_id="call_0", question=f"{n}?") for n in range(2)]
    model = ScriptedModel(assistant=[look, [ask[0]], [ask[1]], ["done"], look, ["done"]])
    async with node(model):
        run = await say(chat)
        for answer in ("first answer", "second answer"):
            question = await until(Question.objects.filter(state="open").first)
            await actions.respond(chat, str(question.pk), payload=answer, by="alice")
        assert (await ended(run)).status == "completed"
        assert (await ended(await say(chat, "again"))).status == "completed"
    said = model.requests[-1].said
    assert said.index("first answer") < said.index("second answer")
    await at_rest(chat)


@pytest.mark.parametrize("other", ["call_a", "cAll_a ", "cáll_a"])
async def test_calls_whose_ids_a_collation_takes_for_the_same_are_two(chat, other):
    ids = "cAll_a", other
    sends = [
        call("send_message", to="researcher", content=f"task {n}", call_id=ids[n]) for n in (0, 1)
    ]
    model = ScriptedModel(assistant=[sends, ["sent"], ["end"], ["end"]], researcher=[["found"]] * 2)
    async with node(model):
        run = await ended(await db(post, chat))
    tasks = await db(lambda: list(InboxMessage.objects.filter(kind="task")))
    assert sorted(task.content for task in tasks) == ["task 0", "task 1"]
    assert run.status == "completed"
    await at_rest(chat)


async def test_text_around_several_calls_is_one_message(chat):
    step = ["first ", call("check_inbox"), "second", call("check_inbox")]
    async with node(ScriptedModel(assistant=[step])):
        run = await ended(await say(chat))
    assert await answers(chat, run) == ["first second", "done"]
    assert len(await db(logged, chat.pk, "TOOL_CALL_RESULT")) == 2
    await at_rest(chat)


async def test_an_answer_without_a_word_ends_the_turn_all_the_same(chat):
    async with node(ScriptedModel(assistant=[[]])):
        run = await ended(await say(chat))
        assert run.status == "completed"
        assert (await ended(await say(chat, "and?"))).status == "completed"
    await at_rest(chat)


@pytest.mark.parametrize("nth", range(1, 19))
async def test_a_turn_survives_the_loss_of_the_answer_to_any_commit(chat, monkeypatch, nth):
    """The server has committed and the connection is gone: nothing is doubled, nothing lost."""
    real = BaseDatabaseWrapper._commit
    count = itertools.count(1)
    posted = threading.Event()

    def commit(self):
        real(self)
        if posted.is_set() and next(count) == nth:
            raise OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    monkeypatch.setattr("coordination.db.RETRY_PAUSE", 0.01)
    task = call("send_message", to="researcher", content="look", await_result=True)
    model = ScriptedModel(
        assistant=[["let me ask ", task], ["it said so"], ["again"]],
        researcher=[["found ", "it"], ["once more"]],
    )
    run = await say(chat)
    posted.set()
    async with node(model):
        assert (await ended(run)).status == "completed"
    assert await db(InboxMessage.objects.filter(kind="task").count) == 1
    await at_rest(chat)


async def test_a_tool_that_lets_a_cancellation_out_has_failed_and_nothing_else(chat, offered):
    @tool
    async def gives_up(context):
        """Raise what only a canceller should."""
        raise asyncio.CancelledError

    offered(gives_up)
    async with node(ScriptedModel(assistant=[[call("gives_up")], ["so be it"]])) as it:
        run = await ended(await say(chat))
        assert (run.status, run.epoch) == ("completed", 1)
        await until(lambda: not len(it.runner.registry))
    [result] = await db(logged, chat.pk, "TOOL_CALL_RESULT")
    assert "cancelled from within" in result["content"]


@pytest.mark.parametrize("said", [True, False])
async def test_a_provider_that_fails_fails_the_turn_and_keeps_what_was_said(chat, said):
    fault = ModelError("provider_refused", "No such model.")
    steps = [["some words", fault] if said else [fault]]
    async with node(ScriptedModel(assistant=steps)):
        run = await ended(await say(chat))
        assert (run.status, run.reason) == ("failed", "error")
        assert "No such model." in run.detail
        assert await answers(chat, run) == (["some words"] if said else [])
        await at_rest(chat)
        assert (await ended(await say(chat, "again"))).status == "completed"
    await at_rest(chat)


async def test_a_provider_that_is_busy_is_asked_again_before_its_first_word(chat):
    busy = ModelError("provider_rate_limit", "Slow down.", retryable=True)
    model = ScriptedModel(assistant=[[busy], [busy], ["at last"]])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    assert await answers(chat, run) == ["at last"]
    await at_rest(chat)


async def test_a_bug_in_a_tool_is_a_result_to_the_model(chat, offered):
    @tool
    async def breaks(context) -> str:
        """It breaks."""
        raise ZeroDivisionError("by zero")

    offered(breaks)
    model = ScriptedModel(assistant=[[call("breaks"), call("check_inbox")]])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    assert "ZeroDivisionError" in model.requests[1].said
    await at_rest(chat)


async def test_a_tool_that_fails_while_it_is_cancelled_does_not_fail_a_handover(chat, offered):
    begun = Gate()

    @tool
    async def untidy(context) -> str:
        """It breaks when it is cancelled."""
        try:
            await begun.wait()
        except asyncio.CancelledError:
            raise RuntimeError("while cleaning up") from None
        return "whole"

    offered(untidy)
    model = ScriptedModel(assistant=[[call("untidy")]])
    async with node(model) as it:
        run = await say(chat)
        await begun.reached()
        it.runner.drain()
        it.runner.drain()
        await until(lambda: again(run).status == "queued")
    begun.open()
    async with node(model, "r2"):
        assert (await ended(run)).status == "completed"
    assert "whole" in model.requests[-1].said
    await at_rest(chat)


async def test_a_slow_tool_ends_by_its_budget(chat, offered, monkeypatch):
    @tool
    async def sleeps(context) -> str:
        """It sleeps."""
        await asyncio.Event().wait()
        return ""

    offered(sleeps)
    monkeypatch.setattr(conf, "tool_timeout", 0.05)
    model = ScriptedModel(assistant=[[call("sleeps")]])
    async with node(model):
        assert (await ended(await say(chat))).status == "completed"
    assert "did not end within" in model.requests[1].said


async def test_an_unknown_tool_is_named_to_the_model(chat):
    model = ScriptedModel(assistant=[[call("fly")]])
    async with node(model):
        assert (await ended(await say(chat))).status == "completed"
    assert "unknown_tool" in model.requests[1].said
    await at_rest(chat)


async def test_a_turn_that_goes_round_in_circles_ends_by_its_budget(chat, monkeypatch):
    monkeypatch.setattr(conf, "max_steps", 4)
    model = ScriptedModel(assistant=[[call("check_inbox")] for _ in range(10)])
    async with node(model):
        run = await ended(await say(chat))
    assert (run.status, run.reason) == ("failed", "budget")
    assert len(model.requests) == 4
    await at_rest(chat)


async def test_the_budget_of_steps_is_the_turn_s_and_not_an_execution_s(chat, monkeypatch):
    """A turn that parks between its steps is one turn."""
    monkeypatch.setattr(conf, "max_steps", 4)
    made = [
        [call("send_message", to="researcher", content=f"look {n}", await_result=True)]
        for n in range(10)
    ]
    model = ScriptedModel(assistant=made)
    async with node(model):
        run = await ended(await say(chat))
    assert (run.status, run.reason) == ("failed", "budget")
    assert len(model.of("assistant")) == 4
    await at_rest(chat)


# -- going on elsewhere --------------------------------------------------------------------------


async def crash_and_settle(run, end=Lease.End.CRASHED):
    def settle():
        expire_leases(run)
        return judge(run, end)

    assert await db(settle)


async def test_a_turn_goes_on_elsewhere_from_its_last_saved_step(chat):
    gate = Gate()
    model = ScriptedModel(assistant=[["one ", call("check_inbox")], ["half", gate], ["the answer"]])
    async with node(model):
        run = await say(chat)
        await gate.reached()
        await until(
            lambda: any(e["delta"] == "half" for e in logged(chat.pk, "TEXT_MESSAGE_CONTENT"))
        )
    await crash_and_settle(run)
    async with node(model, "r2"):
        assert (await ended(run)).status == "completed"
    assert await answers(chat, run) == ["one ", "half", "the answer"]
    assert "half" not in model.requests[-1].said
    assert len(model.requests) == 3
    await at_rest(chat)


async def test_an_answer_that_was_saved_is_not_given_again(chat):
    """The worker died between the last step's save and the end of the run."""
    run = await say(chat)
    claimed = await db(claim, run, "r0")
    await db(respond_with, claimed, "the answer")
    await crash_and_settle(run)
    model = ScriptedModel()
    async with node(model):
        assert (await ended(run)).status == "completed"
    assert model.requests == []
    assert await answers(chat, run) == ["the answer"]
    await at_rest(chat)


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_call_whose_worker_died_is_made_again_only_if_it_may(chat, offered, repeatable):
    made = []

    @tool(repeatable=repeatable)
    async def pay(context) -> str:
        """It costs something."""
        made.append(context.idempotency_key)
        return "paid"

    offered(pay)
    run = await say(chat)
    claimed = await db(claim, run, "r0")
    await db(lambda: respond_with(claimed, "", c1=("pay", {})))
    await crash_and_settle(run)
    model = ScriptedModel()
    async with node(model):
        assert (await ended(run)).status == "completed"
    assert made == ([f"{run.pk}:c1"] if repeatable else [])
    assert ("paid" if repeatable else "unknown whether it took effect") in model.requests[0].said
    await at_rest(chat)


async def test_a_task_that_was_sent_before_the_crash_is_not_sent_again(chat):
    made = {"to": "researcher", "content": "look"}
    run = await say(chat)
    claimed = await db(claim, run, "r0")

    def send_and_die():
        from chat.tools.base import ToolContext
        from chat.tools.send_message import _send

        respond_with(claimed, "", c1=("send_message", made))
        return _send(ToolContext(claimed, "c1"), "researcher", "look", "task")

    task = await db(send_and_die)
    await crash_and_settle(run)
    model = ScriptedModel()
    async with node(model):
        assert (await ended(run)).status == "completed"
    assert str(task.pk) in model.of("assistant")[0].said
    assert await db(InboxMessage.objects.filter(kind="task").count) == 1
    assert len(model.of("researcher")) == 1
    await at_rest(chat)


async def test_a_shutdown_lets_the_step_finish_and_the_turn_goes_on_elsewhere(chat, offered):
    effects = []
    gate = Gate()

    @tool
    async def act(context) -> str:
        """It has an effect."""
        effects.append(context.call_id)
        await gate.wait()
        return "acted"

    offered(act)
    model = ScriptedModel(assistant=[["I act. ", call("act")], ["the answer"]])
    async with node(model) as it:
        run = await say(chat)
        await gate.reached()
        it.runner.drain()
        gate.open()
        await until(lambda: again(run).status == "queued")
        await until(lambda: not len(it.runner.registry))
    async with node(model, "r2"):
        now = await ended(run)
    assert now.status == "completed"
    assert len(effects) == 1
    assert await answers(chat, run) == ["I act. ", "the answer"]
    await at_rest(chat)


async def test_a_shutdown_that_hurries_cuts_the_step_and_loses_nothing(chat):
    gate = Gate()
    model = ScriptedModel(assistant=[["half a", gate], ["the whole"]])
    async with node(model) as it:
        run = await say(chat)
        await gate.reached()
        it.runner.drain()
        it.runner.drain()
        await until(lambda: again(run).status == "queued")
    async with node(model, "r2"):
        assert (await ended(run)).status == "completed"
    assert not [
        e for e in await db(logged, chat.pk, "RUN_FINISHED") if e["outcome"]["type"] == "cancelled"
    ]
    await at_rest(chat)


async def test_a_runner_that_lost_its_run_writes_nothing_more(chat, no_hints):
    gate = Gate()
    model = ScriptedModel(assistant=[["before ", gate, "after"], ["from the other"]])
    async with node(model) as it:
        it.beating = False
        run = await say(chat)
        await gate.reached()
        await until(lambda: logged(chat.pk, "TEXT_MESSAGE_CONTENT"))
        it.runner.concurrency = 0  # it takes nothing more
        await crash_and_settle(run, Lease.End.EXPIRED)
        async with node(model, "r2"):
            assert (await ended(run)).status == "completed"
            gate.open()
            await until(lambda: not len(it.runner.registry))
    assert await answers(chat, run) == ["before ", "from the other"]
    await at_rest(chat)


async def test_a_run_ends_at_its_limit_with_what_was_said(chat, monkeypatch):
    monkeypatch.setattr(conf, "run_limit", 0.5)
    async with node(ScriptedModel(assistant=[["half a word", Gate()]])):
        run = await ended(await say(chat))
    assert (run.status, run.reason) == ("failed", "budget")
    assert (await db(Message.objects.get, run_id=run.pk, role="assistant")).content == "half a word"
    await at_rest(chat)


async def test_the_limit_counts_what_was_executed_before(chat):
    run = await say(chat)

    def worked():
        endings.handed_over(claim(run, "r0"), by="r0")
        spent = conf.run_limit + 1
        back_in_time(Lease.objects.filter(run=run), spent, "acquired_at")

    await db(worked)
    async with node(ScriptedModel()):
        assert (await ended(run)).reason == "budget"


async def test_a_provider_that_never_answers_is_a_budget_used_up_and_not_asked_again(chat):
    silent = ModelError("provider_silent", "It sent nothing.", retryable=True)
    model = ScriptedModel(assistant=[[silent], ["late"]])
    async with node(model):
        run = await ended(await say(chat))
    assert (run.status, run.reason) == ("failed", "budget")
    assert len(model.requests) == 1
    await at_rest(chat)


async def test_a_stream_stands_still_while_the_lease_is_in_doubt_and_can_be_stopped(chat):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["heard ", gate, "unheard"]])) as it:
        it.beating = False
        run = await say(chat)
        await gate.reached()
        await until(lambda: logged(chat.pk, "TEXT_MESSAGE_CONTENT"))
        it.runner._gate.clear()
        gate.open()
        await until(lambda: it.runner._gate._waiters)
        await interrupts.stop(chat.pk, by="alice")
        assert (await ended(run)).status == "interrupted"
    assert (await db(Message.objects.get, run_id=run.pk, role="assistant")).content == "heard "
    await at_rest(chat)


async def test_no_call_begins_while_the_lease_is_in_doubt(chat):
    gate = Gate()
    model = ScriptedModel(assistant=[[call("check_inbox"), gate], ["on"]])
    async with node(model) as it:
        it.beating = False
        run = await say(chat)
        await gate.reached()
        it.runner._gate.clear()
        gate.open()
        await until(lambda: it.runner._gate._waiters)
        assert len(model.requests) == 1
        assert not await db(Message.objects.filter(run_id=run.pk, role="assistant").exists)
        it.beating = True
        assert (await ended(run)).status == "completed"
    await at_rest(chat)


# -- questions -----------------------------------------------------------------------------------


async def test_a_question_is_answered_after_everything_restarted(chat):
    model = ScriptedModel(
        assistant=[["Well. ", call("ask_user", question="which?", ui_type="text")]]
    )
    async with node(model):
        run = await say(chat)
        await reaches(run, "waiting_user")
        await at_rest(chat)
    question = await db(Question.objects.get)
    assert (
        await actions.respond(chat, str(question.pk), payload="the red one", by="alice") == run.pk
    )
    async with node(model, "r2"):
        assert (await ended(run)).status == "completed"
    assert "the red one" in model.requests[-1].said
    assert "hello" in model.requests[-1].said
    await at_rest(chat)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_questions_and_a_tool_in_one_step_resume_when_all_are_in(chat, order):
    step = [
        call("ask_user", question="first?"),
        call("check_inbox"),
        call("ask_user", question="second?"),
    ]
    model = ScriptedModel(assistant=[step])
    async with node(model):
        run = await say(chat)
        await reaches(run, "waiting_user")
        questions = await db(lambda: list(Question.objects.order_by("question")))
        assert await db(Message.objects.filter(role="tool").count) == 1
        await actions.respond(chat, questions[order[0]].pk, payload="A", by="alice")
        assert (await db(again, run)).status == "waiting_user"
        await at_rest(chat)
        await actions.respond(chat, questions[order[1]].pk, payload="B", by="alice")
        assert (await ended(run)).status == "completed"
    assert len(model.requests) == 2
    await at_rest(chat)


async def test_the_question_of_a_sub_agent_reaches_its_asker_and_the_clock_of_the_master_stands(
    chat,
):
    made = call("send_message", to="researcher", content="look", await_result=True)
    model = ScriptedModel(
        assistant=[[made], ["I know: all"]],
        researcher=[[call("ask_user", question="which?")], ["the red one it is"]],
    )
    async with node(model):
        run = await say(chat)
        question = await until(Question.objects.first)
        await reaches(run, "waiting_child")
        wait = await until(lambda: Wait.objects.filter(paused_at__isnull=False).first())
        await db(
            lambda: back_in_time(
                Wait.objects.filter(pk=wait.pk), 9999, "deadline_at", "paused_at", "opened_at"
            )
        )
        assert await db(rendezvous.expire_due) == 0
    model_after = model
    async with node(model_after, "r2"):
        await actions.respond(chat, str(question.pk), payload="red", by="alice")
        assert (await ended(run)).status == "completed"
    assert "the red one it is" in model.of("assistant")[-1].said
    interrupts = [
        e for e in await db(logged, chat.pk, "RUN_FINISHED") if e["outcome"]["type"] == "interrupt"
    ]
    assert len(interrupts) == 1
    await at_rest(chat)


async def test_an_expired_question_gives_its_default_and_says_so(chat):
    from coordination import suspensions

    made = call("ask_user", question="how many?", ui_type="number", default_value=3)
    model = ScriptedModel(assistant=[[made]])
    async with node(model):
        run = await say(chat)
        await reaches(run, "waiting_user")
        await db(lambda: back_in_time(Question.objects.all(), 999999, "expires_at"))
        assert await db(suspensions.expire_due) == 1
        assert (await ended(run)).status == "completed"
    result = json.loads((await db(Message.objects.get, role="tool")).content)
    assert result == {"status": "expired", "default_value": 3}
    await at_rest(chat)


async def test_a_newer_message_supersedes_a_question_and_never_answers_it(chat):
    model = ScriptedModel(assistant=[[call("ask_user", question="delete it?", ui_type="confirm")]])
    async with node(model):
        first = await say(chat)
        await reaches(first, "waiting_user")
        second = await ended(await say(chat, "yes"))
        assert second.status == "completed"
    first = await db(again, first)
    assert (first.status, first.reason) == ("interrupted", "superseded")
    assert (await db(Question.objects.get)).state == "superseded"
    assert "answered" not in model.requests[-1].said
    await at_rest(chat)


# -- rendezvous and the tail ---------------------------------------------------------------------


async def test_a_result_comes_into_the_turn_that_waits_for_it(chat):
    made = call("send_message", to="researcher", content="look", await_result=True)
    model = ScriptedModel(assistant=[[made], ["it is 42"]], researcher=[["forty-two"]])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    result = json.loads((await db(Message.objects.get, role="tool")).content)
    assert (result["status"], result["content"]) == ("result", "forty-two")
    assert len(model.of("assistant")) == 2
    await at_rest(chat)


async def test_a_result_that_nobody_awaits_comes_in_as_a_message_once(chat):
    made = call("send_message", to="researcher", content="look")
    model = ScriptedModel(assistant=[[made], ["sent"], ["it is 42"]], researcher=[["forty-two"]])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    taken = await db(
        Message.objects.filter(content__contains="forty-two", agent_id="assistant").count
    )
    assert taken == 1
    await at_rest(chat)


async def test_the_tail_that_ends_in_vain_asks_the_model_once_and_says_what_is_missing(chat):
    gate = Gate()
    made = call("send_message", to="researcher", content="look")
    model = ScriptedModel(
        assistant=[[made], ["sent"], ["no answer came"]], researcher=[[gate, "forty-two"]]
    )
    async with node(model):
        run = await say(chat)
        await reaches(run, "waiting_child")
        await gate.reached()
        await db(lambda: back_in_time(Wait.objects.all(), 9999, "deadline_at", "opened_at"))
        assert await db(rendezvous.expire_due) == 1
        assert (await ended(run)).status == "completed"
        assert await answers(chat, run) == ["", "sent", "no answer came"]
        assert "researcher" in model.of("assistant")[-1].said
        gate.open()
        child = await db(Run.objects.get, agent_id="researcher")
        assert (await ended(child)).status == "completed"
        following = await ended(await say(chat, "and now?"))
        assert following.status == "completed"
        assert "forty-two" in model.of("assistant")[-1].said
    taken = Message.objects.filter(
        content__contains="forty-two", agent_id="assistant", role="system"
    )
    assert await db(taken.count) == 1


async def test_as_many_masters_waiting_as_there_are_slots_still_get_their_results(chat):
    chats = [await db(new_chat) for _ in range(4)]
    model = ScriptedModel(
        assistant=[
            [call("send_message", to="researcher", content="look", await_result=True)]
            for _ in chats
        ]
    )
    async with node(model, concurrency=1):
        runs = [await say(one) for one in chats]
        for run in runs:
            assert (await ended(run)).status == "completed"
    for one in chats:
        await at_rest(one)


async def test_many_sub_agents_finish_at_once_and_each_result_arrives(chat):
    made = [
        call("send_message", to=f"{kind}-{n}", content=f"task {kind}-{n}", await_result=True)
        for kind in ("researcher", "reviewer", "strategist")
        for n in range(2, 8)
    ]
    model = ScriptedModel(
        assistant=[[*made, call("send_message", to="reviewer", content="x", await_result=True)]]
    )
    async with node(model, concurrency=32):
        run = await ended(await say(chat), within=60)
    assert run.status == "completed"
    assert await db(InboxMessage.objects.filter(kind="result", state="acked").count) == 19
    assert len(model.of("assistant")) == 2
    await at_rest(chat)


async def test_three_tasks_to_one_agent_come_back_each_to_its_own(chat):
    made = [
        call(
            "send_message", to="researcher", content=f"task {n}", await_result=True, call_id=f"c{n}"
        )
        for n in range(3)
    ]
    model = ScriptedModel(assistant=[made], researcher=[[f"result {n}"] for n in range(3)])
    async with node(model):
        assert (await ended(await say(chat))).status == "completed"

    def check():
        for n in range(3):
            task = InboxMessage.objects.get(kind="task", content=f"task {n}")
            row = next(
                m
                for m in Message.objects.filter(role="tool", session=chat.pk)
                if m.parts[0]["tool_call_id"] == f"c{n}"
            )
            assert json.loads(row.content)["in_reply_to"] == str(task.pk)
            assert json.loads(row.content)["content"] == task.accepted_result.content

    await db(check)
    await at_rest(chat)


async def test_a_large_result_reaches_the_master_whole(chat):
    large = "0123456789" * 5000
    made = call("send_message", to="researcher", content="look", await_result=True)
    model = ScriptedModel(assistant=[[made]], researcher=[[large]])
    async with node(model):
        assert (await ended(await say(chat))).status == "completed"
    assert large in model.of("assistant")[-1].said
    await at_rest(chat)


@pytest.mark.parametrize(
    ("how", "status"), [("nothing", "result"), ("error", "failed"), ("budget", "failed")]
)
async def test_a_master_hears_exactly_how_its_sub_agent_ended(chat, monkeypatch, how, status):
    made = call("send_message", to="researcher", content="look", await_result=True)
    scripts: dict[str, Any] = {
        "nothing": [[]],
        "error": [[ModelError("provider_refused", "refused by the provider")]],
        "budget": [[call("check_inbox")] for _ in range(9)],
    }
    monkeypatch.setattr(conf, "max_steps", 3)
    model = ScriptedModel(assistant=[[made]], researcher=scripts[how])
    async with node(model):
        assert (await ended(await say(chat))).status == "completed"
    result = json.loads((await db(Message.objects.get, role="tool", agent_id="assistant")).content)
    assert result["status"] == status
    if how == "error":
        assert "refused by the provider" in result["content"]
    await at_rest(chat)


# -- the last moment -----------------------------------------------------------------------------


def test_a_result_that_comes_at_the_very_end_of_its_reader_is_taken_in(no_hints):
    for _ in range(6):
        chat = new_chat()
        master = claim(post(chat))
        task, child = send(master)
        child = begin(child, "r2")
        ends = (partial(finish, master, "the end", "r1"), partial(finish, child, "found", "r2"))
        assert in_threads(*ends)[1] is True
        now = again(master)
        assert now.status in ("queued", "running")  # it had parked and was woken, or saw it
        if now.status == "queued":
            now = claim(now)
        assert [m.content for m in memory.take_in(now)] == [memory.inbox_text(task.accepted_result)]
        assert finish(now, "the end", "r1")
        assert_at_rest(chat.pk)
