"""A lease says "a supervisor vouches for this runner". The only module with Redis keys.

    agent:lease:{session}:{agent} = {runner}:{epochMs}    expires with the lease

The row in the database is the lease; the key is its mirror, for a quick look and as a second
opinion for the guard. The beat comes from the supervisor, a process apart from the runners, so no
model call, regular expression or JSON document stops it; it proves that the process lives, not that
the run makes progress. A parked run has no lease: nobody owns it.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now
from django_redis import get_redis_connection
from redis.exceptions import RedisError

from .conf import conf
from .models import Lease
from .transactions import unit_of_work

log = logging.getLogger(__name__)

# Set the key unless another runner holds it; the value's first part is the owner.
_RENEW = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. ARGV[2], 'PX', ARGV[3])
return 1
"""
_RELEASE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(frozen=True)
class Held:
    """One lease that a beat has renewed: what its runner may still execute."""

    run_id: uuid.UUID
    session_id: uuid.UUID
    agent_id: str
    runner_id: str
    epoch: int
    stop_requested: bool


@unit_of_work
def renew(runner_ids: Sequence[str]) -> list[Held]:
    """Beat once for all runs of these runners, in one UPDATE, and read back what they still hold.

    The answer is an order: a run that is missing from it was lost, one that is to stop says so.
    """
    mine = Lease.objects.filter(runner_id__in=runner_ids, released_at=None)
    mine.update(
        beat_at=Now(),
        expires_at=Now() + dt.timedelta(seconds=conf.lease_ttl),
        beats=F("beats") + 1,
    )
    rows = mine.values_list(
        "run_id", "session_id", "agent_id", "runner_id", "epoch", "run__stop_requested_at"
    )
    return [Held(*row[:5], stop_requested=row[5] is not None) for row in rows]


def expired(grace: float) -> list[Lease]:
    """Open leases whose time has been over for ``grace`` seconds, by the database's clock."""
    limit = Now() - dt.timedelta(seconds=grace)
    return list(Lease.objects.filter(released_at=None, expires_at__lt=limit))


def open_nodes() -> dict[str, int]:
    """How many leases each node holds."""
    counts: dict[str, int] = {}
    for node_id in Lease.objects.filter(released_at=None).values_list("node_id", flat=True):
        counts[node_id] = counts.get(node_id, 0) + 1
    return counts


# -- the mirror in Redis ---------------------------------------------------------------------


def key(session_id: uuid.UUID, agent_id: str) -> str:
    """The seeds' key."""
    return f"agent:lease:{session_id}:{agent_id}"


@functools.cache
def _redis() -> Any:
    """The leases' own connection: never the cache API, to which an outage reads as "absent"."""
    return get_redis_connection("leases")


def redis_configured() -> bool:
    """False where this site runs without Redis."""
    return "leases" in settings.CACHES


def mirror(held: Iterable[Held]) -> bool:
    """Write the keys of what was just renewed, in one pipeline. False when Redis is away."""
    if not redis_configured():
        return False
    now = str(int(time.time() * 1000))
    life = str(int(conf.lease_ttl * 1000))
    try:
        pipe = _redis().pipeline(transaction=False)
        for lease in held:
            pipe.eval(_RENEW, 1, key(lease.session_id, lease.agent_id), lease.runner_id, now, life)
        pipe.execute()
    except (RedisError, OSError) as error:
        log.warning("lease_mirror_failed", extra={"error": repr(error)})
        return False
    return True


def unmirror(session_id: uuid.UUID, agent_id: str, runner_id: str) -> None:
    """Delete the key, if it is this runner's: a clean exit is seen at once."""
    if not redis_configured():
        return
    try:
        _redis().eval(_RELEASE, 1, key(session_id, agent_id), runner_id)
    except (RedisError, OSError) as error:
        log.debug("lease_unmirror_failed", extra={"error": repr(error)})


def mirrored(leases: Sequence[Lease]) -> set[int] | None:
    """Of these leases, those whose key says that their runner lives; None: Redis is unknown.

    Unknown is not absent: without an answer the key says nothing either way.
    """
    if not redis_configured() or not leases:
        return None
    try:
        values = _redis().mget([key(lease.session_id, lease.agent_id) for lease in leases])
    except (RedisError, OSError):
        return None
    return {
        lease.pk
        for lease, value in zip(leases, values, strict=True)
        if value is not None and value.decode().startswith(f"{lease.runner_id}:")
    }
