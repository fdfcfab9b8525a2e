"""AG-UI's own rules for a stream, as a strict client holds them against each event.

``verify`` takes a stream from its beginning: a whole log, or a reader's from cursor 0. What stands
in one run ends in it; runs do not nest; nothing is told between two runs. ``CUSTOM`` alone is let
through there: the queue, the agents and the inbox have a life between the turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

BRACKETS = {  # what opens and closes, and by which field the two are one
    "TEXT_MESSAGE": "messageId",
    "REASONING": "messageId",
    "REASONING_MESSAGE": "messageId",
    "TOOL_CALL": "toolCallId",
    "SUBAGENT": "subagentRunId",
}
OPENS, CLOSES, INSIDE = {"START", "STARTED"}, {"END", "FINISHED", "ERROR"}, {"CONTENT", "ARGS"}


def verify(stream: Iterable[Json]) -> None:
    """Fails with the first event that a strict AG-UI client would refuse."""
    verifier = Verifier()
    for event in stream:
        verifier.take(event)


class Verifier:
    """The state of one client."""

    def __init__(self) -> None:
        self.run: str | None = None  # the one that is under way
        self.standing: set[tuple[str, str]] = set()
        self.sub_agents: set[str] = set()  # that have begun in this run
        self.called: set[str] = set()
        self.answered: set[str] = set()

    def take(self, event: Json) -> None:
        kind = event["type"]
        if kind == "CUSTOM":
            return
        if kind == "RUN_STARTED":
            assert self.run is None, f"a run starts within a run: {event}"
            self.run = event["runId"]
            self.sub_agents.clear()
            return
        assert self.run is not None, f"outside of a run: {event}"
        if kind in ("RUN_FINISHED", "RUN_ERROR"):
            assert event.get("runId", self.run) == self.run, f"another run's end: {event}"
            assert not self.standing, f"{kind} leaves open: {self.standing}"
            self.run = None
        elif kind == "TOOL_CALL_RESULT":
            self._answer(event["toolCallId"])
        else:
            self._bracket(event)

    def _answer(self, call_id: str) -> None:
        assert call_id in self.called, f"the result of no call: {call_id}"
        assert call_id not in self.answered, f"a second result of {call_id}"
        self.answered.add(call_id)

    def _begin(self, event: Json) -> None:
        child, parent = event["subagentRunId"], event.get("parentSubagentRunId")
        assert child not in self.sub_agents, f"a second time in one run: {event}"
        assert parent is None or parent in self.sub_agents, f"of nobody: {event}"
        self.sub_agents.add(child)

    def _bracket(self, event: Json) -> None:
        what, _, word = event["type"].rpartition("_")
        assert what in BRACKETS, f"an unknown word: {event}"
        key = (what, event[BRACKETS[what]])
        speaker = ("SUBAGENT", event.get("subagentRunId", ""))
        if what != "SUBAGENT" and "subagentRunId" in event:
            assert speaker in self.standing, f"of a sub-agent that is not at work: {event}"
        if word in OPENS:
            assert key not in self.standing, f"opens twice: {event}"
            self.standing.add(key)
            if what == "TOOL_CALL":
                self.called.add(event["toolCallId"])
            if what == "SUBAGENT":
                self._begin(event)
        else:
            assert word in CLOSES | INSIDE, f"an unknown word: {event}"
            assert key in self.standing, f"not open: {event}"
            if word in CLOSES:
                self.standing.remove(key)
