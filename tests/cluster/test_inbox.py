"""Tasks and their results between nodes: nothing missed, nothing mixed up (trials 29 and 30)."""

import json

from tests.cluster.client import finished
from tests.cluster.conftest import IN_FULL

ECHO = [[{"text": "answer to: $LAST"}]]


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


def test_a_sub_agent_that_answers_at_once_is_never_missed(site):
    """Awaited one after the other, by five masters at a time: 60 tasks, in full 200."""
    rounds = 40 if IN_FULL else 12
    script = site.play(
        assistant=[*([awaited(f"task {n}")] for n in range(rounds)), [{"text": "end"}]],
        researcher=ECHO,
    )
    chats = [site.session(web=1 + number % 2) for number in range(5)]
    for chat in chats:
        chat.post(script)
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
