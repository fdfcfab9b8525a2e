"""The site's variables: read once, checked at once, each wrong one named.

    DATABASE_URL  REDIS_URL  AGENT_MODEL  AGENT_MCP_SERVERS
    DJANGO_SECRET_KEY  DJANGO_DEBUG  DJANGO_ALLOWED_HOSTS  DJANGO_CSRF_TRUSTED_ORIGINS
    DJANGO_TRUSTED_PROXIES
    AGENTSITE_VAR  AGENTSITE_ROLE

The seconds (``AGENT_LEASE_TTL`` and its kin) are not here but in ``coordination/conf.py``, because
they belong to what they time. A variable that is set but empty counts as not set, so that
``REDIS_URL= manage.py …`` means "without Redis".
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, IPvAnyNetwork, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from chat.mcp_servers import McpServer, ServerName

BASE_DIR = Path(__file__).resolve().parent.parent

CommaSeparated = Annotated[tuple[str, ...], NoDecode]


class SiteEnvironment(BaseSettings):
    """What a node is told from outside. A description says what the value should be."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    database_url: str = Field(
        default="",
        description="mysql://user:password@host:port/name or sqlite:////path/to/file",
    )
    redis_url: CommaSeparated = Field(
        default=(),
        description="redis://, rediss:// or unix:// addresses, separated by commas",
    )
    agent_model: str = Field(
        default="demo",
        min_length=1,
        description="'demo' or a model with its provider, like openai-chat:gpt-5",
        pattern=r"^(demo|demo-fast|[^:\s]+:\S+)$",
    )
    agent_mcp_servers: Annotated[dict[ServerName, McpServer], NoDecode] = Field(
        default={},
        description="a JSON object of MCP servers by name (letters, digits and '-'), like "
        '{"weather": {"url": "https://host/mcp"}}',
    )
    django_secret_key: str = Field(
        description="a long random text, the same on every node "
        '(python -c "import secrets; print(secrets.token_urlsafe(50))")',
    )
    django_debug: bool = Field(default=False, description="0 or 1")
    django_allowed_hosts: CommaSeparated = Field(
        default=(),
        description="host names without scheme or path, separated by commas",
    )
    django_csrf_trusted_origins: CommaSeparated = Field(
        default=(),
        description="origins like https://chat.example.org, separated by commas",
    )
    django_trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        default=(),
        description="addresses or networks of the proxies whose X-Forwarded-For is believed, "
        "separated by commas",
    )
    agentsite_var: Path = Field(
        default=BASE_DIR / "var",
        description="a folder for what one machine keeps: database, secret key, logs",
    )
    agentsite_role: Literal["web", "worker"] = Field(
        default="web",
        description="web or worker; agent_worker sets it by itself",
    )

    @field_validator(
        "redis_url",
        "django_allowed_hosts",
        "django_csrf_trusted_origins",
        "django_trusted_proxies",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("agent_mcp_servers", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as fault:  # its text may quote a secret
            raise ValueError(f"at character {getattr(fault, 'pos', 0)} it is not JSON") from None

    @field_validator("redis_url")
    @classmethod
    def _are_redis(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
                raise ValueError(f"{_without_password(url)!r} is none")
        return urls

    @field_validator("django_allowed_hosts")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if "/" in host:
                raise ValueError(f"{host!r} is none")
        return hosts

    @field_validator("django_csrf_trusted_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path:
                raise ValueError(f"{origin!r} is none")
        return origins

    @field_validator("database_url")
    @classmethod
    def _is_database(cls, url: str) -> str:
        if not url:
            return url
        if "://" not in url:
            raise ValueError("it cannot be parsed")
        try:
            config = dj_database_url.parse(url)
        except ValueError:  # its text may hold the password
            raise ValueError("it cannot be parsed") from None
        if config["ENGINE"].rpartition(".")[2] not in {"mysql", "sqlite3"}:
            raise ValueError(f"{config['ENGINE']} is not supported")
        if not config["NAME"]:
            raise ValueError("it names no database")
        return url

    @classmethod
    def read(cls) -> Self:
        """The environment, or one line that names every wrong variable."""
        try:
            return cls()
        except ValidationError as fault:
            raise ImproperlyConfigured("; ".join(_lines(cls, fault))) from None


def _lines(cls: type[BaseSettings], fault: ValidationError) -> list[str]:
    """Never the value itself: it may be a secret. A validator quotes what it may show."""
    lines = []
    for error in fault.errors(include_url=False, include_input=False):
        name, *within = map(str, error["loc"])
        should_be = cls.model_fields[name].description
        if error["type"] == "missing":
            why = "it is not set, and only serve makes one by itself"
        elif error["type"] == "value_error":
            why = error["msg"].removeprefix("Value error, ")
        else:
            why = error["msg"][0].lower() + error["msg"][1:]
        where = "".join(f"{part}: " for part in within)
        lines.append(f"{name.upper()} should be {should_be}: {where}{why}")
    return lines


def _without_password(url: str) -> str:
    return url if "@" not in url else url.partition("://")[0] + "://…@" + url.rpartition("@")[2]
