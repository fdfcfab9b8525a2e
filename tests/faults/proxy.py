"""The network between the nodes and Redis, as a thing to break.

    with RedisProxy() as network:
        network.upstream = redis.port       # whoever connects to network.url talks to Redis
        network.cut()                       # connections break, new ones are refused
        network.hold()                      # bytes go nowhere, and nobody is told
        network.delay_hints(5, times=3)     # each published message comes 5 s late, three times
        network.mend()                      # as before; what is late still comes

Redis's answers are read frame by frame, because a published message must be told from the answer
to a command, and a frame must be delivered whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

PUBLISHED = (b"*3\r\n$7\r\nmessage\r\n", b">3\r\n$7\r\nmessage\r\n")  # RESP 2, RESP 3
AGGREGATES = b"*>~%"
BULK = b"$=!"


class RedisProxy:
    """One loopback port before one Redis. Its loop has a thread of its own."""

    def __init__(self) -> None:
        self.upstream = 0
        self.port = 0
        self.late = 0  # published messages that are still to be delivered
        self._delay = 0.0
        self._times = 1
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._flows: asyncio.Event
        self._done: asyncio.Event
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._run()), name="proxy", daemon=True
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)

    # -- breaking ---------------------------------------------------------------------------------

    def cut(self) -> None:
        self._refuses = True
        self._loop.call_soon_threadsafe(self._drop_all)

    def hold(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def delay_hints(self, seconds: float, times: int = 1) -> None:
        self._delay, self._times = seconds, times

    def mend(self) -> None:
        self._refuses = False
        self._delay, self._times = 0.0, 1
        self._loop.call_soon_threadsafe(self._flows.set)

    # -- carrying ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._flows, self._done = asyncio.Event(), asyncio.Event()
        self._flows.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._done.wait()
        server.close()
        self._drop_all()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _drop_all(self) -> None:
        for connection in list(self._connections):
            connection.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self._refuses:
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, redis = await asyncio.open_connection("127.0.0.1", self.upstream)
        ways = [
            asyncio.ensure_future(self._commands(reader, redis)),
            asyncio.ensure_future(self._answers(answers, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            redis.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._flows.wait()
            writer.write(data)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(65536):
            await self._flows.wait()
            rest += data
            for frame in frames(rest):
                rest = rest[len(frame) :]
                if self._delay and frame.startswith(PUBLISHED):
                    self.late += 1
                    self._loop.call_later(self._delay, self._deliver, writer, frame * self._times)
                else:
                    writer.write(frame)

    def _deliver(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.late -= 1
        if not writer.is_closing():
            writer.write(data)


def frames(data: bytes) -> Iterator[bytes]:
    """The whole RESP frames at the beginning of ``data``."""
    start = 0
    while (end := _end_of_frame(data, start)) is not None:
        yield data[start:end]
        start = end


def _end_of_frame(data: bytes, start: int) -> int | None:
    line = data.find(b"\r\n", start)
    if line < 0:
        return None
    kind, after = data[start : start + 1], line + 2
    if kind in BULK:
        size = int(data[start + 1 : line])
        end = after + size + 2 if size >= 0 else after
        return end if end <= len(data) else None
    if kind in AGGREGATES:
        return _end_of_items(data, after, int(data[start + 1 : line]) * (2 if kind == b"%" else 1))
    return after


def _end_of_items(data: bytes, start: int, count: int) -> int | None:
    end: int | None = start
    for _ in range(count):
        if end is None:
            break
        end = _end_of_frame(data, end)
    return end
