"""Whole nodes that die, freeze, leave and come back; and who must not be taken for dead.

Trials 21 to 23 and 25 to 28. Each test breaks as much as it can at once: healing takes seconds.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from tests.cluster.client import PATIENCE, custom, customs, eventually, finished, first
from tests.cluster.conftest import GRACE, IN_FULL, LEASE

DELEGATE = {"to": "researcher", "content": "$SCRIPT"}


def lease_holders(site, chats, agent_id):
    return {chat.id: site.owner(chat, agent_id) for chat in chats}


def accepted_results(chat):
    return [item for item in chat.inbox() if item["type"] == "result" and not item["late"]]


def test_two_nodes_die_together_and_come_back_under_their_names(site):
    """The master's and its sub-agent's: nothing stays running. A stop meanwhile is kept."""
    first_node, second_node = site.cluster.workers
    stopped = site.started_on(second_node, site.play(assistant=[[{"text": "a"}, {"hang": ""}]]))
    gate = stopped.id
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": DELEGATE}],
            [{"text": "so "}, {"hang": gate}, {"text": "it is"}],
            [{"text": "and that was all"}],
        ],
        researcher=[[{"text": "partial"}, {"hang": ""}]],
    )
    while True:
        chat = site.started_on(second_node, script, "researcher")
        if site.owner(chat, "assistant") is first_node:
            break
        chat.interrupt()
    with chat.events() as reader:
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="so "))
        killed = time.time()
        for node in (first_node, second_node):
            node.kill()
        for node in (first_node, second_node):
            node.launch()
        answer = stopped.at(site.web(2)).interrupt()
        assert (answer["status"], answer["runs"][0]["status"]) == ("accepted", "running")
        site.provider.release(gate)
        for node in (first_node, second_node):
            node.wait_ready()
        found = max(killed + LEASE, time.time())
        lost = reader.until(custom("ax", agentId="researcher"))
        assert lost.event["value"]["reason"] == "lease_expired"
        assert lost.at - found < GRACE + 2
        end = reader.until(custom("ax", agentId="assistant"))
        assert end.event["value"]["reason"] == "completed"
    assert [m["content"] for m in chat.messages() if m["content"]][-3] == "so it is"
    assert chat.messages()[-1]["content"] == "and that was all"
    assert [item["sender"] for item in accepted_results(chat)] == ["system"]
    snapshot = stopped.until_idle()
    assert [agent["status"] for agent in snapshot["agents"]] == ["interrupted"]
    stopped.post(site.play(assistant=[[{"text": "free again"}]]))
    assert stopped.until_idle()["messages"][-1]["content"] == "free again"


@pytest.mark.parametrize("frozen", ["supervisor", *(["node"] if IN_FULL else [])])
def test_a_zombie_changes_nothing(site, frozen):
    """Nobody vouches for its runs. They complete just as the guard judges them, and after that."""
    zombie = site.cluster.workers[0]
    script = site.play(
        assistant=[
            [{"call": "send_message", "args": {**DELEGATE, "await_result": True}}],
            [{"text": "heard: $RESULTS"}],
        ],
        researcher=[[{"text": "partial "}, {"hang": "$SCRIPT"}, {"text": "late"}]],
    )
    ...
