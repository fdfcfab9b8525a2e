"""A question outlives every process (trial 13)."""

import pytest

from tests.cluster.client import Refused, custom, finished, first


def test_a_question_is_answered_after_every_process_was_killed(site):
    chat = site.session()
    ask = {"question": "Go on?", "ui_type": "confirm"}
    script = site.play(
        assistant=[
            [{"text": "Before I go on: "}, {"call": "ask_user", "args": ask, "id": "call-ask"}],
            [{"text": "Answered: $RESULTS"}],
        ]
    )
    with chat.events() as reader:
        run_id = chat.post(f"remember the word walrus; {script}")["run_id"]
        reader.until(first("RUN_FINISHED"))
    for node in site.cluster.nodes:
        node.kill()
    site.heal()

    other = chat.at(site.web(2))
    snapshot = other.snapshot()
    assert snapshot["status"] == "suspended"
    (question,) = snapshot["questions"]
    assert (question["question"], question["ui_type"]) == ("Go on?", "confirm")
    with chat.at(site.web(1)).events(reader.cursor) as reader:
        with pytest.raises(Refused) as refused:
            other.respond(question["id"], payload="certainly")
        assert refused.value.status == 422
        assert other.respond(question["id"], payload=True) == {"run_id": run_id}
        assert reader.until(custom("question", state="answered"))
        assert reader.until(first("RUN_STARTED")).event["runId"] == run_id
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
