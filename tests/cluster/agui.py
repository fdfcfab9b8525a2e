"""A thread of ``@ag-ui/client``, the strict client of the protocol's own authors, in a process.

with Thread(site.api()) as thread:
    thread.say(script)                       # begins a turn
    thread.until(first("TEXT_MESSAGE_CONTENT"))
    thread.ends()                            # no refusal, and nothing that it had to strip
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentsite.services import program
from tests.cluster.client import Api, Arrived, Chat, Collected, Json

DRIVER = Path(__file__).resolve().parents[1] / "js" / "agui.mjs"


class Thread(Collected):
    """What the client has seen; its turns go through one node."""

    def __init__(self, api: Api) -> None:
        super().__init__(None)
        self.chat = Chat(api, str(uuid.uuid4()))
        assert (DRIVER.parent / "node_modules").exists(), f"npm ci --prefix {DRIVER.parent}"
        argv = [program("node", "nodejs"), str(DRIVER), api.url, str(api.token), self.chat.id]
        self._client = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ends: list[Json] = []
        self._turns = 0
        self._turn_began_at = 0
        self._thread = threading.Thread(target=self._read, name="agui", daemon=True)
        self._thread.start()

    def say(self, content: str) -> None:
        """Begin a turn."""
        self._begin(say=content)

    def answer(self, payload: Any) -> None:
        """Answer whatever the last turn has asked, and so begin the next."""
        self._begin(answer=payload)

    def leave(self) -> None:
        """Hang up in the middle of a turn."""
        self._order(leave=True)

    def ends(self) -> Json:
        """The turn's end, as soon as it is there: what the client holds then."""
        end = self.until(lambda _: self._ends[-1] if len(self._ends) == self._turns else None)
        assert end["error"] is None, end["error"]
        return end

    @property
    def turn(self) -> list[Json]:
        """The events of the newest turn."""
        return [arrived.event for arrived in self.events[self._turn_began_at :]]

    def _begin(self, **order: Any) -> None:
        self._turns += 1
        self._turn_began_at = len(self.events)
        self._order(**order)

    def _order(self, **order: Any) -> None:
        assert self._client.stdin
        self._client.stdin.write(json.dumps(order) + "\n")
        self._client.stdin.flush()

    def _read(self) -> None:
        assert self._client.stdout
        for line in self._client.stdout:
            seen = json.loads(line)
            if "warning" in seen:
                self._over(seen["warning"])
            elif "end" in seen:
                self._ends.append(seen["end"])
                self._arrived([])
            else:
                number = len(self.events) + 1
                self._arrived([Arrived(number, seen["event"], time.time())])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.kill()
        self._thread.join(5)
        self._client.communicate()
        if error is None:
            self.check()
