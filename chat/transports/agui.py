"""The AG-UI 1.0 HTTP binding: ``RunAgentInput`` in, the events of one run out, then the end.

``threadId`` is the session (made when it is new). The client sends its whole history each time, but
the history here is the session's own: of ``messages`` only the last, the user's, counts, and its id
is the idempotency key. With ``resume`` nothing is posted: its entries answer questions, and the
stream is that of the run which goes on. ``runId`` is the client's name for the run, so the events
that begin and end it carry that name, with our own beside it as metadata.

The stream ends with the run; a client that leaves before stops nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ag_ui.core import RunAgentInput, UserMessage
from django.db import IntegrityError
from django.http import HttpRequest, StreamingHttpResponse

from chat import actions
from chat.models import ChatSession
from coordination import events, panel, vocabulary
from coordination.db import db
from coordination.errors import Invalid, NotFound, Refused
from coordination.events import Logged
from coordination.models import Event, Question, Run

from . import auth, errors, schemas, sse, streaming
from .agui_messages import text_of

KEY_CHARS = 128
TERMINAL = ("RUN_FINISHED", "RUN_ERROR")


async def respond(request: HttpRequest, body: RunAgentInput) -> StreamingHttpResponse:
    """Post or answer, and stream what comes of it. Raises Refused before the stream begins."""
    message = None if body.resume else _message(body)  # before a session is made for nothing
    chat = await _session(request, body.thread_id)
    _, before = await db(events.bounds, chat.pk)
    if message is None:
        run_id = await _resume(request, chat, body)
        asking = await db(_still_asking, chat.pk, run_id, before)
        if asking:
            return sse.stream(_told(asking, body.run_id))
        cursor = before
    else:
        content, key = message
        posted = await actions.post_message(chat, content, key=key, by=auth.name(request))
        run_id = posted.run_id
        cursor = await db(_start_of, chat.pk, run_id, before)
        if await db(_ended_while_it_waited, run_id):
            return sse.stream(_told(await db(_never_began, run_id, cursor), body.run_id))
    batches = sse.batches(request, chat.pk, cursor, anew=True)
    return sse.stream(_frames(batches, str(run_id), body.run_id))


def _message(body: RunAgentInput) -> tuple[str, str]:
    """What to post and its key. Raises Invalid."""
    last = body.messages[-1] if body.messages else None
    if not isinstance(last, UserMessage):
        raise Invalid(
            "invalid", "The last of `messages` must be the user's; or answer with `resume`."
        )
    text = text_of(last.content)
    if not text or not text.strip():
        raise Invalid("invalid", "The user's message must be text, and not empty.")
    if not 0 < len(last.id) <= KEY_CHARS:
        raise Invalid("invalid", f"The user's message needs an id of 1 to {KEY_CHARS} characters.")
    return actions.check_text(text), actions.check_text(last.id)


async def _session(request: HttpRequest, thread_id: str) -> ChatSession:
    """The caller's session of that id, made if nobody has one. Raises NotFound, Invalid."""
    user = auth.user(request)
    try:
        wanted = uuid.UUID(thread_id)
    except ValueError:
        raise Invalid("invalid", "threadId must be a UUID: a session's id, or a new one.") from None
    chat: ChatSession
    try:
        chat = await actions.find_session(user, wanted)
        return chat
    except NotFound:
        if await db(ChatSession.objects.filter(pk=wanted).exists):
            raise
    try:
        chat = await actions.create_session(
            user, language=auth.language(request), session_id=wanted
        )
    except IntegrityError:  # the same client, twice at once
        chat = await actions.find_session(user, wanted)
    return chat


async def _resume(request: HttpRequest, chat: ChatSession, body: RunAgentInput) -> uuid.UUID:
    """Answer the questions; the run that goes on. Raises the first refusal if none was taken."""
    run_id = None
    refused: Refused | None = None
    for entry in body.resume or ():
        try:
            payload = schemas.clean(entry.payload)
            run_id = await actions.respond(
                chat,
                entry.interrupt_id,
                status=entry.status,
                payload=payload,
                by=auth.name(request),
            )
        except ValueError as fault:
            refused = refused or Invalid("invalid", f"resume: {fault}")
        except Refused as error:
            refused = refused or error
    if run_id is None:
        raise refused or NotFound("not_found", errors.NOT_FOUND)
    return await db(_root_of, run_id)


def _root_of(run_id: uuid.UUID) -> uuid.UUID:
    return Run.objects.values_list("root_id", flat=True).get(pk=run_id)


def _start_of(session_id: uuid.UUID, run_id: uuid.UUID, before: int) -> int:
    """The cursor to begin at: a repeated message's run may have begun long ago."""
    starts = Event.objects.filter(session_id=session_id, run_id=run_id, type="RUN_STARTED")
    last = starts.order_by("-seq").values_list("seq", flat=True).first()
    return before if last is None else min(before, last - 1)


def _still_asking(session_id: uuid.UUID, run_id: uuid.UUID, before: int) -> list[Logged]:
    """What to say when the run cannot go on before more questions are answered."""
    suspended = panel.session_status(session_id) == ("suspended", run_id)  # first: see below
    went_on = Event.objects.filter(
        session_id=session_id, run_id=run_id, type="RUN_STARTED", seq__gt=before
    )
    if not suspended or went_on.exists():  # suspended again, after it had gone on
        return []
    run = Run.objects.get(pk=run_id)
    open_ones = Question.objects.filter(run__root_id=run_id, state=Question.State.OPEN)
    outcome = {
        "type": "interrupt",
        "interrupts": [
            vocabulary.agui_interrupt(question)
            for question in open_ones.select_related("run").order_by("opened_at")
        ],
    }
    said = [vocabulary.run_started(run), vocabulary.run_finished(run, outcome, [])]
    return [Logged(before, event["type"], events.dumps(event)) for event in said]


def _ended_while_it_waited(run_id: uuid.UUID) -> bool:
    """Stopped, or its message removed, before its turn had come: the log tells it only later."""
    return Run.objects.filter(pk=run_id, status__in=Run.TERMINAL, announced=False).exists()


def _never_began(run_id: uuid.UUID, cursor: int) -> list[Logged]:
    """All that there is to say of such a run."""
    run = Run.objects.get(pk=run_id)
    said = [vocabulary.run_started(run), vocabulary.run_finished(run, {"type": "cancelled"}, [])]
    return [Logged(cursor, event["type"], events.dumps(event)) for event in said]


async def _told(said: list[Logged], name: str) -> AsyncGenerator[str, None]:
    for logged in said:
        yield _named(logged, name)


async def _frames(
    batches: AsyncGenerator[streaming.Batch, None], run_id: str, name: str
) -> AsyncGenerator[str, None]:
    """The events from the run's beginning to its end, and nothing of the runs around it."""
    begun = False
    async with aclosing(batches):
        async for batch in batches:
            if not batch:
                yield sse.SILENCE
            for logged in batch:
                if logged.type == "MESSAGES_SNAPSHOT":
                    return  # so far behind that its run was folded: ask again, and get it whole
                if not begun and _is_exit(logged, run_id):
                    for told in await db(_never_began, uuid.UUID(run_id), logged.seq):
                        yield _named(told, name)
                    return
                begun = begun or _is(logged, "RUN_STARTED", run_id)
                if begun:
                    yield _named(logged, name)
                    if logged.type in TERMINAL:
                        return


def _is(logged: Logged, kind: str, run_id: str) -> bool:
    return logged.type == kind and json.loads(logged.data).get("runId") == run_id


def _is_exit(logged: Logged, run_id: str) -> bool:
    if logged.type != "CUSTOM" or run_id not in logged.data:
        return False
    event = json.loads(logged.data)
    return bool(event["name"] == "ax" and event["value"]["runId"] == run_id)


def _named(logged: Logged, name: str) -> str:
    """The frame, with the client's name for the run where the event names it."""
    if logged.type not in ("RUN_STARTED", "RUN_FINISHED"):
        return sse.frame(logged)
    event: dict[str, Any] = json.loads(logged.data)
    event["metadata"] = {"agentsite": {"runId": event["runId"]}}
    event["runId"] = name
    return sse.frame(Logged(logged.seq, logged.type, events.dumps(event)))
