"""``manage.py chain MESSAGE``: who answered whom, as a tree."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from chat import snapshots, terminal
from chat.management.look import LookCommand

PREVIEW = 60  # columns of a message's text


class Command(LookCommand):
    help = "The tree of replies that holds a message between agents, its root first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("message", help="its id, or a start of it that fits no other")
        parser.add_argument("--full", action="store_true", help="the whole texts")
        super().add_arguments(parser)

    def look(self, *, message: str, **options: Any) -> dict[str, Any]:
        found = terminal.find_message(message)
        root = snapshots.reply_chain(found.session_id, found.pk)
        return {"session": str(found.session_id), "message": str(found.pk), "root": root}

    def lines(self, found: dict[str, Any], *, full: bool, **options: Any) -> Iterator[str]:
        yield f"session {found['session']}"
        yield from self._lines(found["root"], asked=found["message"], full=full)

    def _lines(
        self,
        node: dict[str, Any],
        *,
        asked: str,
        full: bool,
        first: str = "",
        rest: str = "",
        parent: dict[str, Any] | None = None,
    ) -> Iterator[str]:
        yield first + self._head(node, parent, asked=asked)
        replies = node["replies"]
        body = rest + ("│ " if replies else "  ")
        if full:
            yield from (body + line for line in terminal.plain(node["content"]).splitlines())
        else:
            yield body + terminal.one_line(node["content"], PREVIEW)
        for number, reply in enumerate(replies, start=1):
            last = number == len(replies)
            yield from self._lines(
                reply,
                asked=asked,
                full=full,
                first=rest + ("└─ " if last else "├─ "),
                rest=rest + ("   " if last else "│  "),
                parent=node,
            )

    def _head(self, node: dict[str, Any], parent: dict[str, Any] | None, *, asked: str) -> str:
        words = f"{node['type']} {node['sender']} → {node['recipient']}"
        if node["id"] == asked:
            words = self.style.MIGRATE_HEADING(words)
        state = self.status_style(node["status"], node["reason"] or "")(node["status"])
        about = [node["id"][: terminal.SHORT], state, node["created_at"][:19].replace("T", " ")]
        if parent:
            about.append(f"after {_between(parent['created_at'], node['created_at'])}")
        if node["delivered_at"]:
            about.append(f"read after {_between(node['created_at'], node['delivered_at'])}")
        if node["reason"]:
            about.append(node["reason"])
        if node["late"]:
            about.append(self.style.WARNING("late"))
        return f"{words}  [{', '.join(about)}]"


def _between(earlier: str, later: str) -> str:
    return terminal.since(earlier, dt.datetime.fromisoformat(later))
