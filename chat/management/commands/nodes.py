"""``manage.py nodes``: the worker nodes, their runners, and when they were last heard of."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser
from typing import Any

from chat import terminal
from coordination import dashboard

HEAD = ("NODE", "STATE", "BEAT", "UP", "RUNS", "LOAD", "PID")


class Command(terminal.TerminalCommand):
    help = (
        "Worker nodes as their supervisors tell of them with each beat. A node that was killed is "
        "silent. A runner's beat is the last sign that its loop turns."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_json(parser)

    def handle(self, **options: Any) -> None:
        nodes = dashboard.nodes()
        if options["json"]:
            self.dump([_describe(node) for node in nodes])
            return
        if not nodes:
            self.stdout.write("No worker node was heard of: start `manage.py agent_worker`.")
            return
        rows = [row for node in nodes for row in self._rows(node)]
        for line in terminal.table(HEAD, rows):
            self.stdout.write(line)

    def _rows(self, node: dashboard.Node) -> list[list[terminal.Cell]]:
        """The node's own, and one for each of its runners."""
        about: list[terminal.Cell] = [
            node.id,
            (node.state, self.status_style(node.state)),
            f"{terminal.seconds(node.beat_age)} ago",
            terminal.seconds(node.up),
            f"{node.runs}/{node.slots}",
            "-" if node.load is None else f"{node.load:.2f}/{node.cpus}",
            str(node.pid),
        ]
        return [about, *(_runner(runner, node) for runner in node.runners)]


def _runner(runner: dashboard.Runner, node: dashboard.Node) -> list[terminal.Cell]:
    quiet, age = terminal.seconds(runner.quiet), terminal.seconds(runner.age)
    held = f"{runner.runs}/{node.concurrency}"
    return [
        f"  {runner.id.removeprefix(node.id)}",
        "",
        f"{quiet} ago",
        age,
        held,
        "",
        str(runner.pid),
    ]


def _describe(node: dashboard.Node) -> dict[str, Any]:
    return {
        **dataclasses.asdict(node),
        "runs": node.runs,
        "slots": node.slots,
        "started_at": node.started_at.isoformat(),
        "left_at": node.left_at.isoformat() if node.left_at else None,
    }
