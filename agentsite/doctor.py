"""What may be wrong with this node, asked for real: each check does what the site would do.

A fault means that the site cannot keep its promises. A warning means that it works, but slower or
for show: without Redis, or with the demo model.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import redis
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from chat.llm import get_model
from chat.tools import mcp
from chat.tools.base import ToolError
from coordination import dashboard

Status = Literal["ok", "warning", "fault"]

CLOCK_TOLERANCE = 2.0  # seconds: times are shown to people; leases ask the database alone
ROUND_TRIP_LIMIT = 5.0


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    check: str
    status: Status
    text: str


class Fault(Exception):
    """The check found something. Its text is what a person should read."""


class Notice(Exception):
    """Worth a line, but no fault."""


def examine() -> list[Finding]:
    return [_examined(name, check) for name, check in CHECKS.items()]


def _examined(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, "ok", check())
    except Notice as notice:
        return Finding(name, "warning", str(notice))
    except Exception as fault:  # noqa: BLE001 - whatever it is, the others are asked all the same
        return Finding(name, "fault", " ".join(str(fault).split()) or repr(fault))


def database() -> str:
    connection.ensure_connection()
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise Fault(f"{len(missing)} migrations are not applied: run manage.py migrate")
    version = ".".join(map(str, connection.get_database_version()))
    return f"{connection.display_name} {version}, all migrations applied"


def isolation() -> str:
    return _isolation_sqlite() if connection.vendor == "sqlite" else _isolation_mysql()


def _isolation_sqlite() -> str:
    mode = str(_value("PRAGMA journal_mode"))
    if mode != "wal":
        raise Fault(f"SQLite's journal is in mode {mode}, not WAL: readers would block the writer")
    return "serialised, write-ahead log"


def _isolation_mysql() -> str:
    found = _variables("transaction_isolation", "tx_isolation", "innodb_snapshot_isolation")
    level = found.get("transaction_isolation") or found.get("tx_isolation") or "unknown"
    if level != "READ-COMMITTED":
        raise Fault(f"transactions are {level}, not READ-COMMITTED: a poll would never see news")
    if found.get("innodb_snapshot_isolation", "OFF") != "OFF":
        raise Fault("innodb_snapshot_isolation is ON: a lost race would be an error")
    return "READ-COMMITTED"


def redis_server() -> str:
    if not settings.REDIS_URLS:
        raise Notice("REDIS_URL is not set: everything goes by polling, slower")
    answers = []
    for url in settings.REDIS_URLS:
        started = time.monotonic()
        client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
        with client:
            client.ping()
        answers.append(f"{(time.monotonic() - started) * 1000:.1f} ms")
    return "answers in " + ", ".join(answers)


def channel_layer() -> str:
    layer = get_channel_layer()
    if isinstance(layer, InMemoryChannelLayer):
        raise Notice("in memory: processes do not hear each other without REDIS_URL")
    return f"round trip in {asyncio.run(_round_trip(layer)) * 1000:.1f} ms"


async def _round_trip(layer: "InMemoryChannelLayer") -> float:
    """As a hint travels: to a group, and out of it again."""
    channel = await layer.new_channel()
    await layer.group_add("doctor", channel)
    started = time.monotonic()
    await layer.group_send("doctor", {"type": "doctor"})
    try:
        async with asyncio.timeout(ROUND_TRIP_LIMIT):
            await layer.receive(channel)
    except TimeoutError:
        raise Fault(f"a message did not come back within {ROUND_TRIP_LIMIT:g} s") from None
    finally:
        await layer.group_discard("doctor", channel)
        if flush := getattr(layer, "close_pools", None) or getattr(layer, "flush", None):
            await flush()
    return time.monotonic() - started


def workers() -> str:
    try:
        nodes = dashboard.nodes()
    except DatabaseError:  # whose fault has a line of its own
        raise Notice("not known without the database's tables") from None
    alive = [node for node in nodes if node.state == "alive"]
    if not alive:
        raise Notice("no worker node is heard of: nothing is answered until one is started")
    runs, slots = sum(node.runs for node in alive), sum(node.slots for node in alive)
    silent = sum(node.state == "silent" for node in nodes)
    return f"{len(alive)} alive, {silent} silent, {runs} of {slots} slots held"


def model() -> str:
    name: str = settings.AGENT_MODEL
    if name == "demo":
        raise Notice("the offline demo; set AGENT_MODEL for a real one")
    get_model(name).check()  # it makes the provider's client, which wants its key, and asks nobody
    return f"{name}, nothing is missing"


def clock() -> str:
    sql = {"sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"}
    value = str(_value(sql.get(connection.vendor, "SELECT UTC_TIMESTAMP(6)")))
    difference = (
        datetime.now(UTC) - datetime.fromisoformat(value).replace(tzinfo=UTC)
    ).total_seconds()
    if abs(difference) > CLOCK_TOLERANCE:
        raise Fault(f"this machine is {difference:+.1f} s from the database's clock")
    return f"{abs(difference):.3f} s from the database's"


def mcp_servers() -> str:
    """Each one is asked for its tools, as a worker would."""
    names = sorted(settings.AGENT_MCP_SERVERS)
    if not names:
        return "none in AGENT_MCP_SERVERS"
    found = asyncio.run(_all_tools(names))
    faults = [str(tools) for tools in found if isinstance(tools, ToolError)]
    if faults:
        raise Fault("; ".join(faults))
    listed = dict(zip(names, found, strict=True))
    refused = [f"{name}: {why}" for name, tools in listed.items() for why in tools.refused]
    counts = ", ".join(f"{name}: {len(tools.offered)} tools" for name, tools in listed.items())
    if refused:
        raise Notice(f"{counts}; left out: {'; '.join(refused)}")
    return counts


async def _all_tools(names: list[str]) -> list[Any]:
    asked = (mcp.server(name).tools() for name in names)
    return await asyncio.gather(*asked, return_exceptions=True)


CHECKS: dict[str, Callable[[], str]] = {
    "database": database,
    "isolation level": isolation,
    "redis": redis_server,
    "channel layer": channel_layer,
    "worker nodes": workers,
    "model": model,
    "mcp servers": mcp_servers,
    "clock": clock,
}


def _value(sql: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    if row is None:
        raise DatabaseError(f"no answer to {sql}")
    return row[0]


def _variables(*names: str) -> dict[str, str]:
    """MySQL, MariaDB and their versions name them differently: only those that are there."""
    return dict(_rows("SHOW SESSION VARIABLES", names))


def _rows(sql: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"{sql} LIKE %s", [name])
            yield from ((str(key), str(value)) for key, value in cursor.fetchall())
