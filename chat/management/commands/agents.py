"""``manage.py agents [SESSION]``: who works, on what, and whether they are alive."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from typing import Any

from chat import terminal
from chat.models import ChatSession
from coordination import panel

HEAD = ("AGENT", "STATUS", "REASON", "BEAT", "PROGRESS", "EPOCH", "RUNNER", "RUN", "TASK")


class Command(terminal.TerminalCommand):
    help = "The agents of a session, or of every session in which something has not ended."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "session", nargs="?", help="its id, or a start of it that fits no other"
        )
        self.add_json(parser)

    def handle(self, *, session: str | None, **options: Any) -> None:
        chats = [terminal.find_session(session)] if session else terminal.busy_sessions()
        found = [(chat, self._describe(chat)) for chat in chats]
        if options["json"]:
            self.dump([about for _, about in found])
            return
        if not found:
            self.stdout.write("Nothing is under way in any session.")
        now = terminal.database_now()
        for number, (_, about) in enumerate(found):
            if number:
                self.stdout.write("")
            self._say(about, now)

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

    def _say(self, about: dict[str, Any], now: dt.datetime) -> None:
        title = terminal.one_line(about["title"] or "(untitled)", 50)
        deleted = ", deleted" if about["deleted"] else ""
        self.stdout.write(
            self.style.MIGRATE_HEADING(
                f"{about['session']}  {about['status']}  {title}  ({about['owner']}{deleted})"
            )
        )
        if not about["agents"]:
            self.stdout.write("No agent has worked here yet.")
            return
        rows = [self._row(agent, now) for agent in about["agents"]]
        for line in terminal.table(HEAD, rows):
            self.stdout.write(line)

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
