"""A whole cluster on one machine: MariaDB, Redis, web nodes behind nginx, worker nodes.

    with Cluster(folder, web=2, workers=2) as cluster:
        cluster.workers[0].kill()
        cluster.redis.stop()

Everything is real: separate processes, separate connections, signals. Only the network between
them is short. ``manage.py cluster`` is this with words around it, and ``tests/cluster`` is this
with assertions. All of it lives in one folder and ends with the process that opened it.
"""

import importlib.util
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from agentsite.nodes import MANAGE, Node, Server, WebNode, WorkerNode, base_env
from agentsite.processes import ProcessFault, free_port
from agentsite.services import MariaDB, MissingProgram, Nginx, Redis, program


class Cluster:
    """Nodes and servers by name. Starting order: database, Redis, rows, web, workers, nginx."""

    def __init__(
        self,
        folder: Path,
        *,
        web: int = 2,
        workers: int = 2,
        processes: int = 1,
        env: Mapping[str, str] | None = None,
        nginx: bool = False,
        server: Server = "daphne",
        port: int | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.mariadb = MariaDB(self.folder / "mariadb")
        self.redis = Redis(self.folder / "redis")
        self.env = {**self._env(), **({"DJANGO_TRUSTED_PROXIES": "127.0.0.1"} if nginx else {})}
        self.env |= env or {}
        self.web = [self._web(number, server) for number in range(1, web + 1)]
        self.workers = [self._worker(number, processes) for number in range(1, workers + 1)]
        ports = [node.port for node in self.web]
        self.nginx = Nginx(self.folder / "nginx", ports, port) if nginx else None
        self._open = ExitStack()

    @property
    def url(self) -> str:
        """Where a person would go."""
        return self.nginx.url if self.nginx else self.web[0].url

    @property
    def nodes(self) -> list[Node]:
        return [*self.web, *self.workers]

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def start(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._open.enter_context(self.mariadb)
            self._open.enter_context(self.redis)
            self.manage("migrate", "--no-input", "--verbosity", "0")
            self._open.callback(self._stop_nodes)
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait_ready()
            if self.nginx:
                self._open.enter_context(self.nginx)
            undo.pop_all()
        return self

    def stop(self) -> None:
        self._open.close()

    def add_worker(self, processes: int = 1, **env: str) -> WorkerNode:
        """One more, as an operator would under load."""
        node = self._worker(len(self.workers) + 1, processes)
        node.env.update(env)
        self.workers.append(node)
        return node.start() if self.mariadb.alive else node

    def manage(self, *argv: str) -> str:
        """A management command with the cluster's settings; what it printed."""
        done = subprocess.run(
            [sys.executable, str(MANAGE), *argv],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ProcessFault(f"manage.py {argv[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def sign_in_link(self, username: str = "admin") -> str:
        """Valid once; makes the user if there is none."""
        return self.url + self.manage("signin_link", username).strip()

    def last_words(self) -> str:
        """The end of every log: what one wants to read when a test has failed."""
        logs: Sequence[Path] = sorted(self.logs.glob("*.log"))
        tails = (log.read_text(errors="replace")[-3000:] for log in logs)
        return "\n".join(f"--- {log.name}\n{tail}" for log, tail in zip(logs, tails, strict=True))

    def _env(self) -> dict[str, str]:
        return base_env(
            DJANGO_SETTINGS_MODULE="agentsite.settings",
            DJANGO_SECRET_KEY=secrets.token_urlsafe(50),
            DATABASE_URL=self.mariadb.url,
            REDIS_URL=self.redis.url,
            AGENTSITE_VAR=str(self.folder / "var"),
        )

    def _web(self, number: int, server: Server) -> WebNode:
        # SIGKILL: nodes of a cluster are there to be broken, and a frozen one hears nothing else.
        return WebNode(
            f"web-{number}",
            self.env,
            self.logs,
            port=free_port(),
            server=server,
            on_parent_death=signal.SIGKILL,
        )

    def _worker(self, number: int, processes: int) -> WorkerNode:
        return WorkerNode(
            f"worker-{number}",
            {**self.env, "AGENTSITE_ROLE": "worker"},
            self.logs,
            processes=processes,
            on_parent_death=signal.SIGKILL,
        )

    def _stop_nodes(self) -> None:
        """All are asked first, then each is waited for."""
        for node in self.nodes:
            if node.child:
                node.child.ask_to_stop()
        patience = float(self.env.get("AGENT_DRAIN", "20")) + 10
        for node in self.nodes:
            node.terminate(patience)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def require_programs() -> None:
    """Raises MissingProgram, naming the package, before anything is started."""
    program("mariadbd", "mariadb-server-core")
    program("mariadb", "mariadb-client-core")
    program("redis-server", "redis-server")
    if importlib.util.find_spec("MySQLdb") is None:
        raise MissingProgram(
            "mysqlclient is not installed: pip install -r requirements/mysql.txt"
            " (a C compiler, pkg-config and libmariadb-dev build it)"
        )
