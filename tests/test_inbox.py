"""Messages between agents: sent once, delivered once in effect, in order; the rules by name."""

import json

import pytest
from django.db import IntegrityError, transaction

from chat import memory, snapshots
from chat.executor import finish
from chat.models import Message
from chat.tools.base import Await, TakeIn
from coordination import endings, inbox, interrupts, runs
from coordination.conf import conf
from coordination.errors import Conflict, Invalid
from coordination.models import InboxMessage, Lease, Run
from coordination.transactions import locked
from tests.core import (
    again,
    assert_at_rest,
    begin,
    claim,
    customs,
    in_threads,
    lease_of,
    new_chat,
    post,
    respond_with,
    send,
    worklog_kinds,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


@pytest.fixture
def master(chat):
    return claim(post(chat))


def refused(code, run, **more):
    before = (InboxMessage.objects.count(), Run.objects.count(), again(run).hops)
    with pytest.raises((Invalid, Conflict)) as refusal:
        send(run, **more)
    assert refusal.value.code == code
    assert refusal.value.detail
    assert (InboxMessage.objects.count(), Run.objects.count(), again(run).hops) == before


def test_a_task_is_born_with_its_run(chat, master):
    task, child = send(master, "researcher", "look")
    assert (task.sender, task.recipient, task.kind, task.state) == (
        "assistant",
        "researcher",
        "task",
        "pending",
    )
    assert (child.parent, child.root_id, child.depth) == (master, master.pk, 1)
    assert child.parent_tool_call_id == "c1"


def test_the_same_call_sends_once(chat, master):
    first, _ = send(master)
    second, _ = send(master)
    assert first == second
    assert Run.objects.filter(agent_id="researcher").count() == 1
    assert again(master).hops == 1


@pytest.mark.parametrize("other", [{"content": "else"}, {"to": "reviewer"}, {"kind": "revision"}])
def test_the_same_call_with_another_body_is_refused(master, other):
    send(master)
    refused("id_conflict", master, **other)


@pytest.mark.parametrize("kind", ["result", "note", "question", "system", ""])
def test_reserved_types_are_refused(master, kind):
    refused("reserved_type", master, kind=kind)


@pytest.mark.parametrize("content", ["", "  \n"])
def test_an_empty_task_is_refused(master, content):
    refused("empty", master, content=content)


def test_the_largest_message_passes_and_one_byte_more_is_refused(master, monkeypatch):
    monkeypatch.setattr(conf, "message_bytes", 100)
    send(master, content="é" * 50)
    refused("too_large", master, content="é" * 50 + "a", call_id="c2")


def test_cycles_are_refused_by_their_path(master):
    _, child = send(master)
    child = begin(child, "r2")
    with pytest.raises(Invalid) as refusal:
        send(child, "assistant")
    assert refusal.value.code == "cycle"
    assert "assistant → researcher → assistant" in refusal.value.detail
    refused("cycle", child, to="researcher")
    refused("cycle", master, to="assistant", call_id="c9")


def test_nesting_has_a_floor(master, monkeypatch):
    monkeypatch.setattr(conf, "max_depth", 1)
    _, child = send(master)
    refused("too_deep", begin(child, "r2"), to="reviewer")


def test_a_turn_has_a_number_of_messages(master, monkeypatch):
    monkeypatch.setattr(conf, "max_hops", 2)
    send(master, call_id="c1")
    _, child = send(master, "reviewer", call_id="c2")
    refused("too_many_messages", master, call_id="c3")
    refused("too_many_messages", begin(child, "r2"), to="strategist")


def test_a_full_inbox_is_told_to_the_sender(master, monkeypatch):
    monkeypatch.setattr(conf, "inbox_limit", 2)
    send(master, call_id="c1")
    send(master, call_id="c2")
    refused("inbox_full", master, call_id="c3")
    send(master, "reviewer", call_id="c4")


def test_a_revision_answers_the_last_result_of_that_agent(chat, master):
    refused("nothing_to_revise", master, kind="revision")
    task, child = send(master)
    assert send(master, "reviewer", call_id="other")[0].in_reply_to is None
    early, _ = send(master, kind="revision", call_id="c2", content="shorter")
    assert early.in_reply_to == task  # it is still at it
    finish(begin(child, "r2"), "found", "r2")
    finish(begin(Run.objects.get(task=early), "r2"), "shorter", "r2")
    third, child = send(master, kind="revision", call_id="c3", content="longer")
    assert third.in_reply_to == InboxMessage.objects.get(accepted_for=early)
    rows = memory.conversation(chat.pk, "researcher")
    child = begin(child, "r2")
    assert [row.content for row in memory.conversation(chat.pk, "researcher")] == [
        *(row.content for row in rows),
        "longer",
    ]  # the same memory
    tree = snapshots.reply_chain(chat.pk, third.pk)
    assert (tree["id"], [r["type"] for r in tree["replies"]]) == (
        str(task.pk),
        ["revision", "result"],
    )
    assert_at_rest(chat.pk)


def test_a_preview_is_cut_and_the_row_is_whole(chat, master):
    task, _ = send(master, content="x" * 5000)
    written = customs(chat.pk, "inbox")[-1]
    assert written["preview"] == "x" * 200
    assert InboxMessage.objects.get(pk=task.pk).content == "x" * 5000


def test_a_run_reads_its_own_task_and_no_other_run_s(chat, master):
    first, one = send(master, content="first", call_id="c1")
    second, _ = send(master, content="second", call_id="c2")
    assert inbox.deliverable(claim(one, "r2")) == [first]
    assert second.state == "pending"


def test_messages_are_taken_in_once_and_in_order(chat, master):
    for n in range(3):
        _, child = send(master, f"researcher-{n + 2}", call_id=f"c{n}")
        assert finish(begin(child, "r2"), f"result {n}", "r2")
    taken = [message.content for message in memory.take_in(master)]
    assert [text[-8:] for text in taken] == ["result 0", "result 1", "result 2"]
    assert memory.take_in(master) == []
    assert set(InboxMessage.objects.values_list("state", flat=True)) == {"acked"}


def test_a_message_is_acked_exactly_where_it_is_remembered(master, monkeypatch):
    """The worker dies between taking and saving: it is taken again."""
    _, child = send(master)
    finish(begin(child, "r2"), "found", "r2")

    def die(*args, **kwargs):
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(memory, "_remember", die)
        with pytest.raises(RuntimeError), transaction.atomic():
            memory.take_in(master)
    result = InboxMessage.objects.get(kind="result")
    assert (result.state, result.acked_at) == ("pending", None)
    endings.lost(lease_of(master), end=Lease.End.CRASHED, by="s")
    assert len(memory.take_in(claim(again(master), "r3"))) == 1
    assert Message.objects.filter(agent_id="assistant", role="system").count() == 1


def killed_while_taking_in(run, times):
    """As if its process died each time after the try was counted."""
    for _ in range(times):
        inbox.begin_delivery(run)


def mail(agent="assistant"):
    return InboxMessage.objects.filter(recipient=agent, kind="result").first()


def test_a_message_that_kills_its_reader_five_times_is_a_dead_letter(chat, master):
    _, child = send(master)
    finish(begin(child, "r2"), "poison", "r2")
    _, child = send(master, "reviewer", call_id="c2")
    killed_while_taking_in(master, conf.inbox_tries - 1)
    finish(begin(child, "r3"), "good", "r3")
    killed_while_taking_in(master, 1)
    taken = [*memory.take_in(master), *memory.take_in(master)]
    assert [row.content.split(": ", 1)[1] for row in taken if "poison" in row.content] == []
    assert ["good" in row.content for row in taken] == [True, False]
    assert "researcher could not be delivered" in taken[1].content  # it is told, once
    assert memory.take_in(master) == []
    dead = InboxMessage.objects.get(content="poison")
    assert (dead.state, dead.deliveries, dead.acked_at) == ("dead", conf.inbox_tries, None)
    assert worklog_kinds(chat.pk).count("dead_letter") == 1

    assert inbox.redeliver(dead, by="ann") is True
    assert inbox.redeliver(dead, by="ann") is False
    killed_while_taking_in(master, conf.inbox_tries)
    assert ["could not be delivered" in row.content for row in taken_in(master)] == [True]
    assert inbox.redeliver(dead, by="ann") is True
    assert ["poison" in row.content for row in taken_in(master)] == [True]


def taken_in(run):
    """All that it takes in before its next model call."""
    taken = []
    while memory.look_before_model_call(run):
        taken += memory.take_in(run)
    return taken


def test_a_message_that_kills_its_reader_takes_no_other_along(master):
    for number, agent in enumerate(("researcher", "reviewer", "strategist")):
        _, child = send(master, agent, call_id=f"c{number}")
        finish(begin(child, f"r{number}"), "poison" if number == 1 else "good", f"r{number}")
    killed_while_taking_in(master, 1)  # all at once
    assert ["good" in row.content for row in memory.take_in(master)] == [True]  # then one by one
    killed_while_taking_in(master, conf.inbox_tries - 1)
    told = [row.content for row in taken_in(master)]
    assert ["good" in text for text in told] == [True, False]
    assert "reviewer could not be delivered" in told[1]


def test_a_dead_letter_that_is_awaited_after_all_is_read_once(master):
    task, child = send(master)
    finish(begin(child, "r2"), "found", "r2")
    killed_while_taking_in(master, conf.inbox_tries + 1)
    taken_in(master)
    step(master, ("wait_for_results", Await([task.pk], timeout=60)))
    rows, _ = memory.collect(
        master, [memory.Call("call-wait_for_results", "wait_for_results", "{}")]
    )
    assert json.loads(rows[0].content)["results"][0]["content"] == "found"
    assert inbox.redeliver(mail(), by="ann") is False


def test_a_stop_of_its_agent_discards_no_revision_that_waits_behind(chat, master):
    _, child = send(master)
    child = begin(child, "r2")
    interrupts.request(chat.pk, by="alice", run_id=child.pk)
    revision, following = send(master, kind="revision", call_id="c2")
    endings.stopped(child, by="r2")
    revision.refresh_from_db()
    assert revision.state == "pending"
    assert [row.content for row in memory.take_in(claim(again(following), "r3"))] == ["look"]


def test_a_chain_as_long_as_a_conversation_is_told_around_its_message(chat, master, monkeypatch):
    monkeypatch.setattr(snapshots, "HOPS", 3)
    message = send(master)[0]
    for number in range(8):
        message = InboxMessage.objects.create(
            session_id=chat.pk, position=50 + number, sender="x", recipient="y", kind="revision",
            content=str(number), in_reply_to=message,
        )  # fmt: skip
    middle = InboxMessage.objects.get(content="4")
    tree, depth = snapshots.reply_chain(chat.pk, middle.pk), 0
    assert tree["content"] == "1"
    while tree["replies"]:
        (tree,), depth = tree["replies"], depth + 1
    assert (tree["content"], depth) == ("7", 6)


def test_the_last_try_may_succeed(chat, master):
    _, child = send(master)
    finish(begin(child, "r2"), "found", "r2")
    killed_while_taking_in(master, conf.inbox_tries - 1)
    assert len(memory.take_in(master)) == 1
    message = mail()
    assert (message.state, message.deliveries) == ("acked", conf.inbox_tries)
    assert message.created_at <= message.delivered_at == message.acked_at
    assert "dead_letter" not in worklog_kinds(chat.pk)


def test_a_dead_note_tells_nobody_of_itself(master):
    task, _ = send(master)
    with runs.owned(master) as (session, fresh):
        inbox.note_missing_results(session, fresh, [task.pk])
    killed_while_taking_in(master, conf.inbox_tries + 1)
    assert list(InboxMessage.objects.filter(kind="note").values_list("state", flat=True)) == [
        "dead"
    ]


def test_a_run_s_own_task_is_bounded_by_the_run_s_attempts(master):
    _, child = send(master)
    child = claim(child, "r2")
    killed_while_taking_in(child, conf.inbox_tries + 2)
    assert [row.content for row in memory.take_in(child)] == ["look"]


def test_a_task_that_nobody_has_read_waits_for_nobody_any_more(chat, master, monkeypatch):
    """Else the tasks of stopped turns would fill the inbox of their agent."""
    monkeypatch.setattr(conf, "inbox_limit", 1)
    task, child = send(master)
    interrupts.request(chat.pk, by="alice", agent_id="researcher")
    assert again(child).status == "interrupted"
    task.refresh_from_db()
    assert task.state == "discarded"
    send(master, call_id="c2")


def test_a_result_that_is_too_large_is_refused_with_the_limit_named(chat, master, monkeypatch):
    monkeypatch.setattr(conf, "message_bytes", 100)
    task, child = send(master)
    assert finish(begin(child, "r2"), "é" * 51, "r2") is True
    assert again(child).status == "failed"
    result = InboxMessage.objects.get(accepted_for=task)
    assert (result.sender, result.reason) == ("system", "error")
    assert "at most 100 bytes, and this one 102" in result.content
    memory.take_in(master)
    assert finish(master, "x" * 101, "r1") is True  # the master's own words are no message
    assert again(master).status == "completed"
    assert_at_rest(chat.pk)


def step(run, *outcomes):
    """One step that made these calls, ``name=outcome``."""
    calls = [(memory.Call(f"call-{name}", name, "{}"), outcome) for name, outcome in outcomes]
    respond_with(run, "", **{call.call_id: (call.name, {}) for call, _ in calls})
    return memory.save_outcomes(run, calls)


def test_the_inbox_is_read_once_and_in_order(master):
    for n, agent in enumerate(("researcher", "reviewer")):
        _, child = send(master, agent, call_id=f"c{n}")
        finish(begin(child, f"r{n}"), f"from {agent}", f"r{n}")
    (row,) = step(master, ("check_inbox", TakeIn())).rows
    read = json.loads(row.content)["messages"]
    assert [message["content"] for message in read] == ["from researcher", "from reviewer"]
    assert memory.take_in(master) == []
    assert step(master, ("check_inbox", TakeIn())).rows[0].content == '{"messages": []}'


def test_a_result_that_is_awaited_in_the_same_step_is_not_read_twice(master):
    one, child = send(master)
    finish(begin(child, "r2"), "awaited", "r2")
    _, child = send(master, "reviewer", call_id="c2")
    finish(begin(child, "r3"), "not awaited", "r3")
    saved = step(
        master, ("check_inbox", TakeIn()), ("wait_for_results", Await([one.pk], timeout=60))
    )
    assert not saved.parked
    read = json.loads(saved.rows[0].content)["messages"]
    assert [message["content"] for message in read] == ["not awaited"]
    rows, _ = memory.collect(
        master, [memory.Call("call-wait_for_results", "wait_for_results", "{}")]
    )
    assert json.loads(rows[0].content)["results"][0]["content"] == "awaited"
    assert memory.take_in(master) == []


def test_an_ack_counts_once(master):
    task, _ = send(master)
    assert task.ack() is True
    assert task.ack() is False
    assert InboxMessage.objects.get(pk=task.pk).ack() is False


def test_the_first_result_is_accepted_and_a_later_one_is_kept_as_late(chat, master):
    task, child = send(master)
    child = begin(child, "r2")
    with locked(chat.pk) as session:
        first = inbox.post_result(session, child, "one", sender="researcher", reason="completed")
        second = inbox.post_result(session, child, "two", sender="researcher", reason="completed")
    assert first
    assert second
    assert (first.accepted_for, first.late) == (task, False)
    assert (second.accepted_for, second.late) == (None, True)
    told = [row.content for row in memory.take_in(master)]
    assert ["; late, " in text for text in told] == [False, True]
    assert memory.take_in(master) == []  # told once
    assert InboxMessage.objects.get(accepted_for=task) == first


def test_the_database_itself_keeps_results_single_and_bound(chat, master):
    task, _ = send(master)
    common = {"session_id": chat.pk, "position": 99, "sender": "x", "recipient": "y"}
    InboxMessage.objects.create(
        **common, kind="result", in_reply_to=task, accepted_for=task, content=""
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        InboxMessage.objects.create(
            **common, kind="result", in_reply_to=task, accepted_for=task, content=""
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        InboxMessage.objects.create(**common, kind="result", content="")


def test_a_result_of_a_failed_turn_comes_into_the_next_one(chat, master):
    _, child = send(master)
    finish(begin(child, "r2"), "found", "r2")
    endings.failed(master, "broken", by="r1")
    following = claim(post(chat, "next"))
    assert [m.content[-5:] for m in memory.take_in(following)] == ["found"]


def test_missing_results_are_noted_once_in_a_turn(chat, master):
    task, _ = send(master)
    with runs.owned(master) as (session, fresh):
        assert inbox.note_missing_results(session, fresh, [task.pk]) is True
        assert inbox.note_missing_results(session, fresh, [task.pk]) is False
    assert "researcher" in memory.take_in(master)[0].content


@pytest.mark.django_db(transaction=True)
def test_the_same_call_at_the_same_moment_sends_once(redis_server):
    for _ in range(4):
        chat = new_chat()
        master = claim(post(chat))
        results = in_threads(*[lambda m=master: send(m)[0].pk for _ in range(4)])
        assert len(set(results)) == 1, results
        assert Run.objects.filter(session_id=chat.pk).count() == 2
        assert_at_rest(chat.pk)


@pytest.mark.django_db(transaction=True)
def test_many_senders_at_once_keep_their_order(redis_server):
    chat = new_chat()
    master = claim(post(chat))
    children = [
        begin(send(master, f"researcher-{n + 2}", call_id=f"c{n}")[1], f"r{n}") for n in range(4)
    ]

    def work(child, n):
        for k in range(3):
            send(child, "reviewer", f"{n}.{k}", call_id=f"k{k}")

    results = in_threads(*[lambda c=child, n=n: work(c, n) for n, child in enumerate(children)])
    assert results == [None] * 4
    messages = InboxMessage.objects.filter(recipient="reviewer").order_by("position")
    for n in range(4):
        mine = [m.content for m in messages if m.content.startswith(f"{n}.")]
        assert mine == [f"{n}.{k}" for k in range(3)]
    positions = list(messages.values_list("position", flat=True))
    assert len(set(positions)) == 12
