"""``manage.py leases``: who vouches for which run, by the rows and by their mirror in Redis."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from chat import terminal
from chat.management.look import LookCommand
from coordination import leases
from coordination.models import Lease

OPEN = ("SESSION", "AGENT", "EPOCH", "BEAT", "BEATS", "EXPIRES", "REDIS", "RUNNER", "NODE", "RUN")
AUDIT = (
    *("SESSION", "AGENT", "EPOCH", "CLAIMED", "HELD", "BEATS", "END"),
    *("ENDED BY", "RUNNER", "NODE", "RUN"),
)


class Command(LookCommand):
    help = (
        "Open leases, by the database's clock, and what their Redis keys say. A key is a mirror "
        "only: alive, absent, or unknown where Redis does not answer."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="the audit: ended ones too, newest")
        parser.add_argument("--session", help="of this session only")
        parser.add_argument("--limit", type=int, default=200, help="rows at most (200)")
        super().add_arguments(parser)

    def look(self, *, session: str | None, limit: int, **options: Any) -> list[dict[str, Any]]:
        if limit < 1:
            raise CommandError("--limit: at least one row is shown")
        rows = Lease.objects.all()
        if session:
            rows = rows.filter(session_id=terminal.find_session(session).pk)
        if not options["all"]:
            rows = rows.filter(released_at=None)
        found = list(rows.order_by("-acquired_at", "-pk")[:limit])
        now, mirror = terminal.database_now(), _mirror(found)
        return [_describe(lease, now, mirror) for lease in found]

    def lines(self, found: list[dict[str, Any]], **options: Any) -> Iterator[str]:
        if not found:
            yield "There is no lease: nobody executes a run."
        elif options["all"]:
            yield from terminal.table(AUDIT, [self._audit(lease) for lease in found])
        else:
            yield from terminal.table(OPEN, [self._open(lease) for lease in found])
        if found and not leases.redis_configured():
            yield "REDIS_URL is not set: there is no mirror."

    def _open(self, lease: dict[str, Any]) -> list[terminal.Cell]:
        left = lease["expires_in"]
        over = left <= 0
        expires = f"over by {terminal.seconds(-left)}" if over else f"in {terminal.seconds(left)}"
        says = lease["mirror"]
        if says == "absent" and not lease["beats"]:
            says = "no beat yet"  # the first one writes the key
        return [
            lease["session"][: terminal.SHORT],
            lease["agent_id"],
            str(lease["epoch"]),
            f"{terminal.seconds(lease['beat_age'])} ago",
            str(lease["beats"]),
            (expires, self.status_style("over" if over else "alive")),
            (says, self.status_style(says)),
            lease["runner_id"],
            lease["node_id"],
            lease["run_id"][: terminal.SHORT],
        ]

    def _audit(self, lease: dict[str, Any]) -> list[terminal.Cell]:
        end = lease["end"] or "open"
        return [
            lease["session"][: terminal.SHORT],
            lease["agent_id"],
            str(lease["epoch"]),
            lease["acquired_at"][:19].replace("T", " "),
            terminal.seconds(lease["held_for"]),
            str(lease["beats"]),
            (end, self.status_style("completed" if end == "released" else "", end)),
            lease["ended_by"] or "-",
            lease["runner_id"],
            lease["node_id"],
            lease["run_id"][: terminal.SHORT],
        ]


def _mirror(found: list[Lease]) -> dict[int, str]:
    """What Redis says about each open lease."""
    held = [lease for lease in found if lease.released_at is None]
    keys = leases.mirrored(held)
    if keys is None:
        return dict.fromkeys((lease.pk for lease in held), "unknown")
    return {lease.pk: "alive" if lease.pk in keys else "absent" for lease in held}


def _describe(lease: Lease, now: dt.datetime, mirror: dict[int, str]) -> dict[str, Any]:
    return {
        "session": str(lease.session_id),
        "agent_id": lease.agent_id,
        "run_id": str(lease.run_id),
        "epoch": lease.epoch,
        "node_id": lease.node_id,
        "runner_id": lease.runner_id,
        "acquired_at": lease.acquired_at.isoformat(),
        "held_for": ((lease.released_at or now) - lease.acquired_at).total_seconds(),
        "beat_at": lease.beat_at.isoformat(),
        "beat_age": (now - lease.beat_at).total_seconds(),
        "beats": lease.beats,
        "expires_at": lease.expires_at.isoformat(),
        "expires_in": (lease.expires_at - now).total_seconds(),
        "released_at": lease.released_at.isoformat() if lease.released_at else None,
        "end": lease.end or None,
        "ended_by": lease.ended_by or None,
        "mirror": mirror.get(lease.pk),
    }
