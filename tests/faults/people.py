"""People who talk while everything breaks: they send again what was not answered, and go on.

A conversation is one session with two threads. One talks, stops and answers questions, each time
through a random node. The other reads the stream, leaves every few seconds, and resumes on another
node where it was.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx

from tests.cluster.client import Arrived, Chat, Refused
from tests.cluster.site import Site
from tests.faults.history import History

T = TypeVar("T")

TRY_AGAIN = 0.2  # seconds before a request that had no answer is made again
ROOM = 8  # turns in one conversation: what is checked at the end stays small

_TO = {"content": "$LAST"}
PROGRAMS: dict[str, dict[str, list[list[dict[str, Any]]]]] = {
    "talk": {"assistant": [[{"tokens": 30, "rate": 30}]]},
    "use a tool": {
        "assistant": [
            [{"text": "first "}, {"call": "effect", "args": {"seconds": 0.1}}],
            [{"tokens": 10, "rate": 30}, {"call": "effect", "args": {}}],
            [{"text": "both done"}],
        ]
    },
    "wait for a sub-agent": {
        "assistant": [
            [{"call": "send_message", "args": {"to": "researcher", "await_result": True, **_TO}}],
            [{"text": "It is "}, {"tokens": 5, "rate": 20}],
        ],
        "researcher": [[{"tokens": 15, "rate": 20}]],
    },
    "send two away": {
        "assistant": [
            [
                {"call": "send_message", "args": {"to": "researcher", **_TO}},
                {"call": "send_message", "args": {"to": "reviewer", **_TO}},
            ],
            [{"tokens": 10, "rate": 20}],
        ],
        "*": [[{"text": "a "}, {"call": "effect", "args": {}}], [{"tokens": 10, "rate": 20}]],
    },
    "ask": {
        "assistant": [
            [{"call": "ask_user", "args": {"question": "Shall I?", "ui_type": "confirm"}}],
            [{"text": "So be it."}],
        ]
    },
}


@dataclass(frozen=True)
class Sent:
    """A message whose send was answered."""

    content: str
    key: str
    run_id: str
    interrupts: bool = False  # so its turn comes before those that wait


@dataclass(frozen=True)
class StopAnswer:
    """What a stop was answered with, and when."""

    at: float
    status: str
    runs: dict[str, str]


class Conversation:
    """One person in one session. ``over`` ends the talking; what is under way is still said."""

    def __init__(self, site: Site, name: str, programs: dict[str, str], history: History) -> None:
        self.site = site
        self.history = history
        self.programs = programs
        self.chat: Chat = site.session()
        self.name = name
        self.sent: list[Sent] = []
        self.stops: list[StopAnswer] = []
        self.faults: list[str] = []  # answers that nobody may ever get
        self.seen: list[Arrived] = []
        self.over = threading.Event()
        self._random = random.Random(name)
        self._readers_random = random.Random(f"{name} reads")
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work in (self._talk, self._read)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout: float) -> bool:
        """True once everything that was said has been answered."""
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    # -- talking ----------------------------------------------------------------------------------

    def _talk(self) -> None:
        while not self.over.is_set():
            acts: list[Callable[[], None]] = [self._stop, self._answer, self._answer]
            if len(self.sent) < ROOM:
                acts += [self._say] * 4
            self._random.choice(acts)()
            self.over.wait(self._random.uniform(0.1, 1.5))

    def _say(self) -> None:
        kind = self._random.choice(list(self.programs))
        on_busy = self._random.choice(["enqueue", "enqueue", "interrupt"])
        key = f"{self.name}-{len(self.sent)}"
        content = f"{self.programs[kind]} {key}"
        while True:
            answer = self._try("say", lambda chat: chat.post(content, id=key, on_busy=on_busy))
            if answer is not None:
                break
            time.sleep(TRY_AGAIN)
        self.sent.append(Sent(content, key, answer["run_id"], on_busy == "interrupt"))
        self._note(f"said ({kind}, {on_busy})", f"{key} → {answer}")

    def _stop(self) -> None:
        which = self._random.choice([{}, {}, {"agent_id": "researcher"}])
        answer = self._try("stop", lambda chat: chat.interrupt(**which))
        if answer is not None:
            runs = {run["run_id"]: run["status"] for run in answer["runs"]}
            self.stops.append(StopAnswer(time.time(), answer["status"], runs))
            self._note(f"stopped ({answer['status']})", f"{which} {runs}")

    def _answer(self) -> None:
        snapshot = self._try("look", lambda chat: chat.snapshot())
        for question in snapshot["questions"] if snapshot else ():
            payload = self._random.choice([True, False])
            answer = partial(Chat.respond, question_id=question["id"], payload=payload)
            answered = self._try("answer", answer)
            self._note("answered" if answered else "not answered", question["id"])

    def _try(self, what: str, call: Callable[[Chat], T]) -> T | None:
        """The answer through some node; None where there was none, or a no."""
        chat = self.chat.at(self.site.web(self._random.choice([1, 2])))
        try:
            return call(chat)
        except Refused as refused:
            if refused.status >= 500 and refused.status != 503:
                self.faults.append(f"{what} was answered {refused}")
            self._note(f"{what}: refused", refused)
        except (httpx.HTTPError, OSError) as error:
            self._note(f"{what}: no answer", repr(error)[:80])
        except ValueError as error:
            self.faults.append(f"{what} was answered with no JSON: {error}")
        return None

    def _note(self, what: str, detail: object) -> None:
        self.history.note(self.chat.id, what, detail)

    # -- reading ----------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self.over.is_set():
            try:
                self._read_on(self._readers_random.uniform(0.5, 4))
            except (OSError, AssertionError):  # the node is away, or says that it cannot
                self.over.wait(TRY_AGAIN)

    def _read_on(self, seconds: float) -> None:
        node = self.site.web(self._readers_random.choice([1, 2]))
        cursor = self.seen[-1].id if self.seen else 0
        with self.chat.at(node).events(last_event_id=cursor) as reader:
            self.over.wait(seconds)
        self.seen += reader.events

    def read_to_the_end(self, cursor: int) -> None:
        """What is still missing, once everything works again."""
        seen = self.seen[-1].id if self.seen else 0
        if seen < cursor:
            with self.chat.events(last_event_id=seen) as reader:
                reader.until(lambda events: (events and events[-1].id >= cursor) or None)
            self.seen += reader.events
