"""What AG-UI's run has used: the sub-agents in it, and after a question only what came since."""

import pytest

from chat import memory
from chat.llm import Usage
from coordination import suspensions, usage
from coordination.suspensions import Ask
from coordination.transactions import locked
from tests.core import again, begin, claim, logged, new_chat, post, respond_with, send

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


def entry(model, inputs, outputs):
    tokens = {"inputTokens": inputs, "outputTokens": outputs}
    return {"provider": "p", "model": model, **tokens, "totalTokens": inputs + outputs}


def used(run, model, inputs, outputs):
    run.usage = memory.add_usage(run.usage, Usage("p", model, inputs, outputs))
    run.save()


def ask(run):
    with locked(run.session_id) as session:
        fresh = again(run)
        suspensions.open_question(session, fresh, "q", Ask("Which?"))
        memory.park(session, fresh, asked=True)


def test_one_entry_for_each_model_with_what_the_sub_agents_used():
    master = claim(post(new_chat()))
    _, child = send(master)
    assert usage.of_turn(master, [child]) == []
    used(master, "large", 1, 2)
    used(child, "small", 10, 20)
    assert usage.of_turn(master, [child]) == [entry("large", 1, 2), entry("small", 10, 20)]
    used(child, "large", 90, 80)
    assert usage.of_turn(master, [child])[0] == entry("large", 101, 102)


def test_what_was_told_before_a_question_is_not_told_again():
    master = claim(post(new_chat()))
    respond_with(master, q=("ask_user", {"question": "Which?"}))
    ask(master)
    (asked,) = logged(master.session_id, "RUN_FINISHED")
    assert [e["inputTokens"] for e in asked["usage"]] == [10]
    assert usage.of_turn(again(master), []) == []
    suspensions.respond(
        master.session_id,
        master.questions.get().pk,
        resolved=True,
        payload="this",
        by="alice",
    )
    respond_with(begin(again(master)), "So.")
    assert [e["inputTokens"] for e in usage.of_turn(again(master), [])] == [10]
