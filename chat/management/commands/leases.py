"""``manage.py leases``: who vouches for which run, by the rows and by their mirror in Redis."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from chat import terminal
from coordination import leases
from coordination.models import Lease

OPEN = ("SESSION", "AGENT", "EPOCH", "BEAT", "BEATS", "EXPIRES", "REDIS", "RUNNER", "NODE", "RUN")
AUDIT = (
    *("SESSION", "AGENT", "EPOCH", "CLAIMED", "HELD", "BEATS", "END"),
    *("ENDED BY", "RUNNER", "NODE", "RUN"),
)


class Command(terminal.TerminalCommand):
    help = (
        "Open leases, by the database's clock, and what their Redis keys say. A key is a mirror "
        "only: alive, absent, or unknown where Redis does not answer."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="the audit: ended ones too, newest")
        parser.add_argument("--session", help="of this session only")
        parser.add_argument("--limit", type=int, default=200, help="rows at most (200)")
        self.add_json(parser)

    def handle(self, *, session: str | None, limit: int, **options: Any) -> None:
        if limit < 1:
            raise CommandError("--limit: at least one row is shown")
        rows = Lease.objects.all()
        if session:
            rows = rows.filter(session_id=terminal.find_session(session).pk)
        if not options["all"]:
            rows = rows.filter(released_at=None)
        found = list(rows.order_by("-acquired_at", "-pk")[:limit])
        now = terminal.database_now()
        mirror = self._mirror(found)
        if options["json"]:
            self.dump([_describe(lease, now, mirror) for lease in found])
        elif options["all"]:
            self._say(AUDIT, [self._audit(lease, now) for lease in found])
        else:
            self._say(OPEN, [self._open(lease, now, mirror) for lease in found])

    def _mirror(self, found: list[Lease]) -> dict[int, str]:
        """What Redis says about each open lease."""
        held = [lease for lease in found if lease.released_at is None]
        keys = leases.mirrored(held)
        if keys is None:
            return dict.fromkeys((lease.pk for lease in held), "unknown")
        return {lease.pk: "alive" if lease.pk in keys else "absent" for lease in held}

    def _say(self, head: tuple[str, ...], rows: list[list[terminal.Cell]]) -> None:
        if not rows:
            self.stdout.write("There is no lease: nobody executes a run.")
            return
        for line in terminal.table(head, rows):
            self.stdout.write(line)
        if not leases.redis_configured():
            self.stdout.write("REDIS_URL is not set: there is no mirror.")

    def _open(self, lease: Lease, now: dt.datetime, mirror: dict[int, str]) -> list[terminal.Cell]:
        left = (lease.expires_at - now).total_seconds()
        over = left <= 0
        expires = f"over by {terminal.seconds(-left)}" if over else f"in {terminal.seconds(left)}"
        says = mirror[lease.pk]
        if says == "absent" and not lease.beats:
            says = "no beat yet"  # the first one writes the key
        return [
            str(lease.session_id)[: terminal.SHORT],
            lease.agent_id,
            str(lease.epoch),
            f"{terminal.since(lease.beat_at, now)} ago",
            str(lease.beats),
            (expires, self.status_style("over" if over else "alive")),
            (says, self.status_style(says)),
            lease.runner_id,
            lease.node_id,
            str(lease.run_id)[: terminal.SHORT],
        ]

    def _audit(self, lease: Lease, now: dt.datetime) -> list[terminal.Cell]:
        end = lease.end or "open"
        return [
            str(lease.session_id)[: terminal.SHORT],
            lease.agent_id,
            str(lease.epoch),
            lease.acquired_at.strftime("%Y-%m-%d %H:%M:%S"),
            terminal.since(lease.acquired_at, lease.released_at or now),
            str(lease.beats),
            (end, self.status_style("completed" if end == "released" else "", end)),
            lease.ended_by or "-",
            lease.runner_id,
            lease.node_id,
            str(lease.run_id)[: terminal.SHORT],
        ]


def _describe(lease: Lease, now: dt.datetime, mirror: dict[int, str]) -> dict[str, Any]:
    return {
        "session": str(lease.session_id),
        "agent_id": lease.agent_id,
        "run_id": str(lease.run_id),
        "epoch": lease.epoch,
        "node_id": lease.node_id,
        "runner_id": lease.runner_id,
        "acquired_at": lease.acquired_at.isoformat(),
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
