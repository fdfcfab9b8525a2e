"""How fast a stop is, and whether it is true: from one web node, of a run that the other started.

    python -m benchmarks.stop                      # 50 rounds of each; prints a table
    python -m benchmarks.stop --rounds 500 --streams 1 10 100

Each round starts a turn that would never end, waits for its first token, and stops it through the
other web node. Three moments are taken: the provider sees its stream closed, the reader has the
terminal event, the caller has the answer. ``--streams`` says how many turns stream at once, the
stopped one included. Then the same while Redis is killed and started again every few rounds, and
after it has been killed for good.

Beside it, in the same rounds, stands what a stop cannot be cheaper than: one committed row on the
same MariaDB and one PUBLISH on the same Redis, by the raw drivers. Compare ratios, not machines.
Exit 1 where an answer was not true, or anything said before the stop is missing afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import MySQLdb
import redis

from benchmarks.spine import say, two_ways
from tests.cluster.client import Chat, finished, first, texts
from tests.cluster.site import Site

RATE = 20  # tokens a second of each stream: a person's reading speed, several times over
RESTART_AFTER = 5  # stops between two deaths of Redis
WITHOUT_REDIS = 10  # rounds: each waits for a poll, and the polls do not vary

HEAD = f"{'milliseconds':44} {'n':>4} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>8}   {'x raw':>6}"


@dataclass
class Rounds:
    """Seconds of each round, by what was measured, and what was not as it should be."""

    closed: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def row(name: str, seconds: Sequence[float], raw: float | None = None) -> str:
    """One line of the table, in milliseconds; ``raw`` is the median it is compared with."""
    ordered = sorted(seconds)
    marks = [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.5, 0.95, 0.99)]
    numbers = " ".join(f"{1000 * value:8.1f}" for value in (*marks, ordered[-1]))
    ratio = f"{statistics.median(ordered) / raw:6.1f}" if raw else ""
    return f"{name:44} {len(ordered):4} {numbers}   {ratio}"


def one_stop(site: Site, number: int, rounds: Rounds) -> None:
    """One turn, stopped in mid stream through the node that did not start it."""
    script = site.play(assistant=[[{"tokens": 100_000, "rate": RATE}]])
    chat, other = two_ways(site, number)
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(first("TEXT_MESSAGE_CONTENT"))
        pressed = time.time()
        answer = other.interrupt()
        rounds.answered.append(time.time() - pressed)
        end = reader.until(finished(run_id))
        rounds.told.append(end.at - pressed)
        log = site.provider.wait_for(lambda log: log and log[-1].ended, containing=script)
        rounds.closed.append((log[-1].ended or time.time()) - pressed)
        if log[-1].outcome != "closed" or len(log) != 1:
            rounds.wrong.append(f"{answer['status']}, and the provider went on")
        _check_words(chat, script, texts(reader.events), rounds)


def _check_words(chat: Chat, script: str, streamed: dict[str, str], rounds: Rounds) -> None:
    messages = chat.messages()
    if messages[0]["content"] != script:
        rounds.wrong.append("the user's words are gone")
    kept = {m["id"]: m["content"] for m in messages if m["status"] == "interrupted"}
    if kept != streamed:
        rounds.wrong.append("the partial answer is not what was streamed")


@contextmanager
def others_streaming(site: Site, count: int) -> Iterator[None]:
    """``count`` further turns under way meanwhile."""
    script = site.play(assistant=[[{"tokens": 1_000_000, "rate": RATE}]])
    chats = [site.session(web=1 + number % 2) for number in range(count)]
    for chat in chats:
        chat.post(script)
    if count:
        site.provider.wait_for(
            lambda log: sum(bool(e.chunks) for e in log) >= count, containing=script
        )
    try:
        yield
    finally:
        for chat in chats:
            chat.interrupt()


def driver(url: str) -> Any:
    """A connection to the cluster's database by the raw driver."""
    parts = urlsplit(url)
    return MySQLdb.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        passwd=unquote(parts.password or ""),
        db=parts.path.lstrip("/"),
    )


def raw_cost(site: Site) -> Callable[[], float]:
    """Seconds of one committed row and one PUBLISH, each by its raw driver."""
    database = driver(site.cluster.env["DATABASE_URL"])
    cursor = database.cursor()
    cursor.execute("CREATE TABLE benchmark_raw (id INT AUTO_INCREMENT PRIMARY KEY, said TEXT)")
    database.commit()
    channel = redis.Redis.from_url(site.cluster.env["REDIS_URL"])
    channel.ping()

    def once() -> float:
        started = time.perf_counter()
        cursor.execute("INSERT INTO benchmark_raw (said) VALUES ('stop')")
        database.commit()
        channel.publish("benchmark", "stop")
        return time.perf_counter() - started

    return once


def measure(
    site: Site,
    count: int,
    *,
    streams: int = 1,
    raw: Callable[[], float] | None = None,
    restarts: bool = False,
) -> Rounds:
    """``count`` stops while ``streams`` turns stream, and while Redis ``restarts``."""
    rounds = Rounds()
    with others_streaming(site, streams - 1):
        for number in range(count):
            if restarts and number % RESTART_AFTER == 0:
                site.cluster.redis.kill()
                site.cluster.redis.start()
            one_stop(site, number, rounds)
            if raw is not None:
                rounds.raw.append(raw())
    return rounds


def report(name: str, rounds: Rounds) -> bool:
    """Print the rows; False where a stop was not true."""
    raw = statistics.median(rounds.raw) if rounds.raw else None
    say(row(f"{name}: POST to the closed stream", rounds.closed, raw))
    say(row(f"{name}: POST to the terminal event", rounds.told, raw))
    say(row(f"{name}: POST to the answer", rounds.answered, raw))
    if rounds.raw:
        say(row(f"{name}: raw commit and PUBLISH", rounds.raw))
    for wrong in sorted(set(rounds.wrong)):
        say(f"    {rounds.wrong.count(wrong)} times: {wrong}")
    return not rounds.wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="measure stops on a cluster of its own")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 10, 100])
    options = parser.parse_args()
    true = True
    # One runner takes sixteen runs unless it is told otherwise.
    env = {"AGENT_CONCURRENCY": str(max(16, *options.streams))}
    folder = tempfile.TemporaryDirectory(prefix="agentsite-")
    with folder as place, Site(Path(place), env=env, direct=True) as site:
        say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        say(HEAD)
        raw = raw_cost(site)
        for streams in options.streams:
            rounds = measure(site, options.rounds, streams=streams, raw=raw)
            true = report(f"{streams} streaming", rounds) and true
        true = report("Redis restarts", measure(site, options.rounds, restarts=True)) and true
        site.cluster.redis.kill()
        count = min(options.rounds, WITHOUT_REDIS)
        true = report("Redis killed", measure(site, count)) and true
    return 0 if true else 1


if __name__ == "__main__":
    sys.exit(main())
