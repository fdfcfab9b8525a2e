"""What a reader sees first is the state, exact at its cursor."""

import json

import pytest

from chat import snapshots
from chat.executor import finish
from chat.models import Message
from coordination import endings, events, interrupts, runs
from coordination.errors import Invalid, NotFound
from coordination.models import Run
from tests.core import (
    again,
    begin,
    claim,
    log_call,
    logged,
    new_chat,
    post,
    respond_with,
    say,
    send,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


def snap(chat):
    snapshot = snapshots.snapshot(chat.pk)
    json.dumps(snapshot)
    return snapshot


def test_a_new_session_is_idle(chat):
    snapshot = snap(chat)
    assert (snapshot["status"], snapshot["run_id"], snapshot["messages"]) == ("idle", None, [])
    assert set(snapshot) >= {
        "id",
        "title",
        "status",
        "run_id",
        "messages",
        "agents",
        "questions",
        "queue",
        "cursor",
    }


def test_the_status_follows_the_turn(chat):
    run = post(chat)
    assert snap(chat)["status"] == "queued"
    run = claim(run)
    assert (snap(chat)["status"], snap(chat)["run_id"]) == ("running", str(run.pk))
    with runs.owned(run) as (session, fresh):
        runs.park(session, fresh, Run.Status.WAITING_CHILD)
    assert snap(chat)["status"] == "running"
    interrupts.request(chat.pk, by="alice")
    assert (snap(chat)["status"], snap(chat)["run_id"]) == ("idle", None)


def test_a_turn_that_goes_back_to_the_queue_is_still_running(chat):
    run = claim(post(chat))
    endings.handed_over(run, by="r1")
    assert snap(chat)["status"] == "running"


def ask(run):
    from chat import memory
    from coordination.suspensions import Ask

    respond_with(run, "", q=("ask_user", {}))
    memory.save_outcomes(run, [(memory.Call("q", "ask_user", "{}"), Ask(question="which?"))])


def test_an_open_question_is_shown_until_it_is_closed(chat):
    run = claim(post(chat))
    ask(run)
    snapshot = snap(chat)
    assert snapshot["status"] == "suspended"
    (question,) = snapshot["questions"]
    assert (question["question"], question["path"]) == ("which?", ["assistant"])
    interrupts.request(chat.pk, by="alice")
    assert snap(chat)["questions"] == []


def test_text_under_way_is_there_as_partial_and_not_twice(chat):
    run = claim(post(chat))
    respond_with(run, "the first step")
    pk = say(run, "half a sen", ended=False)
    messages = snap(chat)["messages"]
    assert [(m["content"], m["status"]) for m in messages[1:]] == [
        ("the first step", "complete"),
        ("half a sen", "partial"),
    ]
    assert messages[-1]["id"] == pk


def test_a_call_under_way_is_there_with_its_arguments_so_far(chat):
    run = claim(post(chat))
    pk = say(run, "I send", ended=False)
    log_call(run, "c1", "send_message", '{"to": "re', message_id=pk, ended=False)
    part = snap(chat)["messages"][-1]["parts"][-1]
    assert part == {
        "type": "tool_call",
        "tool_call_id": "c1",
        "name": "send_message",
        "args": '{"to": "re',
    }


def test_the_snapshot_and_what_follows_its_cursor_are_the_whole(chat):
    run = claim(post(chat))
    pk = say(run, "one ", ended=False)
    snapshot = snap(chat)
    from coordination import vocabulary
    from tests.core import write_stream

    write_stream(run, vocabulary.text_content(run, pk, "two"))
    following = [json.loads(e.data) for e in events.after(chat.pk, snapshot["cursor"])]
    text = snapshot["messages"][-1]["content"] + "".join(
        e["delta"] for e in following if e["type"] == "TEXT_MESSAGE_CONTENT"
    )
    assert text == "one two"


def test_a_reader_of_a_stopped_turn_sees_the_words_once(chat):
    run = claim(post(chat))
    pk = say(run, "half a sen", ended=False)
    interrupts.request(chat.pk, by="alice")
    during = [m for m in snap(chat)["messages"] if m["id"] == pk]
    assert [m["status"] for m in during] == ["partial"]
    endings.stopped(run, by="r1")
    after = [m for m in snap(chat)["messages"] if m["id"] == pk]
    assert [(m["status"], m["content"]) for m in after] == [("interrupted", "half a sen")]


def test_every_agent_is_shown_with_its_newest_run_and_lease(chat):
    master = claim(post(chat), "r1")
    _, first = send(master, call_id="c1")
    finish(begin(first, "r2"), "one", "r2")
    _, second = send(master, call_id="c2")
    second = claim(again(second), "r3")
    agents = {agent["agent_id"]: agent for agent in snap(chat)["agents"]}
    assert set(agents) == {"assistant", "researcher"}
    assert agents["assistant"]["lease"]["runner_id"] == "r1"
    assert agents["researcher"]["run_id"] == str(second.pk)
    assert agents["researcher"]["lease"]["epoch"] == 1
    assert agents["researcher"]["parent_run_id"] == str(master.pk)
    assert agents["researcher"]["task_id"] == str(second.task_id)
    finish(begin_again(second), "two", "r3")
    agents = {agent["agent_id"]: agent for agent in snap(chat)["agents"]}
    assert (agents["researcher"]["status"], agents["researcher"]["lease"]) == ("completed", None)


def begin_again(run):
    from chat import memory

    memory.take_in(run)
    return run


def test_messages_come_in_pages_from_the_newest(chat, monkeypatch):
    monkeypatch.setattr(snapshots, "PAGE", 3)
    run = claim(post(chat, "0"))
    for n in range(1, 8):
        respond_with(run, str(n))
    assert [m["content"] for m in snap(chat)["messages"]] == ["5", "6", "7"]
    seen, before = [], None
    while True:
        page = snapshots.messages_page(chat.pk, before=before)
        seen = [m["content"] for m in page["items"]] + seen
        before = page["next"]
        if before is None:
            break
    assert seen == [str(n) for n in range(8)]


def test_inbox_and_work_log_come_in_pages_without_a_gap(chat, monkeypatch):
    monkeypatch.setattr(snapshots, "PAGE", 2)
    master = claim(post(chat))
    for n in range(5):
        send(master, "researcher", f"task {n}", call_id=f"c{n}")
    interrupts.request(chat.pk, by="alice")
    for page_of, count in ((snapshots.inbox_page, 10), (snapshots.worklog_page, None)):
        seen, after = [], None
        while True:
            page = page_of(chat.pk, after=after)
            assert len(page["items"]) <= 2
            seen += page["items"]
            after = page["next"]
            if after is None:
                break
        assert len({json.dumps(item) for item in seen}) == len(seen)
        if count:
            assert len(seen) == count


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "²", "12x", "9" * 30])
def test_a_cursor_that_is_none_is_refused(chat, cursor):
    for page in (snapshots.inbox_page, snapshots.worklog_page):
        with pytest.raises(Invalid):
            page(chat.pk, after=cursor)
    with pytest.raises(Invalid):
        snapshots.messages_page(chat.pk, before=cursor)


def test_the_chain_is_the_whole_tree_from_any_of_its_messages(chat):
    master = claim(post(chat))
    task, child = send(master)
    finish(begin(child, "r2"), "found", "r2")
    result = task.replies.get()
    for message in (task, result):
        chain = snapshots.reply_chain(chat.pk, message.pk)
        assert chain["id"] == str(task.pk)
        assert [reply["id"] for reply in chain["replies"]] == [str(result.pk)]
    with pytest.raises(NotFound):
        snapshots.reply_chain(new_chat("bob").pk, task.pk)


def test_the_last_word_of_the_log_is_the_cursor(chat):
    claim(post(chat))
    assert snap(chat)["cursor"] == len(logged(chat.pk))
    assert Message.objects.count() == 1
