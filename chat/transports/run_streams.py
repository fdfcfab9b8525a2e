"""One run's events, for bindings in which a request is a run: from its beginning to its end.

A run that goes on after a question begins again in the log, so one run may have several such
stretches; each ends with a terminal event. What is said of the runs around it is left out, and a
run that ends before its turn has come is told as one that was cancelled.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from django.db import IntegrityError
from django.http import HttpRequest

from chat import actions
from chat.models import ChatSession
from coordination import events, panel, vocabulary
from coordination.db import db
from coordination.errors import Invalid, NotFound, Refused
from coordination.events import Logged
from coordination.models import Event, Question, Run

from . import auth, errors, schemas, sse, streaming

TERMINAL = ("RUN_FINISHED", "RUN_ERROR")


async def find_or_create(request: HttpRequest, session_id: uuid.UUID) -> ChatSession:
    """The caller's session of that id, made if nobody has one. Raises NotFound."""
    user = auth.user(request)
    chat: ChatSession
    try:
        chat = await actions.find_session(user, session_id)
        return chat
    except NotFound:
        if await db(ChatSession.objects.filter(pk=session_id).exists):
            raise
    try:
        chat = await actions.create_session(
            user, language=auth.language(request), session_id=session_id
        )
    except IntegrityError:  # the same client, twice at once
        chat = await actions.find_session(user, session_id)
    return chat


async def answer(
    request: HttpRequest, chat: ChatSession, answers: Iterable[tuple[str, str, Any]]
) -> uuid.UUID:
    """Answer questions (id, ``resolved`` or ``cancelled``, payload); the root run that goes on.

    Raises the first refusal if no answer was taken.
    """
    run_id = None
    refused: Refused | None = None
    for question_id, status, payload in answers:
        try:
            run_id = await actions.respond(
                chat,
                question_id,
                status=status,
                payload=schemas.clean(payload),
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


def last_start(session_id: uuid.UUID, run_id: uuid.UUID, until: int | None = None) -> int | None:
    """The ``seq`` with which the run began last (not after ``until``); None if it did not."""
    starts = Event.objects.filter(session_id=session_id, run_id=run_id, type="RUN_STARTED")
    if until is not None:
        starts = starts.filter(seq__lte=until)
    return starts.order_by("-seq").values_list("seq", flat=True).first()


def still_asking(session_id: uuid.UUID, run_id: uuid.UUID, before: int) -> list[Logged]:
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


def ended_while_it_waited(run_id: uuid.UUID) -> bool:
    """Stopped, or its message removed, before its turn had come: the log tells it only later."""
    return Run.objects.filter(pk=run_id, status__in=Run.TERMINAL, announced=False).exists()


def never_began(run_id: uuid.UUID, cursor: int) -> list[Logged]:
    """All that there is to say of such a run."""
    run = Run.objects.get(pk=run_id)
    said = [vocabulary.run_started(run), vocabulary.run_finished(run, {"type": "cancelled"}, [])]
    return [Logged(cursor, event["type"], events.dumps(event)) for event in said]


async def of_run(
    request: HttpRequest, session_id: uuid.UUID, run_id: uuid.UUID, cursor: int
) -> AsyncGenerator[streaming.Batch, None]:
    """The events from the run's next beginning to its end; an empty batch is a silence."""
    begun = False
    async with aclosing(sse.batches(request, session_id, cursor, anew=True)) as batches:
        async for batch in batches:
            if not batch:
                yield batch
            for logged in batch:
                if logged.type == "MESSAGES_SNAPSHOT":
                    return  # so far behind that its run was folded: ask again, and get it whole
                if not begun and _is_exit(logged, str(run_id)):
                    yield await db(never_began, run_id, logged.seq)
                    return
                begun = begun or _is_start(logged, str(run_id))
                if begun:
                    yield [logged]
                    if logged.type in TERMINAL:
                        return


def _is_start(logged: Logged, run_id: str) -> bool:
    return logged.type == "RUN_STARTED" and json.loads(logged.data).get("runId") == run_id


def _is_exit(logged: Logged, run_id: str) -> bool:
    if logged.type != "CUSTOM" or run_id not in logged.data:
        return False
    event = json.loads(logged.data)
    return bool(event["name"] == "ax" and event["value"]["runId"] == run_id)
