"""Following a session's event log on a web node: a cursor and a wake, behind one shared reader.

All followers of a session in this process share one ``_Feed``: it hears the session's hints, reads
the log once for everybody and keeps the newest events in a ring. A follower is no queue: it is a
cursor. Where the ring holds what follows the cursor it is served from there; where it fell out, the
follower reads the log itself, page by page. So a slow reader costs a query and no memory, and every
reader gets each event exactly once, because ``seq`` is dense and in commit order.

The copy of events in a hint is used only where it continues the ring to the letter; anything else
about a hint means "look". One poll per process (``conf.stream_poll``) looks for all feeds at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from . import events, wakeups
from .conf import conf
from .db import db
from .events import Logged
from .models import Event, Session

log = logging.getLogger(__name__)

PAGE = 200  # events in one read of the log, and at most so many in one batch
RING_CHARS = 2 * 1024 * 1024  # a ring of large tool results must not become a memory leak
JOINING = 0.1  # seconds in which the channel layer has surely joined a new group


class Pruned(Exception):
    """The cursor is inside of what ``prune`` has folded: begin again from a snapshot."""


async def follow(
    session_id: uuid.UUID, cursor: int, *, silence: float, anew: bool = False
) -> AsyncGenerator[Sequence[Logged], None]:
    """Batches of events after ``cursor``, for ever; an empty one after ``silence`` seconds of none.

    Ends when the session's row is gone. Raises Pruned when what follows the cursor was folded; not
    for a reader that begins ``anew`` there (at 0 everybody does): it has half of nothing.
    """
    known = None if anew or cursor == 0 else 0
    reader = _Reader.current()
    feed = reader.enter(session_id)
    wake = asyncio.Event()
    feed.followers.add(wake)
    try:
        await feed.opened()
        while not feed.gone:
            wake.clear()
            batch = feed.after(cursor)
            if batch is None:
                batch, known = await db(_page, session_id, cursor, known)
            if batch:
                known = known or 0
                cursor = batch[-1].seq
                yield batch
            elif not feed.gone and not await _woken(wake, silence):
                yield ()
    finally:
        feed.followers.discard(wake)
        reader.leave(feed)


def followers() -> int:
    """How many followers the running loop has."""
    reader = _Reader.by_loop.get(asyncio.get_running_loop())
    return sum(len(feed.followers) for feed in reader.feeds.values()) if reader else 0


async def lag() -> int:
    """How many events the feed of the running loop that is most behind has not read."""
    reader = _Reader.by_loop.get(asyncio.get_running_loop())
    read = reader.read() if reader else {}
    written = await db(events.last_seqs, read)
    return max((seq - read[session_id] for session_id, seq in written.items()), default=0)


def open_run(session_id: uuid.UUID, run_id: uuid.UUID, cursor: int) -> Logged | None:
    """The run's ``RUN_STARTED``, if it stands open at ``cursor``."""
    rows = Event.objects.filter(
        session_id=session_id,
        run_id=run_id,
        seq__lte=cursor,
        type__in=["RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"],
    )
    row = rows.order_by("-seq").values_list("seq", "type", "data").first()
    return Logged(*row) if row and row[1] == "RUN_STARTED" else None


async def _woken(wake: asyncio.Event, silence: float) -> bool:
    try:
        async with asyncio.timeout(silence):
            await wake.wait()
    except TimeoutError:
        return False
    return True


def _page(
    session_id: uuid.UUID, cursor: int, known: int | None
) -> tuple[Sequence[Logged], int | None]:
    """What follows the cursor, and the session's ``first_seq`` at the same moment (one statement).

    ``known`` is that of the page before: while it is the same, nothing was folded in between. None
    stands for any. Raises Pruned.
    """
    found = Event.objects.filter(session_id=session_id, seq__gt=cursor).order_by("seq")
    rows = list(found.values_list("seq", "type", "data", "session__first_seq")[:PAGE])
    if not rows:
        return [], known
    first_seq = rows[0][3]
    if known is not None and known != first_seq and cursor < first_seq - 1:
        raise Pruned
    return [Logged(*row[:3]) for row in rows], first_seq


class _Feed:
    """The newest events of one session, for all its followers in this process."""

    def __init__(self, session_id: uuid.UUID) -> None:
        self.session_id = session_id
        self.followers: set[asyncio.Event] = set()
        self.gone = False
        self._ring: deque[Logged] = deque()
        self._chars = 0
        self._last = 0  # the ring ends here; it may be empty
        self._known = 0  # the highest number that anybody has named
        self._is_open = False
        self._opening = asyncio.ensure_future(self._open())
        self._reading: asyncio.Task[None] | None = None

    @property
    def last(self) -> int | None:
        """The newest event it holds or has passed on; None before it knows where the log ends."""
        return self._last if self._is_open else None

    async def opened(self) -> None:
        """Wait until the feed knows where the log ends. Raises what the database raised."""
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        try:
            _, last = await db(events.bounds, self.session_id)
        except Session.DoesNotExist:
            self.gone = True
            return
        self._last = last
        self._is_open = True
        self.told(self._known)

    def close(self) -> None:
        """The last follower has left."""
        self._opening.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def after(self, cursor: int) -> Sequence[Logged] | None:
        """What the ring has after the cursor; None where the ring begins later than that."""
        first = self._ring[0].seq if self._ring else self._last + 1
        if cursor < first - 1:
            return None
        fresh = list(itertools.takewhile(lambda logged: logged.seq > cursor, reversed(self._ring)))
        fresh.reverse()
        return fresh[:PAGE]

    def hear(self, hint: wakeups.Hint) -> None:
        """A hint arrived: take its copy where it continues the ring, or look."""
        if hint.get("kind") != "events":
            return
        if self._is_open:
            for row in hint.get("events") or ():
                logged = Logged(*row)
                if logged.seq == self._last + 1:
                    self._append(logged)
        self._wake()
        self.told(int(hint["seq"]))

    def told(self, seq: int) -> None:
        """Somebody says that the log reaches to ``seq``: read what is missing."""
        self._known = max(self._known, seq)
        idle = self._reading is None or self._reading.done()
        if self._is_open and idle and self._known > self._last:
            self._reading = asyncio.ensure_future(self._read())

    def ended(self) -> None:
        """The session's row is gone."""
        self.gone = True
        self._wake()

    async def _read(self) -> None:
        try:
            while self._known > self._last:
                named = self._known
                page = await db(events.after, self.session_id, self._last, PAGE)
                if not page and self._known == named:
                    self._known = self._last  # whoever named it was wrong
                for logged in page:
                    if logged.seq > self._last:  # a hint may have been faster
                        self._append(logged)
                self._wake()
        except Exception as error:  # noqa: BLE001
            # The database is away. The poll looks again, and the followers keep their cursors.
            log.warning("log_not_read", extra={"error": repr(error)})

    def _append(self, logged: Logged) -> None:
        if logged.seq != self._last + 1:  # what was between has been pruned
            self._ring.clear()
            self._chars = 0
        self._ring.append(logged)
        self._last = logged.seq
        self._chars += len(logged.data)
        while len(self._ring) > conf.stream_buffer or (
            self._chars > RING_CHARS and len(self._ring) > 1
        ):
            self._chars -= len(self._ring.popleft().data)

    def _wake(self) -> None:
        for wake in self.followers:
            wake.set()


class _Reader:
    """All feeds of one event loop, and the one poll behind them."""

    by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reader] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self.feeds: dict[uuid.UUID, _Feed] = {}
        self._look = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    @classmethod
    def current(cls) -> _Reader:
        loop = asyncio.get_running_loop()
        reader = cls.by_loop.get(loop)
        if reader is None:
            reader = cls.by_loop[loop] = cls()
        return reader

    def enter(self, session_id: uuid.UUID) -> _Feed:
        feed = self.feeds.get(session_id)
        if feed is not None and not feed.gone:
            return feed
        hub = wakeups.Hub.current()
        feed = self.feeds[session_id] = _Feed(session_id)
        hub.subscribe(wakeups.session_group(session_id), feed.hear)
        hub.on_gap(self._look.set)
        # What was logged while the group was being joined had no hint for us.
        asyncio.get_running_loop().call_later(JOINING, self._look.set)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.ensure_future(self._poll_for_ever())
        return feed

    def read(self) -> dict[uuid.UUID, int]:
        """Up to which event each feed has read."""
        return {pk: feed.last for pk, feed in self.feeds.items() if feed.last is not None}

    def leave(self, feed: _Feed) -> None:
        if feed.followers:
            return
        feed.close()
        wakeups.Hub.current().unsubscribe(wakeups.session_group(feed.session_id), feed.hear)
        if self.feeds.get(feed.session_id) is feed:
            del self.feeds[feed.session_id]
        if not self.feeds and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll_for_ever(self) -> None:
        while True:
            await _woken(self._look, conf.stream_poll)
            self._look.clear()
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001
                log.warning("log_not_polled", extra={"error": repr(error)})

    async def _poll(self) -> None:
        feeds = list(self.feeds.values())
        seqs = await db(events.last_seqs, [feed.session_id for feed in feeds])
        for feed in feeds:
            seq = seqs.get(feed.session_id)
            if seq is None:
                feed.ended()
            else:
                feed.told(seq)
