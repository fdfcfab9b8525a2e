"""Runs as LangGraph's clients begin and follow them.

A stream is a run's log, translated (``langgraph_parts``). The ``id`` of a part is ``SEQ-N``: the
event, and which of its parts. A client that comes back with it, on any node, gets the same
translation from the run's beginning, without what it has had: no gap and no repeat. The addresses
in ``Location`` and ``Content-Location`` begin at the API's root: LangGraph's clients put theirs
before them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple, TypeGuard, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from chat import actions, snapshots
from chat.models import ChatSession
from coordination import events
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Conflict, Invalid
from coordination.events import Logged
from coordination.models import Question

from . import auth, langgraph_rows, run_streams, sse, streaming
from .langgraph_parts import Translator
from .langgraph_schemas import NewRun, unsupported

KEY_CHARS = 128
BEGINNING = (-1, -1)
PART_ID = re.compile(r"(?P<seq>[0-9]{1,18})-(?P<part>[0-9]{1,9})")

Position = tuple[int, int]  # an event, and which of its parts
R = TypeVar("R", bound=HttpResponseBase)


class Followed(NamedTuple):
    """A run that somebody looks at, and the session's last event before that."""

    chat: ChatSession
    run_id: uuid.UUID
    before: int
    said: list[Logged] = []  # all there is to say, where nothing follows


# -- to begin one ---------------------------------------------------------------------------------


async def begin(request: HttpRequest, thread_id: str | None, body: NewRun) -> Followed:
    """Post a message or answer what is asked; without a thread, in a new one. Raises Refused."""
    body.check()
    message = None if body.command else _message(body.input)  # before a thread is made for nothing
    resume = _resume(body) if body.command else None
    chat = await _thread_for(request, thread_id, body)
    _, before = await db(events.bounds, chat.pk)
    if message is not None:
        text, key = message
        posted = await actions.post_message(
            chat, text, key=key, on_busy=body.on_busy(), by=auth.name(request)
        )
        return Followed(chat, posted.run_id, before)
    answers = await db(_answers, chat.pk, resume)
    run_id = await run_streams.answer(request, chat, answers)
    said = await db(run_streams.still_asking, chat.pk, run_id, before)
    return Followed(chat, run_id, before, said)


async def _thread_for(request: HttpRequest, thread_id: str | None, body: NewRun) -> ChatSession:
    user = auth.user(request)
    chat: ChatSession
    if thread_id is None:
        chat = await actions.create_session(user, language=auth.language(request))
        return chat
    wanted = actions.as_uuid(thread_id)
    if wanted is not None and body.if_not_exists == "create":
        return await run_streams.find_or_create(request, wanted)
    chat = await actions.find_session(user, thread_id)
    return chat


def _message(given: dict[str, Any] | None) -> tuple[str, str | None]:
    """What to post, and its key: a message that is sent again under its id is the same message."""
    match given:
        case {"messages": [{"content": content, **fields}], **others} if not others:
            text, key = _text(content), fields.get("id")
            role = fields.get("role", fields.get("type"))
            if text is not None and role in ("user", "human") and _is_key(key):
                return actions.check_text(text), key
    raise unsupported("input")


def _is_key(key: Any) -> TypeGuard[str | None]:
    return key is None or (isinstance(key, str) and 0 < len(key) <= KEY_CHARS)


def _text(content: Any) -> str | None:
    match content:
        case str():
            return content
        case list() if all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            return "".join(str(part.get("text", "")) for part in content)
    return None


def _resume(body: NewRun) -> Any:
    match body.command:
        case {"resume": resume, **others} if not any(others.values()) and not body.input:
            return resume
    raise unsupported("command")


def _answers(session_id: uuid.UUID, resume: Any) -> list[tuple[str, str, Any]]:
    """Which question gets which answer. Raises Conflict where that is not to be told."""
    if isinstance(resume, dict) and resume and all(map(actions.as_uuid, resume)):
        return [(question_id, "resolved", answer) for question_id, answer in resume.items()]
    rows = Question.objects.filter(session=session_id, state=Question.State.OPEN)
    match list(rows.values_list("pk", flat=True)[:2]):
        case []:
            raise Conflict("no_open_question", "Nothing is asked in this thread: nothing resumes.")
        case [only]:
            return [(str(only), "resolved", resume)]
    raise Conflict(
        "ambiguous_resume",
        "Several questions are open. Resume with an object of answers by the interrupts' ids.",
    )


# -- to follow one --------------------------------------------------------------------------------


async def find(request: HttpRequest, thread_id: str, run_id: str) -> Followed:
    """A run of one of the caller's threads. Raises NotFound."""
    chat = await actions.find_session(auth.user(request), thread_id)
    row = await db(langgraph_rows.find_run, chat.pk, actions.as_uuid(run_id))
    _, last = await db(events.bounds, chat.pk)
    return Followed(chat, row.pk, last)


def position(last_event_id: str | None) -> Position:
    """What a client has had. LangGraph's say -1 where they have had nothing. Raises Invalid."""
    if last_event_id in (None, "", "-1", "0"):
        return BEGINNING
    match = PART_ID.fullmatch(str(last_event_id))
    if match is None:
        raise Invalid("invalid_cursor", "Last-Event-ID is the `id` of a part of this stream.")
    return int(match["seq"]), int(match["part"])


async def stream(
    request: HttpRequest,
    followed: Followed,
    modes: frozenset[str],
    *,
    subgraphs: bool,
    after: Position = BEGINNING,
) -> HttpResponseBase:
    """The parts of the run after that position, to its end. Raises Invalid."""
    chat, run_id = followed.chat, followed.run_id
    first = await streaming.check_cursor(chat.pk, max(after[0], 0))
    if 0 <= after[0] < first:
        raise Invalid("invalid_cursor", "What follows was folded: follow it from the beginning.")
    translator = Translator(str(chat.pk), str(run_id), modes, subgraphs=subgraphs)
    batches = await _events(request, followed, after[0])
    query = [("stream_mode", mode) for mode in sorted(modes)]
    query += [("stream_subgraphs", "true")] if subgraphs else []
    response = sse.stream(_frames(chat.pk, translator, batches, after))
    return locate(response, followed, f"/stream?{urlencode(query)}")


async def _events(
    request: HttpRequest, followed: Followed, after: int = -1
) -> AsyncGenerator[streaming.Batch, None]:
    """The stretch of the run that the reader is in, from its beginning."""
    cursor, never = await db(_where_to_begin, followed, after)
    said = followed.said or never
    if said:
        return _at_once(said)
    return run_streams.of_run(request, followed.chat.pk, followed.run_id, cursor)


async def _at_once(said: list[Logged]) -> AsyncGenerator[streaming.Batch, None]:
    yield said


def _where_to_begin(followed: Followed, after: int) -> tuple[int, list[Logged]]:
    """The cursor before the stretch; or all that there is to say of a run that never began."""
    session_id, run_id, before = followed.chat.pk, followed.run_id, followed.before
    row = langgraph_rows.find_run(session_id, run_id)
    begun = run_streams.last_start(session_id, run_id, until=after) if after >= 0 else None
    if begun is not None:
        return begun - 1, []
    start = run_streams.last_start(session_id, run_id)
    if start is None:
        return before, run_streams.never_began(run_id, before) if row.is_terminal else []
    if row.announced or start > before or langgraph_rows.is_over(row):
        return start - 1, []
    return before, []  # it was answered, and has not gone on yet


async def _frames(
    session_id: uuid.UUID,
    translator: Translator,
    batches: AsyncGenerator[streaming.Batch, None],
    after: Position,
) -> AsyncGenerator[str, None]:
    """To the run's end, or until so much is sent that the reader shall come again (``sse``)."""
    sent = 0
    async with aclosing(batches):
        async for batch in batches:
            if not batch:
                yield sse.SILENCE
            for logged in batch:
                for number, part in enumerate(translator.parts(json.loads(logged.data))):
                    if (logged.seq, number) > after:
                        frame = await _frame(session_id, f"{logged.seq}-{number}", *part)
                        yield frame
                        sent += len(frame)
                if sent > conf.stream_chars:
                    return


async def _frame(session_id: uuid.UUID, part_id: str, name: str, data: Any) -> str:
    if name == "values":
        data = {**data, **await db(_values, session_id)}
    return f"id: {part_id}\nevent: {name}\ndata: {events.dumps(data)}\n\n"


def _values(session_id: uuid.UUID) -> dict[str, Any]:
    return langgraph_rows.values(snapshots.snapshot(session_id))


async def wait(request: HttpRequest, followed: Followed) -> HttpResponseBase:
    """What the run has come to, when it has ended or asks."""
    body = _result(followed, await _events(request, followed))
    response = StreamingHttpResponse(body, content_type="application/json")
    response["X-Accel-Buffering"] = "no"
    return locate(response, followed, "/join")


async def _result(
    followed: Followed, batches: AsyncGenerator[streaming.Batch, None]
) -> AsyncGenerator[str, None]:
    """JSON, with line breaks before it, so that nobody on the way takes silence for death."""
    ended = False
    async with aclosing(batches):
        async for batch in batches:
            if not batch:
                yield "\n"
            ended = bool(batch) and batch[-1].type in run_streams.TERMINAL
    if ended:  # else whoever asked may not read it any more
        yield events.dumps(await db(langgraph_rows.result, followed.chat.pk, followed.run_id))


def locate(response: R, followed: Followed, where: str = "") -> R:
    """Name the run, and where to go on when the connection is cut."""
    address = f"/threads/{followed.chat.pk}/runs/{followed.run_id}"
    response["Content-Location"] = address
    response["Location"] = address + where
    return response
