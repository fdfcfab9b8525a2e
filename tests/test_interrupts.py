"""Stop: at some positions, over every path alone, against every other thing at the same moment."""

import asyncio
import dataclasses
import uuid

import pytest

from chat import actions, executor, memory
from chat.models import Message
from chat.tools import TOOLS
from coordination import endings, interrupts, wakeups
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Conflict, Fenced, NotFound
from coordination.models import InboxMessage, Lease, Question, Run
from coordination.registry import Cause, Execution
from coordination.worker import Runner
from tests.core import (
    again,
    assert_at_rest,
    at_rest,
    begin,
    claim,
    customs,
    ended,
    logged,
    new_chat,
    node,
    post,
    reaches,
    respond_with,
    send,
    until,
)
from tests.fakes.step_model import Gate, ScriptedModel, call, raw_call

pytestmark = [pytest.mark.usefixtures("core")]
in_transaction = pytest.mark.django_db
for_real = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def chat(transactional_db, hub):
    return await db(new_chat)


async def say(chat, content="hello", **more):
    posted = await actions.post_message(chat, content, by="alice", **more)
    return await db(Run.objects.get, pk=posted.run_id)


async def stop(chat, **more):
    return await actions.stop(chat, by="alice", **more)


async def stopped_and_at_rest(chat, run, model):
    """Stop it, and see that the proof is true, and that a next turn is possible."""
    requests = len(model.requests)
    answer = await stop(chat)
    assert answer.status == "stopped"
    assert all(state.status == "interrupted" for state in answer.runs)
    now = await db(again, run)
    assert (now.status, now.reason) == ("interrupted", "interrupted")
    await at_rest(chat)
    assert len(model.requests) == requests, "a model call began after the stop"
    following = await ended(await say(chat, "and now?"))
    assert following.status == Run.Status.COMPLETED, following.detail
    await at_rest(chat)
    return now


# -- at some positions (``test_wires`` has them all) ----------------------------------------------


@for_real
async def test_stop_before_the_first_token(chat):
    gate = Gate()
    model = ScriptedModel(assistant=[[gate, "never"]])
    async with node(model):
        run = await say(chat)
        await gate.reached()
        await stopped_and_at_rest(chat, run, model)
        assert isinstance(gate.left, asyncio.CancelledError | GeneratorExit)
        assert model.requests[0].closed


def _streamed(chat):
    return "".join(e["delta"] for e in logged(chat.pk, "TEXT_MESSAGE_CONTENT"))


@for_real
async def test_stop_after_the_response_and_before_it_is_saved_keeps_its_words_and_usage(
    chat, monkeypatch
):
    arrived, go = asyncio.Event(), asyncio.Event()
    real = executor.save_answer
    loop = asyncio.get_running_loop()

    def save(*args, **kwargs):
        loop.call_soon_threadsafe(arrived.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        return real(*args, **kwargs)

    monkeypatch.setattr(executor, "save_answer", save)
    model = ScriptedModel(assistant=[["all of it"]])
    async with node(model):
        run = await say(chat)
        await arrived.wait()
        asked = asyncio.ensure_future(stop(chat))
        await until(lambda: again(run).stop_requested_at)
        go.set()
        assert (await asked).status == "stopped"
        now = await db(again, run)
        assert now.status == "interrupted"
        assert now.usage["total_tokens"] == 15
        kept = await db(Message.objects.get, run_id=run.pk, role="assistant")
        assert (kept.content, kept.status) == ("all of it", "interrupted")
        await at_rest(chat)


@for_real
async def test_stop_between_a_call_and_its_result(chat, slow_tool):
    model = ScriptedModel(assistant=[["I check. ", call("check_inbox", call_id="c1")]])
    async with node(model):
        run = await say(chat)
        await slow_tool.reached()
        await stopped_and_at_rest(chat, run, model)
        assert isinstance(slow_tool.left, asyncio.CancelledError)
        result = await db(Message.objects.get, run_id=run.pk, role="tool")
        assert result.parts[0]["tool_call_id"] == "c1"
        assert "Interrupted" in result.content


@pytest.fixture
def slow_tool(monkeypatch):
    """``check_inbox`` waits at a gate."""
    gate = Gate()

    async def waits(context):
        await gate.wait()
        return "nothing"

    monkeypatch.setitem(TOOLS, "check_inbox", dataclasses.replace(_check_inbox, function=waits))
    return gate


_check_inbox = TOOLS["check_inbox"]


@for_real
async def test_stop_in_a_rendezvous_stops_the_sub_agent_too(chat):
    gate = Gate()
    made = call("send_message", to="researcher", content="look", await_result=True)
    model = ScriptedModel(assistant=[[made]], researcher=[["I look", gate, "never"]])
    async with node(model):
        run = await say(chat)
        await gate.reached()
        await reaches(run, "waiting_child")
        await until(lambda: _streamed(chat))
        await stopped_and_at_rest(chat, run, model)
        result = await db(InboxMessage.objects.get, kind="result")
        assert (result.state, result.reason) == ("discarded", "interrupted")
        assert "sub-agent stopped" not in model.requests[-1].said


@for_real
async def test_stop_in_a_question_closes_it(chat):
    model = ScriptedModel(assistant=[[call("ask_user", question="which?")]])
    async with node(model):
        run = await say(chat)
        await reaches(run, "waiting_user")
        await stopped_and_at_rest(chat, run, model)
        question = await db(Question.objects.get)
        assert question.state == "cancelled"
        with pytest.raises(Conflict) as refusal:
            await actions.respond(chat, str(question.pk), payload="late", by="alice")
        assert refusal.value.code == "cancelled"


@for_real
async def test_stop_of_a_queued_run_ends_it_at_once_and_no_model_is_called(chat):
    model = ScriptedModel()
    run = await say(chat)
    answer = await stop(chat)
    assert answer.status == "stopped"
    async with node(model):
        await at_rest(chat)
        assert (await ended(await say(chat, "again"))).status == "completed"
        assert len(model.requests) == 1
        assert "hello" in model.requests[0].said  # the user's words are kept
    assert (await db(again, run)).started_at is None


@for_real
async def test_a_run_that_is_told_to_leave_before_its_first_line_leaves(chat, monkeypatch):
    """Between the claim and the task's first step: a cancelled task would not run at all."""
    model = ScriptedModel()
    real = Runner._start

    def start(runner, run, *, alone):
        real(runner, run, alone=alone)
        told.append(run)
        runner.registry.get(run.pk).cancel(Cause.HANDOVER)
        monkeypatch.setattr(Runner, "_start", real)

    told: list[Run] = []
    monkeypatch.setattr(Runner, "_start", start)
    async with node(model) as it:
        run = await say(chat)
        assert (await ended(run)).status == "completed"
        assert told
        await until(lambda: not len(it.runner.registry))
        assert (await db(again, run)).epoch == 3  # claimed, handed over, claimed
        await at_rest(chat)


# -- over every path alone ---------------------------------------------------------------------


@for_real
async def test_a_stop_is_heard_by_the_broadcast_alone(chat):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["a", gate]])) as it:
        it.beating = False
        it.deaf_to_refusals()
        run = await say(chat)
        await gate.reached()
        assert (await stop(chat)).status == "stopped"
        assert (await db(again, run)).status == "interrupted"


@for_real
@pytest.mark.parametrize("group", ["its own", "everyone's"])
async def test_a_stop_is_heard_by_each_group_alone(chat, monkeypatch, group):
    real = wakeups._send

    def some(name, message):
        if message["kind"] != "interrupt" or name.startswith("runner") == (group == "its own"):
            real(name, message)

    monkeypatch.setattr(wakeups, "_send", some)
    gate = Gate()
    async with node(ScriptedModel(assistant=[["a", gate]])) as it:
        it.beating = False
        run = await say(chat)
        await gate.reached()
        assert (await stop(chat)).status == "stopped"
        assert (await db(again, run)).status == "interrupted"


@for_real
async def test_a_stop_is_heard_by_the_beat_alone(chat, no_hints):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["a", gate]])) as it:
        it.deaf_to_refusals()
        run = await say(chat)
        await gate.reached()
        assert (await stop(chat)).status == "stopped"
        assert (await db(again, run)).status == "interrupted"


@for_real
async def test_a_stop_is_heard_by_the_refusal_of_the_event_writer_alone(chat, no_hints):
    gate, second = Gate(), Gate()
    async with node(ScriptedModel(assistant=[["a", gate, "b", second]])) as it:
        it.orders_stops = False
        run = await say(chat)
        await gate.reached()
        asked = asyncio.ensure_future(stop(chat))
        await until(lambda: again(run).stop_requested_at)
        assert run.pk in it.runner.registry
        gate.open()
        assert (await asked).status == "stopped"
        assert "b" not in await db(_streamed, chat)
        await at_rest(chat)


@for_real
async def test_a_stop_is_heard_by_the_look_before_a_model_call_alone(
    chat, no_hints, slow_tool, monkeypatch
):
    model = ScriptedModel(assistant=[[call("check_inbox")], ["never"]])
    monkeypatch.setattr(memory, "save_outcomes", _saves_all_the_same(memory.save_outcomes))
    async with node(model) as it:
        it.orders_stops = False
        it.deaf_to_refusals()
        run = await say(chat)
        await slow_tool.reached()
        asked = asyncio.ensure_future(stop(chat))
        await until(lambda: again(run).stop_requested_at)
        slow_tool.open()
        assert (await asked).status == "stopped"
        assert len(model.requests) == 1


def _saves_all_the_same(real):
    """Let the save of the outcomes pass without a word, so that the next look decides."""

    def save(run, outcomes):
        try:
            return real(run, outcomes)
        except Fenced:
            return memory.Saved(
                [Message(parts=[{"tool_call_id": c.call_id}]) for c, _ in outcomes], parked=False
            )

    return save


@for_real
async def test_a_stop_is_heard_by_the_look_before_a_tool_call_alone(chat, no_hints, monkeypatch):
    made = call("send_message", to="researcher", content="look")
    model = ScriptedModel(assistant=[[made]])
    real = memory.save_response
    stops = []

    def save(run, *args, **kwargs):
        saved = real(run, *args, **kwargs)
        stops.append(interrupts.request(chat.pk, by="alice"))
        return saved

    monkeypatch.setattr(memory, "save_response", save)
    async with node(model) as it:
        it.orders_stops = False
        it.deaf_to_refusals()
        run = await say(chat)
        assert (await ended(run)).status == "interrupted"
        assert stops
        assert not await db(InboxMessage.objects.exists)
        await at_rest(chat)


@for_real
async def test_a_false_alarm_stops_nothing(chat):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["a", gate, "b"]])) as it:
        run = await say(chat)
        await gate.reached()
        it.runner._hinted({"kind": "interrupt", "runs": [str(run.pk), str(uuid.uuid4())]})
        it.runner.look_soon([run.pk])
        it.order([])
        it.order([[str(run.pk), 99, True]])
        await asyncio.gather(*it.runner._helpers)
        gate.open()
        assert (await ended(run)).status == "completed"


# -- what a stop means ---------------------------------------------------------------------------


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_ten_stops_are_one():
    chat = new_chat()
    master = claim(post(chat))
    first = interrupts.request(chat.pk, by="alice")
    at = again(master).stop_requested_at
    for _ in range(9):
        assert interrupts.request(chat.pk, by="bob") == first
    now = again(master)
    assert (now.stop_requested_at, now.stop_requested_by) == (at, "alice")
    endings.stopped(master, by="r1")
    assert_at_rest(chat.pk)


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_a_stop_never_means_the_next_turn():
    chat = new_chat()
    master = claim(post(chat))
    following = post(chat, "and this")
    stopped = interrupts.request(chat.pk, by="alice")
    assert [run.run_id for run in stopped.runs] == [master.pk]
    endings.stopped(master, by="r1")
    assert again(following).stop_requested_at is None
    following = claim(again(following), "r2")
    again_for_the_first = interrupts.request(chat.pk, by="alice", run_id=master.pk)
    assert again_for_the_first.status == "already_finished"
    assert [run.run_id for run in again_for_the_first.runs] == [master.pk]
    assert again(following).stop_requested_at is None


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_no_child_is_born_after_a_stop():
    chat = new_chat()
    master = claim(post(chat))
    interrupts.request(chat.pk, by="alice")
    with pytest.raises(Fenced):
        send(master)
    assert Run.objects.count() == 1


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_a_stop_reaches_the_whole_tree():
    chat = new_chat()
    master = claim(post(chat))
    _, queued = send(master, "researcher", call_id="c1")
    _, behind = send(master, "researcher", call_id="c2")
    _, working = send(master, "reviewer", call_id="c3")
    working = begin(working, "r2")
    _, grandchild = send(working, "strategist", call_id="c4")
    marked = interrupts.request(chat.pk, by="alice")
    assert marked.status == "accepted"
    assert {r.run_id for r in marked.runs} == {
        r.pk for r in (master, queued, behind, working, grandchild)
    }
    for ended_at_once in (queued, behind, grandchild):
        assert again(ended_at_once).status == "interrupted"
    for owned in (master, working):
        assert again(owned).status == "running"
    endings.stopped(working, by="r2")
    endings.stopped(master, by="r1")
    assert_at_rest(chat.pk)
    assert InboxMessage.objects.filter(kind="result").exclude(state="discarded").count() <= 1


@in_transaction
@pytest.mark.usefixtures("no_hints")
@pytest.mark.parametrize("master_ends", ["before", "after"])
def test_results_of_a_stopped_turn_never_reach_the_model(master_ends):
    chat = new_chat()
    master = claim(post(chat))
    _, done = send(master, "reviewer", call_id="c1")
    done = begin(done, "r3")
    from chat.executor import finish

    assert finish(done, "early", "r3")
    _, child = send(master, "researcher", call_id="c2")
    child = begin(child, "r2")
    interrupts.request(chat.pk, by="alice")
    ends = [lambda: endings.stopped(master, by="r1"), lambda: endings.stopped(child, by="r2")]
    for end in ends if master_ends == "before" else reversed(ends):
        end()
    following = begin(post(chat, "next"))
    assert memory.take_in(following) == []
    states = InboxMessage.objects.filter(kind="result").values_list("state", flat=True)
    assert set(states) == {"discarded"}
    assert_at_rest(chat.pk)


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_one_sub_agent_is_stopped_and_its_master_is_told_who_did_it():
    chat = new_chat()
    master = claim(post(chat))
    task, child = send(master)
    _, other = send(master, "reviewer", call_id="c2")
    child, other = begin(child, "r2"), begin(other, "r3")
    stopped = interrupts.request(chat.pk, by="alice", agent_id="researcher")
    assert [run.run_id for run in stopped.runs] == [child.pk]
    endings.stopped(child, by="r2")
    result = InboxMessage.objects.get(accepted_for=task)
    assert result.state == "pending"
    assert result.reason == "interrupted"
    assert "user stopped it. Do not send the task again yourself" in result.content
    assert [m.content for m in memory.take_in(master)] == [memory.inbox_text(result)]
    assert again(other).stop_requested_at is None
    assert again(master).stop_requested_at is None


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_what_does_not_exist_is_not_stopped():
    chat, other = new_chat(), new_chat("bob")
    foreign = claim(post(other))
    for target in ({"run_id": uuid.uuid4()}, {"run_id": foreign.pk}, {"agent_id": "nobody"}):
        with pytest.raises(NotFound):
            interrupts.request(chat.pk, by="alice", **target)
    with pytest.raises(NotFound):
        interrupts.request(uuid.uuid4(), by="alice")
    assert again(foreign).stop_requested_at is None


@for_real
async def test_nothing_to_stop_is_said_so(chat):
    assert (await stop(chat)).status == "no_active_run"
    run = await say(chat)
    async with node(ScriptedModel()):
        await ended(run)
    assert (await stop(chat)).status == "no_active_run"
    answer = await stop(chat, run_id=str(run.pk))
    assert answer.status == "already_finished"
    assert [(s.run_id, s.status) for s in answer.runs] == [(run.pk, "completed")]


@for_real
async def test_accepted_is_not_called_stopped(chat, no_hints, monkeypatch):
    monkeypatch.setattr(conf, "stop_ack", 0.05)
    await db(lambda run: claim(run), await say(chat))  # by a runner that is frozen
    answer = await stop(chat)
    assert answer.status == "accepted"
    assert answer.runs[0].status == "running"


@for_real
async def test_a_run_that_completed_in_the_same_moment_was_not_stopped(chat, monkeypatch):
    """The stop looked, the run ended, the stop was recorded: on nothing."""
    from chat.executor import finish

    master = await db(lambda: claim(post(chat)))
    real = interrupts.request

    def request(*args, **kwargs):
        finish(master, "the end", "r1")
        return real(*args, **kwargs)

    monkeypatch.setattr(interrupts, "request", request)
    answer = await stop(chat, run_id=str(master.pk))
    assert [state.status for state in answer.runs] == ["completed"]
    assert answer.status == "already_finished"


@for_real
async def test_stop_against_completion_names_the_winner(chat):
    async with node(ScriptedModel()):
        for turn in range(25):
            run = await say(chat, f"turn {turn}")
            if turn % 3:
                await asyncio.sleep(0.004 * turn)
            answer = await stop(chat, run_id=str(run.pk))
            now = await ended(run)
            assert (now.status == "interrupted") == (answer.status == "stopped"), answer
        await at_rest(chat)


@for_real
async def test_stop_and_send_in_turns_hit_no_later_run(chat, monkeypatch):
    """Each broadcast comes late, and three times."""
    late = []
    real = wakeups._send

    def hold(group, message):
        if message["kind"] == "interrupt":
            late.append((group, message))
        else:
            real(group, message)

    monkeypatch.setattr(wakeups, "_send", hold)
    gates = [Gate() for _ in range(5)]
    model = ScriptedModel(assistant=[["a", gate] for gate in gates])
    async with node(model) as it:
        for gate in gates:
            run = await say(chat)
            await gate.reached()
            for group, message in late * 3:
                real(group, message)
            it.runner._missed_hints()
            await asyncio.gather(*it.runner._helpers)
            assert (await db(again, run)).status == "running"
            assert (await stop(chat)).status == "stopped"
        await at_rest(chat)


@for_real
async def test_a_tool_that_ignores_cancellation_is_fenced_and_its_result_never_arrives(
    chat, no_hints, monkeypatch
):
    begun, go = asyncio.Event(), asyncio.Event()

    async def stubborn(context):
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "a late result"

    monkeypatch.setitem(TOOLS, "check_inbox", dataclasses.replace(_check_inbox, function=stubborn))
    monkeypatch.setattr(conf, "stop_ack", 0.05)
    model = ScriptedModel(assistant=[[call("check_inbox")]])
    try:
        async with node(model):
            run = await say(chat)
            await begun.wait()
            assert (await stop(chat)).status == "accepted"
            from coordination.guard import enforce_stops

            assert await db(enforce_stops, "guard") == 0  # the grace is not over
            await db(_stopped_long_ago, run)
            assert await db(enforce_stops, "guard") == 1
            now = await db(again, run)
            assert now.status == "interrupted"
            assert (await db(Lease.objects.get, run=run)).end == Lease.End.FENCED
            following = await say(chat, "next")
            await ended(following)
            go.set()
            await until(lambda: Run.objects.filter(status="running").count() == 0)
            await at_rest(chat)
            assert "a late result" not in str(await db(_contents, chat))
    finally:
        go.set()


def _stopped_long_ago(run):
    from tests.core import back_in_time

    back_in_time(Run.objects.filter(pk=run.pk), conf.stop_grace + 1, "stop_requested_at")


def _contents(chat):
    return list(Message.objects.filter(session=chat.pk).values_list("content", flat=True))


@for_real
async def test_arguments_that_are_no_json_do_not_poison_the_conversation(chat):
    model = ScriptedModel(assistant=[[raw_call("check_inbox", '{"a": ')]])
    async with node(model):
        run = await say(chat)
        assert (await ended(run)).status == "completed"
        await at_rest(chat)


@in_transaction
@pytest.mark.usefixtures("no_hints")
def test_each_stopped_run_has_one_exit_and_the_readers_one_end():
    chat = new_chat()
    master = claim(post(chat))
    respond_with(master, "I send", c1=("send_message", {}))
    send(master)
    interrupts.request(chat.pk, by="alice")
    endings.stopped(master, by="r1")
    assert [e["reason"] for e in customs(chat.pk, "ax")] == ["interrupted", "interrupted"]
    assert [e["outcome"]["type"] for e in logged(chat.pk, "RUN_FINISHED")] == ["cancelled"]
    assert_at_rest(chat.pk)


async def test_an_execution_is_cancelled_once_and_for_its_first_cause():
    async def work():
        await asyncio.Event().wait()

    execution = Execution(Run(), "r1", asyncio.Event())
    execution.task = asyncio.ensure_future(work())
    execution.begin()
    await asyncio.sleep(0)
    execution.cancel(Cause.INTERRUPT)
    execution.cancel(Cause.HANDOVER)
    assert execution.cause is Cause.INTERRUPT
    assert execution.task.cancelling() <= 1
    execution.task.cancel()


async def test_a_stop_heard_during_a_settlement_does_not_cut_it_short():
    execution = Execution(Run(), "r1", asyncio.Event())

    async def carry_out():
        execution.begin()
        execution.leave()
        await asyncio.sleep(0)
        return "settled"

    execution.task = asyncio.ensure_future(carry_out())
    await asyncio.sleep(0)
    execution.cancel(Cause.INTERRUPT)
    assert await execution.task == "settled"
