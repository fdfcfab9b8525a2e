"""LeaseGuard: who is lost, and what is said in their name. Every node guards everybody else's runs.

A verdict needs all of: the lease over by the database's clock; its key absent, if Redis answers
(unknown is not absent); both in a row for ``AGENT_LEASE_GRACE``; the guard itself punctual; the
database back for at least a lease's life and the grace; and no mass event. The last three are about
the guard: where many nodes seem to die at once, or the guard has not been looking, it is the guard
that was away.

``now`` is monotonic seconds and only measures the guard's own waiting.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from . import endings, leases, rendezvous, suspensions, worklog
from .conf import conf
from .models import Lease, Run

log = logging.getLogger(__name__)


@dataclass
class LeaseGuard:
    """One guard; keep it for the life of its process, for it remembers since when it looks."""

    name: str
    missing_since: dict[int, float] = field(default_factory=dict)
    last_look: float | None = None
    trust_from: float = 0.0  # no verdict before: the database was away, or the guard was
    mass_since: float | None = None

    def sweep(self, now: float | None = None) -> list[Lease]:
        """Look once and judge; the leases whose runs were judged lost by this call."""
        now = time.monotonic() if now is None else now
        self._notice_own_absence(now)
        try:
            suspects = self._suspects()
        except (DatabaseError, InterfaceError):
            self.trust_from = now + conf.lease_ttl + conf.lease_grace
            raise
        self.missing_since = {lease.pk: self.missing_since.get(lease.pk, now) for lease in suspects}
        if now < self.trust_from or self._is_mass_event(suspects, now):
            return []
        due = [
            lease for lease in suspects if now - self.missing_since[lease.pk] >= conf.lease_grace
        ]
        return [lease for lease in due if endings.lost(lease, end=Lease.End.EXPIRED, by=self.name)]

    def _notice_own_absence(self, now: float) -> None:
        """A guard that was not looking has seen nothing "in a row"."""
        late = self.last_look is not None and now - self.last_look > 3 * conf.guard_interval + 1
        if late:
            absence = now - (self.last_look or now)
            log.warning("guard_late", extra={"seconds": absence})
            self.missing_since.clear()
            if absence > conf.lease_ttl:  # whatever held us may have held every beat, too
                self.trust_from = now + conf.lease_ttl + conf.lease_grace
        self.last_look = now

    def _suspects(self) -> list[Lease]:
        over = leases.expired(grace=0)
        alive = leases.mirrored(over)
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
            worklog.write(
                None,
                "guard_alarm",
                f"{len(suspects)} of {total} leases on {len(nodes)} nodes are over at once",
                level="error",
            )
        return now - self.mass_since < conf.lease_ttl


def enforce_stops(by: str) -> int:
    """Fence the runs that were told to stop and have not, past the grace; how many."""
    limit = timezone.now() - dt.timedelta(seconds=conf.stop_grace)
    late = Lease.objects.filter(
        released_at=None, run__stop_requested_at__lt=limit, run__status__in=Run.OWNED
    )
    return sum(endings.fence(lease, by=by) for lease in late)


def mark_stalled() -> int:
    """Owned runs without progress become ``stalled``, and back when they move again; how many."""
    limit = timezone.now() - dt.timedelta(seconds=conf.stall_after)
    moved = Run.objects.filter(status=Run.Status.STALLED, last_progress_at__gte=limit)
    moved.update(status=Run.Status.RUNNING)
    silent = Run.objects.filter(status=Run.Status.RUNNING, last_progress_at__lt=limit)
    return silent.update(status=Run.Status.STALLED)


def rounds(guard: LeaseGuard) -> None:
    """Everything a node does for the whole cluster at each guard interval."""
    guard.sweep()
    enforce_stops(by=guard.name)
    mark_stalled()
    rendezvous.expire_due()
    suspensions.expire_due()
