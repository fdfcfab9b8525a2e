"""``manage.py agents [SESSION]``: who works, on what, and whether they are alive."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from chat import terminal
from chat.management.look import LookCommand
from chat.models import ChatSession
from coordination import panel

HEAD = ("AGENT", "STATUS", "REASON", "BEAT", "PROGRESS", "EPOCH", "RUNNER", "RUN", "TASK")


class Command(LookCommand):
    help = "The agents of a session, or of every session in which something has not ended."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "session", nargs="?", help="its id, or a start of it that fits no other"
        )
        super().add_arguments(parser)

    def look(self, *, session: str | None, **options: Any) -> list[dict[str, Any]]:
        chats = [terminal.find_session(session)] if session else terminal.busy_sessions()
        return [self._describe(chat) for chat in chats]

    def lines(self, found: list[dict[str, Any]], **options: Any) -> Iterator[str]:
        if not found:
            yield "Nothing is under way in any session."
        now = terminal.database_now()
        for number, about in enumerate(found):
            if number:
                yield ""
            yield from self._session(about, now)

    def _describe(self, chat: ChatSession) -> dict[str, Any]:
        status, run_id = panel.session_status(chat.pk)
        return {
            "session": str(chat.pk),
            "title": chat.title,
            "owner": chat.owner.get_username(),
            "deleted": chat.deleted_at is not None,
            "status": status,
            "run_id": str(run_id) if run_id else None,
            "agents": panel.agents(chat.pk),
        }

    def _session(self, about: dict[str, Any], now: dt.datetime) -> Iterator[str]:
        title = terminal.one_line(about["title"] or "(untitled)", 50)
        deleted = ", deleted" if about["deleted"] else ""
        yield self.style.MIGRATE_HEADING(
            f"{about['session']}  {about['status']}  {title}  ({about['owner']}{deleted})"
        )
        if about["agents"]:
            yield from terminal.table(HEAD, [self._row(agent, now) for agent in about["agents"]])
        else:
            yield "No agent has worked here yet."

    def _row(self, agent: dict[str, Any], now: dt.datetime) -> list[terminal.Cell]:
        style = self.status_style(agent["status"], agent["reason"] or "")
        lease = agent["lease"] or {}
        return [
            agent["agent_id"],
            (agent["status"], style),
            (agent["reason"] or "-", style),
            terminal.since(lease.get("beat_at"), now),
            terminal.since(agent["last_progress_at"], now),
            str(lease.get("epoch", "-")),
            str(lease.get("runner_id", "-")),
            agent["run_id"][: terminal.SHORT],
            (agent["task_id"] or "-")[: terminal.SHORT],
        ]
