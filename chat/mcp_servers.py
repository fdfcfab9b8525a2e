"""The MCP servers of a site, as ``AGENT_MCP_SERVERS`` names them: one JSON object.

    {"weather": {"url": "https://weather.example.org/mcp", "headers": {"X-Key": "…"}},
     "files": {"command": "npx", "args": ["-y", "@scope/server-files", "/srv"], "approval": true}}

An agent lists ``mcp:weather`` (all its tools) or ``mcp:weather/forecast`` (that one); to its model
they are ``weather_forecast`` and so on. A URL, a header, an argument or a variable may be a secret:
none of them is in a ``repr``, a log line or an error. Here stands what is read from outside; what
is done with it is in ``chat.tools.mcp``. Needs neither Django's apps nor the MCP library.
"""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

PREFIX = "mcp:"

# No underscore: the first one in a tool's name ends its server's.
ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class McpServer(BaseModel):
    """One server: by its URL (streamable HTTP) or by the command that starts it (stdio)."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field("", repr=False)
    headers: dict[str, str] = Field({}, repr=False)
    command: str = ""
    args: tuple[str, ...] = Field((), repr=False)
    env: dict[str, str] = Field({}, repr=False)
    approval: bool | tuple[str, ...] = False
    """Whether a person approves each call, or the names of the tools for which one does."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if url:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError("it should be an address like https://host/mcp")
        return url

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if bool(self.url) == bool(self.command):
            raise ValueError("it has a url or a command, and one of them only")
        if self.url and (self.args or self.env):
            raise ValueError("args and env are for a command; a url takes headers")
        if self.command and self.headers:
            raise ValueError("headers are for a url; a command takes args and env")
        return self

    def needs_approval(self, tool: str) -> bool:
        """Whether a person decides about each call of this tool, by its name on the server."""
        return self.approval if isinstance(self.approval, bool) else tool in self.approval


def named(tool: str) -> tuple[str, str] | None:
    """``mcp:server/tool`` or ``mcp:server`` as its two parts; None for a tool of our own."""
    if not tool.startswith(PREFIX):
        return None
    server, _, name = tool.removeprefix(PREFIX).partition("/")
    return server, name
