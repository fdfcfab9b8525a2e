"""The checks of the fault programme find what they are there to find."""

from copy import deepcopy
from types import SimpleNamespace

import pytest

from tests.cluster.client import Arrived
from tests.fakes.provider import Exchange
from tests.faults.checks import TOLD_LATE, RunRow, violations
from tests.faults.people import Sent, StopAnswer
from tests.faults.proxy import frames

RUN, KEY = "11111111-1111-1111-1111-111111111111", "seed.0-0"
AX = {"agentId": "assistant", "runId": RUN, "status": "interrupted", "reason": "interrupted"}
EVENTS = [
    {"type": "RUN_STARTED", "runId": RUN},
    {"type": "TEXT_MESSAGE_START", "messageId": "m"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "hello"},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"},
    {"type": "CUSTOM", "name": "ax", "value": AX},
    {"type": "RUN_FINISHED", "runId": RUN, "outcome": {"type": "cancelled"}},
]


@pytest.fixture
def evidence(tmp_path):
    """One message, answered until it was stopped; one task with its result. All is well."""
    effects = tmp_path / "effects"
    effects.write_text(f"{RUN}:call\n")
    log = [Arrived(number, event, 0) for number, event in enumerate(EVENTS, 1)]
    sent = Sent(f"script:x {KEY}", KEY, RUN)
    request = {"messages": [{"role": "user", "content": sent.content}]}
    return SimpleNamespace(
        talk=SimpleNamespace(
            faults=[],
            sent=[sent],
            stops=[StopAnswer(10, "stopped", {RUN: "interrupted"})],
            seen=deepcopy(log),
        ),
        site=SimpleNamespace(effects=effects),
        snapshot={"queue": [], "questions": []},
        log=log,
        runs=[RunRow(RUN, "assistant", True, "interrupted", "interrupted")],
        messages={
            "assistant": [
                {"id": "u", "role": "user", "content": sent.content},
                {"id": "m", "role": "assistant", "content": "hello"},
            ]
        },
        inbox=[
            {"id": "t", "type": "task", "recipient": "researcher", "late": False},
            {"id": "r", "type": "result", "in_reply_to": "t", "late": False},
        ],
        asked=[Exchange(0, "assistant", 0, 9.0, request)],
    )


def test_nothing_is_found_where_nothing_is_wrong(evidence):
    assert not list(violations(evidence))


WRONGS = {
    "every_acknowledged": lambda e: e.messages["assistant"].pop(0),
    "every_acknowledged_message_is_there_once": lambda e: e.messages["assistant"].append(
        e.messages["assistant"][0]
    ),
    "what_was_streamed": lambda e: e.messages["assistant"][1].update(content="hell"),
    "what_was_streamed_is_what_is_saved": lambda e: e.messages["assistant"].pop(1),
    "the_stream_has_no_gap": lambda e: e.talk.seen.pop(2),
    "the_stream_has_no_gap_and_no_repeat": lambda e: e.talk.seen.append(e.talk.seen[-1]),
    "every_run": lambda e: e.runs.append(RunRow("other", "researcher", False, "running", "")),
    "every_run_has": lambda e: e.log.append(e.log[-2]),
    "every_run_has_ended": lambda e: e.log.append(e.log[-1]),
    "every_task": lambda e: e.inbox.pop(),
    "every_task_has_one": lambda e: e.inbox.append(e.inbox[-1]),
    "stopped_was": lambda e: setattr(e.asked[0], "started", 10 + 2 * TOLD_LATE),
    "stopped_was_true": lambda e: e.talk.stops[0].runs.update({RUN: "completed"}),
    "no_provider": lambda e: e.asked[0].end("refused", "no such tool call"),
    "no_tool": lambda e: e.site.effects.write_text(f"{RUN}:call\n{RUN}:call\n"),
}


@pytest.mark.parametrize("check", WRONGS)
def test_what_is_wrong_is_found(evidence, check):
    WRONGS[check](evidence)
    assert any(found.startswith(check) for found in violations(evidence))


def test_answers_of_redis_are_told_apart_wherever_they_are_cut():
    whole = [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        b">2\r\n$1\r\na\r\n*1\r\n:2\r\n",
        b"%1\r\n+a\r\n_\r\n",
    ]
    data = b"".join(whole)
    assert list(frames(data)) == whole
    for cut in range(len(data)):
        found = b"".join(frames(data[:cut]))
        assert data.startswith(found)
        assert list(frames(data[len(found) :]))[-1] == whole[-1]
