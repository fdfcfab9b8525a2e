"""One session with an MCP server, shared by all runs of a runner.

A task of its own keeps it open, since what the library enters must be left by the same task; the
runs only ask through it. Whoever's question ends with the session gone, or is answered that it is
gone, retires the connection: it takes no more questions, and is closed after its last one. The next
question finds a new connection.

Nothing is asked twice by itself: what a call has done before its answer was lost, nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from chat.mcp_servers import McpServer
from chat.tools.base import ToolError
from coordination.conf import conf

from .contents import bounded
from .transports import Ended, transport

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Listed

T = TypeVar("T")

WORDS = 1000  # bytes of what a server says of an error


class Unavailable(ToolError):
    """The server cannot be asked. The text says which one, and why."""


class Connection:
    """Begun when made. ``stale`` says that the list of tools has changed since it was read."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.server = server
        self.stale = False
        self._deaf = False  # nobody would tell us that the list has changed
        self._retired = False
        self._asking = 0
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())
        self._keeper.add_done_callback(_look_at)

    @property
    def is_open(self) -> bool:
        return not (self._retired or self._keeper.done())

    @property
    def is_news(self) -> bool:
        """Whether the list of tools has to be read again."""
        return self.stale or self._deaf

    async def list_tools(self) -> list[Listed]:
        """As many as one server may have, and one more. Raises Unavailable and TimeoutError."""
        self.stale = False
        return await self.ask(_all_tools)

    async def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Ask through this session. Raises Unavailable, and ToolError for an error it answers."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST
        from pydantic import ValidationError

        client = await self._client()
        self._asking += 1
        # Whoever is stopped does not wait while a server that reads nothing is told so.
        asked = asyncio.ensure_future(question(client))
        asked.add_done_callback(_look_at)
        try:
            return await asyncio.shield(asked)
        except MCPError as error:
            said = bounded(error.message, WORDS)
            if error.code not in (CONNECTION_CLOSED, INVALID_REQUEST):
                raise ToolError(f"the MCP server {self.name} refused: {said}") from None
            self._retired = True
            raise Unavailable(self._words(await self._how_it_ended() or said)) from None
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise ToolError(
                f"the MCP server {self.name} gave an answer that is none: {bounded(where, WORDS)}"
            ) from None
        finally:
            asked.cancel()
            self._asking -= 1
            if self._retired and not self._asking:
                self._keeper.cancel()

    async def _client(self) -> Client:
        """Leaves both alone if it is cancelled: others wait for them too."""
        either: list[asyncio.Future[Any]] = [self._ready, self._keeper]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return self._ready.result()
        raise Unavailable(self._words(await self._how_it_ended()))

    async def _how_it_ended(self) -> str:
        """Empty where it has not."""
        await asyncio.wait([self._keeper], timeout=conf.tool_kill_grace)
        if not self._keeper.done() or self._keeper.cancelled():
            return ""
        error = self._keeper.exception()
        return _why(error) if error else "closed the session"

    def _words(self, why: str) -> str:
        return f"the MCP server {self.name} is not available: it {why or 'was closed'}"

    # -- the task that keeps it open -----------------------------------------------------

    async def _keep(self) -> None:
        await asyncio.to_thread(_import_library)
        from mcp import Client, Implementation

        async with asyncio.timeout(conf.mcp_connect) as limit:
            async with Client(
                transport(self.server),
                message_handler=self._told,
                client_info=Implementation(name="agentsite", version="1"),
                cache=None,
            ) as client:
                limit.reschedule(None)
                self._ready.set_result(client)
                try:
                    await self._listen(client)
                finally:  # a server that does not take our leave must not hold the runner's end
                    limit.reschedule(asyncio.get_running_loop().time() + conf.tool_kill_grace)

    async def _told(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.stale = True

    async def _listen(self, client: Client) -> None:
        """For ever. Newer servers tell what has changed only to who subscribes to it."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = client.server_capabilities.tools
        if tools is not None and tools.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as news:
                    async for _ in news:
                        self.stale = True
                self._deaf = True
            except ListenNotSupportedError:
                pass  # an older one tells without being asked
            except (MCPError, SubscriptionLost):
                self._deaf = True
        await asyncio.Event().wait()


def _import_library() -> None:
    """A second, in which no event loop should stand still; later nothing."""
    import jsonschema  # noqa: F401
    import mcp  # noqa: F401


async def _all_tools(client: Client) -> list[Listed]:
    tools: list[Listed] = []
    cursor: str | None = None
    async with asyncio.timeout(conf.mcp_connect):
        while len(tools) <= conf.mcp_tools:
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
    return tools[: conf.mcp_tools + 1]


def _why(error: BaseException) -> str:
    """Short, and without what an exception's own words may hold: an address with a secret in it."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(Ended)
        error = (ours or error).exceptions[0]
    match error:
        case Ended():
            return str(error)
        case TimeoutError():
            return f"did not answer within {conf.mcp_connect:g} seconds"
        case _ if hasattr(error, "code") and hasattr(error, "message"):
            return f"refused the session: {bounded(str(error.message), WORDS)}"
        case _:
            return f"could not be reached ({type(error).__name__})"


def _look_at(ended: asyncio.Future[Any]) -> None:
    """Or asyncio would complain of an exception that nobody has asked for."""
    if not ended.cancelled():
        ended.exception()
