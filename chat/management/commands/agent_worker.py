"""``agent_worker``: one worker node. This process is the supervisor; the runners are children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from chat.executor import execute
from chat.llm import warm_up
from coordination import nodes
from coordination.conf import conf
from coordination.supervisor import Supervisor, die_with_parent, say_alive
from coordination.worker import Runner, read_orders

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Command(BaseCommand):
    """Parse, wire, start, say so."""

    help = "Execute agent runs: a supervisor and its runner processes. Any number, on any node."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The node's size; a runner's own arguments are for the supervisor alone."""
        parser.add_argument("--processes", type=int, default=1, help="runner processes")
        parser.add_argument(
            "--concurrency", type=int, default=conf.concurrency, help="runs at once in each"
        )
        parser.add_argument("--runner", help=SUPPRESS)
        parser.add_argument("--node", help=SUPPRESS)

    def handle(self, *, processes: int, concurrency: int, **options: Any) -> None:
        """Be a supervisor, or the runner that one has started."""
        if options["runner"]:
            die_with_parent()
            nodes.join(options["node"])
            warm_up(settings.AGENT_MODEL)
            asyncio.run(self._runner(options["runner"], options["node"], concurrency))
            os._exit(0)  # a tool's thread that ignores everything must not hold the process
        manage = str(Path(sys.argv[0]).resolve())
        command = [sys.executable, manage, "agent_worker"]
        asyncio.run(self._supervisor(command, processes, concurrency))
        self.stdout.flush()
        os._exit(0)  # nor must a thread whose database hangs

    async def _supervisor(self, command: list[str], processes: int, concurrency: int) -> None:
        supervisor = Supervisor(command, processes=processes, concurrency=concurrency)
        for signum in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signum, supervisor.stop)
        self.stdout.write(f"worker node {supervisor.node_id}: {processes} runner process(es)")
        await supervisor.run()

    async def _runner(self, runner_id: str, node_id: str, concurrency: int) -> None:
        runner = Runner(execute, runner_id=runner_id, node_id=node_id, concurrency=concurrency)
        for signum in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signum, runner.drain)
        helpers = [
            asyncio.ensure_future(read_orders(runner.obey, closed=_supervisor_died)),
            asyncio.ensure_future(say_alive()),
        ]
        await runner.run()
        for helper in helpers:
            helper.cancel()


def _supervisor_died() -> None:
    """Nobody beats for this process any more; the guards take its runs over."""
    os._exit(1)
