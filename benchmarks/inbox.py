"""What the inbox takes: sends a second, and claim-and-acks, through the ORM on MariaDB.

    python -m benchmarks.inbox                      # prints a table
    python -m benchmarks.inbox --clients 1 4 16 --each 400

A send is what the tool does: one transaction that locks the session, checks the rules, writes the
message and its event, and starts the sub-agent's run. A claim-and-ack is what a runner does with
it: own the run under a lease, and take the task into the memory; two transactions. Each client is a
process with sessions of its own, as on a cluster; their hints go to a real Redis. Beside them, with
as many processes, stands what a send cannot be cheaper than: one row and one commit, by the raw
driver. Exit 1 where anything that was sent was not taken in exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentsite.cluster import Cluster
from benchmarks.leases import said
from benchmarks.spine import say
from benchmarks.stop import driver

if TYPE_CHECKING:
    from coordination.models import Run

CLIENTS = (1, 4, 16)
A_TURN = 5  # sends of one master, each to another sub-agent
BODY = "Look it up, and say what it rests on. " * 10

HEAD = "{:<10} {:>14} {:>14} {:>18} {:>14}"


# -- one client -------------------------------------------------------------------------------


def client(each: int) -> None:
    """The measured process: waits for a line before each part, and says what it took."""
    import django

    django.setup()
    asyncio.run(work(each))


async def work(each: int) -> None:
    """All parts, in a thread beside the loop that sends the hints, as in a runner."""
    from coordination import wakeups
    from coordination.db import db

    wakeups.Hub.current()
    for part in await db(prepare, each):
        say("ready")
        await db(sys.stdin.readline)
        await db(part)
        say("done")


def prepare(each: int) -> list[Callable[[], None]]:
    """The three parts."""
    from chat import memory
    from coordination import runs
    from tests.core import send

    turns = [begun_turn() for _ in range(-(-each // A_TURN))]
    to_send = [(turns[n // A_TURN], n) for n in range(each)]
    children: list[Run] = []

    def send_all() -> None:
        for master, n in to_send:
            children.append(send(master, f"researcher-{2 + n % A_TURN}", BODY, f"c{n}")[1])

    def claim_and_ack_all() -> None:
        for child in children:
            claimed = runs.claim(child.pk, child.session_id, "r1", "n1")
            assert claimed is not None
            assert len(memory.take_in(claimed)) == 1

    def insert_all() -> None:
        database = driver(os.environ["DATABASE_URL"])
        cursor = database.cursor()
        for _ in range(each):
            cursor.execute("INSERT INTO benchmark_raw (said) VALUES (%s)", [BODY])
            database.commit()

    return [insert_all, send_all, claim_and_ack_all]


def begun_turn() -> Run:
    """A master's run, claimed, in a session of its own."""
    from tests.core import claim, new_chat, post

    return claim(post(new_chat(f"user-{uuid.uuid4()}")))


# -- many -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """A second, of all clients together."""

    clients: int
    inserts: float
    sends: float
    taken: float

    def row(self) -> str:
        rates = (f"{rate:.0f}" for rate in (self.inserts, self.sends, self.taken))
        return HEAD.format(self.clients, *rates, f"{self.inserts / self.sends:.1f}")


def measure(cluster: Cluster, clients: int, each: int) -> tuple[Rates, bool]:
    """The rates of so many clients, and whether each has found what it should."""
    argv = [sys.executable, "-m", "benchmarks.inbox", "--client", str(each)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    argv,
                    env=cluster.env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(clients)
        ]
        rates = [clients * each / took for took in parts(processes)]
        true = [process.wait() == 0 for process in processes]
    return Rates(clients, *rates), all(true)


def parts(processes: list[subprocess.Popen[str]]) -> Iterator[float]:
    """How long each part took, from the signal to the last client's end."""
    for _ in range(3):
        for process in processes:
            said(process)
        began = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            said(process)
        yield time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="measure the inbox on a cluster of its own")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--each", type=int, default=400, help="messages of each client")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client(options.client)
        return 0
    kept = True
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    say(HEAD.format("clients", "raw inserts/s", "sends/s", "claim-and-acks/s", "raw / sends"))
    folder = tempfile.TemporaryDirectory(prefix="agentsite-")
    with folder as place, Cluster(Path(place), web=0, workers=0) as cluster:
        cursor = driver(cluster.env["DATABASE_URL"]).cursor()
        cursor.execute("CREATE TABLE benchmark_raw (id INT AUTO_INCREMENT PRIMARY KEY, said TEXT)")
        for clients in options.clients:
            rates, true = measure(cluster, clients, options.each)
            say(rates.row())
            kept = kept and true
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
