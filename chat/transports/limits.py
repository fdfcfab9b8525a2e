"""How much one user, or one address, may change in a minute, however many nodes there are.

    agent:rate:{what}:{who} = when all that was taken is paid back, in ms    expires then

Each taking moves that time on by a minute over the limit; it may lie a minute ahead, not more (the
generic cell rate algorithm; where a clock was set back, what lies further ahead is cut). One script
in Redis looks and takes, from all allowances or from none, so nodes cannot slip past each other.
Redis only adds the nodes up: where it does not answer, this process counts for itself, and for a
while nobody asks Redis again.

What changes something is counted. Reading and following are not, for they begin no work; nor is a
stop, which has to work just then.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django_redis import get_redis_connection
from redis.exceptions import RedisError

from coordination.conf import conf
from coordination.leases import redis_configured

from .errors import RateLimited

log = logging.getLogger(__name__)

MINUTE = 60_000.0  # milliseconds
ASK_AGAIN = 5.0  # seconds for which a Redis that did not answer is left alone
REMEMBERED = 10_000  # allowances in this process's memory; those that are whole again go first

# KEYS: the allowances. ARGV: how far ahead they may be, and what one taking costs each; in ms.
# The clock is Redis' own. Returns the ms to wait; 0: it was taken.
_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local wait, paid = 0, {}
for i, key in ipairs(KEYS) do
  local before = math.min(tonumber(redis.call('GET', key) or 0), now + ARGV[1])
  paid[i] = math.max(before, now) + ARGV[i + 1]
  wait = math.max(wait, paid[i] - now - ARGV[1])
end
if wait > 0 then return math.ceil(wait) end
for i, key in ipairs(KEYS) do
  redis.call('SET', key, string.format('%.3f', paid[i]), 'PX', math.ceil(paid[i] - now))
end
return 0
"""


async def take_change(user_id: int, address: str) -> None:
    """Count one change by this user, from this address. Raises RateLimited."""
    await _take(
        "Too many changes by you, or from your address, in a minute.",
        {f"user:{user_id}": conf.rate_user, f"address:{address}": conf.rate_address},
    )


def counted_sign_in(
    view: Callable[..., Any],
) -> Callable[..., Coroutine[Any, Any, HttpResponseBase]]:
    """A view that tries a password: as often in a minute as one address may."""
    call = sync_to_async(view)

    @functools.wraps(view)
    async def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            if request.method == "POST":
                said = "Too many passwords were tried from your address."
                await _take(said, {f"signin:{address_of(request)}": conf.rate_signin})
        except RateLimited as refusal:
            page = render(request, "429.html", {"seconds": refusal.retry_after}, status=429)
            page["Retry-After"] = str(refusal.retry_after)
            return page
        response: HttpResponseBase = await call(request, *args, **kwargs)
        return response

    return wrapper


async def _take(said: str, allowances: dict[str, int]) -> None:
    costs = {name: MINUTE / limit for name, limit in allowances.items() if limit}
    wait = await _counter.take(list(costs), list(costs.values()))
    if wait > 0:
        raise RateLimited(math.ceil(wait / 1000), said)


class Counter:
    """The allowances: in Redis for all nodes, or in this process while Redis is away."""

    def __init__(self) -> None:
        self._paid: dict[str, float] = {}
        self._alone_until = 0.0

    async def take(self, names: Sequence[str], costs: Sequence[float]) -> float:
        """Milliseconds to wait; 0 where it was taken, from all of them."""
        if not redis_configured() or time.monotonic() < self._alone_until:
            return self._take_here(names, costs)
        keys = [f"agent:rate:{name}" for name in names]
        try:
            async with asyncio.timeout(conf.redis_timeout):
                return float(await asyncio.to_thread(_script(), keys, [MINUTE, *costs]))
        except (RedisError, OSError) as error:
            self._alone_until = time.monotonic() + ASK_AGAIN
            log.warning("rates_counted_alone", extra={"error": repr(error)})
            return self._take_here(names, costs)

    def _take_here(self, names: Sequence[str], costs: Sequence[float]) -> float:
        now = time.monotonic() * 1000
        paid = {
            name: max(self._paid.get(name, 0.0), now) + cost
            for name, cost in zip(names, costs, strict=True)
        }
        wait = max([0.0, *(at - now - MINUTE for at in paid.values())])
        if not wait:
            self._paid |= paid
            if len(self._paid) > REMEMBERED:
                self._paid = {name: at for name, at in self._paid.items() if at > now}
        return wait


_counter = Counter()


@functools.cache
def _script() -> Any:
    # The leases' connection: it gives up after a second, and tries nothing twice.
    return get_redis_connection("leases").register_script(_TAKE)


# -- addresses ------------------------------------------------------------------------------------


def address_of(request: HttpRequest) -> str:
    """Where a request comes from."""
    return address(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def address_of_scope(scope: Mapping[str, Any]) -> str:
    """Where a WebSocket comes from."""
    forwarded = [value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    peer = scope.get("client") or [""]
    return address(str(peer[0]), b",".join(forwarded).decode("latin-1"))


def address(peer: str, forwarded: str) -> str:
    """Where a connection comes from, behind the proxies that the site trusts and no others.

    Each proxy adds at the right whom it has heard, so whatever stands left of the last one that is
    trusted may be made up.
    """
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    while hops and _is_trusted(peer):
        peer = hops.pop()
    found = _parse(peer)
    if isinstance(found, ipaddress.IPv6Address):  # whoever has one of these has 2^64
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found or peer)


def _is_trusted(peer: str) -> bool:
    found = _parse(peer)
    return found is not None and any(found in proxy for proxy in settings.TRUSTED_PROXIES)


def _parse(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(peer)
    except ValueError:
        return None
    # A socket that listens on both kinds writes IPv4 as IPv6.
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found
