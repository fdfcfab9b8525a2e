"""What a model is given is valid for a strict provider, whatever was cut where."""

import json
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from chat import memory
from chat.llm import Usage
from chat.models import Message
from chat.tools.base import Value
from coordination import endings
from tests.core import (
    again,
    assert_transcript_valid,
    claim,
    customs,
    judge,
    new_chat,
    post,
    respond_with,
    say,
)
from tests.fakes.step_model import check_strict, to_openai

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def run():
    return claim(post(new_chat(), "the question"))


def told(run):
    return to_openai(memory.history(memory.conversation(run.session_id, run.agent_id)))


def user(text="hello"):
    return ModelRequest(parts=[UserPromptPart(text)])


def called(*ids, args="{}"):
    return ModelResponse(parts=[ToolCallPart("f", args, call_id) for call_id in ids])


def returned(*ids):
    return ModelRequest(parts=[ToolReturnPart("f", f"result {i}", i) for i in ids])


def test_the_user_s_words_come_first(run):
    assert told(run) == [{"role": "user", "content": "the question"}]


def test_a_step_and_its_results_are_given_as_they_were(run):
    respond_with(run, "I look", c1=("check_inbox", {"a": 1}))
    call = memory.Call("c1", "check_inbox", "{}")
    memory.save_outcomes(run, [(call, Value({"found": "é"}))])
    _, said, result = told(run)
    assert said["content"] == "I look"
    assert said["tool_calls"][0]["function"]["arguments"] == '{"a":1}' or json.loads(
        said["tool_calls"][0]["function"]["arguments"]
    ) == {"a": 1}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": '{"found": "é"}'}


def test_a_call_without_a_result_is_answered_for(run):
    respond_with(run, "", c1=("f", {}), c2=("f", {}))
    memory.save_outcomes(run, [(memory.Call("c2", "f", "{}"), Value("two"))])
    results = [m for m in told(run) if m["role"] == "tool"]
    assert [(m["tool_call_id"], m["content"] == "two") for m in results] == [
        ("c1", False),
        ("c2", True),
    ]


@pytest.mark.parametrize("args", ["", "{", "[]", "null", "1", '"a"', '{"a": '])
def test_arguments_that_are_no_object_are_never_sent_back(args):
    check_strict(memory.repaired([user(), called("c1", args=args), returned("c1")]))


def test_results_that_stand_elsewhere_are_put_behind_their_call():
    history = [user(), called("c1"), user("and?"), returned("c1")]
    repaired = memory.repaired(history)
    check_strict([*repaired, user()])
    assert "result c1" in str(to_openai(repaired)[2])


def test_a_result_of_no_call_is_left_out():
    check_strict(memory.repaired([user(), returned("ghost"), user("next")]))


def test_repairing_twice_changes_nothing():
    history = [user(), called("a", "b", args="{"), returned("b"), user()]
    once = memory.repaired(history)
    assert to_openai(memory.repaired(once)) == to_openai(once)


messages = st.lists(
    st.one_of(
        st.just("user"),
        st.just("text"),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True),
        st.tuples(st.sampled_from("abcdef")),
    ),
    max_size=12,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(messages)
def test_any_history_of_cut_turns_becomes_valid(script):
    history = [user()]
    seen = set()
    for turn in script:
        if turn == "user":
            history.append(user())
        elif turn == "text":
            history.append(ModelResponse(parts=[TextPart("words")]))
        elif isinstance(turn, tuple):
            history.append(returned(*turn))
        else:
            fresh = [call_id for call_id in turn if call_id not in seen]
            seen.update(fresh)
            if fresh:
                history.append(called(*fresh, args="{" if len(fresh) == 2 else "{}"))
    check_strict([*memory.repaired(history), user("and then?")])


def test_a_notice_is_for_people(run):
    from coordination.transactions import locked

    with locked(run.session_id) as session:
        memory.notice(session, run, "stopped", "Stopped.")
    assert "Stopped." not in str(told(run))


def test_a_message_that_waits_in_the_queue_is_not_in_the_conversation(run):
    from chat.models import ChatSession

    post(ChatSession.objects.get(pk=run.session_id), "later")
    assert "later" not in str(told(run))


def test_an_empty_response_is_not_sent(run):
    memory.save_response(run, uuid.uuid4(), ModelResponse(parts=[]), usage(), text_open=False)
    assert len(told(run)) == 1
    assert_transcript_valid(run.session_id, "assistant")


def usage():
    return Usage("p", "m", 10, 5)


def test_usage_adds_up_over_the_steps(run):
    respond_with(run, "one")
    respond_with(run, "two")
    assert run.usage["total_tokens"] == 30
    assert again(run).usage["input_tokens"] == 20


def test_the_signature_of_a_provider_survives(run):
    part = ToolCallPart("f", "{}", "c1", id="provider-1", provider_details={"signature": "xyz"})
    response = ModelResponse(parts=[part], provider_response_id="resp-1")
    memory.save_response(run, uuid.uuid4(), response, usage(), text_open=False)
    rows = memory.conversation(run.session_id, "assistant")
    kept = memory.history(rows)[1]
    assert isinstance(kept, ModelResponse)
    assert isinstance(kept.parts[0], ToolCallPart)
    assert kept.parts[0].provider_details == {"signature": "xyz"}
    assert kept.provider_response_id == "resp-1"


def test_open_calls_are_those_of_the_last_response_alone(run):
    respond_with(run, "", old=("f", {}))
    memory.save_outcomes(run, [(memory.Call("old", "f", "{}"), Value("x"))])
    respond_with(run, "", one=("f", {}), two=("f", {}))
    memory.save_outcomes(run, [(memory.Call("one", "f", "{}"), Value("x"))])
    rows = memory.conversation(run.session_id, "assistant")
    assert [call.call_id for call in memory.open_calls(rows)] == ["two"]
    respond_with(run, "words")
    assert memory.open_calls(memory.conversation(run.session_id, "assistant")) == []


def test_no_open_call_is_made_again_in_a_later_turn(run):
    """The run of an earlier turn ended with a call open; the next turn does not make it."""
    respond_with(run, "", c1=("f", {}))
    endings.failed(run, "broken", by="r1")
    assert memory.open_calls(memory.conversation(run.session_id, "assistant")) == []
    assert_transcript_valid(run.session_id, "assistant")


def test_the_partial_text_is_what_readers_have_seen_to_the_letter(run):
    pk = say(run, "half a sen", ended=False)
    endings.failed(run, "broken", by="r1")
    kept = Message.objects.get(pk=pk)
    assert (kept.content, kept.status) == ("half a sen", "interrupted")


def test_each_agent_has_a_memory_of_its_own(run):
    from tests.core import begin, send

    _, child = send(run, content="look there")
    child = begin(child, "r2")
    assert told(child) == [{"role": "user", "content": "look there"}]
    assert "look there" not in str(told(run))


def test_what_begins_again_after_a_loss_is_marked_for_whoever_reads_along(run):
    say(run, "half a thought", ended=False)
    assert judge(run, end="crashed")
    [told] = customs(run.session_id, "superseded")
    [row] = Message.objects.filter(status="interrupted")
    assert told == {"runId": str(run.pk), "messageIds": [str(row.pk)]}
    assert (row.content, row.parts[-1]) == ("half a thought", {"type": "superseded"})
    claimed = claim(again(run))
    respond_with(claimed, "whole")
    assert judge(claimed, end="crashed")  # between two steps: nothing that was said begins again
    assert len(customs(run.session_id, "superseded")) == 1
