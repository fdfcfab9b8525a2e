"""Messages between agents: sent once, delivered once in effect, in order; the rules by name."""

import pytest
from django.db import IntegrityError, transaction

from chat import memory
from chat.executor import finish
from chat.models import Message
from coordination import endings, inbox, runs
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
    send,
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
