"""Stop, pressed at another node than the one that is at work (trials 1 to 6 and 9 to 11)."""

import json
import os
import signal
import time
from collections import Counter
from threading import Timer

import pytest
from redis import Redis

from tests.cluster.client import (
    PATIENCE,
    TERMINAL,
    Json,
    custom,
    customs,
    eventually,
    finished,
    first,
    is_question,
    texts,
)
from tests.cluster.conftest import BEAT, IN_FULL

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


def test_late_and_repeated_broadcasts_hit_no_later_run(site):
    """Each hint comes seconds late and three times: stops are heard all the same, and only once."""
    site.network.delay_hints(5 if IN_FULL else 2, times=3)
    chat = site.session()
    other = chat.at(site.web(2))
    endless = site.play(assistant=[ENDLESS])
    for number in range(1, 6):
        run_id = chat.post(endless)["run_id"]
        site.provider.wait_for(
            lambda log, number=number: len(log) == number and log[-1].chunks, containing=endless
        )
        pressed = time.time()
        answer = other.interrupt()
        assert (answer["status"], [run["run_id"] for run in answer["runs"]]) == (
            "stopped",
            [run_id],
        )
        last = site.provider.wait_for(lambda log: log[-1].ended, containing=endless)[-1]
        assert last.ended - pressed < BEAT + 2
    with chat.events() as reader:
        run_id = chat.post(
            site.play(assistant=[[{"text": "still "}, {"hang": chat.id}, {"text": "here"}]])
        )["run_id"]
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="still "))
        site.network.mend()  # what is on its way comes late all the same
        eventually(lambda: not site.network.late, "every late hint")
        site.provider.release(chat.id)
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    assert chat.messages()[-1]["content"] == "still here"


def test_a_stop_ends_a_deep_tree_over_nodes(site):
    """One is in a long tool, one queued behind it, one has a child: nothing is born afterwards."""
    task = {"to": "researcher", "content": "$SCRIPT"}
    child = {"to": "reviewer", "content": "$SCRIPT"}
    tree = {
        "assistant": [
            [
                {"call": "send_message", "args": {**task, "await_result": True}},
                {"call": "send_message", "args": task},
                {"call": "send_message", "args": {**task, "to": "strategist"}},
            ]
        ],
        "researcher": [[{"call": "work", "args": {"seconds": 60}}]],
        "strategist": [[{"call": "send_message", "args": child}], [{"hang": ""}]],
        "reviewer": [[{"hang": ""}]],
    }
    owners: set[str] = set()
    while len(owners) < 2:
        chat, script = site.session(), site.play(**tree)
        with chat.events() as reader:
            run_id = chat.post(script)["run_id"]
            reader.until(first("TOOL_CALL_START", toolCallName="work"))
            site.provider.wait_for(
                lambda log: {e.agent for e in log if not e.ended} >= {"strategist", "reviewer"},
                containing=script,
            )
            owners = {site.owner(chat, a).name for a in ("researcher", "strategist", "reviewer")}
            answer = chat.at(site.web(2)).interrupt()
            reader.until(finished(run_id))
        assert answer["status"] == "stopped"
        assert [run["status"] for run in answer["runs"]] == ["interrupted"] * 5
        log = chat.log()
        ends = [ax["runId"] for ax in customs(log, "ax")]
        assert sorted(ends) == sorted(run["run_id"] for run in answer["runs"])
        assert [e.event["runId"] for e in log if e.type in TERMINAL] == [run_id]
        assert len([item for item in chat.inbox() if item["type"] == "task"]) == 4
        asked = site.provider.wait_for(lambda log: all(e.ended for e in log), containing=script)
        assert sorted(e.agent for e in asked) == [
            "assistant",
            "researcher",
            "reviewer",
            "strategist",
            "strategist",
        ]


def test_stop_when_the_listeners_connections_were_cut(site):
    """They listen again by themselves; a stop in between is heard by a poll."""
    redis = Redis.from_url(site.cluster.redis.url)
    listeners = len(redis.client_list(_type="pubsub"))

    def stop_takes(cut):
        chat = site.session()
        with chat.events() as reader:
            chat.post(site.play(assistant=[ENDLESS]))
            reader.until(first("TEXT_MESSAGE_CONTENT"))
            if cut:
                redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            pressed = time.time()
            assert chat.at(site.web(2)).interrupt()["status"] == "stopped"
            return time.time() - pressed

    assert stop_takes(cut=True) < BEAT + 2
    eventually(lambda: len(redis.client_list(_type="pubsub")) >= listeners, "the listeners")
    if IN_FULL:
        time.sleep(120)  # nothing is said in two minutes
    assert stop_takes(cut=False) < 1


def test_a_frozen_runner_obeys_when_it_thaws(site):
    """Until then the stop is recorded, and nobody says that it has happened."""
    chat = site.session()
    script = site.play(assistant=[ENDLESS])
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(first("TEXT_MESSAGE_CONTENT"))
        (runner,) = site.owner(chat, "assistant").runners()
        os.kill(runner, signal.SIGSTOP)
        answer = chat.at(site.web(2)).interrupt()
        assert (answer["status"], answer["runs"][0]["status"]) == ("accepted", "running")
        os.kill(runner, signal.SIGCONT)
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "cancelled"}
    assert [ax["reason"] for ax in customs(chat.log(), "ax")] == ["interrupted"]
    (exchange,) = site.provider.wait_for(lambda log: log[-1].ended, containing=script)
    assert exchange.outcome == "closed"


def test_a_stop_races_a_completion(site):
    """One end, told once, and the answer says which it was. Both are met, more and more closely."""
    lead = 0.02  # seconds: room to press before the provider goes on
    later = 0.0  # seconds by which the stop is pressed after the provider goes on
    won = Counter()
    for number in range(200 if IN_FULL else 24):
        chat = site.session()
        other = chat.at(site.web(1 + number % 2))
        script = site.play(assistant=[[{"text": "one "}, {"hang": chat.id}, {"text": "two"}]])
        with chat.events() as reader:
            run_id = chat.post(script)["run_id"]
            reader.until(first("TEXT_MESSAGE_CONTENT"))
            release = Timer(lead, site.provider.release, [chat.id])
            release.start()
            time.sleep(max(0, lead + later))
            answer = other.interrupt()
            reader.until(finished(run_id))
            release.join()
        log = chat.log()
        (end,) = [e.event for e in log if e.type in TERMINAL]
        (ax,) = customs(log, "ax")
        stopped = end["outcome"]["type"] == "cancelled"
        assert ax["status"] == ("interrupted" if stopped else "completed")
        said = {"stopped"} if stopped else {"already_finished", "no_active_run"}
        assert answer["status"] in said
        assert {run["status"] for run in answer["runs"]} <= {ax["status"]}
        (kept,) = [m["content"] for m in chat.messages() if m["role"] == "assistant"]
        assert kept in (["one ", "one two"] if stopped else ["one two"])
        won[end["outcome"]["type"]] += 1
        later += 0.002 if stopped else -0.002
    assert len(won) == 2, won


def test_the_stop_of_one_sub_agent_is_told_to_the_master(site):
    """The person did it, and the task is not to be sent again; everything else goes on."""
    task = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [
                {"call": "send_message", "args": task},
                {"call": "send_message", "args": {**task, "to": "reviewer"}},
            ],
            [{"text": "heard: $RESULTS"}],
        ],
        researcher=[[{"hang": ""}]],
        reviewer=[[{"text": "reviewed"}]],
    )
    chat = site.session()
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        site.provider.wait_for(bool, agent="researcher", containing=script)
        reader.until(custom("ax", agentId="reviewer", status="completed"))
        answer = chat.at(site.web(2)).interrupt(agent_id="researcher")
        assert answer["status"] == "stopped"
        assert [run["agent_id"] for run in answer["runs"]] == ["researcher"]
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    heard = chat.messages()[-1]["content"]
    assert '"status": "interrupted"' in heard
    assert "The user stopped it. Do not send the task again yourself." in heard
    assert "reviewed" in heard


def test_results_of_a_stopped_turn_never_reach_the_model(site):
    """One has come and was not read yet, one comes with the stop itself."""
    task = {"content": "$SCRIPT"}
    script = site.play(
        assistant=[
            [
                {"call": "send_message", "args": {"to": "researcher", **task}},
                {"call": "send_message", "args": {"to": "reviewer", **task, "await_result": True}},
            ]
        ],
        researcher=[[{"text": "found too late"}]],
        reviewer=[[{"hang": ""}]],
    )
    chat = site.session()
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(custom("ax", agentId="researcher", status="completed"))
        site.provider.wait_for(bool, agent="reviewer", containing=script)
        assert chat.interrupt()["status"] == "stopped"
        reader.until(finished(run_id))
    results = [item for item in chat.inbox() if item["type"] == "result"]
    assert [item["status"] for item in results] == ["discarded", "discarded"]
    assert "result_discarded" in {entry["kind"] for entry in chat.worklog()}
    after = site.play(assistant=[[{"text": "after"}]])
    chat.post(after)
    assert chat.until_idle()["messages"][-1]["content"] == "after"
    (exchange,) = site.provider.log(containing=after)
    assert "found too late" not in str(exchange.request["messages"])
