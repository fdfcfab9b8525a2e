"""``manage.py check``: the layer, the isolation level, and the inequalities between the timings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import Error, Tags, register
from django.db import connection

from .conf import conf

BEATS_TO_A_LIFE = 3  # two may be lost to a pause or a network before anybody is doubted


@register()
def timings(**_: Any) -> list[Error]:
    """A lease must outlive lost beats, a guard must look more often than a lease dies."""
    errors = []
    if conf.lease_ttl < BEATS_TO_A_LIFE * conf.heartbeat_interval:
        errors.append(
            Error(
                f"AGENT_LEASE_TTL ({conf.lease_ttl}) is less than {BEATS_TO_A_LIFE} times "
                f"AGENT_HEARTBEAT_INTERVAL ({conf.heartbeat_interval}).",
                hint="A living agent would be declared dead. Raise the first or lower the second.",
                id="coordination.E001",
            )
        )
    if conf.guard_interval > conf.lease_ttl:
        errors.append(
            Error(
                f"AGENT_GUARD_INTERVAL ({conf.guard_interval}) is longer than AGENT_LEASE_TTL.",
                hint="A dead agent would be noticed late. Lower it.",
                id="coordination.E002",
            )
        )
    if conf.await_default > conf.await_max:
        errors.append(
            Error(
                f"AGENT_AWAIT_DEFAULT ({conf.await_default}) is over AGENT_AWAIT_MAX.",
                hint="Every wait without a timeout would be refused. Lower it.",
                id="coordination.E003",
            )
        )
    return errors


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
