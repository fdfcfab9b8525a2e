"""An agent's memory: rows to model messages and back, every write fenced, and repair.

One ``Message`` row is one message of one agent's conversation. A step is saved in one transaction
with its events, its inbox acks and its suspensions, so memory, log and inbox never disagree. What a
stop or a crash left behind is made valid again on the way to the provider (``repaired``): every
tool call is answered directly after it, by its result or by "interrupted"; nothing answers a call
that is not there; arguments that are no JSON are never sent back.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.db.models import Exists

from chat import approvals
from chat.llm import Usage, text_of
from chat.models import Message
from chat.tools.base import Await, Outcome, TakeIn, Value
from coordination import events, inbox, rendezvous, runs, suspensions, texts, vocabulary
from coordination.errors import Fenced
from coordination.models import InboxMessage, Question, Run, Session, Wait
from coordination.prepared import Insert, Rows, Values, given
from coordination.suspensions import Ask
from coordination.transactions import unit_of_work

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart

UNKNOWN_EFFECT = (
    "The worker was lost during this call: it is unknown whether it took effect. Check before you "
    "do it again."
)
LATE = "; late, this task has been answered before and this is only for your information"
NO_OUTPUT = "(no output)"  # a blank result would be refused by a strict provider
INTERRUPTED = "Interrupted by the user; this call did not finish."


@dataclass(frozen=True)
class Call:
    """A tool call of the last saved step that has no result yet."""

    call_id: str
    name: str
    arguments: str
    begun: bool = False  # it may have been made before, by whoever was lost
    approved: bool = False  # by a person, with exactly these arguments
    edited: bool = False  # by that person


# -- rows to model messages ------------------------------------------------------------------


_CONVERSATION = Rows(
    lambda: Message.objects.filter(
        session_id=given("session"), agent_id=given("agent"), position__isnull=False
    ).order_by("position")
)
_INSERT = Insert(Message)


def conversation(session_id: uuid.UUID, agent_id: str) -> list[Message]:
    """The agent's messages in order, without those that wait in the queue."""
    return _CONVERSATION(session=session_id, agent=agent_id)


def history(rows: Iterable[Message]) -> list[ModelMessage]:
    """What the provider is given: the rows as Pydantic AI's messages, repaired."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    messages: list[ModelMessage] = []
    for row in rows:
        if _is_hidden(row):
            continue
        match row.role:
            case Message.Role.ASSISTANT:
                response = _response(row)
                if response is not None:
                    messages.append(response)
            case Message.Role.TOOL:
                part = row.parts[0]
                messages.append(
                    ModelRequest(
                        parts=[
                            ToolReturnPart(
                                tool_name=part["name"],
                                content=row.content if row.content.strip() else NO_OUTPUT,
                                tool_call_id=part["tool_call_id"],
                            )
                        ]
                    )
                )
            case _:
                messages.append(ModelRequest(parts=[UserPromptPart(content=row.content)]))
    return repaired(messages)


def _is_hidden(row: Message) -> bool:
    """Notices are for people; the text of a broken step was said again by the next attempt."""
    return any(part.get("type") in ("notice", "superseded") for part in row.parts)


def _response(row: Message) -> ModelResponse | None:
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart

    if row.model_json:
        message = ModelMessagesTypeAdapter.validate_json(row.model_json)[0]
        assert isinstance(message, ModelResponse)
    else:
        message = ModelResponse(parts=[TextPart(content=row.content)])
    # A strict provider refuses a blank text, and a response that says nothing and calls nothing.
    message.parts = [part for part in message.parts if not _is_blank(part)]
    return message if text_of(message) or message.tool_calls else None


def _is_blank(part: ModelResponsePart) -> bool:
    return part.part_kind == "text" and not part.content.strip()


def repaired(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The same conversation, valid for a strict provider."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart

    results = {
        part.tool_call_id: part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    whole: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [_with_valid_arguments(call) for call in message.tool_calls]
            whole.append(message)
            if calls:
                whole.append(
                    ModelRequest(
                        parts=[
                            results.get(call.tool_call_id)
                            or ToolReturnPart(
                                tool_name=call.tool_name,
                                content=INTERRUPTED,
                                tool_call_id=call.tool_call_id,
                            )
                            for call in calls
                        ]
                    )
                )
        elif not all(isinstance(part, ToolReturnPart) for part in message.parts):
            whole.append(message)
    return whole


def _with_valid_arguments(call: Any) -> Any:
    """Mend the call in place: a provider refuses arguments that are not a JSON object."""
    try:
        valid = isinstance(json.loads(call.args_as_json_str()), dict)
    except ValueError:
        valid = False
    if not valid:
        call.args = "{}"
    return call


# -- what a run reads ------------------------------------------------------------------------


_MAY_BEGIN = Values(
    lambda: runs.owned_and_wanted().annotate(mail=Exists(inbox.waiting())).values_list("mail")
)


def look_before_model_call(run: Run) -> bool:
    """Read the row before a model call: may it begin? True if messages wait to be taken in.

    Raises Fenced where the run is to stop or belongs to somebody else.
    """
    seen = _MAY_BEGIN(
        run=run.pk,
        epoch=run.epoch,
        session=run.session_id,
        agent=run.agent_id,
        task=run.task_id,
    )
    if not seen:
        raise Fenced
    return bool(seen[0][0])


def take_in(run: Run) -> list[Message]:
    """Take in what waits in the inbox: ack and memory are one transaction, after a counted try.

    Not always all of it at once (``inbox.begin_delivery``): look again afterwards.
    """
    return _take_in(run, inbox.begin_delivery(run))


@unit_of_work
def _take_in(run: Run, mail: list[uuid.UUID]) -> list[Message]:
    taken: list[Message] = []
    with runs.owned(run) as (session, fresh):
        taken += [
            _remember(session, fresh, message)
            for message in inbox.deliverable(fresh)
            if (message.pk == fresh.task_id or message.pk in mail) and message.ack()
        ]
        if taken:
            runs.mark_saved(session, fresh)
    return taken


def _remember(session: Session, run: Run, message: InboxMessage) -> Message:
    is_task = message.kind in inbox.TASKS
    part = {
        "type": "inbox",
        "message_id": str(message.pk),
        "kind": message.kind,
        "sender": message.sender,
        "in_reply_to": str(message.in_reply_to_id) if message.in_reply_to_id else None,
        "reason": message.reason,
    }
    return _add(
        session,
        run,
        role=Message.Role.USER if is_task else Message.Role.SYSTEM,
        content=message.content if is_task else inbox_text(message),
        parts=[part],
    )


def inbox_text(message: InboxMessage) -> str:
    """An inbox message as a model reads it."""
    about = f" (in reply to {message.in_reply_to_id}{LATE if message.late else ''})"
    if not message.in_reply_to_id:
        about = ""
    sender = message.sender
    if message.kind == InboxMessage.Kind.RESULT and message.in_reply_to is not None:
        sender = message.in_reply_to.recipient
    return f"[inbox] {message.kind} from {sender}{about}: {message.content}"


def _add(
    session: Session,
    run: Run,
    *,
    role: str,
    content: str,
    parts: list[dict[str, Any]],
    message_id: uuid.UUID | None = None,
    status: str = Message.Status.COMPLETE,
    model_json: str = "",
) -> Message:
    row = Message(
        id=message_id or uuid.uuid4(),
        session_id=session.pk,
        agent_id=run.agent_id,
        run_id=run.pk,
        position=session.next_position(),
        role=role,
        status=status,
        content=content,
        parts=parts,
        model_json=model_json,
    )
    _INSERT(row)
    return row


# -- text that can be kept --------------------------------------------------------------------

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """A lone surrogate, such as half a pair that a provider has cut, becomes U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def cleaned(response: ModelResponse, named: Sequence[tuple[str, str]]) -> ModelResponse:
    """The response with every text, and the ids of its calls, as its readers have seen them."""
    names: dict[str, list[str]] = {}
    for its_id, our_id in named:
        names.setdefault(its_id, []).append(our_id)
    for call in response.tool_calls:
        if names.get(call.tool_call_id):
            call.tool_call_id = names[call.tool_call_id].pop(0)
    for part in response.parts:
        match part.part_kind:
            case "text" | "thinking":
                part.content = clean(part.content)
            case "tool-call" if isinstance(part.args, str):
                part.args = clean(part.args)
    return response


# -- saving a step ---------------------------------------------------------------------------


@unit_of_work
def save_response(
    run: Run, message_id: uuid.UUID, response: ModelResponse, usage: Usage, *, text_open: bool
) -> Message:
    """Save what the model said, with calls that are to be made; see ``add_response``."""
    with runs.owned(run) as (session, fresh):
        message = add_response(session, fresh, message_id, response, usage, text_open=text_open)
    run.usage = fresh.usage
    return message


def add_response(
    session: Session,
    run: Run,
    message_id: uuid.UUID,
    response: ModelResponse,
    usage: Usage,
    *,
    text_open: bool,
) -> Message:
    """Add what the model said; its text message ends in the log with the same commit."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    text = text_of(response)
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    parts += [
        {
            "type": "tool_call",
            "tool_call_id": call.tool_call_id,
            "name": call.tool_name,
            "args": call.args_as_json_str(),
        }
        for call in response.tool_calls
    ]
    message = _add(
        session,
        run,
        role=Message.Role.ASSISTANT,
        content=text,
        parts=parts,
        message_id=message_id,
        model_json=ModelMessagesTypeAdapter.dump_json([response]).decode(),
    )
    if text_open:
        events.append(session, run, vocabulary.text_end(run, str(message_id)))
    runs.mark_saved(session, run, add_usage(run.usage, usage))
    return message


def add_usage(total: dict[str, Any], step: Usage) -> dict[str, Any]:
    """The run's usage with one more step."""
    tokens = {
        "input_tokens": total.get("input_tokens", 0) + step.input_tokens,
        "output_tokens": total.get("output_tokens", 0) + step.output_tokens,
    }
    return {
        "provider": step.provider,
        "model": step.model,
        **tokens,
        "total_tokens": sum(tokens.values()),
    }


@dataclass(frozen=True)
class Saved:
    """How a step of tool calls ended."""

    rows: list[Message]
    parked: bool


@unit_of_work
def save_outcomes(run: Run, outcomes: Sequence[tuple[Call, Outcome]]) -> Saved:
    """Save finished calls and open the suspensions of the others; park where any stands open."""
    rows = []
    awaited_tasks = {task for _, outcome in outcomes for task in _awaited_by(outcome)}
    with runs.owned(run) as (session, fresh):
        asked = awaited = False
        for call, outcome in outcomes:
            match outcome:
                case Value(content):
                    rows.append(_add_result(session, fresh, call, content))
                case TakeIn():
                    content = {"messages": _received(fresh, awaited_tasks)}
                    rows.append(_add_result(session, fresh, call, content))
                case Ask():
                    suspensions.open_question(session, fresh, call.call_id, outcome)
                    asked = True
                case Await(tasks, timeout, mode):
                    rendezvous.open_wait(
                        session,
                        fresh,
                        tool_call_id=call.call_id,
                        tasks=tasks,
                        mode=mode,
                        timeout=timeout,
                    )
                    awaited = True
        runs.mark_saved(session, fresh)
        parked = (asked or awaited) and park(session, fresh, asked=asked)
    return Saved(rows, parked)


def _awaited_by(outcome: Outcome) -> list[uuid.UUID]:
    return outcome.tasks if isinstance(outcome, Await) else []


def _received(run: Run, awaited: set[uuid.UUID]) -> list[dict[str, Any]]:
    """What waits in the inbox, acked; but for the results that another call of this step awaits."""
    return [
        {
            "message_id": str(message.pk),
            "type": message.kind,
            "sender": message.sender,
            "in_reply_to": str(message.in_reply_to_id) if message.in_reply_to_id else None,
            "content": message.content,
            "reason": message.reason,
            "late": message.late,
        }
        for message in inbox.deliverable(run)
        if message.accepted_for_id not in awaited and message.ack()
    ]


def park(session: Session, run: Run, *, asked: bool) -> bool:
    """Park the run on its open questions and waits. False where all were satisfied already."""
    if not asked and not Wait.objects.filter(run=run, closed_at=None).exists():
        return False
    status = Run.Status.WAITING_USER if asked else Run.Status.WAITING_CHILD
    runs.park(session, run, status)
    suspensions.announce_suspension(session, run)
    return True


def _add_result(session: Session, run: Run, call: Call, content: Any) -> Message:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    part = {"type": "tool_result", "tool_call_id": call.call_id, "name": call.name}
    row = _add(session, run, role=Message.Role.TOOL, content=text, parts=[part])
    events.append(session, run, vocabulary.tool_call_result(run, str(row.pk), call.call_id, text))
    return row


# -- going on after a suspension or a crash --------------------------------------------------


def call_ids(rows: Sequence[Message]) -> set[str]:
    """The ids that the conversation's calls have, as a database may compare them: without case."""
    return {
        part["tool_call_id"].casefold()
        for row in rows
        for part in row.parts
        if part["type"] == "tool_call"
    }


def open_calls(rows: Sequence[Message]) -> list[Call]:
    """Tool calls of the conversation's last response that have no result."""
    answered = set()
    for row in reversed(rows):
        if _is_hidden(row):
            continue
        if row.role == Message.Role.TOOL:
            answered.add(row.parts[0]["tool_call_id"])
        elif row.role == Message.Role.ASSISTANT:
            return [
                Call(part["tool_call_id"], part["name"], part["args"])
                for part in row.parts
                if part["type"] == "tool_call" and part["tool_call_id"] not in answered
            ]
    return []


@unit_of_work
def collect(run: Run, calls: Sequence[Call]) -> tuple[list[Message], list[Call]]:
    """Turn closed questions and waits into the results of their calls, once, in one transaction.

    Returns the new rows, and the calls that are to be made: those which had not been suspended
    (again), and those that were approved.
    """
    rows, to_make = [], []
    with runs.owned(run) as (session, fresh):
        for call in calls:
            result = _suspension_result(fresh, call)
            if isinstance(result, Call):
                to_make.append(result)
            else:
                rows.append(_add_result(session, fresh, call, result))
        if rows:  # taking up a call again is no progress: one that kills its worker is counted
            runs.mark_saved(session, fresh)
    return rows, to_make


_ASKED = Rows(
    lambda: Question.objects.filter(run=given("run"), tool_call_id=given("call")).order_by("pk")[:1]
)


def _suspension_result(run: Run, call: Call) -> Any:
    """What became of the call's suspension; a Call where it is now to be made."""
    question = _ASKED.first(run=run.pk, call=call.call_id)
    if question is not None:
        return _approved(question, call) if question.approval else _answer(question)
    outcomes = [outcome.as_json() for outcome in rendezvous.collect(run, call.call_id)]
    if not outcomes:
        return replace(call, begun=True)
    return outcomes[0] if call.name == "send_message" else {"results": outcomes}


def _approved(question: Question, call: Call) -> Call | dict[str, Any]:
    arguments = approvals.approved_arguments(question)
    if arguments is None:
        return approvals.refusal(question)
    assert question.approval is not None
    return Call(
        call.call_id,
        question.approval["tool"],
        json.dumps(arguments),
        begun=not question.take_up(),
        approved=True,
        edited=arguments != question.approval["arguments"],
    )


def _answer(question: Question) -> dict[str, Any]:
    match question.state:
        case Question.State.ANSWERED:
            return {"status": "answered", "answer": question.answer}
        case Question.State.EXPIRED:
            return {"status": "expired", "default_value": question.default_value}
        case state:
            return {"status": state, "detail": "The user did not answer. This is not a yes."}


# -- the end of a turn -----------------------------------------------------------------------


def interrupted_calls(session: Session, run: Run) -> None:
    """Close the calls that the end of the run left open, in the memory and in the log."""
    for call in open_calls(_rows_of(run)):
        _add_result(session, run, call, texts.interrupted_call(session, run))


def _rows_of(run: Run) -> list[Message]:
    """What this run has added to its agent's conversation, in order."""
    rows = Message.objects.filter(run_id=run.pk, agent_id=run.agent_id, position__isnull=False)
    return list(rows.order_by("position"))


def close_calls_in_log(session: Session, run: Run, root: Run) -> None:
    """The turn ends before this run of its tree does: its calls get their results in the log now.

    Their rows come with the run's own end, which logs no more of them.
    """
    items = events.unsaved(run)
    open_in_memory = [call.call_id for call in open_calls(_rows_of(run))]
    _log_interrupted(session, run, [*open_in_memory, *items.ended_calls, *items.calls], root)


def _log_interrupted(session: Session, run: Run, call_ids: Iterable[str], end: Run) -> None:
    for call_id in call_ids:
        text = texts.interrupted_call(session, end)
        result = vocabulary.tool_call_result(run, str(uuid.uuid4()), call_id, text)
        events.append(session, run, result)


def keep_partial(
    session: Session, run: Run, items: events.OpenItems, *, superseded: bool = False
) -> None:
    """Keep the text of a step that was cut off, to the letter as readers have seen it.

    ``superseded``: the step begins again, and whoever reads along is told that, too.
    """
    extra = [{"type": "superseded"}] if superseded else []
    said = {**items.ended_texts, **items.texts}
    if superseded and said:
        told = vocabulary.custom("superseded", {"runId": str(run.pk), "messageIds": list(said)})
        events.append(session, run, told)
    for message_id, text in said.items():
        _add(
            session,
            run,
            role=Message.Role.ASSISTANT,
            content=text,
            parts=[{"type": "text", "text": text}, *extra],
            message_id=uuid.UUID(message_id),
            status=Message.Status.INTERRUPTED,
        )
    _log_interrupted(session, run, [*items.ended_calls, *items.calls], run)


def notice(session: Session, run: Run, kind: str, text: str) -> None:
    """A line of the site itself in the conversation: shown, marked, never given to a model."""
    part = {"type": "notice", "kind": kind, "reason": run.reason}
    _add(session, run, role=Message.Role.SYSTEM, content=text, parts=[part])
