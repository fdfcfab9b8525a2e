"""The Agent Protocol and the LangGraph API, as far as LangGraph's own clients use it to chat.

A thin translation: a thread is a session, a run the run of one message, both under their own ids;
what is done is done by ``chat.actions``. What has no meaning here is refused by name
(``langgraph_schemas``), and an address that has none is ``unsupported``.
"""

from __future__ import annotations

import functools
import uuid
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from ninja import Body, Query, Router
from ninja.responses import Status

from chat import actions
from chat.models import ChatSession
from coordination.db import db
from coordination.errors import Conflict, Invalid, NotFound

from . import auth, langgraph_rows, run_streams
from . import langgraph_runs as runs
from . import langgraph_schemas as asked
from .langgraph_schemas import refuse_all_but, unsupported
from .openapi import CLOSED, says

router = Router(tags=["langgraph"])

BEGINNING = ("busy", "id_conflict", "no_open_question", "ambiguous_resume", *CLOSED)  # a run
STREAM = {
    "description": "The parts of the run's stream; their `id` resumes as `Last-Event-ID`.",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'id: 7-0\nevent: values\ndata: {"messages":[]}\n\n',
        }
    },
}
VALUES = {
    "description": "The thread's values, with `__interrupt__` if it asks; or `__error__`.",
    "content": {"application/json": {"schema": {"type": "object"}, "example": {"messages": []}}},
}
CREATED = says(conflicts=BEGINNING)
STREAMED = says(answer=STREAM, conflicts=BEGINNING)
FOLLOWED = says(answer=STREAM)
WAITED = says(answer=VALUES, conflicts=BEGINNING)
JOINED = says(answer=VALUES)
WITHOUT_MODE = ("values", "updates", "messages-tuple", "custom")  # for who joins and names no mode


async def _thread(request: HttpRequest, thread_id: str) -> ChatSession:
    chat: ChatSession = await actions.find_session(auth.user(request), thread_id)
    return chat


@router.get("/info", response={200: asked.Info})
async def info(request: HttpRequest) -> dict[str, Any]:  # noqa: ARG001
    """What this server can do; a client looks whether somebody is there."""
    return {"version": "1.0", "flags": {"assistants": True, "crons": False}, "strict_resume": True}


# -- assistants -----------------------------------------------------------------------------------


@router.post("/assistants/search", response={200: list[asked.Assistant]}, auth=auth.SEARCHING)
async def search_assistants(
    request: HttpRequest,  # noqa: ARG001
    body: Annotated[asked.AssistantSearch, Body()] = asked.ANY_ASSISTANT,
) -> list[dict[str, Any]]:
    """The assistants: there is one, the master agent. Its sub-agents are its own to call."""
    found = langgraph_rows.assistant()
    wanted = {"graph_id": body.graph_id, "name": body.name}
    fits = not body.metadata and all(found[key] == name for key, name in wanted.items() if name)
    return [found] if fits and not body.offset else []


@router.get("/assistants/{assistant_id}", response={200: asked.Assistant})
async def get_assistant(
    request: HttpRequest,  # noqa: ARG001
    assistant_id: str,
) -> dict[str, Any]:
    """The assistant."""
    asked.check_assistant(assistant_id)
    return langgraph_rows.assistant()


# -- threads --------------------------------------------------------------------------------------


@router.post(
    "/threads",
    response={200: asked.Thread},
    openapi_extra=says(conflicts=["exists"], strangers=True),
)
async def create_thread(
    request: HttpRequest, body: Annotated[asked.NewThread, Body()] = asked.UNTITLED
) -> dict[str, Any]:
    """Begin a conversation, under an id of your own if you like."""
    refuse_all_but(body, supersteps=(), ttl=())
    title = _title(body.metadata)
    if body.thread_id is None:
        chat = await actions.create_session(
            auth.user(request), title=title or "", language=auth.language(request)
        )
        return await db(langgraph_rows.thread, chat.pk)
    if body.if_exists == "raise" and await _is_own(request, body.thread_id):
        raise Conflict("exists", "You have a thread of this id. Say if_exists: do_nothing.")
    chat = await run_streams.find_or_create(request, body.thread_id)
    if title is not None:
        await actions.rename_session(chat, title)
    return await db(langgraph_rows.thread, chat.pk)


async def _is_own(request: HttpRequest, thread_id: uuid.UUID) -> bool:
    try:
        await _thread(request, str(thread_id))
    except NotFound:
        return False
    return True


def _title(metadata: dict[str, Any] | None) -> str | None:
    """The title that the metadata gives; it can hold nothing else. Raises Invalid."""
    given = {**(metadata or {})}
    title = given.pop("title", None)
    if not (given.items() <= langgraph_rows.OURS.items() and isinstance(title, str | None)):
        raise unsupported("metadata")
    return title


@router.post("/threads/search", response={200: list[asked.Thread]}, auth=auth.SEARCHING)
async def search_threads(
    request: HttpRequest, body: Annotated[asked.ThreadSearch, Body()] = asked.ANY_THREAD
) -> list[dict[str, Any]]:
    """Your threads, newest first."""
    refuse_all_but(body, values=(), extract=(), sort_by=("created_at",))
    return await db(langgraph_rows.threads, auth.user(request).pk, body)


@router.get("/threads/{thread_id}", response={200: asked.Thread})
async def get_thread(request: HttpRequest, thread_id: str) -> dict[str, Any]:
    """A thread, with what was said in it and what it asks."""
    return await db(langgraph_rows.thread, (await _thread(request, thread_id)).pk)


@router.patch(
    "/threads/{thread_id}",
    response={200: asked.Thread, 204: None},
)
async def update_thread(request: HttpRequest, thread_id: str, body: asked.ThreadChange) -> Any:
    """Give it another title."""
    refuse_all_but(body, ttl=())
    title = _title(body.metadata)
    chat = await _thread(request, thread_id)
    if title is not None:
        await actions.rename_session(chat, title)
    if request.headers.get("Prefer") == "return=minimal":
        return Status(204, None)
    return await db(langgraph_rows.thread, chat.pk)


@router.delete("/threads/{thread_id}", response={204: None})
async def delete_thread(request: HttpRequest, thread_id: str) -> Status[Any]:
    """Delete it; what runs in it is stopped."""
    await actions.delete_session(await _thread(request, thread_id), by=auth.name(request))
    return Status(204, None)


@router.get("/threads/{thread_id}/state", response={200: asked.State})
async def get_state(request: HttpRequest, thread_id: str, subgraphs: bool = False) -> Any:
    """The thread's state as it is."""
    if subgraphs:
        raise unsupported("subgraphs")
    return await db(langgraph_rows.state, (await _thread(request, thread_id)).pk)


@router.post("/threads/{thread_id}/history", response={200: list[asked.State]}, auth=auth.SEARCHING)
async def get_history(request: HttpRequest, thread_id: str, body: asked.History) -> Any:
    """The thread's states: the newest, which is the only one that is kept."""
    refuse_all_but(body, metadata=(), checkpoint=())
    chat = await _thread(request, thread_id)
    return [] if body.before else [await db(langgraph_rows.state, chat.pk)]


# -- runs: to begin one, and to follow it ---------------------------------------------------------


@router.post("/threads/{thread_id}/runs", response={200: asked.Run}, openapi_extra=CREATED)
async def create_run(
    request: HttpRequest, response: HttpResponse, thread_id: str, body: asked.NewRun
) -> dict[str, Any]:
    """Say something, or answer what is asked (`command: {resume: …}`); the run goes its way."""
    return await _create(request, response, thread_id, body)


@router.post("/runs", response={200: asked.Run}, openapi_extra=CREATED)
async def create_stateless_run(
    request: HttpRequest, response: HttpResponse, body: asked.NewRun
) -> dict[str, Any]:
    """The same in a new thread, which stays."""
    return await _create(request, response, None, body)


async def _create(
    request: HttpRequest, response: HttpResponse, thread_id: str | None, body: asked.NewRun
) -> dict[str, Any]:
    begun = await runs.begin(request, thread_id, body)
    runs.locate(response, begun)
    return await db(langgraph_rows.run, begun.chat.pk, begun.run_id)


@router.post(
    "/threads/{thread_id}/runs/stream",
    response={200: None},
    openapi_extra=STREAMED,
)
async def stream_run(request: HttpRequest, thread_id: str, body: asked.NewRun) -> HttpResponseBase:
    """Say something or answer, and follow the run to its end. Leaving does not stop it."""
    return await _stream(request, thread_id, body)


@router.post("/runs/stream", response={200: None}, openapi_extra=STREAMED)
async def stream_stateless_run(request: HttpRequest, body: asked.NewRun) -> HttpResponseBase:
    """The same in a new thread, which stays."""
    return await _stream(request, None, body)


async def _stream(
    request: HttpRequest, thread_id: str | None, body: asked.NewRun
) -> HttpResponseBase:
    modes = asked.modes_of(body.stream_mode, ("values",))
    begun = await runs.begin(request, thread_id, body)
    return await runs.stream(request, begun, modes, subgraphs=body.stream_subgraphs)


@router.get(
    "/threads/{thread_id}/runs/{run_id}/stream",
    response={200: None},
    openapi_extra=FOLLOWED,
)
async def join_stream(
    request: HttpRequest,
    thread_id: str,
    run_id: str,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    stream_subgraphs: bool = False,
    cancel_on_disconnect: bool = False,
) -> HttpResponseBase:
    """Follow a run from its beginning, or after `Last-Event-ID`, to its end."""
    if cancel_on_disconnect:
        raise unsupported("cancel_on_disconnect")
    modes = asked.modes_of(stream_mode, WITHOUT_MODE)
    after = runs.position(request.headers.get("Last-Event-ID"))
    found = await runs.find(request, thread_id, run_id)
    return await runs.stream(request, found, modes, subgraphs=stream_subgraphs, after=after)


@router.post(
    "/threads/{thread_id}/runs/wait",
    response={200: None},
    openapi_extra=WAITED,
)
async def wait_for_run(
    request: HttpRequest, thread_id: str, body: asked.NewRun
) -> HttpResponseBase:
    """Say something or answer, and wait until the run has ended or asks."""
    return await runs.wait(request, await runs.begin(request, thread_id, body))


@router.post("/runs/wait", response={200: None}, openapi_extra=WAITED)
async def wait_for_stateless_run(request: HttpRequest, body: asked.NewRun) -> HttpResponseBase:
    """The same in a new thread, which stays."""
    return await runs.wait(request, await runs.begin(request, None, body))


@router.get(
    "/threads/{thread_id}/runs/{run_id}/join",
    response={200: None},
    openapi_extra=JOINED,
)
async def join_run(
    request: HttpRequest, thread_id: str, run_id: str, cancel_on_disconnect: bool = False
) -> HttpResponseBase:
    """Wait until a run has ended or asks."""
    if cancel_on_disconnect:
        raise unsupported("cancel_on_disconnect")
    return await runs.wait(request, await runs.find(request, thread_id, run_id))


# -- runs: to look at one, and to stop it ---------------------------------------------------------


@router.get("/threads/{thread_id}/runs", response={200: list[asked.Run]})
async def list_runs(
    request: HttpRequest,
    thread_id: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    offset: Annotated[int, Query(ge=0, le=asked.FAR)] = 0,
    status: Literal["pending", "running", "error", "success", "timeout", "interrupted"]
    | None = None,
) -> list[dict[str, Any]]:
    """The thread's runs, newest first. Those of sub-agents are their masters'."""
    chat = await _thread(request, thread_id)
    return await db(langgraph_rows.runs, chat.pk, status=status, limit=limit, offset=offset)


@router.get("/threads/{thread_id}/runs/{run_id}", response={200: asked.Run})
async def get_run(request: HttpRequest, thread_id: str, run_id: str) -> dict[str, Any]:
    """A run as it stands."""
    found = await runs.find(request, thread_id, run_id)
    return await db(langgraph_rows.run, found.chat.pk, found.run_id)


@router.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    response={202: None, 204: None},
    auth=auth.STOPPING,
)
async def cancel_run(
    request: HttpRequest,
    response: HttpResponse,
    thread_id: str,
    run_id: str,
    wait: bool = False,
    action: str = "interrupt",
) -> Status[Any]:
    """Stop the run and all its sub-agents: 202 recorded; with ``wait`` 204, proved."""
    if action != "interrupt":
        raise unsupported("action")
    found = await runs.find(request, thread_id, run_id)
    stop = functools.partial(
        actions.stop, found.chat, run_id=str(found.run_id), by=auth.name(request)
    )
    stopped = await stop()
    while wait and stopped.status == "accepted":  # not for long: who does not stop is fenced
        stopped = await stop()
    runs.locate(response, found, "/join")
    return Status(204 if wait else 202, None)


# -- the rest of LangGraph's addresses ------------------------------------------------------------


@router.api_operation(
    ["GET", "POST", "PUT", "PATCH", "DELETE"], "/{path:rest}", include_in_schema=False
)
async def everything_else(request: HttpRequest, rest: str) -> None:  # noqa: ARG001
    """Crons, the store, copies and states of one's own making have nothing behind them here."""
    raise Invalid("unsupported", f"This site has no /{rest}; /api/docs lists what it has.")
