"""The site's own processes, web nodes and worker nodes, as things to start, kill and freeze.

``serve`` runs one of each, ``cluster`` several, and the tests break them: with the same code, so
that what is tested is what runs.
"""

import os
import signal
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from agentsite.environment import BASE_DIR
from agentsite.processes import Child, ProcessFault, children, spawn, until

Server = Literal["daphne", "uvicorn"]

MANAGE = BASE_DIR / "manage.py"
STARTING = 120  # seconds: a hang, not a busy machine


class Node(ABC):
    """One node. ``env`` is its whole environment; changed before ``start``, it changes the node."""

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        logs: Path,
        on_parent_death: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.env = dict(env)
        self.log = logs / f"{name}.log"
        self.child: Child | None = None
        self._on_parent_death = on_parent_death

    @abstractmethod
    def argv(self) -> list[str]: ...

    @abstractmethod
    def ready(self) -> bool: ...

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.alive

    @property
    def pid(self) -> int:
        return self._child().pid

    def launch(self) -> Self:
        """Without waiting: ``wait_ready`` does, and several nodes may come up at the same time."""
        if not self.alive:
            self.child = spawn(
                self.argv(),
                name=self.name,
                log=self.log,
                env=self.env,
                cwd=BASE_DIR,
                on_parent_death=self._on_parent_death,
            )
        return self

    def wait_ready(self, timeout: float = STARTING) -> Self:
        until(self.ready, child=self._child(), what=self.name, timeout=timeout)
        return self

    def start(self) -> Self:
        return self.launch().wait_ready()

    def terminate(self, timeout: float = 30) -> bool:
        """SIGTERM, as a deployment does. True if it ended by itself in time."""
        return self.child is None or self.child.stop(timeout)

    def kill(self) -> None:
        """The whole node is gone in an instant, as when a machine loses power."""
        self._child().kill()

    def freeze(self) -> None:
        self._child().send_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._child().send_all(signal.SIGCONT)

    def _child(self) -> Child:
        if self.child is None:
            raise ProcessFault(f"{self.name} was never started")
        return self.child


class WebNode(Node):
    """Ready when it answers ``/healthz``."""

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        logs: Path,
        *,
        port: int,
        server: Server = "daphne",
        on_parent_death: signal.Signals = signal.SIGTERM,
    ) -> None:
        super().__init__(name, env, logs, on_parent_death)
        self.port = port
        self.server = server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        address = {
            "daphne": ["-b", "127.0.0.1", "-p", str(self.port), "-v", "0", "--no-server-name"],
            "uvicorn": ["--host", "127.0.0.1", "--port", str(self.port), "--no-access-log"],
        }
        return [
            sys.executable,
            "-m",
            self.server,
            *address[self.server],
            "agentsite.asgi:application",
        ]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except urllib.error.HTTPError as answer:
            raise ProcessFault(f"{self.name}: /healthz answers {answer.code}") from None
        except OSError:
            return False


class WorkerNode(Node):
    """A supervisor and its runners. Ready when every runner lives: runs wait for it anyway."""

    def __init__(
        self,
        name: str,
        env: Mapping[str, str],
        logs: Path,
        *,
        processes: int = 1,
        concurrency: int | None = None,
        on_parent_death: signal.Signals = signal.SIGTERM,
    ) -> None:
        super().__init__(name, env, logs, on_parent_death)
        self.processes = processes
        self.concurrency = concurrency

    def argv(self) -> list[str]:
        limits = ["--processes", str(self.processes)]
        if self.concurrency is not None:
            limits += ["--concurrency", str(self.concurrency)]
        return [sys.executable, str(MANAGE), "agent_worker", *limits]

    def ready(self) -> bool:
        return self.alive and len(self.runners()) >= self.processes

    def runners(self) -> list[int]:
        """The ids of the runner processes, for tests that kill one and spare the supervisor."""
        return children(self.pid)


def base_env(**changes: str) -> dict[str, str]:
    """This process's environment, changed. Output is not buffered, so that logs are of now."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
