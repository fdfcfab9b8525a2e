"""How an MCP server is spoken to, in the library's terms, with our bounds and our way of dying.

    stdio   the command runs below the fork server (``chat.tools.processes``): whatever kills the
            runner kills it too, with everything that it has started. Its variables are HOME, PATH
            and their kin and what the settings give it, never ours. What it writes to standard
            error stands in the worker's log.
    http    streamable HTTP. An event, and an answer that is no stream, has its greatest size.

A transport that ends raises ``Ended`` in whoever holds it open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from chat.mcp_servers import McpServer
from chat.tools import processes
from coordination.conf import conf

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

log = logging.getLogger(__name__)


class Ended(Exception):
    """The server is gone. The text says how, after its name."""


@asynccontextmanager
async def transport(server: McpServer) -> AsyncIterator[TransportStreams]:
    """The streams of one session. Raises Ended, also while it is held open."""
    async with (_http if server.url else _stdio)(server) as streams:
        yield streams


@asynccontextmanager
async def _stdio(server: McpServer) -> AsyncIterator[TransportStreams]:
    import anyio
    from mcp.client.stdio import get_default_environment
    from mcp.shared.message import SessionMessage

    environment = {**get_default_environment(), **server.env}
    reader, writer = await processes.start(
        [server.command, *server.args], environment, conf.mcp_message_bytes
    )
    arriving, arrived = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    leaving, left = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with arriving:
            while (line := await _line(reader)).endswith(b"\n"):
                if (message := _parsed(line)) is not None:
                    await arriving.send(message)
        raise Ended(processes.how_it_ended(line))

    async def write() -> None:
        async with left:
            async for item in left:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(f"{text}\n".encode())
                try:
                    async with asyncio.timeout(conf.tool_timeout):
                        await writer.drain()
                except TimeoutError:
                    raise Ended("does not read what it is told") from None

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(write)
            yield arrived, leaving
            group.cancel_scope.cancel()
    finally:
        writer.transport.abort()
        for stream in (arriving, arrived, leaving, left):
            stream.close()


async def _line(reader: Any) -> bytes:
    try:
        line: bytes = await reader.readline()
    except ValueError:
        raise Ended(f"sent a message of more than {conf.mcp_message_bytes} bytes") from None
    except ConnectionError:
        return b""
    return line


def _parsed(line: bytes) -> Any:
    """The message of a line; None for what some servers print there by mistake."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        log.debug("mcp_line_ignored")
        return None


@asynccontextmanager
async def _http(server: McpServer) -> AsyncIterator[TransportStreams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(
            # Compressed, a small answer could become a large one after it was measured.
            headers={**server.headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(conf.mcp_connect, read=conf.tool_timeout),
            event_hooks={"response": [_bound]},
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=conf.mcp_message_bytes
        ) as streams,
    ):
        yield streams


async def _bound(response: httpx2.Response) -> None:
    """A response hook: it comes before anything of the body is read."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _bounded(response.stream, response.headers.get("content-encoding"))


def _bounded(stream: Any, encoding: str | None) -> httpx2.AsyncByteStream:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            if encoding not in (None, "identity"):
                raise httpx2.StreamError("it is compressed, and was asked not to be")
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > conf.mcp_message_bytes:
                    raise httpx2.StreamError(f"it has more than {conf.mcp_message_bytes} bytes")
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()
