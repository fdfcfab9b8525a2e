"""What a worker does with a run: model call, tools, again, until there is nothing more to do.

Every step is saved before the next begins, so a run can leave at any line and go on elsewhere from
its last saved step. It leaves by ending, by parking on rows, or by an exception, which
``coordination.worker`` settles: the executor never swallows a cancellation.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from django.conf import settings

from chat import approvals, memory
from chat.agents import find_agent, instructions_for
from chat.llm import (
    ModelError,
    ReasoningDelta,
    StepCompleted,
    StepModel,
    TextDelta,
    ToolCallArgs,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
    get_model,
    is_demo,
)
from chat.memory import Call
from chat.tools import DEMO_TOOLS, tools_of
from chat.tools.base import Outcome, ToolContext, ToolError, Value
from chat.tools.mcp import Offer
from coordination import endings, inbox, leases, rendezvous, runs, vocabulary
from coordination.conf import conf
from coordination.db import patiently
from coordination.errors import CommitUnknown, Fenced, Invalid
from coordination.events import Writer
from coordination.models import Run, Session, Wait
from coordination.registry import Cause, Execution
from coordination.transactions import unit_of_work

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from chat.models import Message

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

SILENT = "provider_silent"  # the model's error that is a budget used up: not tried again
Lost = Fenced | CommitUnknown  # the run is another's, or has to be taken up from its rows


async def execute(execution: Execution, writer: Writer) -> None:
    """Carry the run as far as it goes now. Raises what ``coordination.worker`` settles."""
    run, by = execution.run, execution.runner_id
    turn = Turn(execution, writer, get_model(settings.AGENT_MODEL))
    try:
        async with asyncio.timeout(conf.run_limit) as limit:
            await turn.run(limit)
    except ModelError as error:
        await writer.flush(run)  # what was said is kept
        reason = Run.Reason.BUDGET if error.code == SILENT else Run.Reason.ERROR
        await patiently(endings.failed, run, f"{error.code}: {error.detail}", reason=reason, by=by)
    except TimeoutError:
        if not limit.expired():
            raise
        await writer.flush(run)
        detail = endings.over_the_limit()
        await patiently(endings.failed, run, detail, reason=Run.Reason.BUDGET, by=by)


class Turn:
    """One execution of one run."""

    def __init__(self, execution: Execution, writer: Writer, model: StepModel) -> None:
        self.execution = execution
        self.run_row = execution.run
        self.writer = writer
        self.model = model
        agent = find_agent(self.run_row.agent_id)
        assert agent is not None, f"no agent {self.run_row.agent_id}"
        shown = DEMO_TOOLS if is_demo(settings.AGENT_MODEL) else ()
        self.tool_names = (*agent.tools, *shown)
        self.offer = Offer()
        self.rows: list[Message] = []
        self.said = False  # whether the step under way has logged anything

    async def run(self, limit: asyncio.Timeout) -> None:
        """Step after step until the run ends or parks. Earlier executions count in the limit."""
        begun = await self._sure(_take_up, self.run_row)
        limit.reschedule((limit.when() or 0) - begun.held_before)
        self.rows = begun.rows
        self.offer = await tools_of(self.tool_names)
        parked = bool(begun.to_make) and await self._tool_step(begun.to_make)
        if parked or await self._was_answered():
            return
        while self._steps_made() < conf.max_steps:
            await self._before_step()
            message, done = await self._model_step()
            calls = memory.open_calls([message])
            if done or (calls and await self._tool_step(calls)):
                return
        await patiently(
            endings.failed,
            self.run_row,
            f"more than {conf.max_steps} model calls in one turn",
            reason=Run.Reason.BUDGET,
            by=self.execution.runner_id,
        )

    def _steps_made(self) -> int:
        """Model calls of this run, here and wherever it was executed before."""
        return sum(row.run_id == self.run_row.pk and bool(row.model_json) for row in self.rows)

    async def _was_answered(self) -> bool:
        """Where the last thing said is this run's answer, only the end of the run is missing."""
        last = self.rows[-1] if self.rows else None
        if last is None or last.run_id != self.run_row.pk or not last.model_json:
            return False
        by = self.execution.runner_id
        return not memory.open_calls([last]) and await self._sure(
            finish, self.run_row, last.content, by
        )

    async def _before_step(self) -> None:
        """Between two steps nothing is under way: the place to leave, and to take in messages."""
        if self.execution.draining:
            self.execution.cancel(Cause.HANDOVER)
        while await self._sure(memory.look_before_model_call, self.run_row):
            self.rows += await self._sure(memory.take_in, self.run_row)
        self.offer = await tools_of(self.tool_names)

    async def _sure(self, unit: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A unit of the run's work, begun only while its lease is sure."""
        await self.execution.gate.wait()
        return await patiently(unit, *args, **kwargs)

    # -- the model -----------------------------------------------------------------------

    async def _model_step(self) -> tuple[Message, bool]:
        """What the model said, and whether that was all: the run has ended, or waits.

        Tried again where the provider failed for now and nobody has read a word.
        """
        for attempt in range(conf.model_retries + 1):
            try:
                return await self._one_model_step()
            except ModelError as error:
                final = self.said or error.code == SILENT or attempt == conf.model_retries
                if final or not error.retryable:
                    raise
                pause = error.retry_after or conf.model_retry_pause * 2**attempt
                log.warning("model_retry", extra={"code": error.code, "pause": pause})
                await asyncio.sleep(pause)
                await self._sure(runs.check_owned, self.run_row)
        raise AssertionError("unreachable")

    async def _one_model_step(self) -> tuple[Message, bool]:
        message_id = uuid.uuid4()
        stream = _StreamToLog(
            self.run_row, self.writer, str(message_id), memory.call_ids(self.rows)
        )
        history = await asyncio.to_thread(memory.history, self.rows)
        step = self.model.stream_step(
            history,
            instructions="\n".join([instructions_for(self.run_row.agent_id), *self.offer.missing]),
            tools=[tool.spec for tool in self.offer.tools.values()],
            silence_timeout=conf.model_silence,
        )
        self.said = False
        usage_before = self.run_row.usage
        try:
            async with step:
                async for event in step:
                    self.said = True
                    await self.execution.gate.wait()
                    stream.write(event)
            assert stream.completed is not None, "the model's stream ended without StepCompleted"
            stream.end_reasoning()
            await self.writer.flush(self.run_row)
            message, done = await self._save(message_id, stream, stream.completed)
        except BaseException:  # what was cut off has cost something all the same
            self.run_row.usage = memory.add_usage(usage_before, step.usage_so_far())
            raise
        self.rows.append(message)
        return message, done

    async def _save(
        self, message_id: uuid.UUID, stream: _StreamToLog, completed: StepCompleted
    ) -> tuple[Message, bool]:
        response = memory.cleaned(completed.response, stream.named)
        step = (self.run_row, message_id, response, completed.usage)
        if response.tool_calls:
            saved = await self._sure(memory.save_response, *step, text_open=stream.text_open)
            return saved, False
        by = self.execution.runner_id
        return await self._sure(save_answer, *step, text_open=stream.text_open, by=by)

    # -- the tools -----------------------------------------------------------------------

    async def _go_on_with(self, calls: Sequence[Call]) -> bool:
        """Go on with calls whose suspensions were over at once. True if the run parked."""
        if not calls:
            return False
        rows, to_make = await self._sure(memory.collect, self.run_row, calls)
        self.rows += rows
        return await self._tool_step(to_make) if to_make else False

    async def _tool_step(self, calls: Sequence[Call]) -> bool:
        """Make the calls of one step, all at once. True if the run has parked on any of them."""
        await self._sure(runs.check_owned, self.run_row)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call(call)) for call in calls]
        outcomes = [(call, _finished(task)) for call, task in zip(calls, tasks, strict=True)]
        saved = await self._sure(memory.save_outcomes, self.run_row, outcomes)
        self.rows += saved.rows
        if saved.parked:
            return True
        answered = {row.parts[0]["tool_call_id"] for row in saved.rows}
        return await self._go_on_with([call for call in calls if call.call_id not in answered])

    async def _call(self, call: Call) -> Outcome | Lost:
        """One call. Whatever goes wrong in it is a text to the model, but for a lost run."""
        tool = self.offer.tools.get(call.name)
        if tool is None:
            offered = f"You have: {', '.join(self.offer.tools)}."
            why = " ".join([f"you have no {call.name!r}.", *self.offer.missing, offered])
            return Value(f"unknown_tool: {why}")
        try:
            if tool.requires_approval and not call.approved:
                return approvals.ask_about(tool, call.arguments)
            if call.begun and not tool.repeatable:
                return Value(memory.UNKNOWN_EFFECT)
            async with asyncio.timeout(conf.tool_timeout):
                made = await tool(ToolContext(self.run_row, call.call_id), call.arguments)
            return _with_what_was_edited(call, made) if call.edited else made
        except ToolError as error:
            return Value(f"error: {error}")
        except TimeoutError:
            return Value(f"error: {call.name} did not end within {conf.tool_timeout:g} seconds.")
        except (Fenced, CommitUnknown) as error:  # a raise would be wrapped by the group
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody has cancelled this call: the tool has let a cancellation of its own get out.
            return Value(f"error: {call.name} failed: it was cancelled from within.")
        except Exception as error:
            log.exception("tool_failed", extra={"tool": call.name, "run": str(self.run_row.pk)})
            return Value(f"error: {call.name} failed: {type(error).__name__}: {error}")


def _with_what_was_edited(call: Call, made: Outcome) -> Outcome:
    """The model has not written these arguments, and is told so."""
    if not isinstance(made, Value):
        return made
    changed = json.loads(call.arguments)
    return replace(made, content={"arguments_changed_by_user": changed, "result": made.content})


def _finished(task: asyncio.Task[Outcome | Lost]) -> Outcome:
    result = task.result()
    if isinstance(result, Lost):
        raise result
    return result


@dataclass(frozen=True)
class _TakenUp:
    """What an execution begins with; ``held_before`` in seconds."""

    held_before: float
    rows: list[Message]
    to_make: list[Call]


def _take_up(run: Run) -> _TakenUp:
    """The conversation as it stands; after a suspension or a crash its last step is finished."""
    before = leases.held_before(run) if run.epoch > 1 else 0.0
    rows = memory.conversation(run.session_id, run.agent_id)
    calls = memory.open_calls(rows)
    results, to_make = memory.collect(run, calls) if calls else ([], [])
    return _TakenUp(before, rows + results, to_make)


class _StreamToLog:
    """Turns one step's stream into events of one message.

    A call's id is its name in the memory, in the log and in the rows that wait for its answer. A
    provider that numbers the calls of each response from one gets others in their place; so does
    one whose ids differ in what a database's collation takes for the same.
    """

    def __init__(self, run: Run, writer: Writer, message_id: str, used: set[str]) -> None:
        self.run = run
        self.writer = writer
        self.message_id = message_id
        self.used = used
        self.ids: dict[str, str] = {}  # the provider's → ours
        self.named: list[tuple[str, str]] = []  # the same as pairs, in order
        self.text_open = False
        self.reasoning_id: str | None = None
        self.completed: StepCompleted | None = None

    def write(self, event: object) -> None:
        """Log one event of the model's stream."""
        run, put = self.run, self.writer.put
        match event:
            case TextDelta(text):
                text = memory.clean(text)
                self.end_reasoning()
                if not self.text_open:
                    put(run, vocabulary.text_start(run, self.message_id))
                    self.text_open = True
                put(run, vocabulary.text_content(run, self.message_id, text))
            case ReasoningDelta(text):
                if self.reasoning_id is None:
                    self.reasoning_id = str(uuid.uuid4())
                    put(run, *vocabulary.reasoning_start(run, self.reasoning_id))
                put(run, vocabulary.reasoning_content(run, self.reasoning_id, memory.clean(text)))
            case ToolCallStarted(call_id, name):
                self.end_reasoning()
                our_id = self._name_call(call_id)
                put(run, vocabulary.tool_call_start(run, our_id, name, self.message_id))
            case ToolCallArgs(call_id, delta):
                our_id = self.ids[call_id]
                put(run, vocabulary.tool_call_args(run, our_id, memory.clean(delta)))
            case ToolCallEnded(call_id):
                put(run, vocabulary.tool_call_end(run, self.ids[call_id]))
            case StepCompleted():
                self.completed = event

    def _name_call(self, call_id: str) -> str:
        plain = call_id.isascii() and call_id.strip() == call_id
        taken = not plain or call_id.casefold() in self.used
        our_id = f"call-{uuid.uuid4().hex}" if taken else call_id
        self.used.add(call_id.casefold())
        self.ids[call_id] = our_id
        self.named.append((call_id, our_id))
        return our_id

    def end_reasoning(self) -> None:
        """Close the span of reasoning, if one is open."""
        if self.reasoning_id is not None:
            self.writer.put(self.run, *vocabulary.reasoning_end(self.run, self.reasoning_id))
            self.reasoning_id = None


@unit_of_work
def save_answer(
    run: Run,
    message_id: uuid.UUID,
    response: ModelResponse,
    usage: Usage,
    *,
    text_open: bool,
    by: str,
) -> tuple[Message, bool]:
    """Save what the model said last and ``finish``, in one transaction."""
    with runs.owned(run) as (session, fresh):
        message = memory.add_response(
            session, fresh, message_id, response, usage, text_open=text_open
        )
        done = _finish(session, fresh, message.content, by)
    run.usage = fresh.usage
    return message, done


@unit_of_work
def finish(run: Run, text: str, by: str) -> bool:
    """The model has nothing more to do: end the run, or wait for what is outstanding.

    False where a message came in at the last moment: one more step takes it in. Looking and ending
    are one transaction, so nothing arrives between the two.
    """
    with runs.owned(run) as (session, fresh):
        return _finish(session, fresh, text, by)


def _finish(session: Session, run: Run, text: str, by: str) -> bool:
    try:
        inbox.check_size(text if run.task_id else "")
    except Invalid as refusal:  # it would be its result
        return endings.settle(
            session, run, Run.Status.FAILED, reason=Run.Reason.ERROR, detail=refusal.detail, by=by
        )
    if inbox.deliverable(run):
        return False
    outstanding = rendezvous.outstanding(run)
    if outstanding:
        left = rendezvous.tail_left(run)
        if left > 0:
            rendezvous.open_wait(
                session,
                run,
                tool_call_id=rendezvous.TAIL,
                tasks=outstanding,
                mode=Wait.Mode.ANY,
                timeout=left,
            )
            return memory.park(session, run, asked=False)
        if inbox.note_missing_results(session, run, outstanding):
            return False
    return endings.settle(
        session, run, Run.Status.COMPLETED, reason=Run.Reason.COMPLETED, by=by, result=text
    )
