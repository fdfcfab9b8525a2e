"""For probes and operators: is the process up, is the node useful, how much is under way.

``/healthz`` asks nothing but the process, or a database outage would make an orchestrator kill
every node. ``/readyz`` asks what a node needs to be useful, its own listener included: a node whose
Redis works but that no longer hears would answer late for ever. ``/metrics`` names no user and no
session; its numbers are read from the rows at scrape time, so every node tells the same, and speaks
for the worker nodes, which have no port. What has happened is counted over the last minutes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import Any

import redis.asyncio
from django.conf import settings
from django.db import connection
from django.db.models import Count, Min, Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordination import guard, streams
from coordination.conf import conf
from coordination.db import db
from coordination.models import InboxMessage, Lease, Question, Run, WorkerNode, WorkLogEntry
from coordination.wakeups import Hub

NO_REDIS = "not configured: everything works, by its polls"
LATELY = dt.timedelta(minutes=10)
NODE_LINES = 1000  # of the work log that a scrape reads at most
LOOK_AGAIN = 0.02  # seconds: a listener that has just begun hears itself in a moment


@never_cache
@require_safe
async def healthz(_request: HttpRequest) -> HttpResponse:
    """The process answers."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
async def readyz(_request: HttpRequest) -> HttpResponse:
    """Database, Redis and this node's listener, each with its fault."""
    checks: dict[str, Awaitable[str]] = {"database": _said(db(_ask_database))}
    if settings.REDIS_URLS:
        checks |= {"redis": _said(_ping_all()), "listener": _said(_hear())}
    said = dict(zip(checks, await asyncio.gather(*checks.values()), strict=True))
    if not settings.REDIS_URLS:
        said["redis"] = NO_REDIS
    ready = all(word in ("ok", NO_REDIS) for word in said.values())
    status = "ready" if ready else "unavailable"
    body: dict[str, Any] = {"status": status, "checks": said}
    if not ready:
        body["code"] = "unavailable"
        body["detail"] = "; ".join(
            f"{k}: {v}" for k, v in said.items() if v not in ("ok", NO_REDIS)
        )
    return JsonResponse(body, status=200 if ready else 503)


async def _said(check: Awaitable[Any]) -> str:
    """``ok``, or what is wrong; addresses and passwords stay in the log of whoever connects."""
    try:
        async with asyncio.timeout(2 * conf.redis_timeout):
            await check
    except TimeoutError:
        return "no answer in time"
    except Exception as error:  # noqa: BLE001
        return type(error).__name__
    return "ok"


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


async def _ping_all() -> None:
    for url in settings.REDIS_URLS:
        client = redis.asyncio.from_url(url, socket_timeout=conf.redis_timeout)
        try:
            await client.ping()
        finally:
            await client.aclose()


async def _hear() -> None:
    hub = Hub.current()
    while not hub.listening:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_AGAIN)


@never_cache
@require_safe
async def metrics(_request: HttpRequest) -> HttpResponse:
    """Prometheus text. 503 without the database: no number is better than an old one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Numbers(await db(_read_rows), await _node()))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


async def _node() -> dict[str, float]:
    return {
        "stream_readers": streams.followers(),
        "event_lag": await streams.lag(),
        "listening": Hub.current().listening,
    }


def _read_rows() -> dict[str, Any]:
    runs = Run.objects.unfinished().values_list("status").annotate(count=Count("pk"))
    missed = Now() - 2 * dt.timedelta(seconds=conf.heartbeat_interval)
    leases = Lease.objects.filter(released_at=None).aggregate(
        leases_open=Count("pk"),
        beats_late=Count("pk", filter=Q(beat_at__lt=missed)),
        leases_overdue=Count("pk", filter=Q(expires_at__lt=Now())),
    )
    last = Now() - dt.timedelta(seconds=conf.lease_ttl)
    nodes = WorkerNode.objects.filter(left_at=None).aggregate(
        nodes_alive=Count("pk", filter=Q(beat_at__gt=last)),
        nodes_silent=Count("pk", filter=Q(beat_at__lte=last)),
    )
    ends = Lease.objects.filter(released_at__gte=Now() - LATELY).exclude(end=Lease.End.RELEASED)
    oldest = Run.objects.claimable().aggregate(at=Min("queued_at"))["at"]
    return {
        "runs": dict(runs.order_by()),
        **leases,
        **nodes,
        "ends": dict(ends.values_list("end").annotate(count=Count("pk"))),
        "alarms": _alarms(),
        "inbox_pending": InboxMessage.objects.filter(state=InboxMessage.State.PENDING).count(),
        "questions_open": Question.objects.filter(state=Question.State.OPEN).count(),
        "queue_age_seconds": max(0.0, (timezone.now() - oldest).total_seconds()) if oldest else 0.0,
    }


def _alarms() -> Counter[str]:
    since = timezone.now() - LATELY
    lines = WorkLogEntry.objects.filter(session=None).order_by("-pk")
    newest = lines.values_list("kind", "at")[:NODE_LINES]
    return Counter(kind for kind, at in newest if at >= since)


class _Numbers(Collector):
    """What was read, in Prometheus' words."""

    HELP = {
        "leases_open": "Runs that a runner executes under a lease",
        "beats_late": "Open leases whose last beat is older than two heartbeats",
        "leases_overdue": "Open leases whose time is over: the guard should end these soon",
        "nodes_alive": "Worker nodes that beat",
        "nodes_silent": "Worker nodes that neither beat nor have left, until a prune forgets them",
        "inbox_pending": "Messages between agents that are not yet in their reader's memory",
        "questions_open": "Questions that wait for a person",
        "queue_age_seconds": "How long the oldest claimable run has waited for a runner",
        "event_lag": "Events that this node has not read of the log it is most behind in",
        "stream_readers": "Event streams that this node serves now",
        "listening": "1 while this node hears its own pings through Redis",
    }

    def __init__(self, rows: dict[str, Any], node: dict[str, float]) -> None:
        self._rows = rows
        self._node = node

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, text in self.HELP.items():
            value = self._rows.get(name, self._node.get(name, 0))
            yield GaugeMetricFamily(f"agentsite_{name}", text, value=value)
        yield from self._by_label()

    def _by_label(self) -> Iterator[GaugeMetricFamily]:
        statuses = [status for status in Run.Status if status not in Run.TERMINAL]
        verdicts = (Lease.End.CRASHED, Lease.End.EXPIRED, Lease.End.FENCED)
        ends, alarms = self._rows["ends"], self._rows["alarms"]
        for name, text, label, labels, counts in (
            ("runs", "Runs that have not ended", "status", statuses, self._rows["runs"]),
            (
                "verdicts",
                "Runs taken from their owner in the last ten minutes",
                "reason",
                verdicts,
                ends,
            ),
            (
                "guard_alarms",
                "What guards doubted in the last ten minutes",
                "kind",
                guard.ALARMS,
                alarms,
            ),
        ):
            family = GaugeMetricFamily(f"agentsite_{name}", text, labels=[label])
            for value in labels:
                family.add_metric([value], counts.get(value, 0))
            yield family
        handed_over = ends.get(Lease.End.HANDED_OVER, 0)
        text = "Runs that a worker's shutdown gave back in the last ten minutes"
        yield GaugeMetricFamily("agentsite_handovers", text, value=handed_over)


urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
]
