"""Tasks and their results between nodes: nothing missed, doubled or mixed up (trials 29 to 39)."""

import json
import os
import random
import signal
import time
import uuid
from functools import partial
from threading import Timer

import pytest

from tests.cluster.client import PATIENCE, Refused, custom, eventually, finished
from tests.cluster.conftest import IN_FULL
from tests.cluster.test_tools import at_once

ECHO = [[{"text": "answer to: $LAST"}]]
SLOTS = 2 * 16  # two worker nodes with AGENT_CONCURRENCY as it comes


def task(words, script="$SCRIPT", to="researcher", **more):
    return {"call": "send_message", "args": {"to": to, "content": f"{script} {words}", **more}}


def awaited(words, to="researcher"):
    return task(words, to=to, await_result=True)


def results_by_task(chat):
    """What each ``send_message`` of the master returned, by the words of its task."""
    messages = chat.messages()
    calls = {
        part["tool_call_id"]: json.loads(part["args"])["content"].partition(" ")[2]
        for message in messages
        for part in message["parts"]
        if part["type"] == "tool_call"
    }
    return {
        calls[message["parts"][0]["tool_call_id"]]: json.loads(message["content"])
        for message in messages
        if message["role"] == "tool"
    }


def run_through(site, chat, **agents):
    script = site.play(**agents)
    with chat.events() as reader:
        run_id = chat.post(script)["run_id"]
        end = reader.until(finished(run_id), timeout=120)
    assert end.event["type"] == "RUN_FINISHED", end.event
    return script


def test_as_many_masters_wait_as_there_are_slots_and_miss_nothing(site):
    """Their first sub-agents fill every slot and end together; then each answers at once."""
    slots = SLOTS - len(site.open_leases())
    rounds = 7 if IN_FULL else 2
    gate = uuid.uuid4().hex
    script = site.play(
        assistant=[
            [awaited("first", "strategist")],
            *([awaited(f"task {n}")] for n in range(1, rounds)),
            [{"text": "end"}],
        ],
        strategist=[[{"hang": gate}, *ECHO[0]]],
        researcher=ECHO,
    )
    chats = [site.session(web=1 + number % 2) for number in range(slots + 1)]
    for chat in chats:
        chat.post(script)
    site.provider.wait_for(
        lambda log: len(log) == slots, PATIENCE, agent="strategist", containing=script
    )
    site.provider.release(gate)
    for chat in chats:
        snapshot = chat.until_idle(240)
        assert snapshot["messages"][-1]["content"] == "end"
        results = results_by_task(chat)
        assert len(results) == rounds
        for words, result in results.items():
            assert result["status"] == "result"
            assert result["content"] == f"answer to: {script} {words}"


def test_five_awaited_tasks_at_once_each_get_their_own_answer(site):
    agents = ["researcher", "researcher-2", "strategist", "reviewer", "reviewer-2"]
    chat = site.session()
    script = run_through(
        site,
        chat,
        assistant=[[awaited(f"for {agent}", agent) for agent in agents], [{"text": "$RESULTS"}]],
        **{"*": ECHO},
    )
    results = results_by_task(chat)
    assert {words: result["content"] for words, result in results.items()} == {
        f"for {agent}": f"answer to: {script} for {agent}" for agent in agents
    }


def test_two_tasks_to_the_same_agent_are_not_mixed_up(site):
    chat = site.session()
    script = run_through(
        site,
        chat,
        assistant=[[awaited("one"), awaited("two")], [{"text": "end"}]],
        researcher=ECHO,
    )
    results = results_by_task(chat)
    assert {words: result["content"] for words, result in results.items()} == {
        words: f"answer to: {script} {words}" for words in ("one", "two")
    }


def test_three_tasks_in_one_batch_have_three_results(site):
    """Sent without waiting: each result answers its own task and reaches the master once."""
    echo = site.play(researcher=ECHO)  # the results that name it are no script for the master
    chat = site.session()
    script = run_through(
        site,
        chat,
        assistant=[[task("one", echo), task("two", echo), task("three", echo)]],
    )
    inbox = chat.inbox()
    tasks = {item["id"]: item["content"] for item in inbox if item["type"] == "task"}
    results = [item for item in inbox if item["type"] == "result"]
    assert len(tasks) == len(results) == 3
    assert {item["in_reply_to"] for item in results} == set(tasks)
    for item in results:
        assert item["content"] == f"answer to: {tasks[item['in_reply_to']]}"
        assert not item["late"]
    last = site.provider.log("assistant", containing=script)[-1]
    for words in ("one", "two", "three"):
        told = [
            message
            for message in last.request["messages"]
            if f"answer to: {echo} {words}" in str(message["content"])
        ]
        assert len(told) == 1


def test_nineteen_sub_agents_that_finish_at_once_bring_nineteen_results(site):
    gate = uuid.uuid4().hex
    agents = [f"researcher-{n}" for n in range(2, 21)]
    chat = site.session()
    script = site.play(
        assistant=[[awaited(f"for {agent}", agent) for agent in agents], [{"text": "end"}]],
        researcher=[[{"hang": gate}, *ECHO[0]]],
    )
    chat.post(script)
    for agent in agents:
        site.provider.wait_for(bool, 60, agent=agent, containing=script)
    site.provider.release(gate)
    chat.until_idle()
    results = results_by_task(chat)
    assert {words: result["content"] for words, result in results.items()} == {
        f"for {agent}": f"answer to: {script} for {agent}" for agent in agents
    }
    assert len([item for item in chat.inbox() if item["type"] == "result"]) == 19


# -- the deadline of a wait ---------------------------------------------------------------------

DEADLINE = 3  # seconds that a master waits


def test_a_result_around_the_deadline_is_used_once(site):
    """As the tool's result or as a later message: never as both, never as none."""
    ways = set()
    for _ in range(25 if IN_FULL else 1):
        chats = [(site.session(web=1 + number % 2), uuid.uuid4().hex) for number in range(20)]
        for chat, word in chats:
            call = awaited("look")
            call["args"]["await_timeout_seconds"] = DEADLINE
            script = site.play(
                assistant=[[call], [{"text": "on"}]],
                researcher=[[{"hang": word}, {"text": word}]],
            )
            chat.post(script)
        release_around_the_deadlines(site, {chat.id: word for chat, word in chats})
        for chat, word in chats:
            chat.until_idle()
            ways.add(used_once(site, word))
    assert ways == {"tool", "user"}


def release_around_the_deadlines(site, words):
    """From just before it to well after, when the poll has told everybody."""
    ids = ", ".join(f"'{session_id}'" for session_id in words)
    sql = (
        "SELECT session_id, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), deadline_at)"
        f" FROM coordination_wait WHERE session_id IN ({ids})"
    )
    timers = {}

    def all_are_timed():
        for session_id, left in site.rows(sql):
            if session_id not in timers:
                later = -0.2 + 0.08 * len(timers)
                timer = Timer(int(left) / 1e6 + later, site.provider.release, [words[session_id]])
                timers[session_id] = timer
                timer.start()
        return len(timers) == len(words)

    eventually(all_are_timed, "the waits")
    for timer in timers.values():
        timer.join()


def used_once(site, word):
    """The role of the one message in which the master was told the word."""
    last = site.provider.log("assistant", containing=word)[-1]
    (told,) = [m for m in last.request["messages"] if word in str(m["content"])]
    assert str(told["content"]).count(word) == 1
    return told["role"]


# -- sub-agents that bring nothing --------------------------------------------------------------


def test_the_master_hears_how_each_sub_agent_has_ended(site):
    """One says not a word, one fails, one is stopped."""
    chat = site.session()
    script = site.play(
        assistant=[
            [awaited(to, to) for to in ("researcher", "strategist", "reviewer")],
            [{"text": "end"}],
        ],
        researcher=[[{"reasoning": "hm"}]],
        strategist=[[{"error": 400, "message": "no such thing"}]],
        reviewer=[[{"hang": ""}]],
    )
    with chat.events() as reader:
        chat.post(script)
        reader.until(custom("ax", agentId="researcher"))
        reader.until(custom("ax", agentId="strategist"))
        site.provider.wait_for(bool, agent="reviewer", containing=script)
        assert chat.at(site.web(2)).interrupt(agent_id="reviewer")["status"] == "stopped"
    chat.until_idle()
    heard = {words: (r["status"], r["reason"]) for words, r in results_by_task(chat).items()}
    assert heard == {
        "researcher": ("result", "completed"),
        "strategist": ("failed", "error"),
        "reviewer": ("interrupted", "interrupted"),
    }
    assert "no such thing" in results_by_task(chat)["strategist"]["content"]


# -- never lost, in effect once -----------------------------------------------------------------


def test_a_master_that_dies_again_and_again_is_told_each_result_once(site):
    """Killed at any moment around taking in what has come."""
    names = ("researcher", "strategist", "reviewer")
    for _ in range(10 if IN_FULL else 1):
        chats = [site.session(web=1 + number % 2) for number in range(5)]
        echo = site.play(**{"*": ECHO})
        script = site.play(
            assistant=[[task(to, echo, to) for to in names], [{"text": "so "}, {"wait": 0.2}]]
        )
        for chat in chats:
            chat.post(script)
        doomed = site.owner(chats[0], "assistant")
        eventually(chats[0].inbox, "a task")
        time.sleep(random.uniform(0, 0.4))
        os.kill(doomed.runners()[0], signal.SIGKILL)
        for chat in chats:
            chat.until_idle()
            told_each_result_once(site, chat)


def told_each_result_once(site, chat):
    items = chat.inbox()
    tasks = [item["id"] for item in items if item["type"] == "task"]
    results = [item for item in items if item["type"] == "result" and not item["late"]]
    assert len(tasks) == 3
    assert sorted(item["in_reply_to"] for item in results) == sorted(tasks)
    assert {item["status"] for item in results} == {"acked"}
    last = site.provider.log("assistant", containing=tasks[-1])[-1]
    told = [m["content"] for m in last.request["messages"] if m["role"] == "user"]
    for task_id in tasks:  # in the messages that came, and not in what the agent has said of them
        assert len([text for text in told if f"in reply to {task_id}" in str(text)]) == 1


def test_what_comes_at_the_moment_its_receiver_ends_is_processed(site):
    """A task as its sub-agent ends, and a result as its master does."""
    for _ in range(20 if IN_FULL else 1):
        begun = []
        for number in range(10):
            chat, gate = site.session(web=1 + number % 2), uuid.uuid4().hex
            echo = site.play(researcher=[[{"hang": gate}, *ECHO[0]]])
            script = site.play(
                assistant=[
                    [task("one", echo)],
                    [{"hang": gate}, task("two", echo)],
                    [{"text": "end"}, {"wait": random.uniform(0, 0.1)}],
                ],
            )
            chat.post(script)
            begun.append((chat, gate, script, echo))
        for _, gate, script, echo in begun:
            site.provider.wait_for(lambda log: len(log) == 2, PATIENCE, containing=script)
            site.provider.wait_for(bool, PATIENCE, agent="researcher", containing=echo)
            site.provider.release(gate)
        for chat, *_ in begun:
            chat.until_idle()
            items = chat.inbox()
            assert {item["status"] for item in items} == {"acked"}
            told = [m["content"] for m in chat.messages() if "answer to: " in m["content"]]
            assert sorted(text[-3:] for text in told) == ["one", "two"]


def test_the_same_message_twice_is_one_and_with_another_body_refused(site):
    """A client that has lost the answer sends again, through any node."""
    chat = site.session()
    words = site.play(assistant=[[{"text": "once"}]])
    key = str(uuid.uuid4())
    ways = [chat.at(site.web(1 + n % 2)) for n in range(6)]
    answers = at_once([partial(way.post, words, id=key) for way in ways])
    assert len({(answer["message_id"], answer["run_id"]) for answer in answers}) == 1
    with pytest.raises(Refused) as refused:
        chat.post("something else", id=key)
    assert refused.value.status == 409
    chat.until_idle()
    assert [message["role"] for message in chat.messages()] == ["user", "assistant"]
    assert len(site.provider.log(containing=words)) == 1


def test_what_is_forged_foreign_circular_or_too_much_is_refused_by_name(site):
    """The model tries it all in one step, and is told what was wrong with each."""
    foreign = site.session()
    foreign.post(site.play(assistant=[[awaited("theirs")]], researcher=ECHO))
    foreign.until_idle()
    theirs = foreign.inbox()[0]["id"]
    chat = site.session()
    fill_inbox(site, chat, "reviewer", 1000)
    tried = {
        "type": {"type": "result"},
        "sender": {"sender": "system"},
        "unknown_agent": {"to": "stranger"},
        "cycle": {"to": "assistant"},
        "timeout_too_long": {"await_result": True, "await_timeout_seconds": 301},
        "1048576": {"content": "x" * 2**20 + "y"},
        "1000 pending": {"to": "reviewer"},
    }
    calls = [task(words) for words in tried]
    for call, wrong in zip(calls, tried.values(), strict=True):
        call["args"].update(wrong)
    calls.append({"call": "wait_for_results", "args": {"message_ids": [theirs]}})
    script = site.play(assistant=[calls, [{"text": "end"}]])
    chat.post(script)
    chat.until_idle()
    said = [m["content"] for m in chat.messages() if m["role"] == "tool"]
    for words, refusal in zip([*tried, "unknown_message"], said, strict=True):
        assert refusal.startswith("error: "), refusal
        assert words in refusal
    sent = f"SELECT 1 FROM coordination_inboxmessage WHERE session_id = '{chat.id}'"
    assert not site.rows(f"{sent} AND kind <> 'note'")
    assert [agent["agent_id"] for agent in chat.snapshot()["agents"]] == ["assistant"]


def fill_inbox(site, chat, recipient, count):
    """Messages that wait for somebody who never runs."""
    site.rows(
        "INSERT INTO coordination_inboxmessage (id, session_id, position, sender, recipient, kind,"
        " content, reason, state, late, deliveries, created_at) SELECT UUID(),"
        f" '{chat.id}', seq, 'assistant', '{recipient}', 'note', '', '', 'pending', 0, 0,"
        f" UTC_TIMESTAMP(6) FROM seq_1_to_{count}"
    )


def test_a_large_result_reaches_the_master_whole(site):
    chat = site.session()
    report = "".join(random.choices("abc äöü 好", k=50_000))
    script = run_through(
        site,
        chat,
        assistant=[[awaited("report")], [{"text": "end"}]],
        researcher=[[{"text": report}]],
    )
    assert results_by_task(chat)["report"]["content"] == report
    last = site.provider.log("assistant", containing=script)[-1].request["messages"]
    assert json.loads(last[-1]["content"])["content"] == report
