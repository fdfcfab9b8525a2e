"""AG-UI 1.0, as its own authors' client takes it: ``@ag-ui/client``, its strict verifier on.

Whatever it would refuse or strip fails the test, in any turn.
"""

import os
import signal

import pytest

from tests.cluster.agui import Thread
from tests.cluster.client import first, texts


@pytest.fixture
def thread(site):
    with Thread(site.api()) as thread:
        yield thread


def kinds(thread):
    return [event["type"] for event in thread.turn]


def tokens(thread):
    """Input and output tokens of the turn, as its last event tells them."""
    usage = thread.turn[-1].get("usage", [])
    return [(entry["inputTokens"], entry["outputTokens"]) for entry in usage]


def told(end):
    """The answers that the client holds."""
    said = [m.get("content") for m in end["messages"] if m["role"] == "assistant"]
    return [text for text in said if text]


def test_an_answer(site, thread):
    script = site.play(
        assistant=[[{"reasoning": "hm"}, {"text": "Hello "}, {"text": "you."}, {"usage": [10, 5]}]]
    )
    thread.say(script)
    assert told(thread.ends()) == ["Hello you."]
    assert kinds(thread)[0] == "RUN_STARTED"
    assert thread.turn[0]["protocolVersion"] == "1.0"
    assert thread.turn[-1]["outcome"] == {"type": "success"}
    assert tokens(thread) == [(10, 5)]
    thread.say(site.play(assistant=[[{"text": "Again."}, {"usage": [7, 3]}]]))
    assert told(thread.ends()) == ["Hello you.", "Again."]
    assert tokens(thread) == [(7, 3)]
    saved = thread.chat.messages()
    assert list(texts(thread.events).values()) == [
        m["content"] for m in saved if m["role"] == "assistant"
    ]


def test_tools_and_sub_agents(site, thread):
    """Two at once, one of them with a sub-agent of its own; what all of them used is the run's."""
    hand_on = {"to": "reviewer", "content": "$SCRIPT", "await_result": True}
    tasks = [
        {"call": "send_message", "args": {**hand_on, "to": agent}}
        for agent in ("researcher", "strategist")
    ]
    script = site.play(
        assistant=[
            [{"text": "Let me see."}, *tasks, {"usage": [10, 1]}],
            [{"text": "So: $RESULTS"}, {"usage": [20, 2]}],
        ],
        researcher=[
            [{"call": "check_inbox"}, {"usage": [30, 3]}],
            [{"reasoning": "hm"}, {"text": "found"}, {"usage": [40, 4]}],
        ],
        strategist=[[{"text": "planned"}, {"usage": [50, 5]}]],
    )
    thread.say(script)
    end = thread.ends()
    assert "found" in told(end)[-1]
    assert "planned" in told(end)[-1]
    assert [m["role"] for m in end["messages"]].count("tool") == 3
    started = [e for e in thread.turn if e["type"] == "SUBAGENT_STARTED"]
    assert sorted(e["name"] for e in started) == ["researcher", "strategist"]
    calls = [e["toolCallId"] for e in thread.turn if e["type"] == "TOOL_CALL_START"]
    assert {e["parentToolCallId"] for e in started} <= set(calls)
    finished = [e for e in thread.turn if e["type"] == "SUBAGENT_FINISHED"]
    assert {e["subagentRunId"] for e in finished} == {e["subagentRunId"] for e in started}
    assert tokens(thread) == [(150, 15)]


@pytest.mark.parametrize("inside", ["text", "reasoning", "arguments", "sub_agent"])
def test_a_stop(site, thread, inside):
    """Everything that stands open is closed before the end; what was used is told all the same."""
    hang = {
        "text": [{"text": "I am"}, {"hang": ""}],
        "reasoning": [{"reasoning": "hm"}, {"hang": ""}],
        "arguments": [{"text": "So"}, {"call": "ask_user", "args": {"a": 1}, "hang_at": 3}],
    }
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [{"call": "check_inbox"}, {"usage": [10, 1]}],
            hang.get(inside, [{"call": "send_message", "args": delegate}]),
        ],
        researcher=[hang["text"]],
    )
    opened = {"reasoning": "REASONING_MESSAGE_CONTENT", "arguments": "TOOL_CALL_START"}
    kind = opened.get(inside, "TEXT_MESSAGE_CONTENT")
    thread.say(script)
    nth = 2 if inside == "arguments" else 1
    thread.until(lambda events: [e for e in events if e.type == kind][nth - 1 :] or None)
    stopped = thread.chat.at(site.web(2)).interrupt()
    assert stopped["status"] == "stopped"
    thread.ends()
    assert thread.turn[-1]["outcome"] == {"type": "cancelled"}
    ((inputs, outputs),) = tokens(thread)
    assert (inputs >= 10, outputs >= 1) == (True, True)


def test_questions_of_a_master_and_of_a_sub_agent(site, thread):
    """Each ends the stream with its interrupt; the answer begins the next, which counts anew."""
    ask = {"call": "ask_user", "args": {"question": "Which?", "ui_type": "text"}}
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [ask, {"usage": [1, 1]}],
            [{"call": "send_message", "args": delegate}, {"usage": [10, 10]}],
            [{"text": "So: $RESULTS"}, {"usage": [100, 100]}],
        ],
        researcher=[
            [{"text": "Let me ask."}, ask, {"usage": [1000, 1000]}],
            [{"text": "heard $RESULTS"}, {"usage": [10_000, 10_000]}],
        ],
    )
    thread.say(script)
    (asked,) = thread.ends()["interrupts"]
    assert asked["message"] == "Which?"
    assert tokens(thread) == [(1, 1)]
    thread.answer("this")
    (asked,) = thread.ends()["interrupts"]
    (child,) = [e for e in thread.turn if e["type"] == "SUBAGENT_FINISHED"]
    assert child["outcome"] == {"type": "suspended", "interruptIds": [asked["id"]]}
    assert asked["subagentRunId"] == child["subagentRunId"]
    assert tokens(thread) == [(1010, 1010)]
    thread.answer("that")
    end = thread.ends()
    assert not end["interrupts"]
    assert "that" in told(end)[-1]
    assert tokens(thread) == [(10_100, 10_100)]


def test_a_provider_that_fails(site, thread):
    """Before the first word and after it; what was used until then is told."""
    script = site.play(
        assistant=[[{"call": "check_inbox"}, {"usage": [10, 1]}], [{"error": 401, "message": "no"}]]
    )
    thread.say(script)
    thread.ends()
    assert (thread.turn[-1]["type"], thread.turn[-1]["code"]) == ("RUN_ERROR", "error")
    assert tokens(thread)[0] >= (10, 1)
    thread.say(site.play(assistant=[[{"reasoning": "hm"}, {"text": "I am"}, {"error": 500}]]))
    thread.ends()
    assert kinds(thread)[-1] == "RUN_ERROR"
    thread.say(site.play(assistant=[[{"text": "Well again."}]]))
    thread.ends()
    assert thread.turn[-1]["outcome"] == {"type": "success"}


def test_a_client_that_leaves(site, thread):
    """The run goes on, and the next turn is as any other."""
    gate = thread.chat.id
    thread.say(site.play(assistant=[[{"text": "I am"}, {"hang": gate}, {"text": " done."}]]))
    thread.until(first("TEXT_MESSAGE_CONTENT"))
    thread.leave()
    thread.ends()
    site.provider.release(gate)
    assert thread.chat.until_idle()["messages"][-1]["content"] == "I am done."
    thread.say(site.play(assistant=[[{"text": "Again."}]]))
    assert told(thread.ends())[-1] == "Again."


def test_a_worker_node_that_is_killed(site, thread):
    """With a message of the master and one of a sub-agent open. It goes on in the same stream."""
    gate = thread.chat.id
    delegate = {"to": "researcher", "content": "$SCRIPT"}
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": delegate}],
            [{"reasoning": "hm"}, {"text": "I am"}, {"hang": gate}, {"text": " back."}],
        ],
        researcher=[[{"text": "I was"}, {"hang": ""}]],
    )
    thread.say(script)
    thread.until(lambda events: len(texts(events)) == 2 or None)
    (runner,) = site.owner(thread.chat, "researcher").runners()
    os.kill(runner, signal.SIGKILL)
    thread.until(first("SUBAGENT_ERROR", code="crashed"))
    site.provider.wait_for(lambda log: log, agent="assistant", containing=script)
    site.owner(thread.chat, "assistant").kill()
    site.provider.release(gate)
    assert "I am back." in told(thread.ends())
    assert thread.turn[-1]["outcome"] == {"type": "success"}
