"""Tools that ignore a stop, kill their process, or need a yes (trials 7, 14, 18 and 26)."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.cluster.client import Refused, custom, eventually, finished, first
from tests.cluster.site import SHORT_TIMES

ACK = 3  # seconds; AGENT_STOP_ACK as it comes
GRACE = float(SHORT_TIMES["AGENT_STOP_GRACE"])
SAID = {"text": "heard: $RESULTS"}


def calling(site, name, **args):
    """A master that calls the tool once and says what came back."""
    return site.play(assistant=[[{"call": name, "args": args, "id": "it"}], [SAID]])


def results(chat):
    return [m["content"] for m in chat.messages() if m["role"] == "tool"]


@pytest.mark.parametrize("name", ["swallow", "block"])
def test_what_ignores_a_stop_is_fenced_and_its_result_is_nobodys(site, tmp_path, name):
    gate = tmp_path / "gate"
    chat = site.session()
    with chat.at(site.web(2)).events() as reader:
        run_id = chat.post(calling(site, name, until=str(gate)))["run_id"]
        reader.until(first("TOOL_CALL_END"))
        owner = site.owner(chat, "assistant")
        runners = owner.runners()
        pressed = time.time()
        assert chat.at(site.web(2)).interrupt()["status"] == "accepted"
        reader.until(finished(run_id))
        assert time.time() - pressed < GRACE + ACK
    assert chat.snapshot()["status"] == "idle"
    if name == "block":  # deaf: its process is ended by its supervisor, and there is a new one
        eventually(lambda: set(owner.runners()).isdisjoint(runners) and owner.runners(), "a runner")
    gate.touch()
    if name == "swallow":
        eventually(lambda: gate.read_text() == "seen", "the end of the tool")
    script = site.play(assistant=[[{"text": "on again"}]])
    chat.post(script)
    chat.until_idle()
    assert chat.messages()[-1]["content"] == "on again"
    (request,) = (exchange.request for exchange in site.provider.log(containing=script))
    (heard,) = [m["content"] for m in request["messages"] if m["role"] == "tool"]
    assert results(chat) == [heard]
    assert "nterrupted by the user" in heard


def test_a_plain_tool_is_killed_by_a_stop_at_once(site, tmp_path):
    chat = site.session()
    run_id = chat.post(calling(site, "hang", folder=str(tmp_path), deaf=True))["run_id"]
    said = tmp_path / "it"
    eventually(lambda: said.exists() and said.read_text().endswith("\n"), "the tool at work")
    pids = said.read_text().split()
    assert chat.at(site.web(2)).interrupt(run_id=run_id)["status"] == "stopped"
    eventually(lambda: not any(map(is_at_work, pids)), "the end of its processes")


def test_an_mcp_server_hears_of_a_stop_and_ends_with_its_runner(site):
    def waiting():
        """A courier in a call that waits, and the ids of the server's processes."""
        send = {"call": "send_message", "args": {"to": "courier", "content": "$SCRIPT"}}
        chat = site.session()
        before = notes()
        chat.post(site.play(assistant=[[send]], courier=[[{"call": "fake_wait", "args": {}}]]))
        line = eventually(lambda: notes()[len(before) :], "the call at the server")[-1]
        return chat, line.split()[1:]

    def notes():
        return site.mcp_notes.read_text().splitlines() if site.mcp_notes.exists() else []

    chat, pids = waiting()
    assert chat.at(site.web(2)).interrupt()["status"] == "stopped"
    eventually(lambda: notes()[-1] == "cancelled", "the cancellation")
    assert is_at_work(pids[0])  # it serves on

    chat, pids = waiting()
    for runner in site.owner(chat, "courier").runners():
        os.kill(runner, signal.SIGKILL)
    eventually(lambda: not any(map(is_at_work, pids)), "the end of the server")


def is_at_work(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_plain_tool_that_kills_its_process_fails_alone(site):
    other = site.session()
    gate = other.id
    other.post(site.play(assistant=[[{"text": "a"}, {"hang": gate}, {"text": "b"}]]))
    chat = site.session()
    chat.post(calling(site, "crash", how="segfault"))
    chat.until_idle()
    assert "SIGSEGV" in chat.messages()[-1]["content"]
    site.provider.release(gate)
    other.until_idle()
    assert other.messages()[-1]["content"] == "ab"
    for session in (chat, other):
        assert not [e for e in session.worklog() if e["kind"] in ("crashed", "requeued")]


def asked(chat):
    (question,) = eventually(lambda: chat.snapshot()["questions"], "a question")
    return question


def test_an_approval_is_of_what_was_shown_and_makes_the_call_once(site, tmp_path):
    ledger = tmp_path / "ledger"
    chat = site.session()
    chat.post(calling(site, "pay", ledger=str(ledger), amount=7))
    question = asked(chat)
    shown = question["approval"]
    assert (shown["tool"], shown["arguments"]["amount"]) == ("pay", 7)
    yes = {"decision": "approve", "digest": shown["digest"]}
    for code, status, wrong in [
        ("digest_mismatch", 409, {**yes, "digest": "0" * 64}),
        ("invalid_answer", 422, {**yes, "arguments": {**shown["arguments"], "amount": "many"}}),
    ]:
        with pytest.raises(Refused) as refused:
            chat.respond(question["id"], payload=wrong)
        assert (refused.value.status, refused.value.code) == (status, code)
    assert asked(chat) == question
    assert not ledger.exists()

    edited = {**yes, "arguments": {**shown["arguments"], "amount": 8}}
    answers = [
        lambda n=n, payload=payload: chat.at(site.web(n)).respond(question["id"], payload=payload)
        for n in (1, 2)
        for payload in [edited] * 10
    ]
    outcomes = at_once(answers)
    assert (
        sorted(o.status if isinstance(o, Refused) else 202 for o in outcomes) == [202] + [409] * 19
    )
    chat.until_idle()
    assert ledger.read_text() == "8\n"
    assert "paid 8" in chat.messages()[-1]["content"]


def at_once(calls):
    outcomes = []

    def make(call):
        try:
            outcomes.append(call())
        except Refused as refusal:
            outcomes.append(refusal)

    threads = [threading.Thread(target=make, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_a_denial_makes_no_call_and_its_reason_is_heard(site, tmp_path):
    ledger = tmp_path / "ledger"
    chat = site.session()
    with chat.events() as reader:
        chat.post(calling(site, "pay", ledger=str(ledger), amount=7))
        question = reader.until(custom("question", state="open")).event["value"]
        payload = {
            "decision": "deny",
            "digest": question["approval"]["digest"],
            "reason": "too dear",
        }
        chat.at(site.web(2)).respond(question["id"], payload=payload)
    chat.until_idle()
    assert "too dear" in chat.messages()[-1]["content"]
    assert not ledger.exists()


def test_an_approved_call_whose_worker_is_killed_is_not_made_again(site, tmp_path):
    ledger = tmp_path / "ledger"
    chat = site.session()
    chat.post(calling(site, "pay", ledger=str(ledger), amount=7, hang=True))
    question = asked(chat)
    yes = {"decision": "approve", "digest": question["approval"]["digest"]}
    chat.respond(question["id"], payload=yes)
    eventually(ledger.exists, "the payment")
    site.owner(chat, "assistant").kill()
    chat.until_idle()
    assert ledger.read_text() == "7\n"
    assert "unknown whether it took effect" in chat.messages()[-1]["content"]
