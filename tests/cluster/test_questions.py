"""Questions to a person: answered once, by whom it may be, whatever dies or races meanwhile.

Trials 13, 15 to 17 and 19; twenty answers at once (14) stand with the approvals, in ``test_tools``.
"""

import json
import random
import time
from functools import partial
from itertools import combinations

import pytest

from tests.cluster.client import Refused, custom, customs, eventually, finished
from tests.cluster.conftest import IN_FULL
from tests.cluster.test_tools import asked, at_once

ASK = {"question": "Go on?", "ui_type": "confirm"}
SAID = [{"text": "Answered: $RESULTS"}]
LONGEST_WAIT = 6  # seconds that the masters wait; being killed and started takes about as long


def ask(question="Go on?", **more):
    return {"call": "ask_user", "args": {**ASK, "question": question}, **more}


def delegate(to):
    args = {"to": to, "content": "$SCRIPT", "await_result": True}
    return {"call": "send_message", "args": {**args, "await_timeout_seconds": LONGEST_WAIT}}


def test_questions_are_answered_after_every_process_was_killed(site):
    """The master's own, and that of a sub-agent two levels down: both on another node."""
    chat, deep = site.session(), site.session(web=2)
    script = site.play(
        assistant=[[{"text": "Before I go on: "}, ask(id="call-ask")], SAID],
    )
    deep_script = site.play(
        assistant=[[delegate("strategist")], [{"text": "$RESULTS"}]],
        strategist=[[delegate("reviewer")], [{"text": "$RESULTS"}]],
        reviewer=[[ask("Deep down?")], [{"text": "heard $RESULTS"}]],
    )
    deep_run = deep.post(deep_script)["run_id"]
    run_id = chat.post(f"remember the word walrus; {script}")["run_id"]
    for session in (chat, deep):
        eventually(partial(is_suspended, session), "the question")
    cursor, begun = int(chat.snapshot()["cursor"]), time.monotonic()
    for node in site.cluster.nodes:
        node.kill()
    site.heal()

    other = chat.at(site.web(2))
    snapshot = other.snapshot()
    assert snapshot["status"] == "suspended"
    (question,) = snapshot["questions"]
    assert (question["question"], question["ui_type"]) == ("Go on?", "confirm")
    with chat.events(cursor) as reader:
        with pytest.raises(Refused) as refused:
            other.respond(question["id"], payload="certainly")
        assert refused.value.status == 422
        assert other.respond(question["id"], payload=True) == {"run_id": run_id}
        assert reader.until(custom("question", state="answered"))
        assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    with pytest.raises(Refused) as refused:
        other.respond(question["id"], payload=True)
    assert (refused.value.status, refused.value.code) == (409, "already_answered")

    last = site.provider.log(containing=script)[-1].request["messages"]
    assert "walrus" in last[1]["content"]  # its whole memory
    assert last[2]["content"] == "Before I go on: "
    assert last[3]["tool_call_id"] == "call-ask"
    assert '"answer": true' in last[3]["content"]
    assert len(last) == 4

    question = asked(deep)
    assert (question["agent_id"], question["question"]) == ("reviewer", "Deep down?")
    assert question["path"] == ["assistant", "strategist", "reviewer"]
    time.sleep(max(0, begun + LONGEST_WAIT - time.monotonic()))  # whose clocks stand still
    with deep.events(0) as reader:
        deep.at(site.web(1)).respond(question["id"], payload=True)
        assert reader.until(finished(deep_run)).event["outcome"] == {"type": "success"}
    heard = deep.messages()[-1]["content"]
    assert '\\"answer\\": true' in json.loads(heard)["content"]
    assert "timeout" not in heard


def is_suspended(chat):
    return chat.snapshot()["status"] == "suspended"


def test_two_questions_and_a_tool_resume_when_all_are_in(site):
    """Answered in either order; the tool is made once, and each call has its own answer."""
    step = [ask("One?"), {"call": "effect"}, ask("Two?")]
    script = site.play(assistant=[step, SAID])
    chats = {order: site.session() for order in (("One?", "Two?"), ("Two?", "One?"))}
    runs = {order: chat.post(script)["run_id"] for order, chat in chats.items()}
    for (first_one, second_one), chat in chats.items():
        eventually(partial(is_suspended, chat), "both questions")
        questions = {q["question"]: q["id"] for q in chat.snapshot()["questions"]}
        chat.respond(questions[first_one], payload=first_one == "One?")
        snapshot = chat.at(site.web(2)).snapshot()
        assert snapshot["status"] == "suspended"
        assert [q["question"] for q in snapshot["questions"]] == [second_one]
        chat.at(site.web(2)).respond(questions[second_one], payload=second_one == "One?")
    for order, chat in chats.items():
        chat.until_idle()
        one, made, two = chat.messages()[-1]["content"].partition(": ")[2].split(" | ")
        assert [json.loads(one)["answer"], made, json.loads(two)["answer"]] == [True, "done", False]
        effects = site.effects.read_text().splitlines()
        assert len([line for line in effects if line.startswith(runs[order])]) == 1
    assert len(site.provider.log(containing=script)) == 2 * 2


def test_an_old_card_answers_nothing(site):
    chat = site.session()
    script = site.play(assistant=[[ask("First?")], [ask("Second?")], SAID])
    chat.post(script)
    old = asked(chat)
    chat.respond(old["id"], payload=True)
    eventually(lambda: [q["question"] for q in chat.snapshot()["questions"]] == ["Second?"], "it")
    for payload in (True, False):
        with pytest.raises(Refused) as refused:
            chat.at(site.web(2)).respond(old["id"], payload=payload)
        assert (refused.value.status, refused.value.code) == (409, "already_answered")
    new = asked(chat)
    assert new["question"] == "Second?"
    chat.respond(new["id"], payload=False)
    assert '"answer": false' in chat.until_idle()["messages"][-1]["content"]


# -- who wins -----------------------------------------------------------------------------------

ROUNDS = 100 if IN_FULL else 2
AT_ONCE = 0.03  # seconds
UNTIL_IT_EXPIRES = 0.7  # seconds: a poll of the guards, and a little more
STATE_BY = {
    "answer": "answered",
    "stop": "cancelled",
    "message": "superseded",
    "expiry": "expired",
}


def test_of_whatever_closes_a_question_one_wins(site):
    """Answer, stop, expiry, a newer message, pairwise: the others say why, nothing is stuck."""
    script = site.play(assistant=[[ask()], SAID])
    newer = site.play(assistant=[[{"text": "newer"}]])
    pairs = list(combinations(STATE_BY, 2))
    for _ in range(ROUNDS):
        chats = {pair: site.session(web=1 + n % 2) for n, pair in enumerate(pairs)}
        for chat in chats.values():
            chat.post(script)
        for pair, chat in chats.items():
            question = asked(chat)["id"]
            within = UNTIL_IT_EXPIRES if "expiry" in pair else AT_ONCE
            close_by = partial(close, site, chat, question, newer, within=within)
            outcomes = at_once([partial(close_by, way) for way in pair])
            chats[pair] = chat, question, [outcome for outcome in outcomes if outcome]
        for pair, (chat, question, answers) in chats.items():
            settled_once(chat, question, pair, answers)


def close(site, chat, question, newer, way, within):
    """What came of it, if it was the answer."""
    other = chat.at(site.web(1 + random.randrange(2)))
    if way == "expiry":
        now = "UPDATE coordination_question SET expires_at = UTC_TIMESTAMP(6)"
        site.rows(f"{now} WHERE id = '{question}'")
        return None
    time.sleep(random.uniform(0, within))
    match way:
        case "answer":
            return other.respond(question, payload=True)
        case "stop":
            other.interrupt()
        case "message":
            other.post(newer)
    return None


def settled_once(chat, question, pair, answers):
    chat.until_idle()
    log = chat.log()
    states = [q["state"] for q in customs(log, "question") if q["id"] == question]
    assert states[0] == "open"
    (state,) = states[1:]
    assert state in {STATE_BY[way] for way in pair}, pair
    heard = [e for e in log if e.type == "TOOL_CALL_RESULT"]
    if "answer" in pair:
        (answer,) = answers
        taken = not isinstance(answer, Refused)
        assert taken == (state == "answered")
        assert taken or (answer.status, answer.code) == (409, state)
    if state != "answered":  # nothing else counts as a yes
        assert not [e for e in heard if '"answer"' in e.event["content"]]
    if "message" in pair and "stop" not in pair:
        assert chat.messages()[-1]["content"] == "newer"
