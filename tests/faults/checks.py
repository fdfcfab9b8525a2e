"""What must be true when everything is at rest again. Each check yields what is not.

It is read from the public API, from the stream that each person saw, from the provider's log, and,
where the API has no word for it, from the rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tests.cluster.client import TERMINAL, Arrived, Json, customs, is_question, texts
from tests.cluster.site import Site
from tests.fakes.provider import Exchange, content_of
from tests.faults.people import Conversation

TOLD_LATE = 0.1  # seconds that the provider may take to read what was sent before the stop


@dataclass(frozen=True)
class RunRow:
    """A run as it stands in the database."""

    id: str
    agent_id: str
    is_root: bool
    status: str
    reason: str


class Evidence:
    """Everything that is known of one conversation, read once."""

    def __init__(self, site: Site, talk: Conversation, asked: list[Exchange]) -> None:
        self.talk = talk
        self.site = site
        self.snapshot: Json = talk.chat.snapshot()
        talk.read_to_the_end(int(self.snapshot["cursor"]))
        self.asked = [exchange for exchange in asked if _key_of(exchange).startswith(talk.name)]

    @cached_property
    def log(self) -> list[Arrived]:
        return self.talk.chat.log()

    @cached_property
    def runs(self) -> list[RunRow]:
        sql = (
            "SELECT id, agent_id, parent_id IS NULL, status, reason "
            f"FROM coordination_run WHERE session_id = '{self.talk.chat.id}'"
        )
        return [
            RunRow(row[0], row[1], row[2] == "1", row[3], row[4]) for row in self.site.rows(sql)
        ]

    @cached_property
    def messages(self) -> dict[str, list[Json]]:
        agents = {agent["agent_id"] for agent in self.snapshot["agents"]} | {"assistant"}
        return {agent: self.talk.chat.messages(agent) for agent in agents}

    @cached_property
    def inbox(self) -> list[Json]:
        return self.talk.chat.inbox()


def violations(evidence: Evidence) -> Iterator[str]:
    """Everything that is wrong with one conversation."""
    yield from evidence.talk.faults
    for check in CHECKS:
        yield from (f"{check.__name__}: {what}" for what in check(evidence))


def every_acknowledged_message_is_there_once_and_in_order(e: Evidence) -> Iterator[str]:
    there = [m["content"] for m in e.messages["assistant"] if m["role"] == "user"]
    there += [waiting["content"] for waiting in e.snapshot["queue"]]  # behind an open question
    in_order = [message.content for message in e.talk.sent if not message.interrupts]
    everything = Counter(message.content for message in e.talk.sent)
    if Counter(there) != everything or [c for c in there if c in set(in_order)] != in_order:
        keys = [content.split()[-1] for content in there]
        yield f"sent {[m.key for m in e.talk.sent]}, there is {keys}"


def what_was_streamed_is_what_is_saved(e: Evidence) -> Iterator[str]:
    streamed = texts(e.log)
    saved = {
        message["id"]: message["content"]
        for messages in e.messages.values()
        for message in messages
        if message["role"] == "assistant"
    }
    for message_id, content in saved.items():
        if streamed.get(message_id, "") != content:
            yield f"message {message_id}: {streamed.get(message_id)!r}, saved {content!r}"
    for message_id, content in streamed.items():
        if content and message_id not in saved:
            yield f"message {message_id} was streamed ({content!r}) and is not saved"


def the_stream_has_no_gap_and_no_repeat(e: Evidence) -> Iterator[str]:
    ids = [arrived.id for arrived in e.log]
    if ids != list(range(1, len(ids) + 1)):
        yield f"the log is not dense: {ids}"
    seen = [(arrived.id, arrived.event) for arrived in e.talk.seen]
    if seen != [(arrived.id, arrived.event) for arrived in e.log]:
        missing = sorted(set(ids) - {arrived.id for arrived in e.talk.seen})
        yield f"the reader saw {len(seen)} events of {len(ids)}, not {missing}"


def every_run_has_ended_once(e: Evidence) -> Iterator[str]:
    asked = {question["run_id"] for question in e.snapshot["questions"]}
    exits = Counter(ax["runId"] for ax in customs(e.log, "ax"))
    told = {ax["runId"]: (ax["status"], ax["reason"]) for ax in customs(e.log, "ax")}
    ends = Counter(a.event.get("runId") for a in e.log if a.type in TERMINAL and not is_question(a))
    for run in e.runs:
        name = f"{run.agent_id} {run.id} ({run.status}, {run.reason})"
        if run.status not in ("completed", "failed", "interrupted", "timeout"):
            if not asked:
                yield f"{name} has not ended"
            continue
        if exits[run.id] != 1 or told.get(run.id) != (run.status, run.reason):
            yield f"{name}: {exits[run.id]} exits, {told.get(run.id)}"
    roots = [run for run in e.runs if run.is_root and exits[run.id]]
    finished = sum(ends.values())
    if finished != len(roots):
        yield f"{len(roots)} turns have ended, {finished} ends were told: {ends}"


def every_task_has_one_accepted_result(e: Evidence) -> Iterator[str]:
    answered = Counter(
        item["in_reply_to"] for item in e.inbox if item["type"] == "result" and not item["late"]
    )
    open_at_rest = bool(e.snapshot["questions"])
    for task in (item for item in e.inbox if item["type"] in ("task", "revision")):
        if answered[task["id"]] != 1 and not (open_at_rest and answered[task["id"]] == 0):
            yield f"task {task['id']} to {task['recipient']} has {answered[task['id']]} results"


def stopped_was_true(e: Evidence) -> Iterator[str]:
    rows = {run.id: run.status for run in e.runs}
    keys = {message.run_id: message.key for message in e.talk.sent}
    for answer in e.talk.stops:
        if answer.status != "stopped":
            continue
        for run_id, status in answer.runs.items():
            if rows.get(run_id) != status:
                yield f"run {run_id} was said to be {status} and is {rows.get(run_id)}"
            for exchange in e.asked:
                later = exchange.started - answer.at
                if keys.get(run_id) == _key_of(exchange) and later > TOLD_LATE:
                    yield f"run {run_id}: a model call of {exchange.agent} {later:.3f} s later"


def no_provider_would_refuse_what_it_was_sent(e: Evidence) -> Iterator[str]:
    for exchange in e.asked:
        if exchange.outcome == "refused":
            yield f"{exchange.agent}: {exchange.error}"


def no_tool_took_effect_twice(e: Evidence) -> Iterator[str]:
    runs = {run.id for run in e.runs}
    lines = e.site.effects.read_text().splitlines() if e.site.effects.exists() else []
    for effect, times in Counter(line for line in lines if line[:36] in runs).items():
        if times > 1:
            yield f"{effect}: {times} times"


CHECKS = (
    every_acknowledged_message_is_there_once_and_in_order,
    what_was_streamed_is_what_is_saved,
    the_stream_has_no_gap_and_no_repeat,
    every_run_has_ended_once,
    every_task_has_one_accepted_result,
    stopped_was_true,
    no_provider_would_refuse_what_it_was_sent,
    no_tool_took_effect_twice,
)


def _key_of(exchange: Exchange) -> str:
    """The key of the person's message that a model call answers, at whatever depth."""
    for message in reversed(exchange.request["messages"]):
        if message["role"] == "user":
            found = re.findall(r"script:\S+ (\S+)", content_of(message.get("content")))
            if found:
                return str(found[-1])
    return ""
