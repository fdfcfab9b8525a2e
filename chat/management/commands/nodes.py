"""``manage.py nodes``: the worker nodes, their runners, and when they were last heard of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from chat import terminal
from chat.management.look import LookCommand
from coordination import dashboard

HEAD = ("NODE", "STATE", "BEAT", "UP", "RUNS", "LOAD", "PID")


class Command(LookCommand):
    help = (
        "Worker nodes as their supervisors tell of them with each beat. A node that was killed is "
        "silent. A runner's beat is the last sign that its loop turns."
    )

    def look(self, **options: Any) -> list[dict[str, Any]]:
        return [_describe(node) for node in dashboard.nodes()]

    def lines(self, found: list[dict[str, Any]], **options: Any) -> Iterator[str]:
        if found:
            yield from terminal.table(HEAD, [row for node in found for row in self._rows(node)])
        else:
            yield "No worker node was heard of: start `manage.py agent_worker`."

    def _rows(self, node: dict[str, Any]) -> list[list[terminal.Cell]]:
        """The node's own, and one for each runner that it still speaks for."""
        load = node["load"]
        about: list[terminal.Cell] = [
            node["id"],
            (node["state"], self.status_style(node["state"])),
            f"{terminal.seconds(node['beat_age'])} ago",
            terminal.seconds(node["up"]),
            f"{node['runs']}/{node['slots']}",
            "-" if load is None else f"{load:.2f}/{node['cpus']}",
            str(node["pid"]),
        ]
        runners = node["runners"] if node["state"] == "alive" else []
        return [about, *(_runner(runner, node) for runner in runners)]


def _runner(runner: dict[str, Any], node: dict[str, Any]) -> list[terminal.Cell]:
    return [
        f"  {runner['id'].removeprefix(node['id'])}",
        "",
        f"{terminal.seconds(runner['quiet'])} ago",
        terminal.seconds(runner["age"]),
        f"{runner['runs']}/{node['concurrency']}",
        "",
        str(runner["pid"]),
    ]


def _describe(node: dashboard.Node) -> dict[str, Any]:
    return {
        **dataclasses.asdict(node),
        "runs": node.runs,
        "slots": node.slots,
        "started_at": node.started_at.isoformat(),
        "left_at": node.left_at.isoformat() if node.left_at else None,
    }
