"""One machine, everything: an embedded Valkey, one web node, one worker node.

They are the processes of a cluster, started on one machine: there is no second implementation.

A process that dies is started again, because the person before the page cannot do it and nothing is
lost by it: rows decide what goes on. One that dies three times in a minute will not get better by
itself; then everything ends with exit 1 and the last words of its log.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from agentsite.nodes import Node, WebNode, WorkerNode, base_env
from agentsite.processes import ProcessFault
from agentsite.services import Valkey
from agentsite.signals import Stop

DEATHS_FORGIVEN = 2
DEATHS_WITHIN = 60
LOOK_EVERY = 0.5
TIME_TO_KILL = 10  # what a node needs beyond the time that its runs are given to come to rest


class House:
    """What ``serve`` keeps running. ``say`` is told whatever a person should know."""

    def __init__(
        self,
        *,
        port: int,
        workers: int,
        valkey: Valkey | None,
        logs: Path,
        drain: float,
        say: Callable[[str], object],
        env: Mapping[str, str] | None = None,
    ) -> None:
        full = base_env(**(env or {}))
        self.valkey = valkey
        self.web = WebNode("web", full, logs, port=port)
        self.worker = WorkerNode(
            "worker", {**full, "AGENTSITE_ROLE": "worker"}, logs, processes=workers
        )
        self._drain = drain
        self._say = say
        self._deaths: dict[str, deque[float]] = {}

    @property
    def nodes(self) -> list[Node]:
        return [self.web, self.worker]

    def start(self) -> None:
        if self.valkey:
            self.valkey.start()
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()

    def watch(self, stop: Stop) -> None:
        """Until we are asked to stop, or a process dies too often."""
        while not stop.wait(LOOK_EVERY):
            # Attached to the Valkey of another ``serve``, we have no child, and inherit the task
            # when that one ends: starting is then a plain start.
            if self.valkey and not self.valkey.alive and not self.valkey.ping():
                self._revive("valkey", self.valkey.log, self.valkey.start)
            for node in self.nodes:
                if not node.alive:
                    self._revive(node.name, node.log, node.launch)

    def stop(self) -> None:
        """Web and worker together; Valkey last, because both still talk through it."""
        for node in self.nodes:
            if node.child:
                node.child.ask_to_stop()
        for node in self.nodes:
            if not node.terminate(self._drain + TIME_TO_KILL):
                self._say(f"{node.name} did not end in time and was killed")
        if self.valkey:
            self.valkey.stop()

    def kill(self) -> None:
        for node in self.nodes:
            if node.child:
                node.kill()
        if self.valkey:
            self.valkey.kill()

    def _revive(self, name: str, log: Path, start: Callable[[], object]) -> None:
        now = time.monotonic()
        deaths = self._deaths.setdefault(name, deque(maxlen=DEATHS_FORGIVEN + 1))
        deaths.append(now)
        if len(deaths) > DEATHS_FORGIVEN and now - deaths[0] < DEATHS_WITHIN:
            raise ProcessFault(f"{name} died {len(deaths)} times within {DEATHS_WITHIN} s ({log})")
        self._say(f"{name} died unexpectedly (see {log}), starting it again")
        start()
