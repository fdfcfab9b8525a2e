"""How soon a master goes on: after the result it waits for, and after a person's answer.

    python -m benchmarks.rendezvous                 # prints a table
    python -m benchmarks.rendezvous --waits 1 25 500 --results 100

From the commit of the sub-agent's result, as a second connection to the database sees it, to the
master's next model call, as the provider sees it; with Redis, and after it was killed. Results come
one after the other at a steady rate while ``--waits`` masters wait. Up to 25 of these masters are
real conversations; the rest are rows as they are while masters wait for a task that is queued
behind another, for this measures the waiting and not five hundred model streams. Beside it, for the
same results, stand the seeds: a thread that looks for the row once a second.

Then what the waits cost at rest, in statements a second of the whole cluster; and an answer that is
posted to one web node while the question was asked through the other, twenty at once among them.
Exit 1 where a result was not its master's own, or an answer was not applied exactly once.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.leases import statements
from benchmarks.spine import say, two_ways
from benchmarks.stop import HEAD, driver, raw_cost, row
from tests.cluster.client import Chat, Refused, custom, eventually, finished
from tests.cluster.site import Site
from tests.fakes.provider import Exchange

REAL = 25  # conversations among those that wait: what the two runners hold without a queue
PAUSE = 0.1  # seconds from one result to the next
WITHOUT_REDIS = 25  # results at most: each waits for a poll, and the polls do not vary
AT_REST = 10.0  # seconds of counting
LOOK = 0.002  # seconds between two looks for a commit: more often would take the nodes' CPU
RAW = 50  # of the raw commits and PUBLISHes that everything is compared with
SEEDS_POLL = 1.0  # seconds between two looks of the seeds
AT_ONCE = 20


@dataclass
class Measured:
    """Seconds of each result or answer, and what was not as it should be."""

    ours: list[float] = field(default_factory=list)
    seeds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


# -- results ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """A master that waits, parked, for a sub-agent that says nothing until its gate opens."""

    gate: str
    script: str
    task_id: str

    @property
    def found(self) -> str:
        return f"found at {self.gate}"


def begin_waiting(site: Site, count: int) -> list[Waiting]:
    """So many conversations, each up to its wait."""
    begun = []
    for number in range(count):
        gate = uuid.uuid4().hex
        delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
        script = site.play(
            assistant=[[{"call": "send_message", "args": delegate}], [{"text": "heard"}]],
            researcher=[[{"hang": gate}, {"text": f"found at {gate}"}]],
        )
        chat = site.session(web=1 + number % 2)
        chat.post(script)
        begun.append((chat, gate, script))
    waiting = []
    for chat, gate, script in begun:
        site.provider.wait_for(bool, 60, agent="researcher", containing=script)
        eventually(partial(has_status, chat, "waiting_child"), "a wait")
        (task,) = chat.inbox()
        waiting.append(Waiting(gate, script, task["id"]))
    return waiting


def has_status(chat: Chat, status: str) -> bool:
    master = chat.agent("assistant")
    return master is not None and master["status"] == status


class Database:
    """Looks for results by the raw driver, outside of any transaction."""

    def __init__(self, site: Site) -> None:
        connection = driver(site.cluster.env["DATABASE_URL"])
        connection.autocommit(True)  # a look inside a transaction would see nothing new
        self._cursor = connection.cursor()

    def wait_for_result(self, waiting: Waiting, every: float) -> float:
        """When the task's accepted result was seen."""
        sql = "SELECT 1 FROM coordination_inboxmessage WHERE accepted_for_id = %s"
        while not self._cursor.execute(sql, [waiting.task_id]):
            time.sleep(every)
        return time.time()


def results(site: Site, waits: int, count: int) -> Measured:
    """``count`` results, while ``waits`` masters wait in the beginning of each batch."""
    measured = Measured()
    while len(measured.ours) + len(measured.wrong) < count:
        batch = begin_waiting(site, min(REAL, waits, count))
        committed = let_go(site, batch, measured)
        for waiting, at in committed.items():
            log = site.provider.wait_for(going_on, 60, agent="assistant", containing=waiting.script)
            (call,) = [exchange for exchange in log if exchange.step == 1]
            if waiting.found in str(call.request["messages"][-1]):
                measured.ours.append(call.started - at)
            else:
                measured.wrong.append("a master went on with something else")
    return measured


def going_on(log: list[Exchange]) -> bool:
    return any(exchange.step == 1 for exchange in log)


def let_go(site: Site, batch: list[Waiting], measured: Measured) -> dict[Waiting, float]:
    """One result after the other, and when each was committed."""
    database, looking = Database(site), []
    committed: dict[Waiting, float] = {}
    for waiting in batch:
        seen = Database(site)
        thread = threading.Thread(
            target=look_as_the_seeds_do, args=[seen, waiting, committed, measured.seeds]
        )
        thread.start()
        looking.append(thread)
        time.sleep(PAUSE * random.uniform(0.5, 1.5))
        site.provider.release(waiting.gate)
        committed[waiting] = database.wait_for_result(waiting, LOOK)
    for thread in looking:
        thread.join()
    return committed


def look_as_the_seeds_do(
    database: Database, waiting: Waiting, committed: dict[Waiting, float], took: list[float]
) -> None:
    """A thread of its own for each wait; it has begun at some time or other."""
    time.sleep(random.uniform(0, SEEDS_POLL))
    seen = database.wait_for_result(waiting, SEEDS_POLL)
    eventually(lambda: waiting in committed, "the moment of the commit")
    took.append(max(0.0, seen - committed[waiting]))


# -- waits that are rows ----------------------------------------------------------------------


def park(count: int) -> None:
    """Rows as they are while ``count`` masters wait for a task that is queued behind another."""
    import django

    django.setup()
    import datetime as dt

    from django.utils import timezone

    from coordination.models import InboxMessage, Run, Session, Wait, WaitItem

    now = timezone.now()
    sessions = Session.objects.bulk_create([Session() for _ in range(count)])
    masters = [
        Run(
            session=session,
            agent_id="assistant",
            root_id=uuid.uuid4(),
            position=1,
            status=Run.Status.WAITING_CHILD,
            lane=Run.lane_of(session.pk, "assistant"),
            epoch=1,
        )
        for session in sessions
    ]
    for master in masters:
        master.pk = master.root_id
    Run.objects.bulk_create(masters)
    names = {"sender": "assistant", "recipient": "researcher", "kind": "task", "content": "look"}
    tasks = InboxMessage.objects.bulk_create(
        InboxMessage(session_id=m.session_id, position=2, sender_run=m, **names) for m in masters
    )
    both = list(zip(masters, tasks, strict=True))
    Run.objects.bulk_create(
        Run(
            session_id=master.session_id,
            agent_id="researcher",
            parent=master,
            root_id=master.pk,
            depth=1,
            task=task,
            position=3,
        )
        for master, task in both
    )
    until = now + dt.timedelta(hours=1)
    waits = Wait.objects.bulk_create(
        Wait(run=m, session_id=m.session_id, tool_call_id="c", opened_at=now, deadline_at=until)
        for m in masters
    )
    items = zip(waits, tasks, strict=True)
    WaitItem.objects.bulk_create(WaitItem(wait=wait, task=task) for wait, task in items)


def park_behind(site: Site, count: int) -> None:
    argv = [sys.executable, "-m", "benchmarks.rendezvous", "--park", str(count)]
    subprocess.run(argv, env=site.cluster.env, check=True)


def statements_at_rest(site: Site) -> float:
    """A second, of all nodes together."""
    time.sleep(1)
    before, began = statements(site.cluster), time.monotonic()
    time.sleep(AT_REST)
    return (statements(site.cluster) - before) / (time.monotonic() - began)


# -- answers ----------------------------------------------------------------------------------


def answers(site: Site, count: int, at_once: int = 1) -> Measured:
    """From the POST at the other web node to the model call that reads the answer."""
    measured = Measured()
    ask = {"question": "Go on?", "ui_type": "text"}
    for number in range(count):
        script = site.play(assistant=[[{"call": "ask_user", "args": ask}], [{"text": "so"}]])
        chat, other = two_ways(site, number)
        with chat.events() as reader:
            run_id = chat.post(script)["run_id"]
            question = reader.until(custom("question", state="open")).event["value"]["id"]
            eventually(partial(has_status, chat, "waiting_user"), "the question")
            ways = [other, chat] if at_once > 1 else [other]
            posted = time.time()
            taken = answer(question, [ways[n % len(ways)] for n in range(at_once)])
            reader.until(finished(run_id))
        calls = site.provider.log(containing=script)
        measured.ours.append(calls[1].started - posted)
        if len(calls) != 2 or taken != 1:
            measured.wrong.append(f"{taken} answers taken, {len(calls) - 1} model calls")
    return measured


def answer(question_id: str, ways: list[Chat]) -> int:
    """How many of these answers were taken."""
    taken = []

    def post(number: int, chat: Chat) -> None:
        try:
            taken.append(chat.respond(question_id, payload=f"answer {number}"))
        except Refused as refusal:
            if refusal.code != "already_answered":
                raise

    threads = [threading.Thread(target=post, args=pair) for pair in enumerate(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken)


# -- the program ------------------------------------------------------------------------------


def report(name: str, measured: Measured, raw: float) -> bool:
    """Print the row; False where something was wrong."""
    say(row(name, measured.ours, raw))
    for wrong in sorted(set(measured.wrong)):
        say(f"    {measured.wrong.count(wrong)} times: {wrong}")
    return not measured.wrong


def with_waits(site: Site, waits: int, count: int, rest: float, raw: float) -> bool:
    """All rows about so many waits."""
    queued = max(0, waits - REAL)
    if queued:
        park_behind(site, queued)
        more = statements_at_rest(site) - rest
        say(f"{queued} waits cost {more:.1f} statements a second, the seeds' {queued}")
    measured = results(site, waits, count)
    kept = report(f"{waits} waiting: result to the model call", measured, raw)
    say(row(f"{waits} waiting: the seeds' look every second", measured.seeds))
    site.cluster.redis.kill()
    measured = results(site, waits, min(count, WITHOUT_REDIS))
    kept = report(f"{waits} waiting, no Redis: to the model call", measured, raw) and kept
    site.heal()
    return kept


def measure(site: Site, waits: list[int], count: int, rounds: int) -> bool:
    """Print the table; False where something was wrong."""
    say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rest = statements_at_rest(site)
    say(f"nothing waits: {rest:.1f} statements a second of two web and two worker nodes")
    cost = raw_cost(site)
    raws = [cost() for _ in range(RAW)]
    raw = statistics.median(raws)
    say(HEAD)
    say(row("raw commit and PUBLISH", raws))
    kept = report("answer at the other node to the model call", answers(site, rounds), raw)
    many = answers(site, max(1, rounds // 4), AT_ONCE)
    kept = report(f"{AT_ONCE} answers at once to the model call", many, raw) and kept
    for number in waits:
        kept = with_waits(site, number, count, rest, raw) and kept
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description="measure waits on a cluster of its own")
    parser.add_argument("--waits", type=int, nargs="*", default=[1, 25, 500])
    parser.add_argument("--results", type=int, default=50, help="of each number of waits")
    parser.add_argument("--answers", type=int, default=40)
    parser.add_argument("--park", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.park:
        park(options.park)
        return 0
    folder = tempfile.TemporaryDirectory(prefix="agentsite-")
    with folder as place, Site(Path(place), env={}, direct=True) as site:
        return 0 if measure(site, options.waits, options.results, options.answers) else 1


if __name__ == "__main__":
    sys.exit(main())
