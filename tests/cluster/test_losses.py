"""Processes that die, and Redis that is gone: told in time, and nothing else happens (trial 20)."""

import os
import signal
import time

import pytest

from tests.cluster.client import PATIENCE, Reader, custom, customs, finished, first, texts
from tests.cluster.conftest import BEAT, GRACE, LEASE


def hang_in_a_sub_agent(site, chat):
    """A master that awaits a researcher that hangs, and says what became of it."""
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": delegate}],
            [{"text": "heard: $RESULTS"}],
        ],
        researcher=[[{"text": "partial"}, {"hang": ""}]],
    )
    chat.post(script)
    site.provider.wait_for(lambda log: log and log[0].chunks, agent="researcher", containing=script)
    return script


def told_once(reader: Reader, reason: str, status: str) -> float:
    """When the reader heard of the researcher's end; the master has heard it too, and went on."""
    told = reader.until(custom("ax", agentId="researcher"))
    assert told.event["value"]["reason"] == reason
    assert told.event["value"]["status"] == status
    reader.until(custom("ax", agentId="assistant", reason="completed"))
    (answer,) = [text for text in texts(reader.events).values() if "heard" in text]
    assert '"status": "lost"' in answer
    assert f'"reason": "{reason}"' in answer
    assert len(customs(reader.events, "ax")) == 2
    return told.at


def test_a_killed_runner_is_told_within_a_second(site):
    chat = site.session()
    with chat.at(site.web(2)).events() as reader:
        hang_in_a_sub_agent(site, chat)
        (runner,) = site.owner(chat, "researcher").runners()
        killed = time.time()
        os.kill(runner, signal.SIGKILL)
        assert told_once(reader, "crashed", "failed") - killed < 1
    (result,) = [item for item in chat.inbox() if item["type"] == "result"]
    assert result["sender"] == "system"


def test_a_killed_node_is_told_by_another(site):
    chat = site.session()
    with chat.at(site.web(2)).events() as reader:
        hang_in_a_sub_agent(site, chat)
        owner = site.owner(chat, "researcher")
        killed = time.time()
        owner.kill()
        assert told_once(reader, "lease_expired", "timeout") - killed < LEASE + GRACE + 2
    assert site.node_state(owner) == "silent"
    assert "lease_expired" in {entry["kind"] for entry in chat.worklog()}


def test_a_master_whose_node_was_killed_goes_on_elsewhere(site):
    """From its last saved step: the sub-agent is not asked twice."""
    chat = site.session()
    gate = chat.id
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": delegate}],
            [{"text": "so "}, {"hang": gate}, {"text": "it is"}],
        ],
        researcher=[[{"text": "found"}]],
    )
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="so "))
        site.owner(chat, "assistant").kill()
        site.provider.release(gate)
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    assert chat.messages()[-1]["content"] == "so it is"
    assert len(site.provider.log("researcher", containing=script)) == 1


def test_a_worker_that_is_told_to_stop_hands_its_run_over(site):
    """SIGTERM in mid stream is nobody's stop: the run goes on on the other node."""
    chat = site.session()
    gate = chat.id
    script = site.play(assistant=[[{"text": "one "}, {"hang": gate}, {"text": "two"}]])
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        reader.until(first("TEXT_MESSAGE_CONTENT"))
        owner = site.owner(chat, "assistant")
        assert owner.terminate(timeout=30), owner.child.last_words()
        assert owner.child.returncode == 0
        assert site.node_state(owner) == "left"
        site.provider.wait_for(lambda log: len(log) == 2, PATIENCE, containing=script)
        assert site.owner(chat, "assistant") is not owner
        site.provider.release(gate)
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    assert [ax["reason"] for ax in customs(reader.events, "ax")] == ["completed"]
    assert chat.messages()[-1]["content"] == "one two"
    assert "interrupted" not in {m["status"] for m in chat.snapshot()["messages"][-1:]}
    assert not [entry for entry in chat.worklog() if "stop" in entry["kind"]]


def test_everything_works_without_redis(site):
    """Slower, by the polls behind each hint; and at once again when Redis is back."""
    site.cluster.redis.kill()
    chat = site.session()
    other = chat.at(site.web(2))
    ask = {"question": "And?", "ui_type": "text"}
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": delegate}],
            [{"call": "ask_user", "args": ask}],
            [{"text": "last"}, {"hang": ""}],
        ],
        researcher=[[{"text": "found"}]],
    )
    with other.events() as reader:
        run_id = chat.post(script)["run_id"]
        question = reader.until(custom("question", state="open")).event["value"]
        other.respond(question["id"], payload="so")
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="last"))
        pressed = time.time()
        other.interrupt()
        (stopped,) = site.provider.wait_for(
            lambda log: log and log[-1].ended, agent="assistant", containing=script
        )[-1:]
        assert stopped.ended - pressed < BEAT + 2
        reader.until(finished(run_id))
    assert {ax["reason"] for ax in customs(reader.events, "ax")} == {"completed", "interrupted"}
    assert chat.api.http.get("/readyz").status_code == 503

    site.heal()
    again = site.session()
    with again.events() as reader:
        again.post(site.play(assistant=[[{"text": "on"}, {"hang": ""}]]))
        reader.until(first("TEXT_MESSAGE_CONTENT"))
        pressed = time.time()
        assert again.at(site.web(2)).interrupt()["status"] == "stopped"
        assert time.time() - pressed < 1


@pytest.fixture(autouse=True)
def healed_at_once(site):
    """The next module is not to wait for what this one has broken."""
    yield
    site.heal()
