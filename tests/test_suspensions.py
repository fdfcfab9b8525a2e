"""A question is closed once, by one of all who try; only an answer counts as one."""

import itertools

import pytest

from chat import actions, memory
from chat.tools.base import Await
from coordination import interrupts, suspensions
from coordination.conf import conf
from coordination.errors import Conflict, Invalid, NotFound
from coordination.models import Question, Run
from coordination.suspensions import Ask
from tests.core import (
    again,
    assert_at_rest,
    back_in_time,
    begin,
    claim,
    customs,
    in_threads,
    logged,
    new_chat,
    post,
    respond_with,
    send,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


def ask(run, *asks, first=1):
    """Ask, as ``ask_user`` does; the questions."""
    names = [f"q{n}" for n in range(first, first + len(asks))]
    respond_with(run, "", **{name: ("ask_user", {}) for name in names})
    calls = [memory.Call(name, "ask_user", "{}") for name in names]
    assert memory.save_outcomes(run, list(zip(calls, asks, strict=True))).parked
    return list(Question.objects.filter(run=run, state="open").order_by("tool_call_id"))


def asked(chat, **more):
    run = claim(post(chat))
    return ask(run, Ask(question="which?", **more))[0]


def answer(question, payload="red", *, resolved=True):
    return suspensions.respond(
        question.session_id, question.pk, resolved=resolved, payload=payload, by="alice"
    )


def test_a_question_parks_its_run_and_is_shown(chat):
    question = asked(chat)
    run = again(question.run)
    assert (run.status, run.runner_id) == ("waiting_user", "")
    shown = customs(chat.pk, "question")[-1]
    assert (shown["id"], shown["state"], shown["path"]) == (str(question.pk), "open", ["assistant"])
    (end,) = logged(chat.pk, "RUN_FINISHED")
    assert end["outcome"]["type"] == "interrupt"
    assert end["outcome"]["interrupts"][0]["id"] == str(question.pk)
    assert_at_rest(chat.pk)


def test_an_answer_queues_the_run_and_is_given_to_the_model_once(chat):
    question = asked(chat)
    assert answer(question) == question.run_id
    run = claim(again(question.run), "r2")
    rows, to_make = memory.collect(run, [memory.Call("q1", "ask_user", "{}")])
    assert '"answer": "red"' in rows[0].content
    assert to_make == []
    assert len(logged(chat.pk, "RUN_STARTED")) == 2  # it goes on, as a run of AG-UI's


@pytest.mark.parametrize("state", ["answered", "cancelled", "superseded", "expired"])
def test_a_late_answer_is_told_why(chat, state):
    question = asked(chat)
    closing(state)(question)
    with pytest.raises(Conflict) as refusal:
        answer(question, "late")
    assert refusal.value.code == {"answered": "already_answered"}.get(state, state)
    assert Question.objects.get(pk=question.pk).answer == ("red" if state == "answered" else None)


def closing(state):
    return {
        "answered": answer,
        "cancelled": lambda question: answer(question, resolved=False),
        "superseded": lambda question: actions._post(
            question.session_id, "never mind", None, "enqueue", "alice"
        ),
        "expired": lambda question: (
            back_in_time(Question.objects.filter(pk=question.pk), 999999, "expires_at"),
            suspensions.expire_due(),
        ),
        "stopped": lambda question: interrupts.request(question.session_id, by="alice"),
    }[state]


def test_declining_is_no_answer(chat):
    question = asked(chat, ui_type="confirm")
    answer(question, resolved=False)
    run = claim(again(question.run), "r2")
    rows, _ = memory.collect(run, [memory.Call("q1", "ask_user", "{}")])
    assert '"status": "cancelled"' in rows[0].content
    assert "not a yes" in rows[0].content


def test_an_old_card_does_not_answer_a_new_question(chat):
    first = asked(chat)
    answer(first)
    run = claim(again(first.run), "r2")
    memory.collect(run, [memory.Call("q1", "ask_user", "{}")])
    (second,) = ask(run, Ask(question="and?"), first=2)
    with pytest.raises(Conflict) as refusal:
        answer(first, "again")
    assert refusal.value.code == "already_answered"
    assert Question.objects.get(pk=second.pk).state == "open"


def test_a_stranger_s_question_does_not_exist(chat):
    question = asked(chat)
    other = new_chat("bob")
    with pytest.raises(NotFound):
        suspensions.respond(other.pk, question.pk, resolved=True, payload="x", by="bob")
    assert Question.objects.get(pk=question.pk).state == "open"


FITS = [
    ({"ui_type": "text"}, ["", "red"], [None, 1, True, ["red"], {}]),
    ({"ui_type": "confirm"}, [True, False], [None, 1, 0, "yes", "true"]),
    ({"ui_type": "number"}, [0, 1.5, -3], [None, True, "1"]),
    ({"ui_type": "date"}, ["2026-02-28"], [None, "2026-02-30", "tomorrow", 20260228]),
    ({"ui_type": "select", "options": ["a", 1]}, ["a", 1], [None, "b", True, ["a"], {}]),
    (
        {"ui_type": "select", "options": [{"value": "a", "label": "A"}]},
        ["a"],
        ["A", {"value": "a"}],
    ),
    ({"ui_type": "select", "options": ["a"], "allow_other": True}, ["a", "else"], [None, 1]),
    (
        {"ui_type": "multi_select", "options": ["a", "b"]},
        [[], ["a"], ["a", "b"]],
        ["a", ["c"], [1]],
    ),
    (
        {"ui_type": "form", "fields": [{"name": "n", "required": True}, {"name": "m"}]},
        [{"n": "x"}, {"n": 1, "m": 2}],
        [None, {}, {"n": ""}, {"m": 1}, {"n": "x", "z": 1}, ["n"]],
    ),
]


@pytest.mark.parametrize(("shape", "good", "bad"), FITS)
def test_an_answer_that_does_not_fit_leaves_the_question_open(chat, shape, good, bad):
    question = asked(chat, **shape)
    for payload in bad:
        with pytest.raises(Invalid):
            answer(question, payload)
        assert Question.objects.get(pk=question.pk).state == "open"
    for payload in good:
        assert suspensions.check_answer(question, payload) == payload
    answer(question, good[-1])


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_say_is_no_answer(chat, payload):
    question = asked(chat, ui_type="number")
    with pytest.raises(Invalid):
        answer(question, payload)


def test_a_form_s_fields_have_their_types(chat):
    fields = [
        {"name": "n", "type": "number", "required": True},
        {"name": "when", "type": "date"},
        {"name": "ok", "type": "confirm"},
        {"name": "color", "type": "select", "options": ["red"]},
    ]
    question = asked(chat, ui_type="form", fields=fields)
    for wrong in (
        {"n": "one"},
        {"n": 1, "when": "soon"},
        {"n": 1, "ok": "yes"},
        {"n": 1, "color": "blue"},
    ):
        with pytest.raises(Invalid):
            answer(question, wrong)
    answer(question, {"n": 1, "when": "2026-01-01", "ok": True, "color": "red"})


def test_a_question_expires_in_its_time_and_not_before(chat):
    question = asked(chat)
    assert suspensions.expire_due() == 0
    back_in_time(Question.objects.filter(pk=question.pk), conf.question_ttl + 1, "expires_at")
    assert suspensions.expire_due() == 1
    assert suspensions.expire_due() == 0
    assert again(question.run).status == "queued"


def test_a_sub_agent_asks_with_its_path_and_suspends_the_chain(chat):
    master = claim(post(chat))
    task, child = send(master)
    child = begin(child, "r2")
    respond_with(master, "", w=("wait_for_results", {}))
    call = memory.Call("w", "wait_for_results", "{}")
    memory.save_outcomes(master, [(call, Await([task.pk], 60))])
    (question,) = ask(child, Ask(question="which?"))
    assert question.path == ["assistant", "researcher"]
    (end,) = logged(chat.pk, "RUN_FINISHED")
    assert end["outcome"]["interrupts"][0]["subagentRunId"] == str(child.pk)
    assert [e["outcome"]["type"] for e in logged(chat.pk, "SUBAGENT_FINISHED")] == ["suspended"]
    answer(question)
    claim(again(child), "r3")
    assert len(logged(chat.pk, "SUBAGENT_STARTED")) == 2
    assert_at_rest(chat.pk)


def test_the_readers_are_told_of_a_suspension_only_when_nothing_else_moves(chat):
    master = claim(post(chat))
    _, child = send(master)
    (question,) = ask(begin(child, "r2"), Ask(question="which?"))
    assert logged(chat.pk, "RUN_FINISHED") == []
    assert question.state == "open"


@pytest.mark.django_db(transaction=True)
def test_of_many_answers_at_once_one_is_taken(redis_server):
    question = asked(new_chat())
    tries = [lambda n=n: answer(question, f"answer {n}") for n in range(8)]
    results = in_threads(*tries)
    won = [n for n, result in enumerate(results) if result == question.run_id]
    assert len(won) == 1, results
    lost = [r.code for r in results if isinstance(r, Conflict)]
    assert lost == ["already_answered"] * 7
    assert Question.objects.get(pk=question.pk).answer == f"answer {won[0]}"
    assert_at_rest(question.session_id)


CLOSERS = ["answered", "stopped", "expired", "superseded"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pair", list(itertools.combinations(CLOSERS, 2)))
def test_of_two_that_close_at_once_one_wins(redis_server, pair):
    for _ in range(2):
        chat = new_chat()
        question = asked(chat)
        if "expired" in pair:
            back_in_time(Question.objects.filter(pk=question.pk), 999999, "expires_at")
        in_threads(*[lambda s=state, q=question: closing(s)(q) for state in pair])
        now = Question.objects.get(pk=question.pk)
        states = {"stopped": "cancelled"}
        assert now.state in {states.get(state, state) for state in pair}
        assert (now.answer == "red") == (now.state == "answered")
        closed = [e["state"] for e in customs(chat.pk, "question")]
        assert closed == ["open", now.state]
        run = Run.objects.get(pk=question.run_id)
        if "stopped" in pair or now.state == "superseded":
            assert run.status == "interrupted"
        assert_at_rest(chat.pk)
