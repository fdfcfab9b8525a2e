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
from django.http import HttpRequest, StreamingHttpResponse

from chat import actions
from chat.models import ChatSession
from coordination import events
from coordination.db import db
from coordination.errors import Invalid
from coordination.events import Logged

from . import auth, run_streams, sse, streaming
from .agui_messages import text_of

KEY_CHARS = 128


async def respond(request: HttpRequest, body: RunAgentInput) -> StreamingHttpResponse:
    """Post or answer, and stream what comes of it. Raises Refused before the stream begins."""
    message = None if body.resume else _message(body)  # before a session is made for nothing
    chat = await _session(request, body.thread_id)
    _, before = await db(events.bounds, chat.pk)
    if message is None:
        answers = ((entry.interrupt_id, entry.status, entry.payload) for entry in body.resume or ())
        run_id = await run_streams.answer(request, chat, answers)
        asking = await db(run_streams.still_asking, chat.pk, run_id, before)
        if asking:
            return sse.stream(_told(asking, body.run_id))
        cursor = before
    else:
        content, key = message
        posted = await actions.post_message(chat, content, key=key, by=auth.name(request))
        run_id = posted.run_id
        cursor = await db(_start_of, chat.pk, run_id, before)
        if await db(run_streams.ended_while_it_waited, run_id):
            said = await db(run_streams.never_began, run_id, cursor)
            return sse.stream(_told(said, body.run_id))
    batches = run_streams.of_run(request, chat.pk, run_id, cursor)
    return sse.stream(_frames(batches, body.run_id))


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
    try:
        wanted = uuid.UUID(thread_id)
    except ValueError:
        raise Invalid("invalid", "threadId must be a UUID: a session's id, or a new one.") from None
    return await run_streams.find_or_create(request, wanted)


def _start_of(session_id: uuid.UUID, run_id: uuid.UUID, before: int) -> int:
    """The cursor to begin at: a repeated message's run may have begun long ago."""
    start = run_streams.last_start(session_id, run_id)
    return before if start is None else min(before, start - 1)


async def _told(said: list[Logged], name: str) -> AsyncGenerator[str, None]:
    for logged in said:
        yield _named(logged, name)


async def _frames(
    batches: AsyncGenerator[streaming.Batch, None], name: str
) -> AsyncGenerator[str, None]:
    async with aclosing(batches):
        async for batch in batches:
            yield "".join(_named(logged, name) for logged in batch) or sse.SILENCE


def _named(logged: Logged, name: str) -> str:
    """The frame, with the client's name for the run where the event names it."""
    if logged.type not in ("RUN_STARTED", "RUN_FINISHED"):
        return sse.frame(logged)
    event: dict[str, Any] = json.loads(logged.data)
    event["metadata"] = {"agentsite": {"runId": event["runId"]}}
    event["runId"] = name
    return sse.frame(Logged(logged.seq, logged.type, events.dumps(event)))
