"""LangGraph's own Python client makes threads, streams, joins, cancels and answers."""

import asyncio
import uuid
from itertools import pairwise
from typing import Any

import httpx
import pytest
import uvicorn
from django.test import AsyncClient
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError

from agentsite.processes import free_port
from chat.models import ChatSession
from chat.transports.langgraph_messages import message
from coordination.conf import conf
from coordination.db import db
from coordination.models import Run, Session
from tests.clients import Caller
from tests.core import assert_at_rest, node, until
from tests.fakes.step_model import Gate, ScriptedModel, call
from tests.javascript import JavaScript, Refused

pytestmark = [pytest.mark.usefixtures("core", "hub"), pytest.mark.django_db(transaction=True)]

EVERY_MODE = ["values", "updates", "messages", "messages-tuple", "custom", "lifecycle"]


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(conf, "stream_poll", 0.1)
    monkeypatch.setattr(conf, "stop_ack", 0.3)


@pytest.fixture
async def url(hub):
    """The site, served by this process."""
    from agentsite.asgi import application

    config = uvicorn.Config(application, port=free_port(), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{config.port}/api/lg"
    server.force_exit = server.should_exit = True
    await serving


async def client_of(url, name):
    token = (await Caller.named(name)).token
    return get_client(url=url, api_key=None, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
async def alice(url):
    async with await client_of(url, "alice") as client:
        yield client


@pytest.fixture
async def tid(alice):
    return (await alice.threads.create())["thread_id"]


def human(content="hello", **fields):
    return {"messages": [{"role": "user", "content": content, **fields}]}


async def refused(awaited, status, code):
    with pytest.raises(APIStatusError) as refusal:
        await awaited
    assert (refusal.value.status_code, refusal.value.code) == (status, code)


async def all_of(stream):
    async with asyncio.timeout(30):
        return [part async for part in stream]


def named(parts, event):
    return [part.data for part in parts if part.event == event]


def told(messages):
    return [(m["type"], m["content"]) for m in messages]


ANSWER = [("human", "hello"), ("ai", "Good morning")]


# -- streams --------------------------------------------------------------------------------------


async def test_an_answer_is_streamed_in_every_mode(alice, tid):
    created = []
    async with node(ScriptedModel(assistant=[["Good ", "morning"]])):
        parts = await all_of(
            alice.runs.stream(
                tid,
                "assistant",
                input=human(),
                stream_mode=EVERY_MODE,
                on_run_created=created.append,
            )
        )
    run_id = created[0]["run_id"]
    assert created == [{"run_id": run_id, "thread_id": tid}]
    assert parts[0].event == "metadata"
    assert parts[0].data == {"run_id": run_id, "thread_id": tid, "attempt": 1}
    assert parts[-1].event == "end"
    assert parts[-1].data == {"run_id": run_id, "status": "success"}
    assert "".join(chunk["content"] for chunk, _ in named(parts, "messages")) == "Good morning"
    assert [m["content"] for (m,) in named(parts, "messages/partial")][-1] == "Good morning"
    ((whole,),) = named(parts, "messages/complete")
    assert {about["langgraph_node"] for _, about in named(parts, "messages")} == {"assistant"}
    assert named(parts, "updates") == [{"assistant": {"messages": [whole]}}]
    assert told(named(parts, "values")[0]["messages"])[:1] == ANSWER[:1]  # as it is when it is told
    assert named(parts, "values")[-1]["messages"][-1] == whole
    assert {"ax", "agents"} <= {custom["name"] for custom in named(parts, "custom")}
    assert (await alice.threads.get_state(tid))["values"]["messages"][-1] == whole


async def test_a_stream_goes_on_after_any_part_to_the_letter(alice, tid):
    """A reader may be cut off between any two parts; five is no multiple of an event's."""
    task = {"to": "researcher", "content": "look", "await_result": True}
    model = ScriptedModel(
        assistant=[["Let me ", "see.", call("send_message", **task)], ["It is ", "so."]],
        researcher=[["I ", "look.", call("check_inbox")], ["Found."]],
    )
    how = {"stream_mode": EVERY_MODE, "params": {"stream_subgraphs": True}}
    async with node(model):
        run = await alice.runs.create(tid, "assistant", input=human())
        whole = await all_of(alice.runs.join_stream(tid, run["run_id"], **how))
    for had, part in list(enumerate(whole[:-1], 1))[::5]:
        rest = await all_of(
            alice.runs.join_stream(tid, run["run_id"], last_event_id=part.id, **how)
        )
        assert [(p.id, p.event) for p in rest] == [(p.id, p.event) for p in whole[had:]]
        same = [pair for pair in zip(rest, whole[had:], strict=True) if pair[0].event != "values"]
        assert all(again.data == first.data for again, first in same)
    assert len({part.id for part in whole}) == len(whole)
    places = [tuple(map(int, part.id.split("-"))) for part in whole]
    assert all(one < other for one, other in pairwise(places))


async def test_calls_and_sub_agents_are_streamed(alice, tid):
    task = {"to": "researcher", "content": "look", "await_result": True}
    model = ScriptedModel(
        assistant=[[call("send_message", call_id="c1", **task)], ["So."]], researcher=[["Found."]]
    )
    async with node(model):
        first = alice.runs.stream(
            tid, "assistant", input=human(), stream_mode=EVERY_MODE, stream_subgraphs=True
        )
        parts = await all_of(first)
        quiet = await all_of(alice.runs.join_stream(tid, parts[0].data["run_id"]))
    (_, namespace), *_ = [
        p.event.split("|") for p in parts if p.event.startswith("messages/partial|")
    ]
    assert namespace.startswith("researcher:")
    lifecycle = named(parts, f"lifecycle|{namespace}")
    assert [one["event"] for one in lifecycle] == ["started", "completed"]
    assert lifecycle[0] == {"event": "started", "namespace": [namespace], "tool_call_id": "c1"}
    assert "".join(c["content"] for c, _ in named(parts, f"messages|{namespace}")) == "Found."
    calls = [c for chunk, _ in named(parts, "messages") for c in chunk.get("tool_call_chunks", ())]
    assert calls[0]["name"] == "send_message"
    assert {c["index"] for c in calls} == {0}
    asked, result, answer = named(parts, "updates")
    (ai,) = asked["assistant"]["messages"]
    assert ai["tool_calls"] == [
        {"id": "c1", "name": "send_message", "args": task, "type": "tool_call"}
    ]
    (tool,) = result["tools"]["messages"]
    assert (tool["type"], tool["tool_call_id"], tool["name"]) == ("tool", "c1", "send_message")
    assert answer["assistant"]["messages"][0]["content"] == "So."
    assert not [part for part in quiet if "|" in part.event]
    values = (await alice.threads.get_state(tid))["values"]["messages"]
    assert [m for m in values if m["type"] in ("ai", "tool")] == [
        ai, tool, answer["assistant"]["messages"][0],
    ]  # fmt: skip


async def test_a_run_that_waits_streams_nothing_of_the_one_before(alice, tid):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["first", gate], ["second"]])):
        one = await alice.runs.create(tid, "assistant", input=human("one"))
        await gate.reached()
        two = await alice.runs.create(tid, "assistant", input=human("two"))
        three = await alice.runs.create(tid, "assistant", input=human("three"))
        statuses = [run["status"] for run in await alice.runs.list(tid)]
        assert statuses == ["pending", "pending", "running"]
        await alice.runs.cancel(tid, three["run_id"], wait=True)
        cancelled = await all_of(alice.runs.join_stream(tid, three["run_id"]))
        assert cancelled[-1].data["status"] == "interrupted"
        following = asyncio.create_task(all_of(alice.runs.join_stream(tid, two["run_id"])))
        gate.open()
        parts = await following
    assert "".join(chunk["content"] for chunk, _ in named(parts, "messages")) == "second"
    assert [run["status"] for run in await alice.runs.list(tid)] == [
        "interrupted", "success", "success",
    ]  # fmt: skip
    assert (await alice.runs.get(tid, one["run_id"]))["status"] == "success"
    assert [r["run_id"] for r in await alice.runs.list(tid, limit=1, offset=1)] == [two["run_id"]]
    (stopped,) = await alice.runs.list(tid, status="interrupted")
    assert (stopped["run_id"], stopped["cancel_reason"]) == (three["run_id"], "interrupted")


# -- waiting and stopping -------------------------------------------------------------------------


async def test_a_run_is_waited_for_and_joined(alice, tid):
    async with node(ScriptedModel(assistant=[["Good ", "morning"], ["again"]])):
        values = await alice.runs.wait(tid, "assistant", input=human())
        assert told(values["messages"]) == ANSWER
        run = await alice.runs.create(tid, "assistant", input=human("and?"))
        joined = await alice.runs.join(tid, run["run_id"])
    assert told(joined["messages"]) == [*ANSWER, ("human", "and?"), ("ai", "again")]
    assert await alice.runs.join(tid, run["run_id"]) == joined


async def test_a_failure_is_an_error_to_the_client(alice, tid):
    async with node(ScriptedModel(assistant=[[ValueError("no")], [ValueError("no")]])):
        with pytest.raises(Exception, match="error: "):
            await alice.runs.wait(tid, "assistant", input=human())
        parts = await all_of(alice.runs.stream(tid, "assistant", input=human("again")))
    assert parts[-1].event == "error"
    assert parts[-1].data["error"] == "error"
    assert [run["status"] for run in await alice.runs.list(tid)] == ["error", "error"]


@pytest.mark.parametrize("wait", [False, True])
async def test_a_run_is_cancelled(alice, tid, wait):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["some words", gate]])):
        run = await alice.runs.create(tid, "assistant", input=human())
        following = asyncio.create_task(all_of(alice.runs.join_stream(tid, run["run_id"])))
        await gate.reached()
        assert (await alice.threads.get(tid))["status"] == "busy"
        await alice.runs.cancel(tid, run["run_id"], wait=wait)
        if wait:
            assert (await alice.runs.get(tid, run["run_id"]))["status"] == "interrupted"
        parts = await following
        await alice.runs.cancel(tid, run["run_id"], wait=wait)  # as often as one likes
    assert parts[-1].data == {"run_id": run["run_id"], "status": "interrupted"}
    last = named(parts, "values")[-1]["messages"]
    assert told(last)[:2] == [("human", "hello"), ("ai", "some words")]
    assert last[1]["response_metadata"] == {"status": "interrupted"}
    await refused(
        alice.runs.cancel(tid, run["run_id"], action="rollback"), 422, "unsupported_action"
    )
    await db(assert_at_rest, uuid.UUID(tid))


async def test_what_a_message_does_to_a_busy_thread_is_the_callers_choice(alice, tid):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["first", gate], ["second"]])):
        one = await alice.runs.create(tid, "assistant", input=human("one"))
        await gate.reached()
        again = alice.runs.create(tid, "assistant", input=human(), multitask_strategy="reject")
        await refused(again, 409, "busy")
        back = alice.runs.create(tid, "assistant", input=human(), multitask_strategy="rollback")
        await refused(back, 422, "unsupported_multitask_strategy")
        two = alice.runs.wait(tid, "assistant", input=human("two"), multitask_strategy="interrupt")
        assert told((await two)["messages"])[-1] == ("ai", "second")
    assert (await alice.runs.get(tid, one["run_id"]))["status"] == "interrupted"


async def test_the_same_message_again_is_the_same_run(alice, tid):
    async with node(ScriptedModel(assistant=[["once"]])):
        sent = human(id="m1")
        first = await all_of(alice.runs.stream(tid, "assistant", input=sent))
        again = await all_of(alice.runs.stream(tid, "assistant", input=sent))
    assert [p.id for p in first] == [p.id for p in again]
    assert len(await alice.runs.list(tid)) == 1
    other = alice.runs.create(tid, "assistant", input=human("another", id="m1"))
    await refused(other, 409, "id_conflict")


# -- questions ------------------------------------------------------------------------------------


def ask(*questions):
    return [call("ask_user", question=question) for question in questions]


async def test_a_question_interrupts_and_its_answer_resumes(alice, tid):
    model = ScriptedModel(assistant=[["Well: ", *ask("Which one?")], ["That one."]])
    async with node(model):
        modes = ["values", "updates", "messages-tuple"]
        stream = alice.runs.stream(tid, "assistant", input=human(), stream_mode=modes)
        parts = await all_of(stream)
        run_id = parts[0].data["run_id"]
        assert parts[-1].data == {"run_id": run_id, "status": "interrupted"}
        (interrupt,) = named(parts, "values")[-1]["__interrupt__"]
        assert named(parts, "updates")[-1] == {"__interrupt__": [interrupt]}
        assert interrupt["value"]["question"] == "Which one?"
        assert interrupt["response_schema"] == {"type": "string"}
        thread = await alice.threads.get(tid)
        assert (thread["status"], thread["interrupts"]) == ("interrupted", {run_id: [interrupt]})
        assert (await alice.runs.get(tid, run_id))["status"] == "interrupted"
        state = await alice.threads.get_state(tid)
        assert (state["next"], state["interrupts"]) == (["assistant"], [interrupt])
        assert [task["interrupts"] for task in state["tasks"]] == [[interrupt]]
        assert (await alice.runs.join(tid, run_id))["__interrupt__"] == [interrupt]

        wrong = alice.runs.create(tid, "assistant", command={"resume": 5})
        await refused(wrong, 422, "invalid_answer")
        parts = await all_of(alice.runs.stream(tid, "assistant", command={"resume": "this"}))
        assert parts[0].data["run_id"] == run_id
        assert parts[-1].data == {"run_id": run_id, "status": "success"}
        assert told(named(parts, "values")[-1]["messages"])[-1] == ("ai", "That one.")
        late = alice.runs.create(tid, "assistant", command={"resume": {interrupt["id"]: "x"}})
        await refused(late, 409, "already_answered")
    nothing = alice.runs.create(tid, "assistant", command={"resume": "x"})
    await refused(nothing, 409, "no_open_question")
    assert '"answer": "this"' in model.of("assistant")[-1].said.replace('\\"', '"')
    await db(assert_at_rest, uuid.UUID(tid))


async def test_several_questions_are_answered_by_their_ids(alice, tid):
    model = ScriptedModel(assistant=[ask("One?", "Two?"), ["Done."]])
    async with node(model):
        values = await alice.runs.wait(tid, "assistant", input=human())
        one, two = (interrupt["id"] for interrupt in values["__interrupt__"])
        unclear = alice.runs.create(tid, "assistant", command={"resume": "yes"})
        await refused(unclear, 409, "ambiguous_resume")
        parts = await all_of(alice.runs.stream(tid, "assistant", command={"resume": {one: "a"}}))
        assert [part.event for part in parts] == ["metadata", "values", "values", "end"]
        assert [left["id"] for left in named(parts, "values")[-1]["__interrupt__"]] == [two]
        values = await alice.runs.wait(tid, "assistant", command={"resume": {two: "b"}})
    assert told(values["messages"])[-1] == ("ai", "Done.")


async def test_a_reader_who_comes_back_is_in_the_stretch_that_he_left(alice, tid):
    gate = Gate()
    async with node(ScriptedModel(assistant=[["Well: ", *ask("Which?")], ["That.", gate]])):
        before = await all_of(alice.runs.stream(tid, "assistant", input=human()))
        run = await alice.runs.create(tid, "assistant", command={"resume": "this"})
        now = asyncio.create_task(all_of(alice.runs.join_stream(tid, run["run_id"])))
        await gate.reached()
        left = alice.runs.join_stream(
            tid, run["run_id"], stream_mode="values", last_event_id=before[0].id
        )
        assert [part.id for part in await all_of(left)] == [part.id for part in before[1:]]
        gate.open()
        after = await now
    said = [m["content"] for m, _ in named(after, "messages") if m["type"] == "AIMessageChunk"]
    assert said == ["That."]
    assert after[-1].data["status"] == "success"


# -- threads and assistants -----------------------------------------------------------------------


async def test_a_thread_is_a_session_of_ones_own(alice, url):
    tid = str(uuid.uuid4())
    thread = await alice.threads.create(thread_id=tid, metadata={"title": "Plans"})
    assert (thread["thread_id"], thread["status"], thread["interrupts"]) == (tid, "idle", {})
    assert thread["metadata"]["title"] == "Plans"
    assert thread["values"] == {"messages": []}
    await refused(alice.threads.create(thread_id=tid), 409, "exists")
    assert await alice.threads.create(thread_id=tid, if_exists="do_nothing") == thread
    changed = await alice.threads.update(tid, metadata={"title": "Others"})
    assert changed["metadata"]["title"] == (await alice.threads.get(tid))["metadata"]["title"]
    assert await alice.threads.update(tid, metadata={}, return_minimal=True) is None
    (state,) = await alice.threads.get_history(tid)
    assert state == await alice.threads.get_state(tid)
    assert state["next"] == state["tasks"] == state["interrupts"] == []
    assert await alice.threads.get_history(tid, before=state["checkpoint"]) == []
    await alice.threads.delete(tid)
    await refused(alice.threads.get(tid), 404, "not_found")
    await refused(alice.threads.update(tid, metadata={"colour": 1}), 422, "unsupported_metadata")


async def test_threads_are_searched(alice, url):
    gate = Gate()
    made = [await alice.threads.create(metadata={"title": f"t{n}"}) for n in range(3)]
    idle, busy, asking = (thread["thread_id"] for thread in made)
    async with await client_of(url, "mallory") as mallory, node(ScriptedModel(
        assistant=[ask("What?"), ["x", gate]]
    )):  # fmt: skip
        await alice.runs.wait(asking, "assistant", input=human())
        await alice.runs.create(busy, "assistant", input=human())
        await gate.reached()

        async def found(client=alice, **query):
            return [thread["thread_id"] for thread in await client.threads.search(**query)]

        assert await found() == [asking, busy, idle]
        assert await found(sort_by="created_at", sort_order="asc") == [idle, busy, asking]
        assert await found(limit=1, offset=1) == [busy]
        assert await found(ids=[idle]) == await found(status="idle") == [idle]
        assert await found(status="busy") == await found(metadata={"title": "t1"}) == [busy]
        assert await found(status="interrupted") == [asking]
        assert await found(metadata={"graph_id": "assistant"}) == [asking, busy, idle]
        assert await found(metadata={"colour": "red"}) == await found(mallory) == []
        assert await found(metadata={"title": "t1", "colour": "t1"}) == []
        await refused(alice.threads.search(values={"a": 1}), 422, "unsupported_values")


async def test_there_is_one_assistant(alice):
    (assistant,) = await alice.assistants.search(graph_id="assistant")
    assert assistant == await alice.assistants.get("assistant")
    assert await alice.assistants.search(graph_id="other") == []
    await refused(alice.assistants.get("researcher"), 404, "not_found")


async def test_a_run_may_bring_its_thread_along(alice):
    tid = str(uuid.uuid4())
    async with node(ScriptedModel(assistant=[["one"], ["two"], ["three"]])):
        await refused(alice.runs.create(tid, "assistant", input=human()), 404, "not_found")
        values = await alice.runs.wait(tid, "assistant", input=human(), if_not_exists="create")
        assert told(values["messages"])[-1] == ("ai", "one")
        parts = await all_of(alice.runs.stream(None, "assistant", input=human()))
        assert parts[-1].data["status"] == "success"
        run = await alice.runs.create(None, "assistant", input=human())
        await alice.runs.join(run["thread_id"], run["run_id"])
    threads = {thread["thread_id"] for thread in await alice.threads.search()}
    assert threads == {tid, parts[0].data["thread_id"], run["thread_id"]}


# -- JavaScript -----------------------------------------------------------------------------------


async def test_the_javascript_client_does_all_this_too(url):
    token = (await Caller.named("alice")).token
    gate = Gate()
    model = ScriptedModel(assistant=[["Well: ", *ask("Which?")], ["That."], ["words", gate]])
    async with node(model), JavaScript(url.removesuffix("/api/lg"), token) as client:
        thread = await client.call("threads", "create", {"metadata": {"title": "Plans"}})
        tid = thread["thread_id"]
        how = {"streamMode": ["messages-tuple", "updates"]}
        stream = client.stream("runs", "stream", tid, "assistant", {"input": human(), **how})
        parts = await all_of(stream)
        run_id = parts[0]["data"]["run_id"]
        assert parts[-1]["data"] == {"run_id": run_id, "status": "interrupted"}
        (interrupt,) = parts[-2]["data"]["__interrupt__"]
        rest = client.stream(
            "runs", "joinStream", tid, run_id, {"lastEventId": parts[1]["id"], **how}
        )
        assert await all_of(rest) == parts[2:]
        resume = {"command": {"resume": {interrupt["id"]: "this"}}}
        values = await client.call("runs", "wait", tid, "assistant", resume)
        assert told(values["messages"])[-1] == ("ai", "That.")
        run = await client.call("runs", "create", tid, "assistant", {"input": human()})
        await gate.reached()
        busy = {"input": human(), "multitaskStrategy": "reject"}
        with pytest.raises(Refused) as refusal:
            await client.call("runs", "create", tid, "assistant", busy)
        assert refusal.value.status == 409
        await client.call("runs", "cancel", tid, run["run_id"], True)
        joined = await client.call("runs", "join", tid, run["run_id"])
        assert told(joined["messages"])[-2:][0] == ("ai", "words")
        assert [r["status"] for r in await client.call("runs", "list", tid)] == [
            "interrupted", "success",
        ]  # fmt: skip
        (found,) = await client.call("threads", "search", {"metadata": {"title": "Plans"}})
        assert found["thread_id"] == tid


# -- refusals -------------------------------------------------------------------------------------

UNSPEAKABLE: list[tuple[dict[str, Any], str]] = [
    ({"stream_mode": "events"}, "stream_mode"),
    ({"stream_mode": ["values", "debug"]}, "stream_mode"),
    ({"config": {"configurable": {"model": "x"}}}, "config"),
    ({"context": {"a": 1}}, "context"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"checkpoint_id": "1"}, "checkpoint_id"),
    ({"interrupt_before": "*"}, "interrupt_before"),
    ({"webhook": "https://example.org"}, "webhook"),
    ({"after_seconds": 5}, "after_seconds"),
    ({"on_disconnect": "cancel"}, "on_disconnect"),
    ({"on_completion": "delete"}, "on_completion"),
    ({"input": None}, "input"),
    ({"input": {"messages": []}}, "input"),
    ({"input": {**human(), "files": {}}}, "input"),
    ({"input": {"messages": [*human()["messages"], *human()["messages"]]}}, "input"),
    ({"input": {"messages": [{"role": "assistant", "content": "hi"}]}}, "input"),
    ({"input": human([{"type": "image_url", "image_url": "http://x/y.png"}])}, "input"),
    ({"input": None, "command": {"goto": "tools"}}, "command"),
    ({"input": None, "command": {"resume": 1, "update": {"a": 1}}}, "command"),
]


async def test_what_cannot_be_said_is_refused_by_name():
    alice = await Caller.named("alice")
    for wish, field in UNSPEAKABLE:
        body = {"assistant_id": "assistant", "input": human(), "if_not_exists": "create", **wish}
        refusal = await alice.call("post", f"/lg/threads/{uuid.uuid4()}/runs/stream", body)
        assert (refusal.status_code, refusal.json()["code"]) == (422, f"unsupported_{field}"), wish
    assert await db(Session.objects.count) == 0


async def test_text_in_parts_is_text(alice, tid):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    await alice.runs.create(tid, "assistant", input=human(parts))
    assert told((await alice.threads.get_state(tid))["values"]["messages"]) == [("human", "hello")]


async def test_addresses_with_nothing_behind_them_say_so():
    alice = await Caller.named("alice")
    thread = f"/lg/threads/{await alice.new_session()}"
    run = f"{thread}/runs/{uuid.uuid4()}"
    for path, code in (
        ("/lg/store/items", "unsupported"),
        (f"{thread}/state?subgraphs=true", "unsupported_subgraphs"),
        (f"{run}/join?cancel_on_disconnect=1", "unsupported_cancel_on_disconnect"),
        (f"{run}/stream?stream_mode=debug", "unsupported_stream_mode"),
    ):
        refusal = await alice.call("get", path)
        assert (refusal.status_code, refusal.json()["code"]) == (422, code), path


async def test_a_part_that_was_never_sent_is_no_place_to_go_on_from(alice, tid):
    run = await alice.runs.create(tid, "assistant", input=human())
    for last_event_id in ("7", "x-1", "999999-0", "1-"):
        stream = alice.runs.join_stream(tid, run["run_id"], last_event_id=last_event_id)
        await refused(all_of(stream), 422, "invalid_cursor")


VERBS = [
    ("get", "", None),
    ("patch", "", {"metadata": {"title": "mine"}}),
    ("delete", "", None),
    ("get", "/state", None),
    ("post", "/history", {}),
    ("get", "/runs", None),
    *(
        ("post", f"/runs{how}", {"assistant_id": "assistant", **what})
        for how in ("", "/stream", "/wait")
        for what in ({"input": human(), "if_not_exists": "create"}, {"command": {"resume": "x"}})
    ),
    ("get", "/runs/{run}", None),
    ("get", "/runs/{run}/join", None),
    ("get", "/runs/{run}/stream", None),
    ("post", "/runs/{run}/cancel", None),
]


async def test_a_strangers_thread_is_not_there():
    alice, mallory = await Caller.named("alice"), await Caller.named("mallory")
    sid = await alice.new_session(title="first")
    body = {"assistant_id": "assistant", "input": human()}
    run = (await alice.call("post", f"/lg/threads/{sid}/runs", body)).json()["run_id"]
    other = await mallory.new_session()
    for method, path, said in VERBS:
        theirs = f"/lg/threads/{sid}{path}".format(run=run)
        answer = await mallory.call(method, theirs, said)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), theirs
        mallory.client = nobody = AsyncClient()
        assert (await Caller(None, "", nobody).call(method, theirs, said)).status_code == 401
        if "{run}" in path:
            elsewhere = f"/lg/threads/{other}{path}".format(run=run)
            assert (await mallory.call(method, elsewhere, said)).status_code == 404, elsewhere
    taken = await mallory.call("post", "/lg/threads", {"thread_id": sid, "if_exists": "do_nothing"})
    assert taken.status_code == 404
    chat = await db(ChatSession.objects.get, pk=sid)
    assert (chat.title, chat.deleted_at) == ("first", None)
    assert await db(Run.objects.filter(session=sid).count) == 1


# -- the shapes -----------------------------------------------------------------------------------


async def test_the_run_is_named_where_a_client_looks_for_it(alice, tid, url):
    token = (await Caller.named("alice")).token
    async with node(ScriptedModel()), httpx.AsyncClient(
        base_url=f"{url}/threads/{tid}/", headers={"Authorization": f"Bearer {token}"}
    ) as http:  # fmt: skip
        body = {"assistant_id": "assistant", "input": human(), "stream_mode": ["values", "custom"]}
        for path, where in (
            ("", ""), ("/stream", "/stream?stream_mode=custom&stream_mode=values"),
            ("/wait", "/join"),
        ):  # fmt: skip
            answer = await http.post(f"runs{path}", json=body)
            address = answer.headers["Content-Location"]
            assert address.startswith(f"/threads/{tid}/runs/")
            assert answer.headers["Location"] == address + where
        run_id = address.rsplit("/", 1)[1]
        cancelled = await http.post(f"runs/{run_id}/cancel?wait=1")
        assert (cancelled.status_code, cancelled.headers["Location"]) == (204, f"{address}/join")
        assert (await http.post(f"runs/{run_id}/cancel?wait=0")).status_code == 202


def test_arguments_that_are_no_object_are_invalid_calls():
    for args in ("[1]", '{"a": ', "7"):
        part = {"type": "tool_call", "tool_call_id": "c", "name": "t", "args": args}
        said = {
            "id": "m", "role": "assistant", "agent_id": "assistant", "content": "",
            "parts": [part], "status": "complete",
        }  # fmt: skip
        theirs = message(said)
        assert theirs["tool_calls"] == []
        assert theirs["invalid_tool_calls"][0]["args"] == args


async def test_the_calls_are_documented():
    schema = (await AsyncClient().get("/api/openapi.json")).json()
    ours = {path: calls for path, calls in schema["paths"].items() if path.startswith("/api/lg/")}
    assert "/api/lg/threads/{thread_id}/runs/{run_id}/stream" in ours
    for calls in ours.values():
        for one in calls.values():
            assert one["tags"] == ["langgraph"]
            assert {"200", "202", "204"} & set(one["responses"])
            assert {"401", "503"} <= set(one["responses"])
