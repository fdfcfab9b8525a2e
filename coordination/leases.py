"""A lease says "a supervisor vouches for this runner". Its mirror is in Redis.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now
from django_redis import get_redis_connection
from redis.exceptions import RedisError

from .conf import conf
from .models import Lease, Run, Session
from .prepared import Values, given
from .transactions import unit_of_work

log = logging.getLogger(__name__)

MIRRORED_AT_ONCE = 500  # keys in one call of the script: Redis is busy for a millisecond, not more

# Set each key unless another runner holds it; the value's first part is the owner.
_RENEW = """
for i, key in ipairs(KEYS) do
  local owner = ARGV[i + 2] .. ':'
  local held = redis.call('GET', key)
  if not held or string.sub(held, 1, #owner) == owner then
    redis.call('SET', key, owner .. ARGV[1], 'PX', ARGV[2])
  end
end
"""
_RELEASE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(frozen=True, slots=True)
class Held:
    """One lease that a beat has renewed: what its runner may still execute."""

    run_id: uuid.UUID
    session_id: uuid.UUID
    agent_id: str
    runner_id: str
    epoch: int
    stop_requested: bool = False


@unit_of_work
def renew(runner_ids: Sequence[str], known: dict[int, Held] | None = None) -> list[Held]:
    """Beat once for all runs of these runners, in one UPDATE, and read back what they still hold.

    The answer is an order: a run that is missing from it was lost, one that is to stop says so.
    ``known`` is the caller's memory of its last beat: only what is new to it is read in full.
    """
    known = {} if known is None else known
    mine = Lease.objects.filter(runner_id__in=runner_ids, released_at=None)
    mine.update(
        beat_at=Now(),
        expires_at=Now() + dt.timedelta(seconds=conf.lease_ttl),
        beats=F("beats") + 1,
    )
    held = set(mine.values_list("pk", flat=True))
    for pk in known.keys() - held:
        del known[pk]
    if new := held - known.keys():
        names = ("pk", "run_id", "session_id", "agent_id", "runner_id", "epoch")
        rows = Lease.objects.filter(pk__in=new).values_list(*names)
        known |= {pk: Held(*row) for pk, *row in rows}
    stops = mine.filter(run__stop_requested_at__isnull=False)
    stopped = {
        pk: replace(known[pk], stop_requested=True)
        for pk in stops.values_list("pk", flat=True)
        if pk in known
    }
    return list((known | stopped).values())


def expired(grace: float) -> list[Lease]:
    """Open leases whose time has been over for ``grace`` seconds, by the database's clock."""
    limit = Now() - dt.timedelta(seconds=grace)
    return list(Lease.objects.filter(released_at=None, expires_at__lt=limit))


def database_now() -> dt.datetime | None:
    """The clock that leases live by. None where there is no session yet, and so no lease."""
    rows = Session.objects.annotate(now=Now()).values_list("now", flat=True)
    return rows.first()


def held_before(run: Run) -> float:
    """Seconds for which earlier claims have executed this run; what it waited for is not in it."""
    spans = [end - begin for begin, end in _SPANS(run=run.pk)]
    return sum(spans, dt.timedelta()).total_seconds()


_SPANS = Values(
    lambda: Lease.objects.filter(run=given("run"), released_at__isnull=False).values_list(
        "acquired_at", "released_at"
    )
)


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


def redis_answers() -> bool:
    """Ask it, for no longer than its connection has patience."""
    try:
        return bool(_redis().ping())
    except (RedisError, OSError):
        return False


@functools.cache
def _renew_script() -> Any:
    return _redis().register_script(_RENEW)


def mirror(held: Sequence[Held]) -> bool:
    """Write the keys of what was just renewed, many in one call. False when Redis is away."""
    if not redis_configured():
        return False
    now, life = int(time.time() * 1000), int(conf.lease_ttl * 1000)
    try:
        for first in range(0, len(held), MIRRORED_AT_ONCE):
            some = held[first : first + MIRRORED_AT_ONCE]
            keys = [key(lease.session_id, lease.agent_id) for lease in some]
            _renew_script()(keys, [now, life, *(lease.runner_id for lease in some)])
    except (RedisError, OSError) as error:
        log.debug("lease_mirror_failed", extra={"error": repr(error)})
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
