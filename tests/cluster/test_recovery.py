"""Whole nodes that die, freeze, leave and come back; and who must not be taken for dead.

Trials 21 to 23 and 25 to 28. Each test breaks as much as it can at once: healing takes seconds.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial

import pytest
from redis import Redis

from tests.cluster.client import PATIENCE, custom, customs, eventually, finished, first
from tests.cluster.conftest import GRACE, IN_FULL, LEASE

DELEGATE = {"to": "researcher", "content": "$SCRIPT"}


def accepted_results(chat):
    return [item for item in chat.inbox() if item["type"] == "result" and not item["late"]]


TRUE_ANSWERS = [("accepted", "running"), ("stopped", "interrupted")]


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
    with chat.events(0) as reader:
        reader.until(first("TEXT_MESSAGE_CONTENT", delta="so "))
        killed = time.time()
        for node in (first_node, second_node):
            node.kill()
        for node in (first_node, second_node):
            node.launch()
        answer = stopped.at(site.web(2)).interrupt()
        # A node that is back may have settled what it left already; both are true.
        assert (answer["status"], answer["runs"][0]["status"]) in TRUE_ANSWERS
        site.provider.release(gate)
        for node in (first_node, second_node):
            node.wait_ready()
        found = max(killed + LEASE, time.time())
        lost = reader.until(custom("ax", agentId="researcher"))
        assert lost.event["value"]["reason"] in ("crashed", "lease_expired")
        assert lost.at - found < GRACE + 2
        end = reader.until(custom("ax", agentId="assistant"))
        assert end.event["value"]["reason"] == "completed"
    said = [m["content"] for m in chat.messages() if m["status"] == "complete"]
    assert said.count("so it is") == 1
    assert said[-1] in ("so it is", "and that was all")  # the loss was told after it, or before
    assert [item["sender"] for item in accepted_results(chat)] == ["system"]
    snapshot = stopped.until_idle()
    assert [agent["status"] for agent in snapshot["agents"]] == ["interrupted"]
    stopped.post(site.play(assistant=[[{"text": "free again"}]]))
    assert stopped.until_idle()["messages"][-1]["content"] == "free again"


def play_lone_researcher(site, gate):
    """A master that awaits a researcher, who hangs in mid sentence until the gate opens."""
    return site.play(
        assistant=[
            [{"call": "send_message", "args": {**DELEGATE, "await_result": True}}],
            [{"text": "heard: $RESULTS"}],
        ],
        researcher=[[{"text": "partial "}, {"hang": gate}, {"text": "complete"}]],
    )


@pytest.mark.parametrize("frozen", ["supervisor", *(["node"] if IN_FULL else [])])
def test_a_zombie_changes_nothing(site, frozen):
    """Nobody vouches for its runs, which end just when they are judged lost, and later."""
    zombie = site.cluster.workers[0]
    chats = [site.session() for _ in range(60 if IN_FULL else 20)]
    scripts = [play_lone_researcher(site, chat.id) for chat in chats]
    for chat, script in zip(chats, scripts, strict=True):
        chat.post(script)
    doomed = [chat for chat in chats if site.owner(chat, "researcher") is zombie]
    assert len(doomed) > 3
    for script in scripts:
        site.provider.wait_for(
            lambda log: log and log[0].chunks, PATIENCE, agent="researcher", containing=script
        )
    zombie.freeze()
    if frozen == "supervisor":
        for runner in zombie.runners():
            os.kill(runner, signal.SIGCONT)
    verdict = time.monotonic() + LEASE + GRACE
    in_time, *racing = doomed[:-2]
    site.provider.release(in_time.id)
    for number, chat in enumerate(racing):
        due = verdict - 1 + 2 * number / len(racing)
        time.sleep(max(0, due - time.monotonic()))
        site.provider.release(chat.id)
    too_late = doomed[-2:]
    eventually(lambda: lost_of(too_late) == too_late, "the verdicts")
    zombie.thaw()
    for chat in chats:
        site.provider.release(chat.id)
        chat.until_idle()
    lost = lost_of(doomed)
    assert all(chat in lost for chat in too_late)
    if frozen == "supervisor":
        assert in_time not in lost
    for chat in chats:
        one_result_and_it_agrees(chat, "lease_expired" if chat in lost else "completed")
    assert site.open_leases() == []


def lost_of(chats):
    """Those whose researcher has been judged lost."""
    return [
        chat
        for chat in chats
        if (agent := chat.agent("researcher")) and agent["reason"] == "lease_expired"
    ]


def one_result_and_it_agrees(chat, reason):
    """The exit, the result and what was said tell the same, and nothing was said afterwards."""
    log = chat.log()
    (ax,) = [value for value in customs(log, "ax") if value["agentId"] == "researcher"]
    assert ax["reason"] == reason
    (result,) = [item for item in chat.inbox() if item["type"] == "result"]
    assert result["sender"] == ("researcher" if reason == "completed" else "system")
    said = [m["content"] for m in chat.messages("researcher") if m["role"] == "assistant"]
    if reason == "completed":
        assert result["content"] == "partial complete"
        assert said == ["partial complete"]
    heard = chat.messages()[-1]["content"]
    assert f'"reason": "{reason}"' in heard
    exit_at = next(e.id for e in log if e.type == "CUSTOM" and e.event["value"] == ax)
    of_researcher = [e for e in log if e.event.get("subagentRunId") == ax["runId"]]
    assert all(e.type.startswith("SUBAGENT") for e in of_researcher if e.id > exit_at)


def under_way(chat):
    """Somebody executes an agent of this session."""
    return any(agent["lease"] for agent in chat.snapshot()["agents"])


BURN = "while True: pass"
DB_AWAY, REDIS_PAUSED, REDIS_AWAY, HELD = (20, 20, 60, 8) if IN_FULL else (LEASE + 2, 6, 3, 6)


def test_nobody_who_lives_is_declared_dead(site):
    """Database and Redis away, both cores busy, the GIL held, a loop blocked, all at once."""
    redis, mariadb = site.cluster.redis, site.cluster.mariadb
    gate = f"gate-{time.time()}"
    hang = [{"text": "a "}, {"hang": gate}, {"text": "z"}]
    scripts = [
        site.play(assistant=[hang]),
        play_lone_researcher(site, gate),
        *(
            site.play(assistant=[[{"call": tool, "args": {"seconds": HELD}}], hang])
            for tool in ("hold_the_gil", "block_the_loop")
        ),
    ]
    with ExitStack() as busy:
        chats = [site.session() for _ in range(12)]
        runs = [
            chat.post(scripts[number if number < 4 else number % 2])["run_id"]
            for number, chat in enumerate(chats)
        ]
        for chat in chats:
            eventually(partial(under_way, chat), "a claim")
        for _ in range(os.cpu_count() or 2):
            burner = busy.enter_context(subprocess.Popen([sys.executable, "-c", BURN]))
            busy.callback(burner.kill)
        Redis.from_url(redis.url).flushall()
        redis.freeze()
        mariadb.freeze()
        time.sleep(DB_AWAY)
        mariadb.thaw()
        time.sleep(max(0, REDIS_PAUSED - DB_AWAY))
        redis.thaw()
        redis.kill()
        time.sleep(REDIS_AWAY)
        redis.start()
    site.provider.release(gate)
    for chat, run_id in zip(chats, runs, strict=True):
        with chat.events(0) as reader:
            end = reader.until(finished(run_id), timeout=2 * PATIENCE)
        assert end.event["outcome"] == {"type": "success"}
        assert {ax["reason"] for ax in customs(reader.events, "ax")} == {"completed"}
        happened = {entry["kind"] for entry in chat.worklog()}
        assert not happened & {"lease_expired", "crashed", "fenced", "requeued"}, chat.worklog()


EFFECTS = 5


def test_many_runs_go_through_a_rolling_restart(site):
    """Node after node is told to stop, and one is killed as it drains: nobody sees any of it.

    No tool takes effect twice. A run whose tool kills its process is given up after three attempts.
    """
    step = [{"tokens": 20, "rate": 40}, {"call": "effect", "args": {"seconds": 0.2}}]
    script = site.play(assistant=[*[step] * EFFECTS, [{"text": "all done"}]])
    chats = [site.session(web=1 + number % 2) for number in range(20)]
    runs = [chat.post(script)["run_id"] for chat in chats]
    first_node, second_node = site.cluster.workers
    assert first_node.terminate(timeout=30), first_node.child.last_words()
    first_node.launch()
    second_node.child.ask_to_stop()
    second_node.kill()
    second_node.launch()
    for chat, run_id in zip(chats, runs, strict=True):
        with chat.events(0) as reader:
            end = reader.until(finished(run_id), timeout=2 * PATIENCE)
        assert end.event.get("outcome") == {"type": "success"}, (end.event, chat.worklog())
        assert [ax["reason"] for ax in customs(reader.events, "ax")] == ["completed"]
        assert chat.messages()[-1]["content"] == "all done"
    effects = [line for line in site.effects.read_text().splitlines() if line[:36] in runs]
    assert len(effects) == len(set(effects))
    poison = site.session()
    with poison.events(0) as reader:
        run_id = poison.post(site.play(assistant=[[{"call": "die"}]]))["run_id"]
        end = reader.until(finished(run_id))
    assert "3 attempts" in end.event["message"]
    assert [ax["reason"] for ax in customs(reader.events, "ax")] == ["crashed"]
