"""``manage.py serve``: the whole site on one machine."""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from agentsite import local
from agentsite.processes import ProcessFault, last_lines, port_is_free
from agentsite.serve import House
from agentsite.signals import Stop, stop_on_signal
from chat.signin import one_time_link
from coordination.conf import conf


class Command(BaseCommand):
    help = "Run everything on this machine: database, Valkey, web, agents. Ctrl-C stops all of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1")
        parser.add_argument("--workers", type=int, default=1, help="agent processes")

    def handle(self, *, port: int, workers: int, **options: Any) -> None:
        if not 0 < port < 65536:
            raise CommandError(f"--port {port}: a port is a number from 1 to 65535")
        if workers < 1:
            raise CommandError(f"--workers {workers}: at least one is needed")
        if not port_is_free(port):
            raise CommandError(
                f"port {port} is in use: another serve may be running; try --port {port + 1}"
            )
        valkey = local.embedded_valkey()
        house = House(
            port=port,
            workers=workers,
            valkey=valkey if [valkey.url] == settings.REDIS_URLS else None,
            logs=local.var_dir() / "log",
            drain=conf.drain,
            say=self.say,
        )
        with stop_on_signal() as stop:
            self._run(house, stop)

    def _run(self, house: House, stop: Stop) -> None:
        with self._ended(house):
            call_command("migrate", interactive=False, verbosity=0)
            house.start()
            self._welcome(house)
            house.watch(stop)
            self.say("stopping; Ctrl-C again does it at once")

    @contextmanager
    def _ended(self, house: House) -> Iterator[None]:
        """However it ends, nothing is left running."""
        try:
            try:
                yield
            finally:
                house.stop()
        except KeyboardInterrupt:
            house.kill()
            sys.exit(130)
        except ProcessFault as fault:
            for node in house.nodes:
                if words := last_lines(node.log, 15):
                    self.stderr.write(f"--- {node.log}\n{words}")
            raise CommandError(str(fault)) from fault
        self.say("stopped")

    def _welcome(self, house: House) -> None:
        self.say(f"agentsite is running on {house.web.url}")
        self.say(f"sign in (works once): {house.web.url}{one_time_link(username='admin')}")
        self.say("another link:         manage.py signin_link")
        if settings.AGENT_MODEL == "demo":
            self.say("model:                an offline demo; set AGENT_MODEL for a real one")
        else:
            self.say(f"model:                {settings.AGENT_MODEL}")
        self.say(f"logs:                 {house.web.log.parent}")
        self.say("Ctrl-C stops everything")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
