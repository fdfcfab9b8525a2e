"""``manage.py check``: the layer, the isolation level, and the inequalities between the timings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection

from .conf import conf

# So many times the first is at most the second (a setting, or seconds), or else …
INEQUALITIES: list[tuple[int, str, str | float, str, str]] = [
    (
        3,  # two beats may be lost to a pause or a network before anybody is doubted
        "heartbeat_interval",
        "lease_ttl",
        "A living agent would be declared dead. Raise the second or lower the first.",
        "E001",
    ),
    (1, "guard_interval", "lease_ttl", "A dead agent would be noticed late. Lower it.", "E002"),
    (
        1,
        "await_default",
        "await_max",
        "Every wait without a timeout would be refused. Lower it.",
        "E003",
    ),
    (
        1,
        "heartbeat_interval",
        "stop_grace",
        "Without Redis a stop is heard with a beat: who obeys would be cut off before.",
        "E006",
    ),
    (
        2,
        "guard_interval",
        2.0,
        "A node's death would be told later than lease, grace and two seconds.",
        "W001",
    ),
    (
        1,
        "stall_after",
        "model_silence",
        "A silent provider would be given up before anybody sees that its run is stalled.",
        "W002",
    ),
    (
        1,
        "model_silence",
        "run_limit",
        "A run would be ended before its silent provider is given up.",
        "W003",
    ),
    (
        1,
        "tool_timeout",
        "run_limit",
        "A run would be ended before its hanging tool is given up.",
        "W004",
    ),
]


@register()
def timings(**_: Any) -> list[CheckMessage]:
    """The inequalities between the times: what would kill the living, or never fire."""
    return [
        (Error if number.startswith("E") else checks.Warning)(
            f"{f'{times} times ' if times > 1 else ''}AGENT_{name.upper()} "
            f"({getattr(conf, name):g}) is over {_named(bound)}.",
            hint=consequence,
            id=f"coordination.{number}",
        )
        for times, name, bound, consequence, number in INEQUALITIES
        if times * getattr(conf, name) > _seconds(bound)
    ]


def _seconds(bound: str | float) -> float:
    return bound if isinstance(bound, float) else float(getattr(conf, bound))


def _named(bound: str | float) -> str:
    value = f"{_seconds(bound):g}"
    return f"AGENT_{bound.upper()} ({value})" if isinstance(bound, str) else f"{value} s"


@register()
def channel_layer(**_: Any) -> list[Error]:
    """The core layer loses interrupts behind tokens and forgets its groups with Redis."""
    backend = settings.CHANNEL_LAYERS.get("default", {}).get("BACKEND", "")
    if backend.startswith("channels_redis.core"):
        return [
            Error(
                "The channel layer channels_redis.core drops messages past 100 a process.",
                hint="Use channels_redis.pubsub.RedisPubSubChannelLayer.",
                id="coordination.E004",
            )
        ]
    return []


@register(Tags.database)
def isolation_level(databases: Any = None, **_: Any) -> list[Error]:
    """A poll inside REPEATABLE READ never sees the row it waits for."""
    if not databases or connection.vendor != "mysql":
        return []
    with connection.cursor() as cursor:
        # The first is MySQL's name and MariaDB's from 11.1 on, the second MariaDB's before.
        cursor.execute(
            "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')"
        )
        level = str(cursor.fetchone()[1]).upper().replace("-", " ")
    if level == "READ COMMITTED":
        return []
    return [
        Error(
            f"The isolation level is {level}; it must be READ COMMITTED.",
            hint="Leave OPTIONS['isolation_level'] at 'read committed'.",
            id="coordination.E005",
        )
    ]
