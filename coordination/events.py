"""The event log: append in a transaction or in batches, read after a cursor, wake readers.

What is said of a run outside of its bracket (its START does not stand open: its root has ended, or
its own turn never began) would be refused by AG-UI's readers, so of such a run only ``CUSTOM``
events are logged.

Two writers. A transition (``append``) logs what it did inside its own transaction, which holds the
session's row: so a terminal event exists exactly when the end does. A runner's ``Writer`` logs what
streams: whatever is pending of all its sessions goes in one transaction as soon as the one before
is done (group commit), neighbouring deltas merged; so a quiet stream pays one commit per token and
no timer, and busy ones share each commit. Both number under the session's lock, dense and in commit
order; both check the run's epoch there, so a fenced runner logs nothing.

The wake-up after the commit may carry a copy; a reader uses it only where it follows what it has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import InterfaceError, OperationalError
from django.db.models import Case, PositiveBigIntegerField, Q, Value, When
from django.db.models.functions import Now

from . import wakeups
from .conf import conf
from .db import RETRY_PAUSE, atomic, db
from .errors import Fenced
from .models import Event, Run, Session
from .prepared import Insert, Values, given
from .vocabulary import AguiEvent

log = logging.getLogger(__name__)

RESTS = 3  # a busy writer commits for a quarter of its time: the rest is the models' and readers'
LONGEST_REST = 0.05  # seconds: where a commit itself is slow, waiting thrice as long saves nothing

_INSERT = Insert(Event)
_UNSAVED = Values(
    lambda: (
        Event.objects.filter(session_id=given("session"), seq__gt=given("seq"), run_id=given("run"))
        .order_by("seq")
        .values_list("data")
    )
)

MERGED = {  # the types whose neighbours of one id become one row: the field that joins them
    "TEXT_MESSAGE_CONTENT": "messageId",
    "REASONING_MESSAGE_CONTENT": "messageId",
    "TOOL_CALL_ARGS": "toolCallId",
}


@dataclass(frozen=True, slots=True)
class Logged:
    """One event as a reader gets it; ``data`` is JSON, ready for the wire."""

    seq: int
    type: str
    data: str


def dumps(event: AguiEvent) -> str:
    """The wire form. Lone surrogates would poison the column, so they become U+FFFD."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


# -- reading ---------------------------------------------------------------------------------


def after(session_id: uuid.UUID, cursor: int, limit: int = 500) -> list[Logged]:
    """Events after ``cursor``, oldest first, at most ``limit``."""
    rows = (
        Event.objects.filter(session_id=session_id, seq__gt=cursor)
        .order_by("seq")
        .values_list("seq", "type", "data")[:limit]
    )
    return [Logged(*row) for row in rows]


def bounds(session_id: uuid.UUID) -> tuple[int, int]:
    """The first cursor the log can resume after, and the last event's."""
    first, last = Session.objects.values_list("first_seq", "last_seq").get(pk=session_id)
    return first - 1, last


def last_seqs(session_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
    """The last event's number of each session: one query for all readers of a process."""
    rows = Session.objects.filter(pk__in=list(session_ids))
    return dict(rows.values_list("pk", "last_seq"))


@dataclass
class OpenItems:
    """What a run has opened in the log since its last saved step and not closed."""

    texts: dict[str, str] = field(default_factory=dict)  # message id → text so far
    reasoning: dict[str, str] = field(default_factory=dict)
    calls: dict[str, dict[str, str]] = field(default_factory=dict)  # call id → name, args, message
    ended_texts: dict[str, str] = field(default_factory=dict)  # closed, but of the unsaved step
    ended_calls: dict[str, dict[str, str]] = field(default_factory=dict)


def fold(rows: Iterable[AguiEvent]) -> OpenItems:
    """Replay events of one run, oldest first, into what stands open and what it holds."""
    items = OpenItems()
    for event in rows:
        if event["type"].startswith("TOOL_CALL_"):
            _fold_call(items, event)
        elif event["type"].startswith(("TEXT_MESSAGE_", "REASONING_")):
            _fold_message(items, event)
    return items


def _fold_message(items: OpenItems, event: AguiEvent) -> None:
    message_id = event["messageId"]
    match event["type"]:
        case "TEXT_MESSAGE_START":
            items.texts[message_id] = ""
        case "TEXT_MESSAGE_CONTENT" if message_id in items.texts:
            items.texts[message_id] += event["delta"]
        case "TEXT_MESSAGE_END" if message_id in items.texts:
            items.ended_texts[message_id] = items.texts.pop(message_id)
        case "REASONING_MESSAGE_START":
            items.reasoning[message_id] = ""
        case "REASONING_MESSAGE_CONTENT" if message_id in items.reasoning:
            items.reasoning[message_id] += event["delta"]
        case "REASONING_END":
            items.reasoning.pop(message_id, None)


def _fold_call(items: OpenItems, event: AguiEvent) -> None:
    call_id = event["toolCallId"]
    match event["type"]:
        case "TOOL_CALL_START":
            name, message_id = event["toolCallName"], event.get("parentMessageId", "")
            items.calls[call_id] = {"name": name, "message_id": message_id, "args": ""}
        case "TOOL_CALL_ARGS" if call_id in items.calls:
            items.calls[call_id]["args"] += event["delta"]
        case "TOOL_CALL_END" if call_id in items.calls:
            items.ended_calls[call_id] = items.calls.pop(call_id)
        case "TOOL_CALL_RESULT":
            items.ended_calls.pop(call_id, None)


def unsaved(run: Run) -> OpenItems:
    """What the run has logged since its last saved step."""
    rows = _UNSAVED(session=run.session_id, seq=run.saved_seq, run=run.pk)
    return fold(json.loads(data) for (data,) in rows)


# -- writing inside a transition -------------------------------------------------------------


Late = Callable[[], AguiEvent]  # an event that is built just before the commit
Pending = tuple[uuid.UUID | None, AguiEvent | Late]


def append(session: Session, run: Run | None, *events: AguiEvent) -> None:
    """Log events with the transition that holds ``session``; written when it commits.

    Of a run whose START does not stand open only ``CUSTOM`` events are taken.
    """
    pending: list[Pending] = session.__dict__.setdefault("_pending", [])
    pending.extend(
        (run.pk if run else None, event)
        for event in events
        if run is None or run.announced or event["type"] == "CUSTOM"
    )


def append_once(session: Session, name: str, event: Late) -> None:
    """Log one event of that name with this transition, as its end leaves things."""
    names: set[str] = session.__dict__.setdefault("_pending_once", set())
    if name not in names:
        names.add(name)
        pending: list[Pending] = session.__dict__.setdefault("_pending", [])
        pending.append((None, event))


def pending_count(session: Session) -> int:
    """How many events were appended in this transaction so far."""
    return len(session.__dict__.get("_pending", ()))


def write_pending(session: Session) -> None:
    """Number and insert what was appended. ``transactions.locked`` calls it before the commit."""
    pending = session.__dict__.pop("_pending", [])
    session.__dict__.pop("_pending_once", None)
    if not pending:
        return
    rows = _number(session, pending)
    _INSERT(*rows)
    _wake(session.pk, rows)


def _number(session: Session, events: Iterable[Pending]) -> list[Event]:
    rows = []
    for run_id, told in events:
        event = told() if callable(told) else told
        session.last_seq += 1
        rows.append(
            Event(
                session_id=session.pk,
                seq=session.last_seq,
                run_id=run_id,
                type=event["type"],
                data=dumps(event),
            )
        )
    return rows


def _wake(session_id: uuid.UUID, rows: Sequence[Event]) -> None:
    copy: dict[str, Any] = {}
    if sum(len(row.data) for row in rows) <= conf.hint_bytes:
        copy = {"events": [[row.seq, row.type, row.data] for row in rows]}
    wakeups.hint(
        wakeups.session_group(session_id),
        "events",
        session=str(session_id),
        seq=rows[-1].seq,
        **copy,
    )


# -- writing a stream ------------------------------------------------------------------------


@dataclass
class _Stream:
    """What one run has said and is not yet in the log."""

    run: Run
    events: list[AguiEvent] = field(default_factory=list)
    committed: asyncio.Event = field(default_factory=asyncio.Event)


class Writer:
    """The one writer of a runner: group commit over all its sessions.

    ``on_refused`` is called with a run that may log no more: it was stopped, or is another's.
    """

    def __init__(self, on_refused: Callable[[uuid.UUID], None] = lambda _: None) -> None:
        self._on_refused = on_refused
        self._pending: dict[uuid.UUID, _Stream] = {}
        self._under_way: dict[uuid.UUID, _Stream] = {}
        self._refused: set[tuple[uuid.UUID, int]] = set()
        self._task: asyncio.Task[None] | None = None
        self._rested_at = 0.0  # loop time from which the next commit may begin
        self._hurry = asyncio.Event()

    def put(self, run: Run, *events: AguiEvent) -> None:
        """Log soon. Never blocks; ``flush`` says when it is in the log."""
        stream = self._pending.setdefault(run.pk, _Stream(run))
        for event in events:
            last = stream.events[-1] if stream.events else None
            key = MERGED.get(event["type"])
            if last and key and last["type"] == event["type"] and last[key] == event[key]:
                stream.events[-1] = {**last, "delta": last["delta"] + event["delta"]}
            else:
                stream.events.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._commit_all())

    async def flush(self, run: Run) -> None:
        """Wait until everything put for this run is committed. Raises Fenced if it may not be."""
        while stream := self._pending.get(run.pk) or self._under_way.get(run.pk):
            self._hurry.set()
            await stream.committed.wait()
        if (run.pk, run.epoch) in self._refused:
            raise Fenced

    def forget(self, run: Run) -> None:
        """Drop what is pending for a run that has left this runner."""
        stream = self._pending.pop(run.pk, None)
        if stream is not None:
            stream.committed.set()
        self._refused.discard((run.pk, run.epoch))

    async def _commit_all(self) -> None:
        now = asyncio.get_running_loop().time
        while self._pending:
            await self._rest()
            self._under_way, self._pending = self._pending, {}
            began = now()
            refused = await self._commit(list(self._under_way.values()))
            self._rested_at = now() + min(RESTS * (now() - began), LONGEST_REST)
            self._refused |= {(stream.run.pk, stream.run.epoch) for stream in refused}
            for stream in self._under_way.values():
                stream.committed.set()
            self._under_way = {}
            for stream in refused:
                self._on_refused(stream.run.pk)

    async def _rest(self) -> None:
        """After a commit wait for more to come, ``RESTS`` times as long as it took, within reason.

        A quiet stream's next token comes later than that and waits for nothing; of many streams
        each commit takes more along the slower the database is. Who flushes cuts it short.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._rested_at):
                await self._hurry.wait()
        self._hurry.clear()

    async def _commit(self, batch: list[_Stream]) -> list[_Stream]:
        """Commit for certain; the streams that were refused. An outage is waited out."""
        attempt = _Attempt()
        while True:
            try:
                return await db(_commit_streams, batch, attempt)
            except (OperationalError, InterfaceError):
                log.warning("event_flush_waits", exc_info=True)
                await asyncio.sleep(RETRY_PAUSE)
            except Exception:
                log.exception("event_flush_failed", extra={"streams": len(batch)})
                if len(batch) == 1:
                    return batch
                each = [await self._commit([stream]) for stream in batch]  # one is bad, not all
                return [stream for refused in each for stream in refused]


@dataclass
class _Attempt:
    """What the last try to commit a batch has written; where one row stands, all of them do."""

    witness: Event | None = None
    refused: list[_Stream] = field(default_factory=list)

    def was_committed(self) -> bool:
        """Whether it has happened, though the answer to its COMMIT was lost."""
        row = self.witness
        return row is not None and (
            Event.objects.filter(
                session_id=row.session_id, seq=row.seq, run_id=row.run_id, data=row.data
            ).exists()
        )


def _commit_streams(streams: list[_Stream], attempt: _Attempt) -> list[_Stream]:
    """One transaction for all; the streams whose runs may write no more."""
    from .transactions import unit_of_work

    if not attempt.was_committed():
        unit_of_work(_commit_streams_once)(streams, attempt)
    return attempt.refused


def _commit_streams_once(streams: list[_Stream], attempt: _Attempt) -> None:
    attempt.witness = None
    with atomic():
        ids = {stream.run.session_id for stream in streams}
        locked = Session.objects.select_for_update().filter(pk__in=ids).order_by("pk")
        sessions = {session.pk: session for session in locked}
        allowed, heard = _touch(streams)
        by_session: dict[uuid.UUID, list[Event]] = {}
        for stream in streams:
            session = sessions.get(stream.run.session_id)
            if session is not None and stream.run.pk in heard:
                rows = _number(session, ((stream.run.pk, event) for event in stream.events))
                by_session.setdefault(session.pk, []).extend(rows)
        attempt.refused = [stream for stream in streams if stream.run.pk not in allowed]
        if by_session:
            _insert(sessions, by_session)
            attempt.witness = next(iter(by_session.values()))[0]


def _insert(sessions: dict[uuid.UUID, Session], rows: dict[uuid.UUID, list[Event]]) -> None:
    """One UPDATE moves all counters, one INSERT writes all rows."""
    last: int | Case = sessions[next(iter(rows))].last_seq
    if len(rows) > 1:  # building this expression is a fifth of the work of a quiet stream's commit
        cases = [When(pk=pk, then=Value(sessions[pk].last_seq)) for pk in rows]
        last = Case(*cases, output_field=PositiveBigIntegerField())
    Session.objects.filter(pk__in=rows).update(last_seq=last)
    Event.objects.bulk_create([row for of_session in rows.values() for row in of_session])
    for session_id, of_session in rows.items():
        _wake(session_id, of_session)


def _touch(streams: list[_Stream]) -> tuple[set[uuid.UUID], set[uuid.UUID]]:
    """Fence and mark progress in one UPDATE.

    The runs that still belong to their writer, and those of them whose words the log takes: not a
    sub-agent's that has outlived the turn it worked for.
    """
    mine = Q()
    for stream in streams:
        mine |= Q(pk=stream.run.pk, epoch=stream.run.epoch)
    # A run that is to stop logs no more: its stop has closed what stood open.
    rows = Run.objects.filter(mine, status__in=Run.OWNED, stop_requested_at=None)
    if rows.filter(announced=True).update(last_progress_at=Now()) == len(streams):
        allowed = {stream.run.pk for stream in streams}
        return allowed, allowed
    announced = dict(rows.values_list("pk", "announced"))
    rows.filter(announced=False).update(last_progress_at=Now())
    return set(announced), {pk for pk, heard in announced.items() if heard}
