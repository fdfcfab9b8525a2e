"""LeaseGuard: who is lost, and what is said in their name. Every node guards everybody else's runs.

A verdict needs all of: the lease over by the database's clock; its key absent, if Redis answers
(unknown is not absent); both in a row for ``AGENT_LEASE_GRACE``; the guard itself punctual; the
database back for at least a lease's life and the grace; and no mass event. The last three are about
the guard: where many nodes seem to die at once, or the guard has not been looking, it is the guard
that was away. What it doubts it says in the work log, once each time it begins to.

``now`` is monotonic seconds and only measures the guard's own waiting.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.models import QuerySet
from django.db.models.functions import Now

from . import endings, leases, panel, suspensions, worklog
from .conf import conf
from .models import Lease, Run
from .transactions import locked, unit_of_work

T = TypeVar("T")

log = logging.getLogger(__name__)

ALARMS = ("guard_mass_event", "guard_late", "guard_clock", "guard_redis")  # in the work log


@dataclass
class LeaseGuard:
    """One guard; keep it for the life of its process, for it remembers since when it looks."""

    name: str
    missing_since: dict[int, float] = field(default_factory=dict)
    last_look: float | None = None
    last_clock: dt.datetime | None = None  # the database's, at the last look
    trust_from: float = 0.0  # no verdict before: the database was away, or the guard was
    mass_since: float | None = None
    without_redis: bool = False  # the last suspects had no second opinion

    def sweep(self, now: float | None = None) -> list[Lease]:
        """Look once and judge; the leases whose runs were judged lost by this call."""
        try:
            clock = leases.database_now()
            suspects = self._suspects()
        except (DatabaseError, InterfaceError):
            self._trust_nobody(time.monotonic() if now is None else now)
            raise
        # Only now: a database that hung has kept the guard from looking, and beats from coming.
        now = time.monotonic() if now is None else now
        self._notice_gaps(now, clock)
        self.missing_since = {lease.pk: self.missing_since.get(lease.pk, now) for lease in suspects}
        if now < self.trust_from or self._is_mass_event(suspects, now):
            return []
        due = [
            lease for lease in suspects if now - self.missing_since[lease.pk] >= conf.lease_grace
        ]
        return _each(due, lambda lease: endings.lost(lease, end=Lease.End.EXPIRED, by=self.name))

    def _trust_nobody(self, now: float) -> None:
        """Nobody's silence, until every living lease has had the time to be renewed."""
        self.trust_from = now + conf.lease_ttl + conf.lease_grace

    def _notice_gaps(self, now: float, clock: dt.datetime | None) -> None:
        """A guard that was not looking has seen nothing "in a row".

        Whatever held it may have held every beat, too; and a database's clock that leaps, or that
        went on while this machine slept, ends leases which nobody had the time to renew. A gap too
        short for a living lease to run out in does no such harm.
        """
        away = now - self.last_look if self.last_look is not None else 0.0
        leap = (clock - self.last_clock).total_seconds() - away if clock and self.last_clock else 0
        self.last_look, self.last_clock = now, clock
        if away > 3 * conf.guard_interval + 1:
            self._alarm("guard_late", f"did not look for {away:.1f} s")
            self.missing_since.clear()
        harm = conf.lease_ttl - conf.heartbeat_interval
        if leap > harm:
            self._alarm("guard_clock", f"the database's clock has leapt by {leap:.1f} s")
        if max(away, leap) > harm:
            self._trust_nobody(now)

    def _suspects(self) -> list[Lease]:
        over = leases.expired(grace=0)
        alive = leases.mirrored(over)
        unknown = bool(over) and alive is None and leases.redis_configured()
        if unknown and not self.without_redis:
            self._alarm("guard_redis", "Redis does not answer: the rows alone judge")
        self.without_redis = unknown
        return [lease for lease in over if alive is None or lease.pk not in alive]

    def _is_mass_event(self, suspects: Sequence[Lease], now: float) -> bool:
        """More than half of all leases, on several nodes at once: an alarm before a verdict.

        One node's death is not a mass event, whatever share of the leases it held. If it goes on
        for another lease's life, the nodes are dead indeed.
        """
        nodes = {lease.node_id for lease in suspects}
        total = sum(leases.open_nodes().values()) if len(nodes) > 1 else 0
        mass = len(suspects) >= conf.mass_event_min and 2 * len(suspects) > total > 0
        if not mass:
            self.mass_since = None
            return False
        if self.mass_since is None:
            self.mass_since = now
            text = f"{len(suspects)} of {total} leases on {len(nodes)} nodes are over at once"
            self._alarm("guard_mass_event", text, level="error")
        return now - self.mass_since < conf.lease_ttl

    def _alarm(self, kind: str, text: str, level: str = "warning") -> None:
        worklog.write(None, kind, f"{self.name}: {text}", level=level)


def _each(items: Iterable[T], duty: Callable[[T], object]) -> list[T]:
    """Those for which ``duty`` was true. One that fails holds up no other; an outage ends all."""
    done = []
    for item in items:
        try:
            if duty(item):
                done.append(item)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            log.exception("guard_duty_failed", extra={"about": str(item)})
    return done


def enforce_stops(by: str) -> int:
    """Fence the runs that were told to stop and have not, past the grace; how many."""
    limit = Now() - dt.timedelta(seconds=conf.stop_grace)
    late = Lease.objects.filter(
        released_at=None, run__stop_requested_at__lt=limit, run__status__in=Run.OWNED
    )
    return len(_each(late, lambda lease: endings.fence(lease, by=by)))


def enforce_limits(by: str) -> int:
    """Fence the runs that were executed past their limit; how many.

    A runner whose loop turns has ended its run by then: these are past the grace, too.
    """
    limit = Now() - dt.timedelta(seconds=conf.run_limit + conf.stop_grace)
    over = Lease.objects.filter(released_at=None, acquired_at__lt=limit)
    return len(_each(over, lambda lease: endings.overran(lease, by=by)))


def mark_stalled() -> int:
    """Owned runs without progress become ``stalled``, and back when they move; how many did."""
    limit = Now() - dt.timedelta(seconds=conf.stall_after)
    moving = Run.objects.filter(status=Run.Status.STALLED, last_progress_at__gte=limit)
    silent = Run.objects.filter(status=Run.Status.RUNNING, last_progress_at__lt=limit)
    _each(list(moving), lambda run: _mark(run, moving, Run.Status.RUNNING))
    return len(_each(list(silent), lambda run: _mark(run, silent, Run.Status.STALLED)))


@unit_of_work
def _mark(run: Run, still: QuerySet[Run], status: Run.Status) -> bool:
    with locked(run.session_id) as session:
        if still.filter(pk=run.pk, epoch=run.epoch).update(status=status) != 1:
            return False
        run.status = status
        if status == Run.Status.STALLED:
            text = f"{run.agent_id}: for {conf.stall_after:g} s"
            worklog.write(session, "run_stalled", text, level="warning", run=run)
        else:
            worklog.write(session, "run_moves", f"{run.agent_id} makes progress again", run=run)
        panel.publish(session)
        return True


def rounds(guard: LeaseGuard) -> None:
    """Everything a node does for the whole cluster at each guard interval."""
    duties: list[Callable[[], object]] = [
        guard.sweep,
        lambda: enforce_stops(by=guard.name),
        lambda: enforce_limits(by=guard.name),
        mark_stalled,
        suspensions.expire_due,
    ]
    _each(duties, lambda duty: duty())
