"""The words of the event log: AG-UI 1.0 events as the JSON objects that go over the wire.

Plain dicts, because most of them are written once per token; the tests validate every logged event
with ``ag-ui-protocol``. An event of a sub-agent carries its run as ``subagentRunId``; what AG-UI
has no word for is ``CUSTOM`` with one of the names of CONTRACT.md section 4. AG-UI's "interrupt" is
our question: the translation is here and nowhere else.
"""

from __future__ import annotations

from typing import Any

from .conf import conf
from .models import InboxMessage, Question, Run

PROTOCOL_VERSION = "1.0"

AguiEvent = dict[str, Any]


def _attributed(run: Run, event: AguiEvent) -> AguiEvent:
    return event if run.is_root else {**event, "subagentRunId": str(run.pk)}


def run_started(run: Run) -> AguiEvent:
    """A root run begins, or goes on after a question."""
    return {
        "type": "RUN_STARTED",
        "threadId": str(run.session_id),
        "runId": str(run.pk),
        "protocolVersion": PROTOCOL_VERSION,
    }


def run_finished(
    run: Run, outcome: dict[str, Any], usage: list[dict[str, Any]], result: Any = None
) -> AguiEvent:
    """A root run ended (``success``, ``cancelled``) or waits for a person (``interrupt``)."""
    event: AguiEvent = {
        "type": "RUN_FINISHED",
        "threadId": str(run.session_id),
        "runId": str(run.pk),
        "outcome": outcome,
    }
    if result is not None:
        event["result"] = result
    if usage:
        event["usage"] = usage
    return event


def run_error(message: str, code: str, usage: list[dict[str, Any]]) -> AguiEvent:
    """A root run ended without an answer; ``code`` is its reason."""
    event: AguiEvent = {"type": "RUN_ERROR", "message": message, "code": code}
    if usage:
        event["usage"] = usage
    return event


def subagent_started(run: Run) -> AguiEvent:
    """A sub-agent's run begins, or goes on after a question."""
    event: AguiEvent = {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": str(run.pk),
        "name": run.agent_id,
    }
    if run.parent_tool_call_id:
        event["parentToolCallId"] = run.parent_tool_call_id
    if run.depth > 1:
        event["parentSubagentRunId"] = str(run.parent_id)
    return event


def subagent_finished(run: Run, suspended_by: list[str] | None = None) -> AguiEvent:
    """A sub-agent's run ended well, or is suspended by open questions (their ids)."""
    outcome: dict[str, Any] = {"type": "success"}
    if suspended_by is not None:
        outcome = {"type": "suspended", "interruptIds": suspended_by}
    return {"type": "SUBAGENT_FINISHED", "subagentRunId": str(run.pk), "outcome": outcome}


def subagent_error(run: Run, message: str, code: str) -> AguiEvent:
    """A sub-agent's run ended without a result of its own."""
    return {
        "type": "SUBAGENT_ERROR",
        "subagentRunId": str(run.pk),
        "message": message,
        "code": code,
    }


def text_start(run: Run, message_id: str, role: str = "assistant") -> AguiEvent:
    """A text message opens."""
    event = {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role}
    return _attributed(run, {**event, "name": run.agent_id})


def text_content(run: Run, message_id: str, delta: str) -> AguiEvent:
    """A piece of a text message; neighbours are merged in the log."""
    return _attributed(
        run, {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta}
    )


def text_end(run: Run, message_id: str) -> AguiEvent:
    """A text message closes."""
    return _attributed(run, {"type": "TEXT_MESSAGE_END", "messageId": message_id})


def reasoning_start(run: Run, message_id: str) -> list[AguiEvent]:
    """A span of reasoning opens."""
    return [
        _attributed(run, {"type": "REASONING_START", "messageId": message_id}),
        _attributed(
            run, {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": "reasoning"}
        ),
    ]


def reasoning_content(run: Run, message_id: str, delta: str) -> AguiEvent:
    """A piece of reasoning."""
    return _attributed(
        run, {"type": "REASONING_MESSAGE_CONTENT", "messageId": message_id, "delta": delta}
    )


def reasoning_end(run: Run, message_id: str) -> list[AguiEvent]:
    """A span of reasoning closes."""
    return [
        _attributed(run, {"type": "REASONING_MESSAGE_END", "messageId": message_id}),
        _attributed(run, {"type": "REASONING_END", "messageId": message_id}),
    ]


def tool_call_start(run: Run, call_id: str, name: str, message_id: str) -> AguiEvent:
    """A tool call opens; ``message_id`` is the assistant message it belongs to."""
    return _attributed(
        run,
        {
            "type": "TOOL_CALL_START",
            "toolCallId": call_id,
            "toolCallName": name,
            "parentMessageId": message_id,
        },
    )


def tool_call_args(run: Run, call_id: str, delta: str) -> AguiEvent:
    """A piece of a call's arguments."""
    return _attributed(run, {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta})


def tool_call_end(run: Run, call_id: str) -> AguiEvent:
    """A call's arguments are complete, or will never be."""
    return _attributed(run, {"type": "TOOL_CALL_END", "toolCallId": call_id})


def tool_call_result(run: Run, message_id: str, call_id: str, content: str) -> AguiEvent:
    """What a tool returned; ``message_id`` is the tool message it becomes."""
    return _attributed(
        run,
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": message_id,
            "toolCallId": call_id,
            "content": content,
            "role": "tool",
        },
    )


def custom(name: str, value: Any) -> AguiEvent:
    """One of the names of CONTRACT.md section 4 that AG-UI has no word for."""
    return {"type": "CUSTOM", "name": name, "value": value}


def agent_exit(run: Run) -> AguiEvent:
    """``ax``: an agent's exit, once per run."""
    return custom(
        "ax",
        {
            "agentId": run.agent_id,
            "runId": str(run.pk),
            "status": run.status,
            "reason": run.reason,
        },
    )


def inbox_written(message: InboxMessage) -> AguiEvent:
    """``inbox``: a message was written; the preview wakes, the row is the content."""
    return custom(
        "inbox",
        {
            "id": str(message.pk),
            "sender": message.sender,
            "recipient": message.recipient,
            "type": message.kind,
            "inReplyTo": str(message.in_reply_to_id) if message.in_reply_to_id else None,
            "preview": message.content[: conf.preview_chars],
        },
    )


def question_json(question: Question) -> dict[str, Any]:
    """The question of CONTRACT.md section 3."""
    return {
        "id": str(question.pk),
        "run_id": str(question.run_id),
        "agent_id": question.agent_id,
        "path": question.path,
        "ui_type": question.ui_type,
        "question": question.question,
        "options": question.options,
        "fields": question.fields,
        "default_value": question.default_value,
        "allow_other": question.allow_other,
        "response_schema": question.response_schema,
        "approval": question.approval,
        "expires_at": question.expires_at.isoformat(),
    }


def question_changed(question: Question) -> AguiEvent:
    """``question``: opened or closed, with its ``state``."""
    return custom("question", {**question_json(question), "state": question.state})


def agui_interrupt(question: Question) -> dict[str, Any]:
    """The question as AG-UI's interrupt."""
    interrupt: dict[str, Any] = {
        "id": str(question.pk),
        "reason": "tool_call" if question.approval else "input_required",
        "message": question.question,
        "toolCallId": question.tool_call_id,
        "responseSchema": question.response_schema,
        "expiresAt": question.expires_at.isoformat(),
        "metadata": question_json(question),
    }
    if question.run.parent_id is not None:
        interrupt["subagentRunId"] = str(question.run_id)
    return interrupt
