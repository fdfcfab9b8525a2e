"""Hints over the channel layer: "look at the rows again". Never content that anybody trusts.

A hint may be lost, late, doubled or wrong; it only changes how soon somebody looks, and behind each
stands a poll. Groups: ``session.<hex>`` (readers, stoppers), ``runner.<id>`` (one runner's orders),
``workers`` (there is something to claim), ``everyone`` (all processes).

``hint`` is called inside a transaction and leaves after its commit. A process with an event loop
that called ``Hub.current()`` sends through it, and hears it itself at once (first the local
registry, then the broadcast); one without sends at once. Redis down costs nothing
but the hint: sending never raises and never blocks a caller.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from .conf import conf

log = logging.getLogger(__name__)

WORKERS = "workers"
EVERYONE = "everyone"
LISTEN_PAUSE = 0.5  # seconds between attempts to listen again
PING_EVERY = 5.0  # seconds between pings through Redis to ourselves

Hint = dict[str, Any]


def session_group(session_id: uuid.UUID | str) -> str:
    """The group of everybody who follows this session."""
    return f"session.{uuid.UUID(str(session_id)).hex}"


def runner_group(runner_id: str) -> str:
    """The group of one runner process. Group names take no colon."""
    return f"runner.{runner_id.replace(':', '.')}"[:99]


def hint(group: str, kind: str, **fields: Any) -> None:
    """Send a hint when the current transaction commits; at once when there is none."""
    message = {"type": "wakeup", "group": group, "kind": kind, **fields}
    transaction.on_commit(functools.partial(_send, group, message), robust=True)


_hubs: weakref.WeakSet[Hub] = weakref.WeakSet()
_hubs_lock = threading.Lock()


def _send(group: str, message: Hint) -> None:
    with _hubs_lock:
        hub = next((hub for hub in _hubs if hub.running), None)
    if hub is not None:
        hub.post(group, message)
        return
    try:  # a management command: no loop of its own that would send
        async_to_sync(_group_send)(group, message)
    except Exception:
        log.warning("hint_not_sent", extra={"group": group}, exc_info=True)


async def _group_send(group: str, message: Hint) -> None:
    async with asyncio.timeout(conf.redis_timeout):
        await get_channel_layer().group_send(group, message)


def heard() -> bool | None:
    """Whether hints reach this process; None where nobody in it listens. From any thread."""
    with _hubs_lock:
        hubs = [hub for hub in _hubs if hub.running]
    return any(hub.listening for hub in hubs) if hubs else None


class Hub:
    """All hints of one event loop: one channel in, one batch queue out.

    ``subscribe`` may be called before Redis is there and survives its restarts: the hub listens
    again for ever, and after each new start calls every ``on_gap`` so that rows are read again.
    """

    _by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.heard_at: float | None = None  # loop time at which our own ping last came back
        self._last_ping = 0
        self._handlers: dict[str, set[Callable[[Hint], None]]] = {}
        self._gap_handlers: set[Callable[[], None]] = set()
        self._outbox: deque[tuple[str, Hint]] = deque()
        self._outgoing = asyncio.Event()
        self._changed = asyncio.Event()
        self._name = f"hub.{uuid.uuid4().hex}"
        self._tasks = [
            self.loop.create_task(self._pump(), name="hints-out"),
            self.loop.create_task(self._listen_for_ever(), name="hints-in"),
            self.loop.create_task(self._ping_for_ever(), name="hints-ping"),
        ]
        with _hubs_lock:
            _hubs.add(self)

    @classmethod
    def current(cls) -> Hub:
        """The hub of the running loop, started at the first call."""
        loop = asyncio.get_running_loop()
        hub = cls._by_loop.get(loop)
        if hub is None:
            hub = cls._by_loop[loop] = cls()
        return hub

    @property
    def running(self) -> bool:
        """False once its loop has ended."""
        return not self.loop.is_closed() and self.loop.is_running()

    @property
    def listening(self) -> bool:
        """True while our own pings come back through Redis."""
        if self.heard_at is None:
            return False
        return self.loop.time() - self.heard_at < 3 * PING_EVERY

    def post(self, group: str, message: Hint) -> None:
        """Queue a hint for sending; from any thread. This process hears it without Redis.

        But for new work: who hears of that first gets it, and that should be any runner.
        """
        if group == WORKERS:
            self._outbox.append((group, message))
        else:
            self._outbox.append((group, {**message, "origin": self._name}))
            self.loop.call_soon_threadsafe(self._dispatch, message)
        self.loop.call_soon_threadsafe(self._outgoing.set)

    def subscribe(self, group: str, handler: Callable[[Hint], None]) -> None:
        """Call ``handler`` (which must not block) for each hint to the group."""
        self._handlers.setdefault(group, set()).add(handler)
        self._changed.set()

    def unsubscribe(self, group: str, handler: Callable[[Hint], None]) -> None:
        """The opposite; without effect when it was not subscribed."""
        handlers = self._handlers.get(group, set())
        handlers.discard(handler)
        if not handlers:
            self._handlers.pop(group, None)
            self._changed.set()

    def on_gap(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever hints may have been missed."""
        self._gap_handlers.add(handler)

    async def close(self) -> None:
        """Send what is queued and stop; the loop may end afterwards."""
        while self._outbox and self._tasks[0].done() is False:
            self._outgoing.set()
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with _hubs_lock:
            _hubs.discard(self)
        self._by_loop.pop(self.loop, None)

    async def _pump(self) -> None:
        while True:
            await self._outgoing.wait()
            self._outgoing.clear()
            while self._outbox:
                group, message = self._outbox.popleft()
                try:
                    await _group_send(group, message)
                except Exception as error:  # noqa: BLE001 - whatever Redis does
                    # Redis is away: what is queued would only be late, and the polls are there.
                    log.debug("hints_dropped", extra={"error": repr(error)})
                    self._outbox.clear()

    async def _ping_for_ever(self) -> None:
        group = self._name
        self.subscribe(group, self._heard)
        for number in itertools.count(1):
            ping = {"type": "wakeup", "group": group, "kind": "ping", "number": number}
            self._outbox.append((group, ping))
            self._outgoing.set()
            await asyncio.sleep(PING_EVERY if self.listening else LISTEN_PAUSE)

    def _heard(self, ping: Hint) -> None:
        """Where a ping was lost, hints may have been lost with it."""
        if not self.listening or ping["number"] > self._last_ping + 1:
            self.loop.call_soon(self._tell_gap)
        self._last_ping = ping["number"]
        self.heard_at = self.loop.time()

    def _tell_gap(self) -> None:
        for handler in list(self._gap_handlers):
            handler()

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever Redis does
                log.warning("hints_interrupted", extra={"error": repr(error)})
            await asyncio.sleep(LISTEN_PAUSE)

    async def _listen(self) -> None:
        layer = get_channel_layer()
        channel = await layer.new_channel()
        joined = self.loop.create_task(self._keep_joined(layer, channel))
        try:
            self._tell_gap()
            while True:
                message = await layer.receive(channel)
                if message.get("origin") != self._name:  # else it was heard when it was posted
                    self._dispatch(message)
                if joined.done():
                    joined.result()
        finally:
            joined.cancel()

    async def _keep_joined(self, layer: Any, channel: str) -> None:
        joined: set[str] = set()
        while True:
            self._changed.clear()
            wanted = set(self._handlers)
            try:
                for group in wanted - joined:
                    await layer.group_add(group, channel)
                    joined.add(group)
                for group in joined - wanted:
                    await layer.group_discard(group, channel)
                    joined.discard(group)
            except Exception as error:  # noqa: BLE001 - whatever Redis does
                log.warning("hints_not_joined", extra={"error": repr(error)})
                await asyncio.sleep(LISTEN_PAUSE)
                continue
            await self._changed.wait()

    def _dispatch(self, message: Hint) -> None:
        # The layer does not say which group a message came through, so each hint names its own.
        for handler in list(self._handlers.get(message.get("group", ""), ())):
            try:
                handler(message)
            except Exception:
                log.exception("hint_handler_failed")
