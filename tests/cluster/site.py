"""Two web nodes, two worker nodes, MariaDB, Redis and a scripted provider, to use and to break.

with Site(folder) as site:
    chat = site.session("alice")            # through web node 1
    chat.at(site.web(2)).post(site.play(assistant=[[{"text": "hi"}]]))
    site.owner(chat, "assistant").kill()    # the worker node that executes it
    site.network.cut()                      # nobody reaches Redis
    site.heal()                             # all nodes run again, and reach each other
"""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentsite.cluster import Cluster
from agentsite.nodes import WebNode, WorkerNode
from agentsite.processes import free_port
from tests import fakes
from tests.cluster.client import PATIENCE, Api, Chat, eventually
from tests.fakes.provider import FakeProcess, Step
from tests.faults.proxy import RedisProxy

FAKES = Path(fakes.__file__).parent
SHORT_TIMES = {
    "AGENT_LEASE_TTL": "4",
    "AGENT_HEARTBEAT_INTERVAL": "1",
    "AGENT_LEASE_GRACE": "1",
    "AGENT_GUARD_INTERVAL": "0.5",
    "AGENT_DRAIN": "1",
    "AGENT_STOP_GRACE": "4",
}


class Site:
    """A cluster in which every agent is played by the provider's script."""

    def __init__(
        self, folder: Path, env: Mapping[str, str] = SHORT_TIMES, *, direct: bool = False
    ) -> None:
        """``direct``: without the proxy before Redis, for whoever measures."""
        self._direct = direct
        self.provider = FakeProcess()
        self.network = RedisProxy()
        self.effects = folder / "effects"
        self.mcp_notes = folder / "mcp-notes"
        self._folder = folder
        self._env = dict(env)
        self._open = ExitStack()
        self.token = cache(self._token)
        self._whole: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.enter_context(self.provider)
            undo.enter_context(self.network)
            env = {
                **self.provider.env,
                "DJANGO_SETTINGS_MODULE": "tests.cluster.settings",
                **({} if self._direct else {"REDIS_URL": self.network.url}),
                "TEST_EFFECTS": str(self.effects),
                "AGENT_MCP_SERVERS": json.dumps({"fake": self._mcp_server()}),
                **self._env,
            }
            self.cluster = Cluster(self._folder, web=2, workers=2, env=env)
            self.network.upstream = self.cluster.redis.port
            undo.enter_context(self.cluster)
            self.heal()
            self._open = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def _mcp_server(self) -> dict[str, Any]:
        return {
            "command": sys.executable,
            "args": [str(FAKES / "mcp_server.py"), "stdio"],
            "env": {"MCP_NOTES": str(self.mcp_notes)},
        }

    # -- people -----------------------------------------------------------------------------------

    def _token(self, user: str) -> str:
        return self.cluster.manage("api_token", user, "--create").strip()

    def web(self, number: int) -> str:
        """The address of web node 1 or 2."""
        return self.cluster.web[number - 1].url

    def api(self, user: str = "alice", *, web: int = 1) -> Api:
        return Api(self.web(web), self.token(user))

    def session(self, user: str = "alice", *, web: int = 1, **body: Any) -> Chat:
        return self.api(user, web=web).new_session(**body)

    def play(self, **agents: list[Step]) -> str:
        """Give the provider a program; the message that runs it (see the provider's docstring).

        ``$SCRIPT`` in it stands for that message, so that a master can hand it to its sub-agents.
        """
        name = uuid.uuid4().hex
        script = json.loads(json.dumps(agents).replace("$SCRIPT", f"script:{name}"))
        return self.provider.define(name, script)

    # -- nodes ------------------------------------------------------------------------------------

    def owner(self, chat: Chat, agent_id: str) -> WorkerNode:
        """The worker node whose runner holds the agent's lease."""

        def runner_id() -> str | None:
            agent = chat.agent(agent_id)
            return agent["lease"]["runner_id"] if agent and agent["lease"] else None

        runner = eventually(runner_id, f"a lease of {agent_id}")
        assert runner
        return next(n for n in self.cluster.workers if f"-{n.pid}-" in runner)

    def started_on(self, worker: WorkerNode, script: str, agent_id: str = "assistant") -> Chat:
        """A session in which this node executes the agent of a script that hangs."""
        while True:
            chat = self.session()
            chat.post(script)
            if self.owner(chat, agent_id) is worker:
                return chat
            chat.interrupt()

    def rows(self, sql: str) -> list[list[str]]:
        """What only the database knows."""
        mariadb = self.cluster.mariadb
        answer = mariadb.query(f"USE {mariadb.database}; {sql}")
        return [line.split("\t") for line in answer.splitlines()]

    def open_leases(self) -> list[list[str]]:
        """Leases of runs that somebody executes, or should."""
        return self.rows(
            "SELECT run_id, runner_id FROM coordination_lease WHERE released_at IS NULL"
        )

    def node_state(self, worker: WorkerNode) -> str:
        """What operators are told of a worker node."""
        nodes = json.loads(self.cluster.manage("nodes", "--json"))
        return next(str(node["state"]) for node in nodes if node["pid"] == worker.pid)

    def others(self, worker: WorkerNode) -> list[WorkerNode]:
        return [node for node in self.cluster.workers if node is not worker]

    def add_web(self, server: Any) -> WebNode:
        """One more web node; the caller ends it."""
        node = WebNode(
            f"web-{server}",
            self.cluster.env,
            self.cluster.logs,
            port=free_port(),
            server=server,
            on_parent_death=signal.SIGKILL,
        )
        return node.start()

    def heal(self) -> None:
        """Start whatever was ended, thaw what was frozen, and wait until every node is useful."""
        self.network.mend()
        for service in (self.cluster.mariadb, self.cluster.redis):
            service.thaw()
            service.start()
        for node in self.cluster.nodes:
            node.launch().thaw()
        for node in self.cluster.nodes:
            node.wait_ready()
        if self._whole == self._pids():
            return
        for number, node in enumerate(self.cluster.web, 1):
            eventually(partial(_is_useful, Api(self.web(number), None)), node.name)
        self._until_all_work()
        self._whole = self._pids()

    def _pids(self) -> list[int]:
        """Who runs now: as long as it is the same, nobody has just been started."""
        redis = self.cluster.redis.child
        runners = [pid for node in self.cluster.workers for pid in node.runners()]
        return [*(node.pid for node in self.cluster.nodes), *runners, redis.pid if redis else 0]

    def _until_all_work(self) -> None:
        """A runner that was just started imports for a while before it claims anything."""
        idle = list(self.cluster.workers)
        chats: list[Chat] = []
        gate = uuid.uuid4().hex
        script = self.play(assistant=[[{"hang": gate}]])
        deadline = time.monotonic() + 2 * PATIENCE
        while idle:
            assert time.monotonic() < deadline, f"{idle[0].name} claims nothing"
            chats.append(self.session("warm-up"))
            chats[-1].post(script)
            owner = self.owner(chats[-1], "assistant")
            if owner in idle:
                idle.remove(owner)
        self.provider.release(gate)
        for chat in chats:
            chat.until_idle()


def _is_useful(node: Api) -> bool:
    return node.http.get("/readyz").status_code == 200
