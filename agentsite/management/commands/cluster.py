"""``manage.py cluster``: a cluster to try, and to break."""

import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentsite.cluster import Cluster, require_programs
from agentsite.nodes import Node
from agentsite.processes import ProcessFault, port_is_free
from agentsite.services import MissingProgram, program
from agentsite.signals import Stop, stop_on_signal


class Command(BaseCommand):
    help = "MariaDB, Redis, web nodes behind nginx and worker nodes, on loopback in one folder."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--web", type=int, default=2, help="web nodes")
        parser.add_argument("--workers", type=int, default=2, help="worker nodes")
        parser.add_argument("--processes", type=int, default=1, help="runners on each worker node")
        parser.add_argument("--server", choices=["daphne", "uvicorn"], default="daphne")
        parser.add_argument("--port", type=int, help="where nginx listens; a free one by default")
        parser.add_argument("--folder", type=Path, help="kept afterwards; a temporary by default")

    def handle(self, *, folder: Path | None, port: int | None, **options: Any) -> None:
        if min(options["web"], options["workers"], options["processes"]) < 1:
            raise CommandError("a cluster needs at least one of each")
        if port is not None and not port_is_free(port):
            raise CommandError(f"port {port} is in use")
        try:
            require_programs()
        except MissingProgram as fault:
            raise CommandError(str(fault)) from fault
        with tempfile.TemporaryDirectory(prefix="agentsite-cluster-") as temporary:
            cluster = Cluster(
                folder or Path(temporary),
                web=options["web"],
                workers=options["workers"],
                processes=options["processes"],
                server=options["server"],
                nginx=self._has_nginx(),
                port=port,
            )
            with stop_on_signal() as stop:
                self._run(cluster, stop)

    def _run(self, cluster: Cluster, stop: Stop) -> None:
        try:
            with cluster:
                self._welcome(cluster)
                self._watch(cluster, stop)
                self.say("stopping")
        except ProcessFault as fault:
            raise CommandError(str(fault)) from fault
        self.say("stopped")

    def _welcome(self, cluster: Cluster) -> None:
        """What runs where, and what to try."""
        self.say(f"folder        {cluster.folder}")
        self.say(f"MariaDB       pid {_pid(cluster.mariadb.child)}  {cluster.mariadb.url}")
        self.say(f"Redis         pid {_pid(cluster.redis.child)}  {cluster.redis.url}")
        for web in cluster.web:
            self.say(f"{web.name:13} pid {web.pid}  {web.url}")
        for worker in cluster.workers:
            runners = " ".join(map(str, worker.runners()))
            self.say(f"{worker.name:13} pid {worker.pid}  runners {runners}  {worker.log}")
        if cluster.nginx:
            self.say(f"nginx         pid {_pid(cluster.nginx.child)}  {cluster.nginx.url}")
        first = cluster.workers[0]
        self.say(f"""
sign in (works once): {cluster.sign_in_link()}

to try:
  kill -9 {first.pid}          a worker node is lost: another one says so and goes on
  kill -STOP {first.pid}       it is frozen: the runs are given to others (-CONT thaws it)
  kill {_pid(cluster.redis.child)}             Redis is gone: everything works, slower
  kill {cluster.web[0].pid}             a web node leaves: readers go on at the next one

Ctrl-C stops everything""")

    def _watch(self, cluster: Cluster, stop: Stop) -> None:
        """Nothing is started again here: a cluster is there to see what happens without."""
        gone: set[str] = set()
        while not stop.wait(0.5):
            for node in cluster.nodes:
                if not node.alive and node.name not in gone:
                    gone.add(node.name)
                    self.say(f"{node.name} has ended ({node.log})")

    def _has_nginx(self) -> bool:
        try:
            program("nginx", "nginx-light")
        except MissingProgram as fault:
            self.say(f"without nginx in front: {fault}")
            return False
        return True

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _pid(process: Node | Any) -> int:
    return int(process.pid)
