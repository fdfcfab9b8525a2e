"""What a LangGraph client asks for, and what of it is refused by name.

LangGraph's requests have many fields that nothing here stands behind. Each is taken while it is
empty, or says what is so anyway; else the call is refused with ``unsupported_FIELD`` and the
reason: a client whose wish is dropped in silence would believe that it was granted.
"""

from __future__ import annotations

from typing import Any, Literal, cast
from uuid import UUID

from ninja import Schema
from pydantic import Field

from chat.actions import OnBusy
from chat.agents import MASTER
from coordination.errors import Invalid, NotFound

from .langgraph_parts import MODES
from .schemas import AT, RUN, SID, Request, example, shown

FAR = 1_000_000  # rows to leave out: beyond it there is nothing but a fault
NO_CHECKPOINTS = "A thread has one state, the newest: there is no going back to an older one."
NO_GRAPH = "There are no nodes here that a run could be stopped before or after."
WHY = {
    "after_seconds": "A run begins as soon as its turn has come.",
    "checkpoint": NO_CHECKPOINTS,
    "checkpoint_id": NO_CHECKPOINTS,
    "config": "An agent is configured by the site, not by the call.",
    "context": "An agent is configured by the site, not by the call.",
    "extract": "Read what you need from the thread's values.",
    "feedback_keys": "There is no LangSmith behind this site.",
    "interrupt_after": NO_GRAPH,
    "interrupt_before": NO_GRAPH,
    "langsmith_tracer": "There is no LangSmith behind this site.",
    "metadata": "A thread keeps a title (`metadata: {title}`), and a run nothing.",
    "supersteps": NO_CHECKPOINTS,
    "ttl": "Threads are kept until they are deleted.",
    "values": "Threads are not searched by their values.",
    "webhook": "This site calls nobody. Join the run, or follow its stream.",
    "on_completion": "A stateless run's thread is kept, too. Say keep, or delete the thread.",
    "on_disconnect": "A reader that leaves stops nothing. Say continue; cancel the run to stop it.",
    "cancel_on_disconnect": "A reader that leaves stops nothing. Cancel the run to stop it.",
    "multitask_strategy": "enqueue, reject or interrupt. What was said stays said: no rollback.",
    "action": "interrupt. What was said stays said, so nothing is rolled back.",
    "sort_by": "Threads come newest first.",
    "subgraphs": "A sub-agent's state is not part of the thread's.",
    "stream_mode": f"Of the modes, this site speaks {', '.join(MODES)}.",
    "command": "`resume` answers what is asked. State and next node are not yours to set.",
    "input": 'One user\'s message, as text: {"messages": [{"role": "user", "content": "…"}]}.',
}


def unsupported(field: str) -> Invalid:
    """The refusal of what this field asked for."""
    return Invalid(f"unsupported_{field}", f"`{field}`: {WHY[field]}")


def refuse_all_but(request: Request, **only: tuple[Any, ...]) -> None:
    """Raises Invalid for the first field that asks for something else; empty asks for nothing."""
    for field, allowed in only.items():
        value = getattr(request, field)
        if value and value not in allowed:
            raise unsupported(field)


class NewThread(Request):
    model_config = example(thread_id=SID, metadata={"title": "Plans"}, if_exists="do_nothing")

    thread_id: UUID | None = Field(default=None, description="a UUID of your own, or a new one")
    metadata: dict[str, Any] | None = Field(default=None, description="`title`; nothing else")
    if_exists: Literal["raise", "do_nothing"] = "raise"
    supersteps: Any = None
    ttl: Any = None


class ThreadChange(Request):
    model_config = example(metadata={"title": "Plans for the autumn"})

    metadata: dict[str, Any] | None = None
    ttl: Any = None


class ThreadSearch(Request):
    model_config = example(status="interrupted", limit=10)

    metadata: dict[str, Any] | None = None
    ids: list[UUID] | None = Field(default=None, max_length=1000)
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    limit: int = Field(default=10, ge=1, le=50)  # each comes with its conversation
    offset: int = Field(default=0, ge=0, le=FAR)
    sort_by: str | None = None
    sort_order: Literal["asc", "desc"] = "desc"
    select: Any = Field(default=None, description="everything is sent, whatever is selected")
    values: Any = None
    extract: Any = None


class History(Request):
    model_config = example(limit=1)

    limit: int = Field(default=10, ge=1)
    before: Any = Field(default=None, description="there is nothing before the newest state")
    metadata: Any = None
    checkpoint: Any = None
    select: Any = Field(default=None, description="everything is sent, whatever is selected")


class AssistantSearch(Request):
    model_config = example(graph_id=MASTER)

    graph_id: str | None = None
    name: str | None = None
    metadata: Any = None
    limit: int = Field(default=10, ge=1)
    offset: int = Field(default=0, ge=0, le=FAR)
    sort_by: str | None = None
    sort_order: Any = None
    select: Any = Field(default=None, description="everything is sent, whatever is selected")


class NewRun(Request):
    model_config = example(
        assistant_id=MASTER,
        input={"messages": [{"role": "user", "content": "Compare the two offers."}]},
        stream_mode=["values", "messages-tuple"],
    )

    assistant_id: str
    input: dict[str, Any] | None = None
    command: dict[str, Any] | None = Field(default=None, description="`{resume: …}`")
    stream_mode: str | list[str] = "values"
    stream_subgraphs: bool = Field(default=False, description="sub-agents' messages, too")
    multitask_strategy: str = "enqueue"
    if_not_exists: Literal["create", "reject"] = "reject"
    on_disconnect: str = "continue"
    on_completion: str = "keep"
    # Always so, whatever is said: each step is saved, streams resume, stale answers are refused.
    checkpoint_during: Any = None
    durability: Any = None
    stream_resumable: Any = None
    strict_resume: Any = None

    after_seconds: Any = None
    checkpoint: Any = None
    checkpoint_id: Any = None
    config: Any = None
    context: Any = None
    feedback_keys: Any = None
    interrupt_after: Any = None
    interrupt_before: Any = None
    langsmith_tracer: Any = None
    metadata: Any = None
    webhook: Any = None

    def check(self) -> None:
        """Raises Invalid for what cannot be had here, NotFound for another assistant."""
        check_assistant(self.assistant_id)
        refuse_all_but(
            self,
            multitask_strategy=("enqueue", "reject", "interrupt"),
            on_disconnect=("continue",),
            on_completion=("keep",),
            **dict.fromkeys(NEVER, ()),
        )

    def on_busy(self) -> OnBusy:
        """The strategy as ours; ``check`` has seen that it is one."""
        return cast("OnBusy", self.multitask_strategy)


NEVER = (
    *("after_seconds", "checkpoint", "checkpoint_id", "config", "context", "feedback_keys"),
    *("interrupt_after", "interrupt_before", "langsmith_tracer", "metadata", "webhook"),
)


UNTITLED, ANY_THREAD, ANY_ASSISTANT = NewThread(), ThreadSearch(), AssistantSearch()  # no body


def check_assistant(assistant_id: str) -> None:
    """Raises NotFound: there is one assistant, the master agent."""
    if assistant_id != MASTER:
        raise NotFound("not_found", f"There is one assistant here: {MASTER}.")


def modes_of(wanted: str | list[str] | None, default: tuple[str, ...]) -> frozenset[str]:
    """The stream modes that were asked for. Raises Invalid."""
    modes = [wanted] if isinstance(wanted, str) else wanted or []
    named = [mode for mode in modes if mode]  # a client without a wish sends an empty one
    if not set(named) <= set(MODES):
        raise unsupported("stream_mode")
    return frozenset(named or default)


# -- answers --------------------------------------------------------------------------------------


class Info(Schema):
    model_config = shown(version="1.0", flags={"assistants": True}, strict_resume=True)

    version: str
    flags: dict[str, bool]
    strict_resume: bool = Field(description="a resumed stream has no gap and no repeat")


class Assistant(Schema):
    model_config = shown(
        assistant_id=MASTER,
        graph_id=MASTER,
        name=MASTER,
        description="Talks with the user.",
        version=1,
        config={},
        context={},
        metadata={},
        created_at=AT,
        updated_at=AT,
    )

    assistant_id: str = Field(examples=[MASTER])
    graph_id: str
    name: str
    description: str
    version: int
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    created_at: str = Field(examples=[AT])
    updated_at: str


class Interrupt(Schema):
    id: str
    value: dict[str, Any] = Field(description="the question")
    response_schema: dict[str, Any] = Field(description="what an answer must match")


class Values(Schema):
    messages: list[dict[str, Any]] = Field(description="LangChain messages, the newest 200")


A_MESSAGE = {"id": SID, "type": "human", "content": "Compare the two offers."}


class Thread(Schema):
    model_config = shown(
        thread_id=SID,
        status="idle",
        metadata={"title": "Plans"},
        values={"messages": [A_MESSAGE]},
        interrupts={},
        created_at=AT,
        updated_at=AT,
    )

    thread_id: str = Field(examples=[SID])
    status: str = Field(description="idle, busy or interrupted (a question is open)")
    metadata: dict[str, Any]
    values: Values
    interrupts: dict[str, list[Interrupt]] = Field(description="by the run that asks")
    created_at: str = Field(examples=[AT])
    updated_at: str


class State(Schema):
    model_config = shown(
        values={"messages": [A_MESSAGE]},
        next=[],
        checkpoint={"thread_id": SID, "checkpoint_ns": "", "checkpoint_id": "17"},
        parent_checkpoint=None,
        metadata={},
        created_at=AT,
        tasks=[],
        interrupts=[],
    )

    values: Values
    next: list[str]
    checkpoint: dict[str, Any]
    parent_checkpoint: None
    metadata: dict[str, Any]
    created_at: str = Field(examples=[AT])
    tasks: list[dict[str, Any]]
    interrupts: list[Interrupt]


class Run(Schema):
    model_config = shown(
        run_id=RUN,
        thread_id=SID,
        assistant_id=MASTER,
        status="running",
        metadata={},
        multitask_strategy="enqueue",
        cancel_reason=None,
        created_at=AT,
        updated_at=AT,
    )

    run_id: str = Field(examples=[RUN])
    thread_id: str = Field(examples=[SID])
    assistant_id: str
    status: str = Field(description="pending, running, success, error, timeout or interrupted")
    metadata: dict[str, Any]
    multitask_strategy: str
    cancel_reason: str | None
    created_at: str = Field(examples=[AT])
    updated_at: str
