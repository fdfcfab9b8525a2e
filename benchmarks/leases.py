"""What leases cost and how soon a death is told, with the seeds' scheme beside it.

    python -m benchmarks.leases             # prints two tables; exit 1 if a figure is missed
    python -m benchmarks.leases --kills 30

Cost: a supervisor (its beat, its mirror and its guard) over one idle runner that holds N leases,
with MariaDB and Redis, and its CPU as the kernel counts it. The seeds' scheme is one thread and one
SET per agent and heartbeat, and a guard that polls every key; it knows no row. Detection: from
kill -9 to the agent's ``ax`` at a reader of another node. Times are the default ones.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from agentsite.cluster import Cluster
from agentsite.nodes import WorkerNode
from benchmarks.spine import HEAD, Figure, say
from coordination.conf import conf
from tests.cluster.client import custom, first
from tests.cluster.site import Site

HELD = (10, 1_000, 10_000)
BEATS = 6  # of the measured time; the first round of imports and queries is before it
OF_A_CORE = 0.05  # at most, for the leases of the largest node
RUNNER_IN, NODE_IN = 1.0, 2.0  # seconds; a node's death is told that long after lease and grace

CHILD = "import sys\nprint('alive', flush=True)\nfor line in sys.stdin: pass"
COST = "{:<26} {:>7} {:>11} {:>13} {:>13}"


@dataclass(frozen=True)
class Cost:
    """What one process spent on N leases, a second."""

    scheme: str
    held: int
    cores: float
    statements: float | None
    commands: float

    def row(self) -> str:
        statements = "-" if self.statements is None else f"{self.statements:.1f}"
        cores = f"{100 * self.cores:.1f} %"
        return COST.format(self.scheme, self.held, cores, statements, f"{self.commands:.1f}")


# -- our supervisor ----------------------------------------------------------------------------


def supervise() -> None:
    """The measured process: a supervisor whose child does nothing."""
    import asyncio

    import django

    django.setup()
    from coordination.supervisor import Supervisor

    supervisor = Supervisor([sys.executable, "-c", CHILD], processes=1, concurrency=1)
    say(f"{supervisor.node_id}.1")
    asyncio.run(supervisor.run())


def hold(count: int, runner_id: str) -> None:
    """Rows as they are while a runner executes ``count`` runs."""
    import django

    django.setup()
    from django.db.models.functions import Now
    from django.utils import timezone

    from coordination.models import Lease, Run, Session

    Session.objects.all().delete()
    sessions = Session.objects.bulk_create([Session() for _ in range(count)], batch_size=1000)
    members = [
        Run(
            session=session,
            agent_id="assistant",
            root_id=uuid.uuid4(),
            position=1,
            status=Run.Status.RUNNING,
            lane=Run.lane_of(session.pk, "assistant"),
            epoch=1,
            runner_id=runner_id,
            last_progress_at=timezone.now(),
        )
        for session in sessions
    ]
    Run.objects.bulk_create(members, batch_size=1000)
    node_id = runner_id.rpartition(".")[0]
    now = {"acquired_at": Now(), "beat_at": Now(), "expires_at": timezone.now()}
    of_run = {"agent_id": "assistant", "epoch": 1, "node_id": node_id, "runner_id": runner_id}
    leases = [Lease(run=run, session_id=run.session_id, **of_run, **now) for run in members]
    Lease.objects.bulk_create(leases, batch_size=1000)


# -- the seeds' scheme ------------------------------------------------------------------------


def beat_by_threads(count: int) -> None:
    """The measured process: a thread and a SET per agent, and a guard that asks for each key."""
    import threading

    client = redis.Redis.from_url(os.environ["REDIS_URL"], max_connections=200)
    keys = [f"agent:lease:{uuid.uuid4()}:assistant" for _ in range(count)]
    gate = threading.BoundedSemaphore(100)  # or ten thousand sockets would be opened at once

    def beat(key: str) -> None:
        while True:
            with gate:
                client.set(key, f"worker:{time.time_ns() // 1_000_000}", ex=int(conf.lease_ttl))
            time.sleep(conf.heartbeat_interval)

    threading.stack_size(256 * 1024)
    for key in keys:
        threading.Thread(target=beat, args=[key], daemon=True).start()
    say("all beat")
    while True:
        for key in keys:
            client.exists(key)
        time.sleep(conf.guard_interval)


# -- measuring --------------------------------------------------------------------------------


def ours(count: int, cluster: Cluster, seconds: float) -> Cost:
    """Of our supervisor."""
    with measured("--supervise", env=cluster.env) as process:
        run("--hold", str(count), "--by", said(process), env=cluster.env)
        cores, statements, commands = spent(process.pid, cluster, seconds, ["evalsha"])
    return Cost("supervisor: rows and keys", count, cores, statements, commands)


def seeds(count: int, cluster: Cluster, seconds: float) -> Cost:
    """Of the seeds' threads."""
    with measured("--threads", str(count), env=cluster.env) as process:
        said(process)
        cores, _, commands = spent(process.pid, cluster, seconds, ["set", "exists"])
    return Cost("seeds: a thread and a SET", count, cores, None, commands)


@contextmanager
def measured(*arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "benchmarks.leases", *arguments]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(*arguments: str, env: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.leases", *arguments], env=env, check=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def spent(
    pid: int, cluster: Cluster, seconds: float, names: Sequence[str]
) -> tuple[float, float, float]:
    """Cores, statements and Redis commands a second, once the start is over."""

    def counters() -> tuple[float, float, float]:
        return cpu_of(pid), statements(cluster), commands(cluster, names)

    time.sleep(seconds / 3)
    before, began = counters(), time.monotonic()
    time.sleep(seconds)
    after, took = counters(), time.monotonic() - began
    cores, asked, told = ((b - a) / took for a, b in zip(before, after, strict=True))
    return cores, asked, told


def cpu_of(pid: int) -> float:
    """Seconds of a core that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def statements(cluster: Cluster) -> float:
    return float(cluster.mariadb.query("SHOW GLOBAL STATUS LIKE 'Questions'").split()[-1])


def commands(cluster: Cluster, names: Sequence[str]) -> float:
    """As clients send them: what a script calls inside of Redis is not counted."""
    with redis.Redis.from_url(cluster.redis.url) as client:
        stats = client.info("commandstats")
    return float(sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names))


# -- how soon a death is told -----------------------------------------------------------------


def deaths(site: Site, kills: int) -> Iterator[Figure]:
    """From kill -9 to the sub-agent's exit at a reader of the other web node."""
    runners = [death(site, "crashed", kill_the_runner) for _ in range(kills)]
    yield Figure("kill -9 of a runner: told as crashed", runners, longest=RUNNER_IN)
    nodes = [death(site, "lease_expired", kill_the_node) for _ in range(kills)]
    bound = conf.lease_ttl + conf.lease_grace + NODE_IN
    yield Figure("kill -9 of a node: told as lease_expired", nodes, longest=bound)


def death(site: Site, reason: str, kill: Callable[[WorkerNode], None]) -> float:
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": {"to": "researcher", "content": "$SCRIPT"}}],
            [{"text": "sent"}],
            [{"text": "heard"}],
        ],
        researcher=[[{"text": "partial"}, {"hang": ""}]],
    )
    site.heal()
    chat = site.session()
    with chat.at(site.web(2)).events() as reader:
        chat.post(script)
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="partial"))
        owner = site.owner(chat, "researcher")
        killed = time.time()
        kill(owner)
        told = reader.until(custom("ax", agentId="researcher", reason=reason))
        return told.at - killed


def kill_the_runner(node: WorkerNode) -> None:
    os.kill(node.runners()[0], signal.SIGKILL)


def kill_the_node(node: WorkerNode) -> None:
    node.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="measure leases on a cluster of its own")
    parser.add_argument("--kills", type=int, default=3, help="of each kind")
    parser.add_argument("--held", type=int, nargs="+", default=HELD)
    for what in ("--supervise", "--hold", "--by", "--threads"):  # of the measured processes
        flag = {"action": "store_true"} if what == "--supervise" else {"type": str}
        parser.add_argument(what, help=argparse.SUPPRESS, **flag)
    options = parser.parse_args()
    if options.supervise:
        supervise()
    elif options.hold:
        hold(int(options.hold), options.by)
    elif options.threads:
        beat_by_threads(int(options.threads))
    else:
        return measure(options.held, options.kills)
    return 0


def measure(held: Sequence[int], kills: int) -> int:
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    kept = True
    with tempfile.TemporaryDirectory(prefix="agentsite-") as folder:
        say(
            COST.format("a second, idle otherwise", "leases", "of a core", "statements", "commands")
        )
        with Cluster(Path(folder), web=0, workers=0) as cluster:
            for count in held:
                cost = ours(count, cluster, BEATS * conf.heartbeat_interval)
                say(cost.row())
                say(seeds(count, cluster, BEATS * conf.heartbeat_interval).row())
                kept = kept and cost.cores < OF_A_CORE
    own = tempfile.TemporaryDirectory(prefix="agentsite-")
    with own as place, Site(Path(place), env={}, direct=True) as site:
        say(HEAD)
        for figure in deaths(site, kills):
            say(figure.row())
            kept = kept and figure.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
