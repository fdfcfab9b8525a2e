"""Server-sent events: ``id``, ``event``, ``data``. The id is the cursor; reconnecting resumes.

An async generator in a ``StreamingHttpResponse``, because that is what every ASGI server cancels
within milliseconds when the client has left. Nothing may buffer or compress on the way.

Daphne takes whatever it is given and keeps it until the client reads, so a response has an end
(``AGENT_STREAM_CHARS``): that is all that one that does not read can cost. Others come back.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from django.http import HttpRequest, StreamingHttpResponse

from chat import actions
from coordination.conf import conf
from coordination.events import Logged

from . import auth, streaming

RETRY = 1000  # milliseconds before a browser reconnects
SILENCE = ": still here\n\n"  # a comment, so that nobody on the way takes silence for death


async def respond(request: HttpRequest, sid: str, cursor: str | None) -> StreamingHttpResponse:
    """The stream of a session, after ``Last-Event-ID`` or else ``cursor``. Raises Refused."""
    chat = await actions.find_session(auth.user(request), sid)
    # A browser that reconnects sends the header; the address still holds the older cursor.
    after = streaming.parse_cursor(request.headers.get("Last-Event-ID") or cursor)
    await streaming.check_cursor(chat.pk, after)
    return stream(_frames(batches(request, chat.pk, after)))


def batches(
    request: HttpRequest, session_id: uuid.UUID, cursor: int | None, *, anew: bool = False
) -> AsyncGenerator[streaming.Batch, None]:
    """The session's events for as long as whoever asked may read them."""

    async def look_again() -> None:
        await actions.find_session(await auth.user_again(request), session_id)

    return streaming.batches(session_id, cursor, look_again, anew=anew)


def stream(frames: AsyncIterator[str]) -> StreamingHttpResponse:
    """Frames as a response that nothing on the way holds back."""
    response = StreamingHttpResponse(frames, content_type="text/event-stream; charset=utf-8")
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    return response


async def _frames(events: AsyncGenerator[streaming.Batch, None]) -> AsyncGenerator[str, None]:
    """Until the reader leaves, or has been sent so much that it shall come again."""
    sent = 0
    async with aclosing(events):
        yield f"retry: {RETRY}\n\n"
        async for batch in events:
            text = "".join(frame(logged) for logged in batch) or SILENCE
            yield text
            sent += len(text)
            if sent > conf.stream_chars:
                return


def frame(logged: Logged) -> str:
    """One event. JSON has no line breaks, so one ``data`` line is enough."""
    return f"id: {logged.seq}\nevent: {logged.type}\ndata: {logged.data}\n\n"
