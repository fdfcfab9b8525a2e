"""The tools of MCP servers: ours in every respect, but that somebody else carries them out.

    "mcp:weather"            at an agent: every tool of the server that the settings call weather
    "mcp:weather/forecast"   that one
    weather_forecast         what its model calls

Each process has one session with each server, opened when its tools are first needed
(``connection``). The list is read then, kept, and read again when the server says that it has
changed or after a new connection. A server that cannot be reached takes its tools from the turn,
and the model is told why; one that does not even refuse takes up to ``AGENT_MCP_CONNECT`` seconds
from whoever asks first in each ``AGENT_MCP_RETRY``, and from those beside it. A call goes the way
of every tool's call (``chat.executor``): arguments checked, a person asked, time limited,
cancelled by Stop, which the server is told.

All that a server says is a stranger's word: how much of it is taken is in ``coordination.conf``
(``mcp_…``), and what it must not be is refused tool by tool, with a reason (``Tools.refused``).
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.conf import settings

from chat.mcp_servers import McpServer, named
from chat.tools.base import Tool, ToolContext, ToolError
from chat.tools.schemas import JsonSchema
from coordination.conf import conf

from .connection import Connection, Unavailable
from .contents import in_words

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed

log = logging.getLogger(__name__)

__all__ = ["Offer", "Tools", "Unavailable", "named", "offered", "server"]

ANYONES_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")  # what every provider takes


@dataclass
class Tools:
    """The tools of one server by the names that models know, and why others are not among them."""

    offered: dict[str, Tool] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


@dataclass
class Offer:
    """What an agent has of its servers now, and a line for each one that it does not reach."""

    tools: dict[str, Tool] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


async def offered(names: Iterable[str]) -> Offer:
    """The tools behind an agent's names, ``mcp:…``.

    Waits for each server, at the same time, ``AGENT_MCP_CONNECT`` to connect and as long to list.
    """
    wanted: dict[str, set[str]] = {}
    for name in names:
        if (parts := named(name)) is not None:
            wanted.setdefault(parts[0], set()).add(parts[1])
    offer = Offer()
    answers = await asyncio.gather(*(_tools_of(name, of) for name, of in wanted.items()))
    for tools, missing in answers:
        offer.tools |= tools
        offer.missing += missing
    return offer


async def _tools_of(name: str, wanted: set[str]) -> tuple[dict[str, Tool], list[str]]:
    try:
        tools = (await server(name).tools()).offered
    except ToolError as error:
        return {}, [f"You do not have the tools of {name} now: {error}."]
    if "" in wanted:
        return tools, []
    chosen = {tool_name(name, tool) for tool in wanted}
    missing = [
        f"You do not have the tool {tool} now: its server does not offer it."
        for tool in sorted(chosen - set(tools))
    ]
    return {tool: made for tool, made in tools.items() if tool in chosen}, missing


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Server]] = WeakKeyDictionary()


def server(name: str) -> Server:
    """This process's handle of a server. Raises Unavailable where the settings know none."""
    here = _servers.setdefault(asyncio.get_running_loop(), {})
    if name not in here:
        given = settings.AGENT_MCP_SERVERS.get(name)
        if given is None:
            raise Unavailable(f"AGENT_MCP_SERVERS names no server {name}")
        here[name] = Server(name, given)
    return here[name]


def tool_name(server_name: str, tool: str) -> str:
    """What a model calls a server's tool."""
    return re.sub("[^a-zA-Z0-9_-]", "_", f"{server_name}_{tool}")


class Server:
    """A server's tools, as long as they are good, and the connection they are called through."""

    def __init__(self, name: str, given: McpServer) -> None:
        self.name = name
        self.given = given
        self._connection: Connection | None = None
        self._tools: Tools | None = None
        self._reading = asyncio.Lock()
        self._failed: Unavailable | None = None
        self._ask_again_at = 0.0

    async def tools(self) -> Tools:
        """Raises Unavailable where they have never been read, and cannot be now.

        Who was not reached is left alone for ``AGENT_MCP_RETRY`` seconds; calls try at once.
        """
        async with self._reading:
            if self._tools is not None and self._is_good:
                return self._tools
            now = asyncio.get_running_loop().time()
            if self._failed is None or now >= self._ask_again_at:
                await self._read()
            if self._tools is None:
                assert self._failed is not None
                raise self._failed
            return self._tools

    @property
    def _is_good(self) -> bool:
        connection = self._connection
        return connection is not None and connection.is_open and not connection.is_news

    async def _read(self) -> None:
        try:
            listed = await self._connected().list_tools()
        except TimeoutError:
            self._failed = Unavailable(f"its list of tools took over {conf.mcp_connect:g} seconds")
        except ToolError as error:
            self._failed = Unavailable(str(error))
        else:
            self._failed = None
            self._tools = await asyncio.to_thread(self._make, listed)
            for reason in self._tools.refused:
                log.warning("mcp_tool_refused", extra={"server": self.name, "reason": reason})
            return
        self._ask_again_at = asyncio.get_running_loop().time() + conf.mcp_retry
        log.warning("mcp_unavailable", extra={"server": self.name, "reason": str(self._failed)})

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._connection = Connection(self.name, self.given)
        return self._connection

    # -- from its tools to ours ----------------------------------------------------------

    def _make(self, listed: list[Listed]) -> Tools:
        tools = Tools()
        for tool in listed[: conf.mcp_tools]:
            try:
                made = self._tool(tool)
                if made.name in tools.offered:
                    raise ValueError(f"another one is called {made.name} already")
                tools.offered[made.name] = made
            except ValueError as error:
                tools.refused.append(f"{tool.name[:100]!r}: {error}")
        if len(listed) > conf.mcp_tools:
            tools.refused.append(f"all after the first {conf.mcp_tools}: they are too many")
        return tools

    def _tool(self, listed: Listed) -> Tool:
        name = tool_name(self.name, listed.name)
        if not ANYONES_NAME.fullmatch(name):
            raise ValueError("its name is too long")
        description = listed.description or listed.title or listed.name
        size = len(json.dumps([description, listed.input_schema]))
        if size > conf.mcp_spec_bytes:
            raise ValueError(f"its description and schema have {size} bytes")
        arguments = JsonSchema(listed.input_schema)
        arguments.check()
        hints = listed.annotations
        return Tool(
            name,
            description,
            arguments,
            functools.partial(self._call, listed.name),
            repeatable=bool(hints and (hints.read_only_hint or hints.idempotent_hint)),
            requires_approval=self.given.needs_approval(listed.name),
        )

    async def _call(self, tool: str, context: ToolContext, /, **arguments: Any) -> str:  # noqa: ARG002
        result = await self._connected().ask(functools.partial(_call, tool, arguments))
        said = in_words(result)
        if result.is_error:
            raise ToolError(said or "the server says that it failed, and not why")
        return said


async def _call(tool: str, arguments: dict[str, Any], client: Client) -> CallToolResult:
    """Not ``client.call_tool``: it checks the result against the server's own schema, unbounded."""
    from mcp_types import (
        CallToolRequest,
        CallToolRequestParams,
        CallToolResult,
        InputRequiredResult,
    )
    from pydantic import TypeAdapter

    answers: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(
        CallToolResult | InputRequiredResult
    )
    params = CallToolRequestParams(name=tool, arguments=arguments)
    answer = await client.session.send_request(CallToolRequest(params=params), answers)
    if isinstance(answer, InputRequiredResult):
        raise ToolError("the server asks back, and nobody here can answer it")
    return answer
