"""``manage.py prune``: the log of finished runs, smaller, and no nodes of long ago (cron)."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from chat import terminal
from coordination import prune
from coordination.conf import conf


class Command(terminal.TerminalCommand):
    help = (
        "Fold what finished runs have streamed into one event a message. Nothing that was said is "
        "lost, and readers may read meanwhile; one that comes back after longer than this gets a "
        "snapshot first. Worker nodes that are gone are forgotten (AGENT_NODE_MEMORY)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than",
            type=float,
            metavar="SECONDS",
            help=f"events younger than this stay (AGENT_PRUNE_AFTER: {conf.prune_after:g})",
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
        self.add_json(parser)

    def handle(self, *, older_than: float | None, dry_run: bool, **options: Any) -> None:
        age = conf.prune_after if older_than is None else older_than
        if not age >= 0:
            raise CommandError("--older-than: a number of seconds, 0 or more")
        done = prune.prune(age, dry_run=dry_run)
        nodes = prune.forget_nodes(conf.node_memory, dry_run=dry_run)
        if options["json"]:
            self.dump({**dataclasses.asdict(done), "nodes": nodes, "dry_run": dry_run})
            return
        fold, forget = ("would fold", "would forget") if dry_run else ("folded", "forgot")
        self.stdout.write(
            f"{fold} {done.removed} of {done.events} events in {done.sessions} sessions"
        )
        if nodes:
            self.stdout.write(f"{forget} {nodes} worker nodes that are gone")
