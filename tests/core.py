"""What the tests of the core share: rows in a state, a runner in this process, what rest means.

Time is moved, not slept through (``back_in_time``); states are waited for (``until``). A test that
ends with ``at_rest`` has shown that nothing is stuck, doubled or left open in its session.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ag_ui.core import Event as AnyEvent
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import F
from django.utils import timezone
from pydantic import TypeAdapter

from chat import actions, memory
from chat.executor import execute
from chat.llm import StepModel, Usage
from chat.models import ChatSession, Message
from coordination import endings, events, inbox, leases, runs, vocabulary
from coordination.db import db
from coordination.errors import Fenced
from coordination.models import (
    Event,
    InboxMessage,
    Lease,
    Question,
    Run,
    Session,
    Wait,
    WorkLogEntry,
)
from coordination.worker import Runner
from tests.fakes.step_model import check_strict
from tests.verifier import verify

EVENT: TypeAdapter[Any] = TypeAdapter(AnyEvent)


# -- rows --------------------------------------------------------------------------------------


def new_chat(name: str = "alice", language: str = "en") -> ChatSession:
    user, _ = get_user_model().objects.get_or_create(username=name)
    return actions._create_session(user, "", language, None)


def post(chat: ChatSession, content: str = "hello", key: str | None = None, **more: Any) -> Run:
    posted = actions._post(chat.pk, content, key, more.get("on_busy", "enqueue"), "alice")
    return Run.objects.get(pk=posted.run_id)


def claim(run: Run, runner_id: str = "r1", node_id: str = "n1") -> Run:
    claimed = runs.claim(run.pk, run.session_id, runner_id, node_id)
    assert claimed is not None, f"not claimable: {Run.objects.get(pk=run.pk).status}"
    return claimed


def begin(run: Run, runner_id: str = "r1") -> Run:
    """Claimed, and what waited for it taken in: as a run stands before its first model call."""
    claimed = claim(run, runner_id, f"node of {runner_id}")
    memory.take_in(claimed)
    return claimed


def send(
    run: Run, to: str = "researcher", content: str = "look", call_id: str = "c1", kind: str = "task"
) -> tuple[InboxMessage, Run]:
    """The task and the run it has started."""
    with runs.owned(run) as (session, fresh):
        message = inbox.send_task(
            session, fresh, to=to, content=content, kind=kind, tool_call_id=call_id
        )
    return message, Run.objects.get(task=message)


def respond_with(run: Run, text: str = "", **calls: tuple[str, dict[str, Any]]) -> Message:
    """Log and save a step of the model: its text and its calls, ``id=(name, arguments)``."""
    from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ToolCallPart

    message_id = uuid.uuid4()
    parts: list[ModelResponsePart] = []
    if text:
        say(run, text, message_id=message_id, ended=False)
        parts.append(TextPart(text))
    for call_id, (name, arguments) in calls.items():
        log_call(run, call_id, name, json.dumps(arguments), message_id=message_id)
        parts.append(ToolCallPart(name, json.dumps(arguments), call_id))
    usage = Usage("scripted", "scripted", 10, 5)
    response = ModelResponse(parts=parts)
    return memory.save_response(run, message_id, response, usage, text_open=bool(text))


def say(run: Run, text: str, *, message_id: uuid.UUID | None = None, ended: bool = True) -> str:
    """Log a text message, as the owner's event writer does; its id."""
    pk = str(message_id or uuid.uuid4())
    written = [vocabulary.text_start(run, pk), vocabulary.text_content(run, pk, text)]
    if ended:
        written.append(vocabulary.text_end(run, pk))
    write_stream(run, *written)
    return pk


def log_call(
    run: Run,
    call_id: str,
    name: str,
    arguments: str,
    *,
    message_id: uuid.UUID | str,
    ended: bool = True,
) -> None:
    """Log a tool call, as the owner's event writer does."""
    written = [
        vocabulary.tool_call_start(run, call_id, name, str(message_id)),
        vocabulary.tool_call_args(run, call_id, arguments),
    ]
    if ended:
        written.append(vocabulary.tool_call_end(run, call_id))
    write_stream(run, *written)


def write_stream(run: Run, *written: dict[str, Any]) -> None:
    """One commit of the event writer. Raises Fenced where it is refused."""
    if events._commit_streams([events._Stream(run, list(written))], events._Attempt()):
        raise Fenced


def again(run: Run) -> Run:
    """The run as it stands now."""
    return Run.objects.get(pk=run.pk)


def back_in_time(rows: Any, seconds: float, *fields: str) -> None:
    """Let the rows be as if these fields had been written ``seconds`` ago."""
    delta = dt.timedelta(seconds=seconds)
    rows.update(**{name: F(name) - delta for name in fields})


def expire_leases(run: Run, seconds: float = 60) -> None:
    """As if nobody had beaten for this run's lease."""
    Lease.objects.filter(run=run, released_at=None).update(
        expires_at=timezone.now() - dt.timedelta(seconds=seconds)
    )


def judge(run: Run, end: str = Lease.End.EXPIRED, by: str = "guard") -> bool:
    """Let a guard, or a supervisor, judge the run's open lease."""
    if end == Lease.End.EXPIRED:
        expire_leases(run)
    return endings.lost(lease_of(run), end=end, by=by)


def lease_of(run: Run) -> Lease:
    return Lease.objects.get(run_id=run.pk, released_at=None)


def logged(session_id: uuid.UUID, *types: str) -> list[dict[str, Any]]:
    """The session's events, of these types or all."""
    rows = Event.objects.filter(session_id=session_id).order_by("seq")
    if types:
        rows = rows.filter(type__in=types)
    return [json.loads(data) for data in rows.values_list("data", flat=True)]


def customs(session_id: uuid.UUID, name: str) -> list[Any]:
    return [e["value"] for e in logged(session_id, "CUSTOM") if e["name"] == name]


def worklog_kinds(session_id: uuid.UUID) -> list[str]:
    rows = WorkLogEntry.objects.filter(session_id=session_id).order_by("pk")
    return list(rows.values_list("kind", flat=True))


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Call them at the same moment, each on a connection of its own; results or exceptions."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)

    def work(index: int, function: Callable[[], Any]) -> None:
        try:
            barrier.wait(10)
            results[index] = function()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# -- a runner ----------------------------------------------------------------------------------


@dataclass
class Node:
    """A runner in this process, with the supervisor's beat beside it."""

    runner: Runner
    orders_stops: bool = True  # the beat's answer names the stops
    beating: bool = True

    async def beat(self) -> None:
        held = await db(leases.renew, [self.runner.runner_id])
        stops = self.orders_stops
        self.order([[str(h.run_id), h.epoch, stops and h.stop_requested] for h in held])

    def order(self, held: list[list[Any]], ago: float = 0) -> None:
        """The supervisor's word after a beat that was ``ago`` seconds before."""
        at = asyncio.get_running_loop().time() - ago
        self.runner.obey({"held": held, "at": at})

    async def beat_for_ever(self) -> None:
        while True:
            if self.beating:
                await self.beat()
            await asyncio.sleep(0.05)

    def deaf_to_refusals(self) -> None:
        """What the event writer is refused is not looked at."""
        self.runner.writer._on_refused = lambda run_id: None


@asynccontextmanager
async def node(model: StepModel, name: str = "r1", concurrency: int = 16) -> AsyncIterator[Node]:
    """A working runner; leaving kills it with whatever it still executes, as a crash would."""
    runner = Runner(execute, runner_id=name, node_id=f"node-{name}", concurrency=concurrency)
    it = Node(runner)
    with patch("chat.executor.get_model", lambda _: model):
        tasks = [asyncio.ensure_future(runner.run()), asyncio.ensure_future(it.beat_for_ever())]
        try:
            yield it
        finally:
            crashed = [e.task for e in runner.registry.all() if e.task]
            with patch.object(runner, "_leave", _crash), patch.object(runner, "_settle", _crash):
                for task in [*tasks, *crashed]:
                    task.cancel()
                await asyncio.gather(*tasks, *crashed, return_exceptions=True)
                await asyncio.gather(*runner._helpers, return_exceptions=True)


async def _crash(*args: Any) -> None:
    """A process that is gone settles nothing."""


async def until(condition: Callable[[], Any], within: float = 10, every: float = 0.005) -> Any:
    """What ``condition`` (which may look at the database) returns, once it is true."""
    async with asyncio.timeout(within):
        while True:
            if result := await db(condition):
                return result
            await asyncio.sleep(every)


async def reaches(run: Run, *statuses: str, within: float = 10) -> Run:
    """Wait until the run has one of these statuses."""
    try:
        return await until(
            lambda: Run.objects.filter(pk=run.pk, status__in=statuses).first(), within
        )
    except TimeoutError:
        now = await db(again, run)
        raise AssertionError(f"{now.agent_id} is {now.status} ({now.detail})") from None


async def ended(run: Run, within: float = 10) -> Run:
    return await reaches(run, *Run.TERMINAL, within=within)


# -- at rest -----------------------------------------------------------------------------------


async def at_rest(chat: ChatSession) -> None:
    await db(assert_at_rest, chat.pk)


def assert_at_rest(session_id: uuid.UUID) -> None:
    """Nothing of this session is stuck, doubled, lost or left open."""
    members = list(Run.objects.filter(session_id=session_id))
    for run in members:
        _assert_run_rests(run)
    _assert_tasks_answered(session_id)
    _assert_log_is_whole(session_id, members)
    _assert_texts_are_the_messages(session_id)
    for agent_id in {run.agent_id for run in members}:
        assert_transcript_valid(session_id, agent_id)


def _assert_run_rests(run: Run) -> None:
    name = f"{run.agent_id} {run.status}"
    open_lease = Lease.objects.filter(run=run, released_at=None)
    questions = Question.objects.filter(run=run, state="open")
    waits = Wait.objects.filter(run=run, closed_at=None)
    if run.status in Run.OWNED:
        assert open_lease.filter(epoch=run.epoch, runner_id=run.runner_id).exists(), name
        return
    assert not open_lease.exists(), f"{name} has an open lease"
    assert run.runner_id == "", f"{name} has an owner"
    if run.status in Run.PARKED:
        assert questions.exists() or waits.exists(), f"{name} waits for nothing"
    elif run.is_terminal:
        assert run.lane is None, f"{name} holds its lane"
        assert run.ended_at, name
        assert run.reason, name
        assert not questions.exists(), f"{name} still asks"
        assert not waits.exists(), f"{name} still waits"
    elif run.lane is None:
        lane = Run.lane_of(run.session_id, run.agent_id)
        assert Run.objects.filter(lane=lane).exists(), f"{name} waits for a free lane"


def _assert_tasks_answered(session_id: uuid.UUID) -> None:
    tasks = InboxMessage.objects.filter(session_id=session_id, kind__in=inbox.TASKS)
    for task in tasks:
        run = Run.objects.get(task=task)
        results = task.replies.filter(kind="result", accepted_for=task).count()
        assert results == (1 if run.is_terminal else 0), f"{results} results of {run}"


def _assert_log_is_whole(session_id: uuid.UUID, members: list[Run]) -> None:
    rows = list(Event.objects.filter(session_id=session_id).order_by("seq"))
    last = Session.objects.get(pk=session_id).last_seq
    assert [row.seq for row in rows] == list(range(1, last + 1)), "seq is not dense"
    stream = [(row.run_id, json.loads(row.data)) for row in rows]
    for row, (_, event) in zip(rows, stream, strict=True):
        EVENT.validate_python(event)
        assert row.type == event["type"]
    exits = Counter(e["value"]["runId"] for _, e in stream if e.get("name") == "ax")
    ends = Counter(str(run_id) for run_id, e in stream if _is_end(e))
    busy = any(run.is_root and run.lane for run in members)
    for run in members:
        done = 1 if run.is_terminal else 0
        assert exits[str(run.pk)] == done, f"{exits[str(run.pk)]} ax of {run.agent_id}"
        if run.is_root and (run.announced or not busy):  # else it is told after the current turn
            assert ends[str(run.pk)] == done, f"{ends[str(run.pk)]} terminal events"
    said = [e["value"] for _, e in stream if e.get("name") == "ax"]
    for exit_ in said:
        row_ = next(run for run in members if str(run.pk) == exit_["runId"])
        assert (exit_["status"], exit_["reason"]) == (row_.status, row_.reason)
    verify(event for _, event in stream)


def _is_end(event: dict[str, Any]) -> bool:
    if event["type"] == "RUN_FINISHED":
        return event["outcome"]["type"] in ("success", "cancelled")
    return event["type"] == "RUN_ERROR"


def _assert_texts_are_the_messages(session_id: uuid.UUID) -> None:
    streamed: dict[str, str] = {}
    for event in logged(session_id, "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"):
        streamed[event["messageId"]] = streamed.get(event["messageId"], "") + event.get("delta", "")
    saved = Message.objects.filter(session_id=session_id, role="assistant", position__isnull=False)
    kept = {str(m.pk): m.content for m in saved if m.content}
    live = Run.objects.filter(session_id=session_id, status__in=Run.OWNED).exists()
    if live:
        return
    outlived = {str(message.pk) for message in saved if _outlived_its_turn(message)}
    for message_id in outlived:  # heard as long as the turn lasted
        assert kept.get(message_id, "").startswith(streamed.pop(message_id, ""))
    assert streamed == {pk: text for pk, text in kept.items() if pk not in outlived}


def _outlived_its_turn(message: Message) -> bool:
    run = Run.objects.get(pk=message.run_id)
    root = Run.objects.get(pk=run.root_id)
    return bool(not run.is_root and root.ended_at and message.created_at > root.ended_at)


def assert_transcript_valid(session_id: uuid.UUID, agent_id: str) -> None:
    """A strict provider takes this conversation with one more message of its user."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    rows = memory.conversation(session_id, agent_id)
    following = ModelRequest(parts=[UserPromptPart("and then?")])
    check_strict([*memory.history(rows), following])
