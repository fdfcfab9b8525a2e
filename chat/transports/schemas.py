"""What goes in and out of the HTTP API, with examples: the page ``/api/docs`` is made of this.

Requests refuse unknown keys, and text that no database or terminal can hold (NUL, lone surrogates),
wherever it stands in them. Answers are what ``actions`` and ``snapshots`` return; these classes
describe them and add nothing. Times are ISO 8601 in UTC, as text.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any, Literal
from uuid import UUID

from ninja import Schema
from pydantic import ConfigDict, Field, model_validator

SID = "0e5a6c1e-6a0e-4c0e-9f0a-5f2f4a1a7b10"
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
    return ConfigDict(extra="forbid", json_schema_extra={"example": fields})


class Error(Schema):
    """Every refusal. ``code`` is for programs; ``detail`` says what to do next."""

    code: str = Field(examples=["not_found"])
    detail: str = Field(examples=["There is no such thing, or it is not yours."])


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

    content: str = Field(description="text; at most 1 MiB")
    id: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="your idempotency key: repeat it on a retry",
    )
    on_busy: Literal["enqueue", "reject", "interrupt"] = "enqueue"


class Edit(Request):
    model_config = example(content="Compare the three offers.")

    content: str = Field(description="the new words; at most 1 MiB")


class Stop(Request):
    model_config = example(run_id=RUN)

    run_id: str | None = Field(default=None, description="which run; else the one that is current")
    agent_id: str | None = Field(default=None, description="stop only this sub-agent")


class Answer(Request):
    model_config = example(question_id=RUN, payload="yes")

    question_id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: Any = Field(default=None, description="must fit the question's response_schema")


# -- answers --------------------------------------------------------------------------------------


class SessionItem(Schema):
    id: str = Field(examples=[SID])
    title: str
    status: str = Field(description="idle, queued, running or suspended")
    created_at: str = Field(examples=[AT])


class SessionPage(Schema):
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
    expires_at: str | None


class QueueItem(Schema):
    id: str = Field(description="the `message_id` that its sender was told")
    content: str


class Queue(Schema):
    items: list[QueueItem] = Field(description="in the order in which their turns will come")


class Snapshot(Schema):
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
    message_id: str
    run_id: str = Field(examples=[RUN])
    status: str = Field(description="started or queued")


class StoppedRun(Schema):
    run_id: str
    agent_id: str
    status: str


class Stopped(Schema):
    status: str = Field(description="stopped, accepted, already_finished or no_active_run")
    runs: list[StoppedRun]


class Responded(Schema):
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
    replies: list[ReplyTree]


class InboxPage(Schema):
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
    items: list[WorkLogItem]
    next: str | None
