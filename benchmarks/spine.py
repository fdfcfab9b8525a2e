"""How fast the spine is: two web nodes, two worker nodes, MariaDB, Redis, and a scripted provider.

    python -m benchmarks.spine              # prints a table; exit 1 if a figure is missed
    python -m benchmarks.spine --rounds 50

Everything is driven through CONTRACT.md, and each figure is taken where a user or the provider
would feel it. What is under way when one figure is taken is that one conversation: this is latency,
not load. Times are the default ones, and nobody else should be using the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.client import Chat, custom, finished, first, is_question
from tests.cluster.site import Site
from tests.fakes.provider import Exchange


@dataclass(frozen=True)
class Figure:
    """What was measured, and what was promised of it."""

    name: str
    seconds: Sequence[float]
    p50: float | None = None
    longest: float | None = None
    held: bool = True

    @property
    def kept(self) -> bool:
        in_time = self.p50 is None or statistics.median(self.seconds) < self.p50
        in_bound = self.longest is None or max(self.seconds) < self.longest
        return self.held and in_time and in_bound

    def row(self) -> str:
        ordered = sorted(self.seconds)
        p90 = ordered[min(len(ordered) - 1, round(0.9 * len(ordered)))]
        measured = (statistics.median(ordered), p90, ordered[-1])
        numbers = " ".join(f"{1000 * value:8.1f}" for value in measured)
        bounds = [
            f"{name} < {1000 * bound:g}"
            for name, bound in (("p50", self.p50), ("max", self.longest))
            if bound is not None
        ]
        verdict = "ok" if self.kept else "MISSED"
        return f"{self.name:62} {len(ordered):3} {numbers}  {', '.join(bounds):26} {verdict}"


HEAD = f"{'milliseconds':62} {'n':>3} {'p50':>8} {'p90':>8} {'max':>8}  {'promised':26}"


def stops(site: Site, rounds: int) -> Iterator[Figure]:
    """Stop through the node that does not stream."""
    closed, answered, truthful = [], [], 0
    script = site.play(assistant=[[{"tokens": 100_000, "rate": 50}]])
    for number in range(rounds):
        chat, other = two_ways(site, number)
        with chat.events() as reader:
            chat.post(script)
            reader.until(first("TEXT_MESSAGE_CONTENT"))
            pressed = time.time()
            truthful += other.interrupt()["status"] == "stopped"
            answered.append(time.time() - pressed)
            reader.until(finished())
        exchange = _ended(site, script)
        truthful -= exchange.outcome != "closed"
        closed.append((exchange.ended or time.time()) - pressed)
    yield Figure("stop: POST to the provider's stream closed", closed, 0.1, 1)
    held = truthful == rounds
    yield Figure("stop: POST to the answer `stopped`", answered, longest=1, held=held)


def first_tokens(site: Site, rounds: int) -> Iterator[Figure]:
    """From the provider, and from the message, to a reader at the other node."""
    from_provider, from_post, to_provider = [], [], []
    script = site.play(assistant=[[{"text": "first"}, {"text": " last"}]])
    for number in range(rounds):
        chat, other = two_ways(site, number)
        with other.events() as reader:
            reader.until(first("MESSAGES_SNAPSHOT"))
            posted = time.time()
            chat.post(script)
            token = reader.until(first("TEXT_MESSAGE_CONTENT"))
            reader.until(finished())
        exchange = _ended(site, script)
        to_provider.append(exchange.started - posted)
        from_provider.append(token.at - exchange.chunks[0])
        from_post.append(token.at - posted)
    yield Figure("message: POST to the model call", to_provider)
    yield Figure("first token: provider's chunk to the reader", from_provider, 0.25)
    yield Figure("first token: POST to the reader", from_post, 0.25)


def rendezvous(site: Site, rounds: int) -> Iterator[Figure]:
    """From the sub-agent's last token to the model call that reads its result."""
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[[{"call": "send_message", "args": delegate}], [{"text": "heard: $RESULTS"}]],
        researcher=[[{"text": "found "}, {"text": "it"}]],
    )
    woken, born, held = [], [], True
    for number in range(rounds):
        chat, _ = two_ways(site, number)
        with chat.events() as reader:
            chat.post(script)
            reader.until(finished())
        asking, sub_agent, going_on = site.provider.log(containing=script)[-3:]
        held = held and "found it" in str(going_on.request["messages"][-1])
        born.append(sub_agent.started - asking.chunks[-1])
        woken.append(going_on.started - sub_agent.chunks[-1])
    yield Figure("task: master's last token to the sub-agent's model call", born)
    name = "rendezvous: sub-agent's last token to the master's next call"
    yield Figure(name, woken, 0.15, held=held)


def five_at_once(site: Site, rounds: int) -> Iterator[Figure]:
    """Five awaited tasks in one step; each brings its own answer."""
    agents = ["researcher", "researcher-2", "strategist", "reviewer", "reviewer-2"]
    calls = [
        {
            "call": "send_message",
            "args": {"to": to, "content": f"$SCRIPT for {to}.", "await_result": True},
        }
        for to in agents
    ]
    script = site.play(
        assistant=[calls, [{"text": "end"}]], **{"*": [[{"text": "mine was: $LAST"}]]}
    )
    took, right = [], True
    for number in range(max(1, rounds // 4)):
        chat, _ = two_ways(site, number)
        with chat.events() as reader:
            chat.post(script)
            reader.until(finished())
        asking, *_, going_on = site.provider.log(containing=script)[-7:]
        results = [message["content"] for message in going_on.request["messages"][-5:]]
        right = right and all(
            f"for {agent}." in result for agent, result in zip(agents, results, strict=True)
        )
        took.append(going_on.started - asking.chunks[-1])
    yield Figure("five awaited tasks at once: asked to all five answered", took, held=right)


def after_a_restart(site: Site, _: int) -> Iterator[Figure]:
    """A question is answered at the other node after kill -9 of every web and worker node."""
    ask = {"question": "Go on?", "ui_type": "confirm"}
    script = site.play(assistant=[[{"call": "ask_user", "args": ask}], [{"text": "so: $RESULTS"}]])
    chat, other = two_ways(site, 0)
    with chat.events() as reader:
        chat.post(script)
        reader.until(lambda events: next(filter(is_question, events), None))
    for node in site.cluster.nodes:
        node.kill()
    site.heal()
    (question,) = other.snapshot()["questions"]
    with chat.events() as reader:
        answered = time.time()
        other.respond(question["id"], payload=True)
        reader.until(custom("ax", status="completed"))
    going_on = _ended(site, script)
    held = '"answer": true' in going_on.request["messages"][-1]["content"]
    name = "question, all nodes killed: answer to the model call"
    yield Figure(name, [going_on.started - answered], held=held)


FIGURES: list[Callable[[Site, int], Iterator[Figure]]] = [
    stops,
    first_tokens,
    rendezvous,
    five_at_once,
    after_a_restart,
]


def two_ways(site: Site, number: int) -> tuple[Chat, Chat]:
    """A new session through one node, and the same through the other; they take turns."""
    chat = site.session(web=1 + number % 2)
    return chat, chat.at(site.web(2 - number % 2))


def _ended(site: Site, script: str) -> Exchange:
    """The newest model call of a script, once it is over."""
    return site.provider.wait_for(lambda log: log and log[-1].ended, containing=script)[-1]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="measure the spine on a cluster of its own")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    kept = True
    folder = tempfile.TemporaryDirectory(prefix="agentsite-")
    with folder as place, Site(Path(place), env={}, direct=True) as site:
        say(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        say(HEAD)
        for measure in FIGURES:
            for figure in measure(site, options.rounds):
                say(figure.row())
                kept = kept and figure.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
