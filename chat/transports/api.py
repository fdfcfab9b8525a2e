"""The HTTP API of CONTRACT.md section 3: verbs in, rows out. The thinking is in ``chat.actions``.

Every view first finds the session among the caller's own; what is not there is 404, whatever the
reason. Addresses that do not exist, wrong methods and unreadable bodies are answered in the same
JSON as everything else, which is why ``JsonApi`` wraps each view.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, URLResolver, re_path
from django.views.decorators.csrf import csrf_exempt
from ninja import Body, NinjaAPI
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation
from ninja.responses import Status

from chat import actions, snapshots
from chat.models import ChatSession
from coordination import panel
from coordination.conf import conf
from coordination.db import db
from coordination.errors import NotFound
from coordination.wakeups import Hub

from . import agui, auth, errors, langgraph, openapi, schemas, sse
from .openapi import CLOSED, leads_to, says

PAGE = 50  # conversations in one answer

DESCRIPTION = """
A chat with a master agent and its sub-agents, on a cluster: every node answers for every session.

Sign in with `Authorization: Bearer TOKEN` (`manage.py api_token USER`), or with the session cookie
and `X-CSRFToken`. Everything refused is `{"code": …, "detail": …}`; `code` is for programs.

Events (`/api/chat/{sid}/events`, the WebSocket `/ws/chat/{sid}/`, `/api/agui`) are AG-UI 1.0.
"""


class JsonApi(NinjaAPI):
    """A NinjaAPI that answers in JSON whatever happens below its root."""

    def _get_urls(self) -> list[URLPattern | URLResolver]:
        urls = super()._get_urls()
        for url in urls:
            if isinstance(url, URLPattern):
                url.callback = _json_only(url.callback)
        return [*urls, re_path(r"", _json_only(_nothing_here), name="nothing-here")]

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        prefix = self.get_root_path(path_params or {}) if path_prefix is None else path_prefix
        return openapi.Description(self, prefix)

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def on_exception(self, request: HttpRequest, exc: Exception) -> HttpResponse:  # type: ignore[override]
        return errors.answer(request, exc)


def _json_only(view: Callable[..., Any]) -> Callable[..., Any]:
    call = view if inspect.iscoroutinefunction(view) else sync_to_async(view)

    @csrf_exempt  # auth.SessionCookie checks it, and only where a cookie signs in
    @functools.wraps(view)
    async def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        Hub.current()  # from the first request on this process listens, and sends its hints
        try:
            _read_body(request)
            response = errors.in_json(await call(request, *args, **kwargs))
            response.headers.setdefault("Cache-Control", "no-store")  # they are somebody's own
            return response
        except Exception as error:  # noqa: BLE001
            return errors.answer(request, error)

    return wrapper


def _read_body(request: HttpRequest) -> None:
    """Django measures what a client announces; a chunked body announces nothing."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    try:
        size = len(request.body)
    except RequestDataTooBig:
        size = limit + 1
    if size > limit:
        raise errors.too_large(conf.message_bytes)


async def _nothing_here(_request: HttpRequest) -> HttpResponse:
    return errors.response(404, "not_found", "There is no such address; see /api/docs.")


api = JsonApi(
    title="agentsite",
    version="1.0",
    description=DESCRIPTION,
    auth=auth.SIGNED_IN,
    urls_namespace="api",
)

UNTITLED = schemas.NewSession()  # no body says the same as an empty one
CURRENT = schemas.Stop()

OF_A_SESSION = (
    "get_session", "rename_session", "post_message", "interrupt", "queue", "events", "messages",
    "inbox", "worklog", "delete_session",
)  # fmt: skip
OF_A_MESSAGE = ("edit_waiting", "remove_waiting")
IN_ITS_SESSION = {"sid": "$request.path.sid", "message_id": "$response.body#/message_id"}
OUT_OF_THE_QUEUE = ("already_started", "already_removed")


async def _chat(request: HttpRequest, sid: str) -> ChatSession:
    chat: ChatSession = await actions.find_session(auth.user(request), sid)
    return chat


def _item(chat: ChatSession, status: str) -> dict[str, Any]:
    return {
        "id": str(chat.pk),
        "title": chat.title,
        "status": status,
        "created_at": chat.created_at.isoformat(),
    }


# -- sessions -------------------------------------------------------------------------------------


@api.post(
    "/chat",
    response={201: schemas.SessionItem},
    openapi_extra=says(links={201: leads_to(*OF_A_SESSION, sid="$response.body#/id")}),
    tags=["sessions"],
)
async def create_session(
    request: HttpRequest,
    body: Annotated[schemas.NewSession, Body()] = UNTITLED,
) -> Status[Any]:
    """Begin a conversation. The agents speak the language of ``Accept-Language`` (zh or en)."""
    chat = await actions.create_session(
        auth.user(request), title=body.title, language=auth.language(request)
    )
    return Status(201, _item(chat, "idle"))


@api.get("/chat", response={200: schemas.SessionPage}, tags=["sessions"])
async def list_sessions(request: HttpRequest, after: schemas.AfterSession = None) -> dict[str, Any]:
    """Your conversations, newest first. ``next`` is the ``after`` of the next page."""
    return await db(snapshots.sessions_page, auth.user(request).pk, after=after, limit=PAGE)


@api.get("/chat/{sid}", response={200: schemas.Snapshot}, tags=["sessions"])
async def get_session(request: HttpRequest, sid: schemas.Id) -> dict[str, Any]:
    """The state as it is; follow the events from its ``cursor`` to stay up to date."""
    chat = await _chat(request, sid)
    return await db(snapshots.snapshot, chat.pk)


@api.patch("/chat/{sid}", response={200: schemas.SessionItem}, tags=["sessions"])
async def rename_session(
    request: HttpRequest, sid: schemas.Id, body: schemas.Rename
) -> dict[str, Any]:
    """Give the conversation another title."""
    chat = await _chat(request, sid)
    await actions.rename_session(chat, body.title)
    chat.title = body.title
    return _item(chat, await db(_status, chat))


def _status(chat: ChatSession) -> str:
    return panel.session_status(chat.pk)[0]


@api.delete("/chat/{sid}", response={204: None}, tags=["sessions"])
async def delete_session(request: HttpRequest, sid: schemas.Id) -> Status[Any]:
    """Delete the conversation; what runs in it is stopped."""
    await actions.delete_session(await _chat(request, sid), by=auth.name(request))
    return Status(204, None)


# -- the three verbs ------------------------------------------------------------------------------


@api.post(
    "/chat/{sid}/messages",
    response={202: schemas.Posted},
    openapi_extra=says(
        conflicts=("busy", "id_conflict"),
        links={202: leads_to(*OF_A_MESSAGE, **IN_ITS_SESSION)},
    ),
    tags=["conversation"],
)
async def post_message(
    request: HttpRequest, sid: schemas.Id, body: schemas.NewMessage
) -> Status[Any]:
    """Say something. The answer comes over the event stream.

    The same ``id`` again gives the same answer and no second run. ``on_busy`` says what to do while
    a turn runs: wait in the queue, refuse (409 ``busy``), or stop that turn first.
    """
    chat = await _chat(request, sid)
    posted = await actions.post_message(
        chat,
        body.content,
        key=body.id,
        on_busy=body.on_busy,
        by=auth.name(request),
    )
    return Status(202, schemas.plain(posted))


@api.post(
    "/chat/{sid}/interrupt",
    response={200: schemas.Stopped},
    auth=auth.STOPPING,
    tags=["conversation"],
)
async def interrupt(
    request: HttpRequest,
    sid: schemas.Id,
    body: Annotated[schemas.Stop, Body()] = CURRENT,
) -> dict[str, Any]:
    """Stop what runs now, never what runs later: ``stopped`` is proved, ``accepted`` recorded."""
    chat = await _chat(request, sid)
    stopped = await actions.stop(
        chat, run_id=body.run_id, agent_id=body.agent_id, by=auth.name(request)
    )
    return schemas.plain(stopped)


@api.post(
    "/chat/{sid}/respond",
    response={202: schemas.Responded},
    openapi_extra=says(conflicts=CLOSED),
    tags=["conversation"],
)
async def respond(request: HttpRequest, sid: schemas.Id, body: schemas.Answer) -> Status[Any]:
    """Answer a question, or decline it (``cancelled``). One answer counts; later ones are 409."""
    chat = await _chat(request, sid)
    run_id = await actions.respond(
        chat,
        body.question_id,
        status=body.status,
        payload=body.payload,
        by=auth.name(request),
    )
    return Status(202, {"run_id": str(run_id)})


# -- the queue -----------------------------------------------------------------------------------


@api.get("/chat/{sid}/queue", response={200: schemas.Queue}, tags=["queue"])
async def queue(request: HttpRequest, sid: schemas.Id) -> dict[str, Any]:
    """The messages that wait for the turns before them, the next one first."""
    return {"items": await actions.waiting_messages(await _chat(request, sid))}


@api.patch(
    "/chat/{sid}/queue/{message_id}",
    response={200: schemas.QueueItem},
    openapi_extra=says(conflicts=OUT_OF_THE_QUEUE),
    tags=["queue"],
)
async def edit_waiting(
    request: HttpRequest, sid: schemas.Id, message_id: schemas.Id, body: schemas.Edit
) -> dict[str, Any]:
    """Give a message that waits other words; it keeps its place and its run.

    409 once it has left the queue: `already_started` or `already_removed`.
    """
    return await actions.edit_waiting(await _chat(request, sid), message_id, body.content)


@api.delete(
    "/chat/{sid}/queue/{message_id}",
    response={204: None},
    openapi_extra=says(conflicts=OUT_OF_THE_QUEUE),
    tags=["queue"],
)
async def remove_waiting(
    request: HttpRequest, sid: schemas.Id, message_id: schemas.Id
) -> Status[Any]:
    """Take a message out of the queue: it never runs, and no agent ever reads it.

    409 once it has left the queue: `already_started` or `already_removed`.
    """
    chat = await _chat(request, sid)
    await actions.remove_waiting(chat, message_id, by=auth.name(request))
    return Status(204, None)


# -- reading --------------------------------------------------------------------------------------


@api.get(
    "/chat/{sid}/events",
    response={200: None},
    openapi_extra=says(answer=openapi.STREAM, parameters=[openapi.LAST_EVENT_ID]),
    tags=["events"],
)
async def events(
    request: HttpRequest, sid: schemas.Id, cursor: schemas.Cursor = None
) -> HttpResponseBase:
    """Follow the conversation as server-sent events.

    ``Last-Event-ID`` or ``cursor`` resumes after that event; ``cursor=0`` replays the whole log;
    without either the stream begins with the state as it is.
    """
    return await sse.respond(request, sid, cursor)


@api.get("/chat/{sid}/messages", response={200: schemas.MessagePage}, tags=["conversation"])
async def messages(
    request: HttpRequest, sid: schemas.Id, agent_id: str | None = None, before: schemas.After = None
) -> dict[str, Any]:
    """Earlier messages, or a sub-agent's own conversation."""
    chat = await _chat(request, sid)
    return await db(snapshots.messages_page, chat.pk, agent_id=agent_id, before=before)


@api.get("/chat/{sid}/inbox", response={200: schemas.InboxPage}, tags=["inspection"])
async def inbox(
    request: HttpRequest, sid: schemas.Id, after: schemas.After = None
) -> dict[str, Any]:
    """What the agents have written to each other, oldest first."""
    chat = await _chat(request, sid)
    return await db(snapshots.inbox_page, chat.pk, after=after)


@api.get(
    "/chat/{sid}/inbox/{mid}/chain",
    response={200: schemas.ReplyTree},
    tags=["inspection"],
)
async def reply_chain(request: HttpRequest, sid: schemas.Id, mid: schemas.Id) -> dict[str, Any]:
    """The reply tree that holds this message, root first."""
    chat = await _chat(request, sid)
    message_id = actions.as_uuid(mid)
    if message_id is None:
        raise NotFound("not_found", errors.NOT_FOUND)
    return await db(snapshots.reply_chain, chat.pk, message_id)


@api.get("/chat/{sid}/worklog", response={200: schemas.WorkLogPage}, tags=["inspection"])
async def worklog(
    request: HttpRequest, sid: schemas.Id, after: schemas.After = None
) -> dict[str, Any]:
    """What happened, oldest first: starts, stops, losses, verdicts."""
    chat = await _chat(request, sid)
    return await db(snapshots.worklog_page, chat.pk, after=after)


@api.post(
    "/agui",
    response={200: None},
    openapi_extra=says(answer=openapi.STREAM, strangers=True, conflicts=("id_conflict", *CLOSED)),
    tags=["events"],
)
async def run_agent(request: HttpRequest, body: schemas.RunInput) -> HttpResponseBase:
    """The AG-UI 1.0 HTTP binding. ``threadId`` is the session; leaving does not stop the run."""
    return await agui.respond(request, body)


# -- LangGraph's clients --------------------------------------------------------------------------

api.add_router("/lg", langgraph.router)
