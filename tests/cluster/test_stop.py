"""Stop, pressed at another node than the one that is at work (trials 1 and 2)."""

import json
import time

import pytest

from tests.cluster.client import PATIENCE, Json, custom, finished, first, is_question, texts
from tests.cluster.conftest import IN_FULL

ENDLESS = [{"tokens": 100_000, "rate": 50}]
STOPS = 50 if IN_FULL else 20
TOLD_LATE = 0.1  # seconds that the provider may take to read what was sent before the stop


def test_many_stops_through_the_other_node(site):
    """Each is answered with what is true, and the provider's stream is closed at once."""
    took = []
    for number in range(STOPS):
        script = site.play(assistant=[ENDLESS])
        chat = site.session(web=1 + number % 2)
        other = chat.at(site.web(2 - number % 2))
        with chat.events() as reader:
            run_id = chat.post(script)["run_id"]
            reader.until(first("TEXT_MESSAGE_CONTENT"))
            pressed = time.time()
            answer = other.interrupt()
            assert answer["status"] == "stopped"
            assert [run["status"] for run in answer["runs"]] == ["interrupted"]
            snapshot = chat.snapshot()
            end = reader.until(finished(run_id))
        assert snapshot["status"] == "idle"
        assert end.event["outcome"] == {"type": "cancelled"}
        partial = next(m for m in snapshot["messages"] if m["status"] == "interrupted")
        assert texts(reader.events) == {partial["id"]: partial["content"]}
        (exchange,) = site.provider.wait_for(lambda log: log and log[-1].ended, containing=script)
        assert exchange.outcome == "closed"
        took.append(exchange.ended - pressed)
    assert max(took) < 1, sorted(took)


@pytest.mark.parametrize("through", ["http", "websocket"])
def test_no_model_call_begins_after_stopped(site, through):
    """Stop 0 to 200 ms after the message: while it is queued, claimed, or just before the call."""
    stopped = {}
    for delay in range(0, 201, 20):
        script = site.play(assistant=[ENDLESS])
        chat = site.session()
        if through == "http":
            chat.post(script)
            time.sleep(delay / 1000)
            answer = chat.at(site.web(2)).interrupt()
        else:
            with chat.socket() as socket:
                socket.send("message", content=script)
                time.sleep(delay / 1000)
                answer = socket.answer(socket.send("interrupt"))
        assert answer["status"] == "stopped", delay
        stopped[script] = time.time()
        assert chat.snapshot()["status"] == "idle"
        assert chat.messages()[0]["content"] == script  # the user's words are kept
    site.provider.wait_for(lambda log: all(exchange.ended for exchange in log))
    for script, at in stopped.items():
        for exchange in site.provider.log(containing=script):
            assert exchange.started < at + TOLD_LATE
            assert exchange.outcome == "closed"


def test_a_stop_ends_the_whole_tree(site):
    """The sub-agents too, wherever they run; each exit is told once."""
    task = {"to": "researcher", "content": "$SCRIPT go", "await_result": True}
    script = site.play(
        assistant=[
            [
                {"call": "send_message", "args": task},
                {"call": "send_message", "args": {**task, "to": "reviewer"}},
            ]
        ],
        **{"*": [[{"text": "a"}, {"hang": ""}]]},
    )
    chat = site.session()
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        site.provider.wait_for(lambda log: len(log) == 3 and log[-1].chunks, containing=script)
        assert chat.at(site.web(2)).interrupt()["status"] == "stopped"
        reader.until(finished(run_id))
        for agent in ("assistant", "researcher", "reviewer"):
            reader.until(custom("ax", agentId=agent, status="interrupted", reason="interrupted"))
    assert {agent["status"] for agent in chat.snapshot()["agents"]} == {"interrupted"}
    log = site.provider.wait_for(lambda log: all(e.ended for e in log), containing=script)
    assert [exchange.outcome for exchange in log] == ["completed", "closed", "closed"]


def task(to: str) -> Json:
    args = {"to": to, "content": "$SCRIPT go", "await_result": True}
    return {"call": "send_message", "args": args}


ARGUMENTS = json.dumps({"question": "哪一个苹果 🍎？"}, ensure_ascii=False)

POSITIONS = {
    "in the arguments of a call": (
        [[{"text": "我问。"}, {"call": "ask_user", "args": ARGUMENTS, "hang_at": 15}]],
        [],
        first("TOOL_CALL_ARGS"),
    ),
    "between a call and its result": (
        [[{"text": "I ask. "}, task("researcher")]],
        [[{"text": "找到"}, {"hang": ""}]],
        first("SUBAGENT_STARTED"),
    ),
    "a question": (
        [[{"text": "Hm. "}, {"call": "ask_user", "args": {"question": "which?"}}]],
        [],
        lambda events: next((e for e in events if is_question(e)), None),
    ),
    "a question of a sub-agent": (
        [[{"text": "I ask. "}, task("reviewer")]],
        [[{"call": "ask_user", "args": {"question": "which?"}}]],
        lambda events: next((e for e in events if is_question(e)), None),
    ),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_the_next_message_is_answered_wherever_the_turn_was_stopped(site, name):
    steps, others, there = POSITIONS[name]
    script = site.play(assistant=steps, **{"*": others})
    chat = site.session()
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(there)
        begun = len(steps) + len(others)
        site.provider.wait_for(
            lambda log: len(log) == begun and log[-1].chunks, PATIENCE, containing=script
        )
        assert chat.at(site.web(2)).interrupt()["status"] == "stopped"
        end = reader.until(finished(run_id))
        assert end.event["outcome"] == {"type": "cancelled"}
        called = {e.event["toolCallId"] for e in reader.events if e.type == "TOOL_CALL_START"}
        results = [e.event for e in reader.events if e.type == "TOOL_CALL_RESULT"]
        assert sorted(e["toolCallId"] for e in results) == sorted(called)
        assert all("Interrupted" in e["content"] for e in results)
        reader.until(finished(chat.post(site.play(assistant=[[{"text": "fine"}]]))["run_id"]))
    log = site.provider.log(containing=script)
    assert "refused" not in {exchange.outcome for exchange in log}
    assert [m["content"] for m in chat.messages() if m["role"] == "assistant"][-1] == "fine"
