"""``manage.py interrupt SESSION``: stop what runs, and say only what is true."""

from __future__ import annotations

import dataclasses
import sys
from argparse import ArgumentParser
from typing import Any

from chat import actions, terminal
from coordination.interrupts import Stopped

UNPROVED = 2  # exit code: recorded, and not yet shown to have taken effect
SAYS = {
    "stopped": "stopped: every run of the turn has ended",
    "accepted": "accepted: recorded, but not yet proved; `manage.py agents {session}` shows more",
    "already_finished": "already finished: nothing was left to stop",
    "no_active_run": "no active run: nothing was running",
}


class Command(terminal.TerminalCommand):
    help = (
        "Stop the turn of a session that is current now, or one sub-agent of it. Exit 0 when "
        "nothing runs any more, 2 when the stop is recorded and not yet proved."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", help="its id, or a start of it that fits no other")
        parser.add_argument("--agent", metavar="ID", help="only this sub-agent, like researcher-2")
        self.add_json(parser)

    def handle(self, *, session: str, agent: str | None, **options: Any) -> None:
        chat = terminal.find_session(session)
        stopped = terminal.run(actions.stop(chat, agent_id=agent, by=terminal.operator()))
        if options["json"]:
            runs = [{**dataclasses.asdict(run), "run_id": str(run.run_id)} for run in stopped.runs]
            self.dump({"session": str(chat.pk), "status": stopped.status, "runs": runs})
        else:
            self._say(str(chat.pk), stopped)
        if stopped.status == "accepted":
            sys.exit(UNPROVED)

    def _say(self, session: str, stopped: Stopped) -> None:
        style = self.style.WARNING if stopped.status == "accepted" else self.style.SUCCESS
        self.stdout.write(style(SAYS[stopped.status].format(session=session[: terminal.SHORT])))
        rows = [
            (run.agent_id, (run.status, self.status_style(run.status)), str(run.run_id))
            for run in stopped.runs
        ]
        if rows:
            for line in terminal.table(("AGENT", "STATUS", "RUN"), rows):
                self.stdout.write(line)
