"""The WebSocket: verbs in, events out, on one connection.

Frames out are ``{"id": cursor, "event": {…}}``; each frame in is answered by ``{"ok": …}`` or
``{"error": {code, detail}}`` with its ``ref`` (an ``ack`` only where it has one). Channels gives a
consumer one frame at a time, so no verb runs in the handler: messages and answers run one after the
other in a task, in the order they came, and an interrupt runs at once, beside them. Where it finds
nothing to stop, but a message was sent just before it on this socket, it stops that one by name as
soon as it has its run.

``window=N`` bounds what is under way: after N events without an ``ack`` the server holds back. That
is the only back-pressure Daphne has here.

A socket that may not be is refused before it opens: 401 or 404 where the server can say so (uvicorn
can), else 403 (Daphne), with 4401 or 4404 as the code for whoever sees it. What happens later
closes it: a deleted session or a signed-out user with 4404, a database that is away with 1013.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import path, re_path
from pydantic import Field, ValidationError

from chat import actions
from coordination import worklog
from coordination.errors import Conflict, Invalid
from coordination.events import Logged

from . import auth, errors, limits, schemas, streaming

log = logging.getLogger(__name__)

VERBS_AT_ONCE = 32  # frames of one socket under way; more are refused, or they were a memory leak
FRAME_CHARS = 8 * 1024 * 1024  # a message of 1 MiB, each byte of it written as six
CLOSE_CODES = {401: 4401, 404: 4404, 422: 4422}
TRY_AGAIN_LATER = 1013

_under_way: set[asyncio.Task[None]] = set()  # a loop keeps no strong references to its tasks


class MessageFrame(schemas.NewMessage):
    """``message``"""

    type: str
    ref: str | int | None = None


class InterruptFrame(schemas.Stop):
    """``interrupt``"""

    type: str
    ref: str | int | None = None


class RespondFrame(schemas.Answer):
    """``respond``"""

    type: str
    ref: str | int | None = None


class AckFrame(schemas.Request):
    """``ack``: everything up to this cursor has arrived."""

    type: str
    ref: str | int | None = None
    id: int = Field(ge=0)


FRAMES: dict[str, type[MessageFrame | InterruptFrame | RespondFrame | AckFrame]] = {
    "message": MessageFrame,
    "interrupt": InterruptFrame,
    "respond": RespondFrame,
    "ack": AckFrame,
}
Frame = MessageFrame | InterruptFrame | RespondFrame | AckFrame


class Window:
    """How many events may be under way; none at all means any number."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._sent: deque[int] = deque()
        self._opened = asyncio.Event()

    async def pass_one(self, cursor: int) -> None:
        """Wait until one more may be sent, and count it."""
        if self._size is None:
            return
        while len(self._sent) >= self._size:
            self._opened.clear()
            await self._opened.wait()
        self._sent.append(cursor)

    def acknowledge(self, cursor: int) -> None:
        """Everything sent up to ``cursor`` has arrived."""
        while self._sent and self._sent[0] <= cursor:
            self._sent.popleft()
        self._opened.set()


class ChatConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One socket of one person on one chat session."""

    # Events come from the log and its hints; a channel of its own would only tie the socket's
    # life to Redis.
    channel_layer_alias = "none"

    async def connect(self) -> None:
        """Let in whoever owns the session, and begin to stream."""
        worklog.door.set("websocket")
        self.tasks: set[asyncio.Task[None]] = set()
        self.in_order = asyncio.Lock()
        self.posting: dict[asyncio.Task[None], list[str]] = {}  # → the run a message has become
        try:
            await self._look_again()
            cursor = await self._cursor()
            self.window = Window(self._number("window", least=1))
        except Exception as error:  # noqa: BLE001
            await self._refuse(error)
            return
        await self.accept()
        self.streaming = asyncio.create_task(self._stream(cursor))

    async def disconnect(self, _code: int) -> None:
        """The reader leaves. What it has asked for goes on: a reader that leaves stops nothing."""
        if hasattr(self, "streaming"):
            self.streaming.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Start the verb of a frame; never wait for it here."""
        ref = None
        try:
            raw = _decode(text_data if text_data is not None else bytes_data)
            ref = raw.get("ref") if isinstance(raw.get("ref"), str | int) else None
            frame = _parse(raw)
            if isinstance(frame, AckFrame):
                self.window.acknowledge(frame.id)
                if ref is not None:
                    await self._reply(ref, ok={})
                return
            self.caller.check_may_write()
            self._check_room(frame)
        except Exception as error:  # noqa: BLE001
            await self._reply(ref, error=error)
            return
        self._start(frame)

    # -- verbs ------------------------------------------------------------------------------------

    def _check_room(self, frame: Frame) -> None:
        """Interrupts have places of their own, so that a full socket can still be stopped."""
        interrupts = VERBS_AT_ONCE if isinstance(frame, InterruptFrame) else 0
        if len(self.tasks) >= VERBS_AT_ONCE + interrupts:
            raise Conflict("too_many_frames", "Wait for answers before you send more frames.")

    def _start(self, frame: Frame) -> None:
        run_ids: list[str] = []
        match frame:
            case InterruptFrame():
                task = self._spawn(frame, self._interrupt(frame, dict(self.posting)))
            case MessageFrame():
                task = self._spawn(frame, self._message(frame, run_ids))
                self.posting[task] = run_ids
                task.add_done_callback(lambda done: self.posting.pop(done, None))
            case RespondFrame():
                self._spawn(frame, self._respond(frame))

    def _spawn(self, frame: Frame, verb: Coroutine[Any, Any, dict[str, Any]]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._answered(frame, verb))
        for tasks in (_under_way, self.tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    async def _answered(self, frame: Frame, verb: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            ok = await verb
        except Exception as error:  # noqa: BLE001
            await self._reply(frame.ref, error=error)
        else:
            await self._reply(frame.ref, ok=ok)

    async def _message(self, frame: MessageFrame, run_ids: list[str]) -> dict[str, Any]:
        async with self.in_order:
            await self._count()
            posted = await actions.post_message(
                self.chat,
                frame.content,
                key=frame.id,
                on_busy=frame.on_busy,
                by=self._name,
            )
        run_ids.append(str(posted.run_id))
        return schemas.plain(posted)

    async def _interrupt(
        self, frame: InterruptFrame, earlier: dict[asyncio.Task[None], list[str]]
    ) -> dict[str, Any]:
        stopped = await self._stop(frame.run_id, frame.agent_id)
        if frame.run_id or frame.agent_id or stopped["runs"]:
            return stopped
        for posting, run_ids in earlier.items():
            await asyncio.wait([posting])
            if run_ids:  # the first to become a run is the one that is current
                return await self._stop(run_ids[0], None)
        return stopped

    async def _stop(self, run_id: str | None, agent_id: str | None) -> dict[str, Any]:
        stopped = await actions.stop(self.chat, run_id=run_id, agent_id=agent_id, by=self._name)
        return schemas.plain(stopped)

    async def _respond(self, frame: RespondFrame) -> dict[str, Any]:
        async with self.in_order:
            await self._count()
            run_id = await actions.respond(
                self.chat,
                frame.question_id,
                status=frame.status,
                payload=frame.payload,
                by=self._name,
            )
        return {"run_id": str(run_id)}

    async def _count(self) -> None:
        await limits.take_change(self.caller.user.pk, limits.address_of_scope(self.scope))

    # -- events -----------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        self.caller = await auth.caller_of_scope(self.scope)
        sid = self.scope["url_route"]["kwargs"]["sid"]
        self.chat = await actions.find_session(self.caller.user, sid)

    async def _stream(self, cursor: int | None) -> None:
        try:
            async with aclosing(
                streaming.batches(self.chat.pk, cursor, self._look_again)
            ) as batches:
                async for batch in batches:
                    for logged in batch:
                        await self.window.pass_one(logged.seq)
                        await self.send(text_data=frame_of(logged))
        except Exception as error:  # noqa: BLE001
            log.warning("socket_lost_its_log", extra={"error": repr(error)})
            await self.close(TRY_AGAIN_LATER)
        else:
            await self.close(CLOSE_CODES[404])

    # -- the rest ---------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return str(self.caller.user.get_username())

    def _parameter(self, name: str) -> str | None:
        query = parse_qs(self.scope["query_string"].decode("latin-1"))
        return query[name][-1] if name in query else None

    def _number(self, name: str, *, least: int) -> int | None:
        text = self._parameter(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and least <= int(text[:9]) and len(text) < 10):
            raise Invalid("invalid", f"`{name}` must be a whole number, {least} or more.")
        return int(text)

    async def _cursor(self) -> int | None:
        cursor = streaming.parse_cursor(self._parameter("cursor"))
        await streaming.check_cursor(self.chat.pk, cursor)
        return cursor

    async def _refuse(self, error: Exception) -> None:
        status, code, detail = errors.told(error)
        if status >= 500:
            log.error("socket_not_opened", exc_info=error)
        if "websocket.http.response" in (self.scope.get("extensions") or {}):
            body = json.dumps({"code": code, "detail": detail}).encode()
            headers = [(b"content-type", b"application/json")]
            kind = "websocket.http.response"
            await self.base_send({"type": f"{kind}.start", "status": status, "headers": headers})
            await self.base_send({"type": f"{kind}.body", "body": body})
            return
        await self.close(CLOSE_CODES.get(status, TRY_AGAIN_LATER))

    async def _reply(self, ref: Any, *, ok: Any = None, error: BaseException | None = None) -> None:
        reply: dict[str, Any] = {"ok": ok}
        if error is not None:
            status, code, detail = errors.told(_as_refusal(error))
            if status >= 500:
                log.error("frame_failed", exc_info=error)
            reply = {"error": {"code": code, "detail": detail}}
        try:
            await self.send(text_data=json.dumps({**reply, "ref": ref}))
        except Exception as gone:  # noqa: BLE001
            log.debug("reply_not_sent", extra={"error": repr(gone)})


def frame_of(logged: Logged) -> str:
    """An event on the wire. Its JSON is passed on as it stands in the log."""
    return f'{{"id":{logged.seq},"event":{logged.data}}}'


def _decode(data: str | bytes | None) -> dict[str, Any]:
    if data is None or len(data) > FRAME_CHARS:
        raise errors.too_large(FRAME_CHARS)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Invalid("malformed", "A frame is one JSON object with a `type`.")
    return raw


def _parse(raw: dict[str, Any]) -> Frame:
    kind = raw.get("type")
    model = FRAMES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise Invalid("unknown_type", f"`type` must be one of: {', '.join(FRAMES)}.")
    return model.model_validate(raw)


def _as_refusal(error: BaseException) -> BaseException:
    if isinstance(error, ValidationError):
        lines = (
            f"{'.'.join(map(str, fault['loc'])) or 'frame'}: "
            f"{fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        )
        return Invalid("invalid", "; ".join(lines))
    return error


async def _no_such_socket(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "websocket.close", "code": CLOSE_CODES[404]})


urlpatterns = [
    path("ws/chat/<str:sid>/", ChatConsumer.as_asgi()),
    re_path(r"", _no_such_socket),  # type: ignore[arg-type]
]
