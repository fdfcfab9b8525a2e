"""What every transport streams: the state where it is needed, then the log, without end.

A reader names a cursor and gets what follows. Without one, or with one that the log no longer
reaches back to, it first gets the state as it is: ``RUN_STARTED`` where a run stands open,
``STATE_SNAPSHOT``, ``MESSAGES_SNAPSHOT``, and goes on from the snapshot's cursor.

The three are one thing: only the last carries that cursor as its ``id``. The two before it carry 0,
so that a reader that is cut off between them asks for the whole log, and never for its tail alone.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from chat import snapshots
from coordination import events, streams
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Invalid, Refused
from coordination.events import Logged

from .agui_messages import to_agui

Batch = Sequence[Logged]


def parse_cursor(text: str | None) -> int | None:
    """A cursor as a client sends it; nothing and empty are the same. Raises Invalid."""
    if text is None or not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 19):
        raise Invalid("invalid_cursor", "The cursor is the `id` of an event: a whole number, or 0.")
    return int(text)


async def check_cursor(session_id: uuid.UUID, cursor: int | None) -> int:
    """The first cursor that the log can resume after (0 where none was given).

    Raises Invalid for one that no event of this session has had.
    """
    if cursor is None:
        return 0
    first, last = await db(events.bounds, session_id)
    if cursor > last:
        raise Invalid(
            "invalid_cursor",
            f"The session's last event is {last}. Use the `id` of an event of this session, "
            "or leave the cursor out to begin with the state as it is.",
        )
    return first


async def batches(
    session_id: uuid.UUID,
    cursor: int | None,
    look_again: Callable[[], Awaitable[object]],
    *,
    anew: bool = False,
) -> AsyncGenerator[Batch, None]:
    """Events in order; an empty batch is a moment of silence. ``anew``: see ``streams.follow``.

    Ends when the session is gone, or when ``look_again`` (asked now and then) raises Refused: a
    reader may have signed out, and the rows of a deleted session stay.
    """
    while True:
        if cursor is None:
            state = await db(state_events, session_id)
            cursor = state[-1].seq
            yield state
        try:
            async with aclosing(_log(session_id, cursor, look_again, anew)) as log:
                async for batch in log:
                    if batch:
                        cursor = batch[-1].seq
                    yield batch
            return
        except streams.Pruned:
            cursor = None


async def _log(
    session_id: uuid.UUID, cursor: int, look_again: Callable[[], Awaitable[object]], anew: bool
) -> AsyncGenerator[Batch, None]:
    now = asyncio.get_running_loop().time
    looked_at = now()
    follow = streams.follow(session_id, cursor, silence=conf.stream_keepalive, anew=anew)
    async with aclosing(follow) as log:
        async for batch in log:
            yield batch
            if now() - looked_at >= conf.stream_keepalive:
                looked_at = now()
                try:
                    await look_again()
                except Refused:
                    return


def state_events(session_id: uuid.UUID) -> list[Logged]:
    """The state as it is, exact at the cursor of the last of the events."""
    snapshot = snapshots.snapshot(session_id)
    cursor = int(snapshot["cursor"])
    shown = []
    if snapshot["run_id"] is not None:
        started = streams.open_run(session_id, uuid.UUID(str(snapshot["run_id"])), cursor)
        shown += [replace(started, seq=0)] if started else []
    state = {
        "type": "STATE_SNAPSHOT",
        "snapshot": {
            key: snapshot[key] for key in ("status", "run_id", "agents", "questions", "queue")
        },
    }
    messages = {"type": "MESSAGES_SNAPSHOT", "messages": to_agui(snapshot["messages"])}
    shown.append(Logged(0, "STATE_SNAPSHOT", events.dumps(state)))
    shown.append(Logged(cursor, "MESSAGES_SNAPSHOT", events.dumps(messages)))
    return shown
