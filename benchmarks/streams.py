"""How late tokens are, how many there can be, and what they cost, with a bare echo beside it.

    python -m benchmarks.streams                    # prints tables; exit 1 if a figure is missed
    python -m benchmarks.streams --seconds 20 --runs 1 100 --readers 500

Runs stream 50 tokens a second each, begun at one moment but out of step; half of their readers are
at each of two web nodes. Lag is from the provider's chunk to the reader, token by token, whatever
was merged on the way. CPU is what the kernel counts while they stream, in seconds for each 1,000
tokens delivered: of the web nodes, the worker nodes, MariaDB and Redis. What they cost at rest (the
first row) is in it; what the provider and the readers cost is not, though they share the cores.

``benchmarks/echo.py``, a Daphne application that passes the same chunks on, is measured in the same
rounds: compare with that, not between machines. Last, the time from a message to the model request
that it begins.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from agentsite.processes import Child, descendants, free_port, port_is_free, spawn, until
from benchmarks.leases import cpu_of
from benchmarks.spine import HEAD, Figure, say, two_ways
from tests.cluster.client import Chat
from tests.cluster.site import Site
from tests.fakes.provider import Step

RATE = 50  # tokens a second of each run
WORD = re.compile(rb"w\d+ ")  # as the scripted provider says them
IN_TIME = 60.0  # seconds for what is still to come when the last token was due

ROW = "{:<22} {:>7} {:>8} {:>7} {:>7} {:>8}   {:>5} {:>7} {:>7} {:>5} {:>6}   {}"
TITLE = ROW.format(
    "", "readers", "tokens/s", "p50 ms", "p95 ms", "max ms", "web", "worker", "MariaDB", "Redis",
    "all", "aim",
)  # fmt: skip


@dataclass(frozen=True)
class Streamed:
    """One round: lags in seconds, and CPU seconds by the kind of process."""

    name: str
    readers: int
    expected: int
    lags: Sequence[float]
    seconds: float
    cpu: dict[str, float]
    p50: float | None = None  # aims
    p95: float | None = None
    cost: float | None = None  # CPU seconds for each 1,000 tokens

    def row(self) -> str:
        a_thousand = {name: 1000 * spent / len(self.lags) for name, spent in self.cpu.items()}
        return ROW.format(
            self.name,
            self.readers,
            f"{len(self.lags) / self.seconds:.0f}",
            *(f"{1000 * lag:.1f}" for lag in (self._at(0.5), self._at(0.95), max(self.lags))),
            *(f"{a_thousand[name]:.2f}" if name in a_thousand else "-" for name in KINDS),
            f"{sum(a_thousand.values()):.2f}",
            "" if self.kept else "MISSED",
        )

    def _at(self, share: float) -> float:
        return sorted(self.lags)[min(len(self.lags) - 1, int(share * len(self.lags)))]

    @property
    def kept(self) -> bool:
        in_time = self.p50 is None or self._at(0.5) <= self.p50
        bounded = self.p95 is None or self._at(0.95) < self.p95
        cheap = self.cost is None or 1000 * sum(self.cpu.values()) / len(self.lags) <= self.cost
        return len(self.lags) == self.expected and in_time and bounded and cheap


KINDS = ("web", "worker", "MariaDB", "Redis")


# -- a round -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """What one reader follows: where, and the script whose words it will read."""

    url: str
    path: str
    script: str
    token: str = ""


def scripts(site: Site, gate: str, count: int, tokens: int) -> list[str]:
    """Programs that wait at one gate, and then speak out of step."""
    found = []
    for number in range(count):
        out_of_step = {"wait": number / count / RATE}
        speak: Step = [{"hang": gate}, out_of_step, {"tokens": tokens, "rate": RATE}]
        found.append(site.play(**{"*": [speak]}))
    return found


async def read(stream: Stream, tokens: int, arrived: list[float]) -> None:
    """Note when each token was here."""
    address = urlsplit(stream.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"GET {stream.path} HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {stream.token}\r\n\r\n".encode()
    )
    rest = b""
    try:
        while len(arrived) < tokens and (data := await reader.read(65536)):
            now, rest = time.time(), rest + data
            words = list(WORD.finditer(rest))
            arrived += [now] * len(words)
            rest = rest[words[-1].end() if words else 0 :][-64:]
    finally:
        writer.close()


async def stream_all(
    site: Site,
    gate: str,
    streams: Sequence[Stream],
    tokens: int,
    begin: Callable[[], None],
    spent: Callable[[], dict[str, float]],
) -> tuple[list[list[float]], float, dict[str, float]]:
    """Open the readers, ``begin``, let all speak, and read to the end, or as long as is sane."""
    arrived: list[list[float]] = [[] for _ in streams]
    reading = [
        asyncio.ensure_future(read(stream, tokens, times))
        for stream, times in zip(streams, arrived, strict=True)
    ]
    await asyncio.sleep(1)  # or the accepting of connections would be measured
    await asyncio.to_thread(begin)
    requests = len({stream.script for stream in streams})
    await asyncio.to_thread(site.provider.wait_for, lambda log: len(log) == requests, IN_TIME)
    before, began = spent(), time.time()
    await asyncio.to_thread(site.provider.release, gate)
    _, late = await asyncio.wait(reading, timeout=tokens / RATE + IN_TIME)
    after, took = spent(), time.time() - began
    for task in late:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return arrived, took, {name: after[name] - before[name] for name in after}


def lags(site: Site, streams: Sequence[Stream], arrived: Sequence[list[float]]) -> list[float]:
    """Each token's, of each reader."""
    left = {str(e.request["messages"][-1]["content"]): e.chunks for e in site.provider.log()}
    return [
        here - there
        for stream, times in zip(streams, arrived, strict=True)
        for here, there in zip(times, left[stream.script], strict=False)
    ]


# -- what is measured ---------------------------------------------------------------------------


def spent_by(groups: dict[str, list[int]]) -> dict[str, float]:
    """CPU seconds that the processes of each kind have used until now."""
    return {name: sum(map(cpu_of, pids)) for name, pids in groups.items()}


def site_processes(site: Site) -> dict[str, list[int]]:
    cluster = site.cluster
    assert cluster.mariadb.child
    assert cluster.redis.child
    workers = [node.pid for node in cluster.workers]
    return {
        "web": [node.pid for node in cluster.web],
        "worker": workers + [pid for node in workers for pid in descendants(node)],
        "MariaDB": [cluster.mariadb.child.pid],
        "Redis": [cluster.redis.child.pid],
    }


def ours(site: Site, runs: int, readers: int, seconds: float, **aims: float) -> Streamed:
    """``runs`` at once, each with ``readers``, which are divided between the web nodes."""
    site.provider.reset()
    tokens = int(seconds * RATE)
    gate = f"gate-{time.time()}"
    chats = [site.session(web=1 + number % 2) for number in range(runs)]
    said = scripts(site, gate, runs, tokens)

    def post_all() -> None:
        for chat, script in zip(chats, said, strict=True):
            chat.post(script)

    streams = [
        Stream(site.web(1 + (number + place) % 2), path_of(chat), script, str(chat.api.token))
        for number, (chat, script) in enumerate(zip(chats, said, strict=True))
        for place in range(readers)
    ]
    spent = partial(spent_by, site_processes(site))
    arrived, took, cpu = asyncio.run(stream_all(site, gate, streams, tokens, post_all, spent))
    for chat in chats:
        chat.interrupt()
    return Streamed(
        f"{runs} run{'s' if runs > 1 else ''}",
        runs * readers,
        tokens * len(streams),
        lags(site, streams, arrived),
        took,
        cpu,
        **aims,
    )


def at_rest(site: Site, seconds: float) -> str:
    """What the site costs that does nothing: CPU seconds a second, whatever streams."""
    before = spent_by(site_processes(site))
    time.sleep(seconds)
    after = spent_by(site_processes(site))
    cores = [(after[name] - before[name]) / seconds for name in KINDS]
    rest = (*(f"{core:.2f}" for core in cores), f"{sum(cores):.2f}", "")
    return ROW.format("nothing, a second", *5 * "-", *rest)


def path_of(chat: Chat) -> str:
    return f"/api/chat/{chat.id}/events"


def echoed(site: Site, echo: Child, url: str, count: int, seconds: float) -> Streamed:
    """The same through an application that does nothing else."""
    site.provider.reset()
    tokens = int(seconds * RATE)
    gate = f"gate-{time.time()}"
    streams = [Stream(url, f"/?{s}", s) for s in scripts(site, gate, count, tokens)]
    spent = partial(spent_by, {"web": [echo.pid]})
    arrived, took, cpu = asyncio.run(stream_all(site, gate, streams, tokens, lambda: None, spent))
    found = lags(site, streams, arrived)
    return Streamed(f"  echo of {count}", count, tokens * count, found, took, cpu)


def start_echo(site: Site, folder: Path) -> tuple[Child, str]:
    port = free_port()
    argv = [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "-v", "0"]
    env = {**os.environ, **site.provider.env}
    child = spawn([*argv, "benchmarks.echo:application"], name="echo", log=folder / "echo", env=env)
    until(lambda: not port_is_free(port), child=child, what="echo")
    return child, f"http://127.0.0.1:{port}"


def to_the_model(site: Site, rounds: int) -> Figure:
    """From the message to the request that it begins, at an idle site."""
    script = site.play(**{"*": [[{"text": "yes"}]]})
    took = []
    for number in range(rounds):
        chat, _ = two_ways(site, number)
        posted = time.time()
        chat.post(script)
        chat.until_idle()
        took.append(site.provider.log(containing=script)[-1].started - posted)
    return Figure("message: POST to the model request", took, p50=0.025)


def main() -> int:
    parser = argparse.ArgumentParser(description="measure streams on a cluster of its own")
    parser.add_argument("--seconds", type=float, default=10, help="of each round")
    parser.add_argument("--runs", type=int, nargs="*", default=[1, 10, 50, 100, 200])
    parser.add_argument("--readers", type=int, nargs="*", default=[1, 50, 500], help="of one run")
    parser.add_argument("--rounds", type=int, default=20, help="messages to the model")
    options = parser.parse_args()
    env = {"AGENT_CONCURRENCY": str(max(16, *options.runs))}
    own = tempfile.TemporaryDirectory(prefix="agentsite-")
    kept = True
    with own as folder, Site(Path(folder), env=env, direct=True) as site:
        echo, url = start_echo(site, Path(folder))
        say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        say("CPU seconds for each 1,000 tokens delivered, at the right\n" + TITLE)
        say(at_rest(site, options.seconds))
        for runs in options.runs:
            aims = AIMS.get(runs, {})
            for round_ in (
                ours(site, runs, 1, options.seconds, **aims),
                echoed(site, echo, url, runs, options.seconds),
            ):
                say(round_.row())
                kept = kept and round_.kept
        for readers in options.readers:
            round_ = ours(site, 1, readers, options.seconds, p95=0.25)
            say(round_.row())
            kept = kept and round_.kept
        echo.stop()
        say("\n" + HEAD)
        figure = to_the_model(site, options.rounds)
        say(figure.row())
    return 0 if kept and figure.kept else 1


# For one run at once, and for a hundred: seconds, and CPU seconds for each 1,000 tokens.
AIMS: dict[int, dict[str, float]] = {1: {"p50": 0.003}, 100: {"p95": 0.25, "cost": 0.35}}


if __name__ == "__main__":
    sys.exit(main())
