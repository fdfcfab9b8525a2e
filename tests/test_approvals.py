"""Only a yes to exactly what was shown makes the call, once; all else is told to the model."""

import json
from typing import Any

import pytest

from chat import actions, approvals, memory
from chat.tools.base import ToolError
from chat.tools.send_postcard import send_postcard
from coordination import endings, interrupts, suspensions
from coordination.db import db
from coordination.errors import Conflict, Invalid
from coordination.models import Question
from tests.core import (
    again,
    assert_at_rest,
    at_rest,
    back_in_time,
    claim,
    customs,
    ended,
    in_threads,
    lease_of,
    logged,
    new_chat,
    node,
    post,
    respond_with,
    until,
)
from tests.fakes.step_model import ScriptedModel, call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("core")]

CARD = {"to": "Ada", "text": "Hello"}
SHOWN = {**CARD, "copies": 1}
CALL = memory.Call("c1", "send_postcard", json.dumps(CARD))


@pytest.fixture
def chat(db):
    return new_chat()


@pytest.fixture
def question(chat, no_hints):
    run = claim(post(chat))
    respond_with(run, "", c1=("send_postcard", CARD))
    asked = approvals.ask_about(send_postcard, CALL.arguments)
    assert memory.save_outcomes(run, [(CALL, asked)]).parked
    return Question.objects.get()


def answer(question, decision="approve", *, resolved=True, **more) -> Any:
    payload = {"decision": decision, "digest": question.approval["digest"], **more}
    return actions._respond(question.session_id, question.pk, resolved, payload, "alice")


def gone_on(question, runner="r2"):
    """What a runner finds when it goes on: results, and calls to make."""
    return memory.collect(claim(again(question.run), runner), [CALL])


def test_the_person_is_shown_the_whole_call_on_every_way(chat, question):
    approval = {
        "tool": "send_postcard",
        "arguments": SHOWN,
        "digest": approvals.digest("send_postcard", SHOWN),
    }
    (shown,) = customs(chat.pk, "question")
    assert (shown["ui_type"], shown["approval"], shown["state"]) == ("form", approval, "open")
    assert "send_postcard" in shown["question"]
    (end,) = logged(chat.pk, "RUN_FINISHED")
    (interrupt,) = end["outcome"]["interrupts"]
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "c1")
    assert interrupt["metadata"]["approval"] == approval
    assert set(interrupt["responseSchema"]["required"]) == {"decision", "digest"}
    assert_at_rest(chat.pk)


def test_the_digest_is_of_the_call_and_not_of_its_spelling():
    mark = approvals.digest("t", {"a": 1, "b": "é"})
    assert approvals.digest("t", json.loads('{"b": "\\u00e9", "a": 1}')) == mark
    for other in [("u", {"a": 1, "b": "é"}), ("t", {"a": 2, "b": "é"}), ("t", {"a": 1})]:
        assert approvals.digest(*other) != mark


def test_a_call_that_could_not_be_made_is_not_asked_about():
    with pytest.raises(ToolError, match="to"):
        approvals.ask_about(send_postcard, '{"text": "x"}')


def test_a_yes_makes_exactly_this_call_once(question):
    answer(question)
    rows, (made,) = gone_on(question)
    assert rows == []
    assert (json.loads(made.arguments), made.approved, made.edited) == (SHOWN, True, False)
    assert not made.begun
    endings.lost(lease_of(again(question.run)), end="crashed", by="s")
    _, (second,) = gone_on(question, "r3")
    assert second.begun  # and a tool that is not repeatable is not made again


def test_a_yes_to_edited_arguments_makes_the_edited_call(question):
    answer(question, arguments={"to": "Bob", "text": "Hi"})
    _, (made,) = gone_on(question)
    assert json.loads(made.arguments) == {"to": "Bob", "text": "Hi", "copies": 1}
    assert made.edited


def test_a_denial_carries_its_reason(question):
    answer(question, "deny", reason="wrong address")
    (row,), to_make = gone_on(question)
    assert to_make == []
    assert json.loads(row.content)["status"] == "denied"
    assert json.loads(row.content)["reason"] == "wrong address"


CLOSED = {
    "cancelled": lambda question: answer(question, resolved=False),
    "expired": lambda question: (
        back_in_time(Question.objects.filter(pk=question.pk), 999999, "expires_at"),
        suspensions.expire_due(),
    ),
}


@pytest.mark.parametrize("state", CLOSED)
def test_what_is_no_answer_is_no_yes(question, state):
    CLOSED[state](question)
    (row,), to_make = gone_on(question)
    assert to_make == []
    assert json.loads(row.content)["status"] == state
    assert "not made" in row.content


@pytest.mark.parametrize("way", ["stop", "message"])
def test_a_stop_and_a_newer_message_end_the_turn_and_the_call(chat, question, way):
    if way == "stop":
        interrupts.request(chat.pk, by="alice")
    else:
        actions._post(chat.pk, "never mind", None, "enqueue", "alice")
    assert again(question.run).status == "interrupted"
    with pytest.raises(Conflict) as refusal:
        answer(question)
    assert refusal.value.code == {"stop": "cancelled", "message": "superseded"}[way]


BAD = [
    {"decision": "maybe"},
    {"digest": None},
    {"arguments": {"to": "Bob"}},
    {"arguments": {**CARD, "copies": 11}},
    {"arguments": {**CARD, "cc": "Eve"}},
    {"arguments": "Bob"},
    {"reason": 1},
    {"more": 1},
]


@pytest.mark.parametrize("wrong", BAD, ids=str)
def test_an_answer_that_does_not_fit_is_refused_and_nothing_is_stored(question, wrong):
    right = {"decision": "approve", "digest": question.approval["digest"]}
    payload = {k: v for k, v in {**right, **wrong}.items() if v is not None}
    with pytest.raises(Invalid):
        actions._respond(question.session_id, question.pk, True, payload, "alice")
    fresh = Question.objects.get()
    assert (fresh.state, fresh.answer) == ("open", None)


@pytest.mark.parametrize("payload", [None, True, "yes", [], {}])
def test_a_yes_in_other_words_is_none(question, payload):
    with pytest.raises(Invalid):
        actions._respond(question.session_id, question.pk, True, payload, "alice")
    assert Question.objects.get().state == "open"


def test_an_answer_about_other_arguments_is_refused(question):
    other = approvals.digest("send_postcard", {**SHOWN, "to": "Eve"})
    with pytest.raises(Conflict) as refusal:
        answer(question, digest=other)
    assert refusal.value.code == "digest_mismatch"
    assert Question.objects.get().state == "open"


def test_a_row_that_was_changed_behind_the_persons_back_makes_no_call(question):
    answer(question)
    changed = {**question.approval, "arguments": {**SHOWN, "to": "Eve"}}
    Question.objects.update(approval=changed)
    (row,), to_make = gone_on(question)
    assert to_make == []
    assert "not made" in row.content


def test_of_many_decisions_at_once_one_counts(question):
    outcomes = in_threads(*[lambda: answer(question)] * 4, *[lambda: answer(question, "deny")] * 4)
    assert sum(not isinstance(outcome, Conflict) for outcome in outcomes) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"decision": "approve"}, r'"status\": \"sent\"'),
        ({"decision": "approve", "arguments": {**CARD, "to": "Bob"}}, "arguments_changed_by_user"),
        ({"decision": "deny", "reason": "too late"}, "too late"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_whole_turn(hub, given, told):
    chat = await db(new_chat)
    asks = [call("send_postcard", **CARD), call("check_inbox")]
    model = ScriptedModel(assistant=[asks, ["done"]])
    async with node(model):
        run = await db(post, chat)
        question = await until(Question.objects.filter(state="open").first)
        payload = {"digest": question.approval["digest"], **given}
        await actions.respond(chat, str(question.pk), payload=payload, by="alice")
        assert (await ended(run, within=60)).status == "completed"  # the first call starts a server
    assert told in model.requests[-1].said
    await at_rest(chat)
