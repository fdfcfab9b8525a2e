"""The floor under ``benchmarks/streams.py``: what Daphne costs that passes on a provider's chunks.

    daphne benchmarks.echo:application      # GET /?script:NAME

One request to the provider for each reader, each line of the answer as it came: no database, no
Redis, no agent, nothing that outlives the connection.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

Send = Callable[[dict[str, Any]], Awaitable[None]]


async def application(scope: dict[str, Any], receive: Any, send: Send) -> None:  # noqa: ARG001
    """Stream the answer to the message in the query string."""
    message = {"role": "user", "content": scope["query_string"].decode()}
    reader, writer = await _ask({"model": "fake", "stream": True, "messages": [message]})
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async for line in reader:
            if line.startswith(b"data: "):
                body = {"type": "http.response.body", "body": line + b"\n"}
                done = line.startswith(b"data: [DONE]")
                await send({**body, "more_body": not done})
                if done:
                    break
    finally:
        writer.close()


async def _ask(request: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps(request).encode()
    head = (
        f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer
