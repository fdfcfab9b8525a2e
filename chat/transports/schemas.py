"""What goes in and out of the HTTP API, with examples: the page ``/api/docs`` is made of this.

Requests refuse unknown keys, and text that no database or terminal can hold (NUL, lone surrogates),
wherever it stands in them. Answers are what ``actions`` and ``snapshots`` return; these classes
describe them and add nothing. Times are ISO 8601 in UTC, as text.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from ag_ui.core import RunAgentInput
from ninja import Path, Query, Schema
from pydantic import ConfigDict, Field, WithJsonSchema, model_validator

from chat import snapshots

SID = "0e5a6c1e-6a0e-4c0e-9f0a-5f2f4a1a7b10"
MESSAGE = "5b0d2f0c-9d2a-4f3e-8c43-7a1f0f0f7c11"
RUN = "b2f6b1c8-3f0e-4f6b-8a57-3d2c9d1b6f42"
NESTING = 64  # deeper JSON is no answer to anything, and would break whoever recurses into it
AT = "2025-06-01T12:00:00.000000+00:00"


def clean(value: Any) -> Any:
    """The same value. Raises ValueError for text and numbers that cannot be stored as they are."""
    _check(value, 0)
    return value


def _check(value: Any, depth: int) -> None:
    if depth > NESTING:
        raise ValueError(f"JSON may nest {NESTING} deep")
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise ValueError("a number must be finite")
        case dict():
            for name, item in value.items():
                _check_text(name)
                _check(item, depth + 1)
        case list():
            for item in value:
                _check(item, depth + 1)


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise ValueError("text may hold no NUL character (U+0000): leave it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text may hold no lone surrogates: send well-formed Unicode") from None


def plain(row: Any) -> dict[str, Any]:
    """A dataclass of ``actions`` as JSON: ids become text."""

    def text(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: str(item) if isinstance(item, UUID) else item for key, item in pairs}

    return asdict(row, dict_factory=text)


class Request(Schema):
    """A request's body: what it does not name is refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_clean(cls, value: Any) -> Any:
        return clean(value) if isinstance(value, dict) else value


def example(**fields: Any) -> ConfigDict:
    """A request's settings with the example that the documentation shows."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


def shown(**fields: Any) -> ConfigDict:
    """An answer's settings with its example."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


def told(pattern: re.Pattern[str]) -> dict[str, Any]:
    """What a cursor looks like. It is ``snapshots`` that refuses what is none of ours."""
    return {"type": "string", "pattern": f"^({pattern.pattern})?$"}


After = Annotated[
    str | None,
    Query(description="the `next` of the page before"),
    WithJsonSchema(told(snapshots.CURSOR)),
]
AfterSession = Annotated[
    str | None,
    Query(description="the `next` of the page before"),
    WithJsonSchema(told(snapshots.SESSIONS_CURSOR)),
]
Cursor = Annotated[
    str | None,
    Query(description="the `id` of the last event that has arrived; 0: all that the log holds"),
    WithJsonSchema(told(snapshots.CURSOR)),
]
Id = Annotated[str, Path(), WithJsonSchema({"type": "string", "format": "uuid", "example": SID})]
Content = Annotated[str, Field(json_schema_extra={"pattern": r"\S"})]


class Error(Schema):
    """Every refusal. ``code`` is for programs; ``detail`` says what to do next."""

    model_config = ConfigDict(extra="forbid")

    code: str
    detail: str


# -- requests -------------------------------------------------------------------------------------

Title = Annotated[str, Field(max_length=200, description="at most 200 characters")]


class NewSession(Request):
    model_config = example(title="Plans for the summer")

    title: Title = ""


class Rename(Request):
    model_config = example(title="Plans for the autumn")

    title: Title


class NewMessage(Request):
    model_config = example(content="Compare the two offers.", id="3f9c", on_busy="enqueue")

    content: Content = Field(description="text, not blank; at most 1 MiB")
    id: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="your idempotency key: repeat it on a retry",
    )
    on_busy: Literal["enqueue", "reject", "interrupt"] = "enqueue"


class Edit(Request):
    model_config = example(content="Compare the three offers.")

    content: Content = Field(description="the new words; at most 1 MiB")


class Stop(Request):
    model_config = example(run_id=RUN)

    run_id: str | None = Field(default=None, description="which run; else the one that is current")
    agent_id: str | None = Field(default=None, description="stop only this sub-agent")


class Answer(Request):
    model_config = example(question_id=RUN, payload="yes")

    question_id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: Any = Field(default=None, description="must fit the question's response_schema")


class RunInput(RunAgentInput):
    """AG-UI's `RunAgentInput`. Of `messages` the last counts, the user's; its id is the key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "threadId": SID,
                    "runId": "run-1",
                    "messages": [{"id": "m1", "role": "user", "content": "Compare the offers."}],
                }
            ]
        }
    )

    thread_id: str = Field(
        description="a session's id, or a new UUID: then the session is made",
        json_schema_extra={"format": "uuid"},
    )


# -- answers --------------------------------------------------------------------------------------


A_MESSAGE = {
    "id": MESSAGE,
    "role": "user",
    "agent_id": "assistant",
    "content": "Compare the two offers.",
    "parts": [{"type": "text", "text": "Compare the two offers."}],
    "status": "complete",
    "created_at": AT,
}
AN_INBOX_MESSAGE = {
    "id": MESSAGE,
    "sender": "assistant",
    "recipient": "researcher",
    "type": "task",
    "content": "Find the prices.",
    "in_reply_to": None,
    "status": "acked",
    "reason": None,
    "created_at": AT,
    "delivered_at": AT,
    "acked_at": AT,
    "late": False,
}


class SessionItem(Schema):
    model_config = shown(id=SID, title="Plans for the summer", status="idle", created_at=AT)

    id: str = Field(examples=[SID])
    title: str
    status: str = Field(description="idle, queued, running or suspended")
    created_at: str = Field(examples=[AT])


class SessionPage(Schema):
    model_config = shown(
        items=[{"id": SID, "title": "Plans", "status": "idle", "created_at": AT}], next=None
    )

    items: list[SessionItem]
    next: str | None = Field(description="give it back as `after`; null at the end")


class MessageItem(Schema):
    id: str
    role: str = Field(description="user, assistant, tool or system")
    agent_id: str
    content: str
    parts: list[Any]
    status: str = Field(description="complete, partial or interrupted")
    created_at: str | None


class MessagePage(Schema):
    model_config = shown(items=[A_MESSAGE], next="17")

    items: list[MessageItem]
    next: str | None = Field(description="give it back as `before`; null at the beginning")


class LeaseItem(Schema):
    runner_id: str
    epoch: int
    beat_at: str | None
    expires_at: str | None


class AgentItem(Schema):
    agent_id: str
    name: str
    run_id: str
    parent_run_id: str | None
    status: str
    reason: str | None
    lease: LeaseItem | None
    last_progress_at: str | None
    task_id: str | None


class QuestionItem(Schema):
    id: str
    run_id: str
    agent_id: str
    path: list[str]
    ui_type: str
    question: str
    options: list[Any]
    fields: list[Any]
    default_value: Any
    allow_other: bool
    response_schema: dict[str, Any]
    approval: dict[str, Any] | None = Field(
        description="{tool, arguments, digest} where a tool call is to be approved: give the "
        "digest back, with a decision"
    )
    expires_at: str | None


class QueueItem(Schema):
    model_config = shown(id=MESSAGE, content="And then the third.")

    id: str = Field(description="the `message_id` that its sender was told")
    content: str


class Queue(Schema):
    model_config = shown(items=[{"id": MESSAGE, "content": "And then the third."}])

    items: list[QueueItem] = Field(description="in the order in which their turns will come")


class Snapshot(Schema):
    model_config = shown(
        id=SID,
        title="Plans",
        status="running",
        run_id=RUN,
        messages=[A_MESSAGE],
        agents=[],
        questions=[],
        queue=[],
        cursor=42,
    )

    id: str = Field(examples=[SID])
    title: str
    status: str
    run_id: str | None
    messages: list[MessageItem]
    agents: list[AgentItem]
    questions: list[QuestionItem]
    queue: list[QueueItem]
    cursor: int = Field(description="the state is as of this event; follow the stream from here")


class Posted(Schema):
    model_config = shown(message_id=MESSAGE, run_id=RUN, status="started")

    message_id: str
    run_id: str = Field(examples=[RUN])
    status: str = Field(description="started or queued")


class StoppedRun(Schema):
    run_id: str
    agent_id: str
    status: str


class Stopped(Schema):
    model_config = shown(
        status="stopped", runs=[{"run_id": RUN, "agent_id": "assistant", "status": "stopped"}]
    )

    status: str = Field(description="stopped, accepted, already_finished or no_active_run")
    runs: list[StoppedRun]


class Responded(Schema):
    model_config = shown(run_id=RUN)

    run_id: str


class InboxItem(Schema):
    id: str
    sender: str
    recipient: str
    type: str
    content: str
    in_reply_to: str | None
    status: str
    reason: str | None = Field(None, description="why a result is what it is")
    created_at: str
    delivered_at: str | None
    acked_at: str | None
    late: bool


class ReplyTree(InboxItem):
    model_config = shown(**AN_INBOX_MESSAGE, replies=[])

    replies: list[ReplyTree]


class InboxPage(Schema):
    model_config = shown(items=[AN_INBOX_MESSAGE], next=None)

    items: list[InboxItem]
    next: str | None


class WorkLogItem(Schema):
    at: str
    level: str
    kind: str
    agent_id: str | None
    run_id: str | None
    text: str


class WorkLogPage(Schema):
    model_config = shown(
        items=[
            {
                "at": AT,
                "level": "info",
                "kind": "run_started",
                "agent_id": "assistant",
                "run_id": RUN,
                "text": "assistant begins",
            }
        ],
        next=None,
    )

    items: list[WorkLogItem]
    next: str | None
