"""LangGraph's client for JavaScript, in a process of its own: ``tests/js/langgraph.mjs``.

    async with JavaScript(url, token) as client:
        thread = await client.call("threads", "create")
        async for part in client.stream("runs", "stream", thread["thread_id"], "assistant", {…}):

``make test`` has installed what it needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DRIVER = Path(__file__).parent / "js" / "langgraph.mjs"
PATIENCE = 60  # seconds, for each line
LONGEST_LINE = 2**24  # a part may hold a whole conversation


class Refused(Exception):
    """The client has thrown; ``status`` is that of the answer, if it was one."""

    def __init__(self, error: str, status: int | None) -> None:
        super().__init__(error)
        self.status = status


class JavaScript:
    """One client at one address."""

    def __init__(self, url: str, token: str) -> None:
        self._argv = ["node", str(DRIVER), url, token]

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=pipe, stdout=pipe, limit=LONGEST_LINE
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def call(self, of: str, which: str, *given: Any) -> Any:
        """What the method returns. Raises Refused."""
        self._result: Any = None
        async for _ in self.stream(of, which, *given):
            raise AssertionError(f"{of}.{which} is a stream")
        return self._result

    async def stream(self, of: str, which: str, *given: Any) -> AsyncIterator[Any]:
        """The parts that the method yields. Raises Refused."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([of, which, *given]).encode() + b"\n")
        while line := await asyncio.wait_for(self._process.stdout.readline(), PATIENCE):
            match json.loads(line):
                case {"part": part}:
                    yield part
                case {"result": result}:
                    self._result = result
                    return
                case {"error": error, "status": status}:
                    raise Refused(error, status)
        raise AssertionError("node has left")
