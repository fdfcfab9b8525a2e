"""``manage.py timeline SESSION``: what happened, in one order, and how long each hop took."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from chat import terminal
from chat.management.look import LookCommand
from coordination import timeline

HEAD = ("AT", "HOP", "AFTER", "WHAT", "AGENT", "BY", "TEXT")
TEXT = 60  # columns


class Command(LookCommand):
    help = (
        "A session's messages, runs, leases, questions, stops and work log in one order, the "
        "newest page of it, each with the time since what it follows."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", help="its id, or a start of it that fits no other")
        parser.add_argument("--kind", choices=timeline.Kind.values, help="only this")
        parser.add_argument("--agent-id", default="", metavar="ID", help="only what is this one's")
        parser.add_argument("--upto", type=int, metavar="PLACE", help="an earlier page")
        super().add_arguments(parser)

    def look(
        self, *, session: str, kind: str | None, agent_id: str, upto: int | None, **options: Any
    ) -> dict[str, Any]:
        chat = terminal.find_session(session)
        kinds = [kind] if kind else timeline.Kind.values
        page = timeline.page(chat.session, upto=upto, kinds=kinds, agent_id=agent_id)
        return {
            "session": str(chat.pk),
            "entries": [_describe(entry) for entry in page.entries],
            "earlier": page.earlier,
            "later": page.later,
        }

    def lines(self, found: dict[str, Any], **options: Any) -> Iterator[str]:
        yield f"session {found['session']}"
        rows = [self._row(entry) for entry in found["entries"]]
        yield from terminal.table(HEAD, rows) if rows else ["Nothing has happened here."]
        for name in ("earlier", "later"):
            if found[name] is not None:
                yield f"{name}: --upto {found[name]}"

    def _row(self, entry: dict[str, Any]) -> list[terminal.Cell]:
        at = dt.datetime.fromisoformat(entry["at"]).strftime("%m-%d %H:%M:%S.%f")[:-3]
        took = "" if entry["took"] is None else f"{entry['took']:.3f} s"
        what = f"{entry['kind']}: {entry['what']}"
        return [
            at,
            took,
            entry["after"],
            (what, self.status_style(entry["what"])),
            entry["agent_id"],
            terminal.one_line(entry["by"], TEXT),
            terminal.one_line(entry["text"], TEXT),
        ]


def _describe(entry: timeline.Entry) -> dict[str, Any]:
    return {
        "at": entry.at.isoformat(),
        "kind": str(entry.kind),
        "what": str(entry.what),
        "agent_id": entry.agent_id,
        "run_id": str(entry.run_id) if entry.run_id else None,
        "by": str(entry.by),
        "text": entry.text,
        "after": str(entry.after),
        "took": entry.took,
        "row": str(entry.row.pk),
    }
