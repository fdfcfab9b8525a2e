"""An await always ends: by results, by the deadline, by a stop; each result is used once."""

import datetime as dt
import uuid

import pytest
from django.utils import timezone

from chat import memory
from chat.executor import finish
from chat.tools.base import Await
from coordination import endings, interrupts, rendezvous, runs, suspensions
from coordination.conf import conf
from coordination.errors import NotFound
from coordination.models import InboxMessage, Lease, Question, Run, Wait
from coordination.suspensions import Ask
from tests.core import (
    again,
    assert_at_rest,
    back_in_time,
    begin,
    claim,
    in_threads,
    judge,
    new_chat,
    post,
    respond_with,
    send,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


@pytest.fixture
def master(chat):
    return claim(post(chat))


def wait_for(run, *tasks, call_id="w1", mode="all", timeout=60):
    """As ``wait_for_results`` does; True if the run has parked."""
    respond_with(run, "", **{call_id: ("wait_for_results", {})})
    call = memory.Call(call_id, "wait_for_results", "{}")
    outcome = Await([task.pk for task in tasks], timeout, mode)
    return memory.save_outcomes(run, [(call, outcome)]).parked


def answer(child, text="found", runner="r2"):
    assert finish(begin(child, runner), text, runner)


def collected(run, call_id="w1"):
    """Go on: what the call brought, as status and content."""
    now = claim(again(run), "r9")
    with runs.owned(now) as (_, fresh):
        return [
            (o.status, o.result and o.result.content) for o in rendezvous.collect(fresh, call_id)
        ]


def expire():
    back_in_time(Wait.objects.filter(closed_at=None), 9999, "deadline_at", "opened_at")
    return rendezvous.expire_due()


def test_a_wait_ends_with_its_result(master):
    task, child = send(master)
    assert wait_for(master, task)
    answer(child)
    assert again(master).status == "queued"
    assert collected(master) == [("result", "found")]


def test_a_wait_for_what_is_there_already_does_not_park(master):
    task, child = send(master)
    answer(child)
    assert not wait_for(master, task)
    assert again(master).status == "running"
    assert Wait.objects.get().closed_at is not None


@pytest.mark.parametrize(("mode", "after_one"), [("all", "waiting_child"), ("any", "queued")])
def test_all_waits_for_the_last_and_any_for_the_first(master, mode, after_one):
    (one, first), (two, second) = send(master, call_id="1"), send(master, "reviewer", call_id="2")
    wait_for(master, one, two, mode=mode)
    answer(first, "first")
    assert again(master).status == after_one
    if mode == "all":
        answer(second, "second", "r3")
        assert collected(master) == [("result", "first"), ("result", "second")]
    else:
        assert collected(master) == [("result", "first"), ("timeout", None)]


def test_two_waits_in_one_step_end_each_with_its_own(master):
    (one, first), (two, second) = send(master, call_id="1"), send(master, call_id="2")
    respond_with(master, "", a=("wait_for_results", {}), b=("wait_for_results", {}))
    calls = [
        (memory.Call(name, "wait_for_results", "{}"), Await([task.pk], 60))
        for name, task in (("a", one), ("b", two))
    ]
    assert memory.save_outcomes(master, calls).parked
    answer(first, "first")
    assert again(master).status == "waiting_child"
    answer(again(second), "second", "r3")
    now = claim(again(master), "r9")
    with runs.owned(now) as (_, fresh):
        contents = [rendezvous.collect(fresh, name)[0].result.content for name in ("a", "b")]
    assert contents == ["first", "second"]


def test_a_timeout_promotes_to_a_delivery_later_once(master):
    task, child = send(master)
    wait_for(master, task)
    assert expire() == 1
    assert again(master).status == "queued"
    assert collected(master) == [("timeout", None)]
    answer(child)
    taken = memory.take_in(again(master))
    assert [m.content[-5:] for m in taken] == ["found"]
    assert memory.take_in(again(master)) == []


def test_a_result_between_the_deadline_and_its_reader_is_used_once(master):
    task, child = send(master)
    wait_for(master, task)
    expire()
    answer(child)
    assert collected(master) == [("result", "found")]
    assert memory.take_in(again(master)) == []


def test_nothing_expires_before_its_time(master):
    task, _ = send(master)
    wait_for(master, task, timeout=60)
    back_in_time(Wait.objects.all(), 50, "deadline_at")
    assert rendezvous.expire_due() == 0
    back_in_time(Wait.objects.all(), 11, "deadline_at")
    assert rendezvous.expire_due() == 1
    assert rendezvous.expire_due() == 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_node_whose_clock_is_wrong_ends_no_wait_and_no_question_too_soon(
    chat, master, monkeypatch, hours
):
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + dt.timedelta(hours=hours))
    task, child = send(master)
    child = begin(child, "r2")
    wait_for(master, task, timeout=60)
    monkeypatch.setattr(timezone, "now", real)
    assert rendezvous.expire_due() == 0
    monkeypatch.setattr(timezone, "now", lambda: real() + dt.timedelta(hours=hours))
    assert rendezvous.expire_due() == 0
    respond_with(child, "", q=("ask_user", {}))
    memory.save_outcomes(child, [(memory.Call("q", "ask_user", "{}"), Ask(question="which?"))])
    back_in_time(Question.objects.all(), conf.question_ttl - 60, "expires_at")
    assert suspensions.expire_due() == 0
    back_in_time(Question.objects.all(), 61, "expires_at")
    assert suspensions.expire_due() == 1
    back_in_time(Wait.objects.all(), 50, "deadline_at")
    assert rendezvous.expire_due() == 0
    back_in_time(Wait.objects.all(), 11, "deadline_at")
    assert rendezvous.expire_due() == 1


HOW = {
    "lost": lambda child: judge(child, Lease.End.EXPIRED),
    "crashed": lambda child: judge(child, Lease.End.CRASHED),
    "failed": lambda child: endings.failed(child, "it broke", by="r2"),
    "budget": lambda child: endings.failed(child, "too long", reason="budget", by="r2"),
    "interrupted": lambda child: (
        interrupts.request(child.session_id, by="alice", agent_id="researcher"),
        endings.stopped(child, by="r2"),
    ),
    "empty": lambda child: finish(child, "", "r2"),
}
STATUS = {"crashed": "lost", "budget": "failed", "empty": "result"}


@pytest.mark.parametrize("how", HOW)
def test_the_waiting_master_hears_how_it_ended(chat, master, how):
    task, child = send(master)
    wait_for(master, task)
    HOW[how](begin(child, "r2"))
    ((status, content),) = collected(master)
    assert status == STATUS.get(how, how)
    if how in ("failed", "budget"):
        assert again(child).detail in content
    assert_at_rest(chat.pk)


def test_a_task_of_somebody_else_is_not_awaited(chat, master):
    other = claim(post(new_chat("bob")), "r5")
    foreign, _ = send(other)
    mine, child = send(master)
    child = begin(child, "r2")
    for run, task_id in ((master, foreign.pk), (master, uuid.uuid4()), (child, mine.pk)):
        with pytest.raises(NotFound), runs.owned(run) as (session, fresh):
            rendezvous.open_wait(session, fresh, tool_call_id="w", tasks=[task_id], timeout=1)
    assert not Wait.objects.exists()


def test_a_result_is_not_a_task_to_wait_for(master):
    task, child = send(master)
    answer(child)
    with pytest.raises(NotFound), runs.owned(master) as (session, fresh):
        rendezvous.open_wait(
            session, fresh, tool_call_id="w", tasks=[task.accepted_result.pk], timeout=1
        )


def test_the_same_task_named_twice_is_one(master):
    task, child = send(master)
    assert wait_for(master, task, task)
    answer(child)
    assert collected(master) == [("result", "found")]


def test_the_clock_stands_still_while_a_question_is_open_below(chat, master):
    task, child = send(master)
    child = begin(child, "r2")
    wait_for(master, task, timeout=60)
    respond_with(child, "", q=("ask_user", {}))
    call = memory.Call("q", "ask_user", "{}")
    memory.save_outcomes(child, [(call, Ask(question="which?"))])
    wait = Wait.objects.get()
    assert wait.paused_at is not None
    back_in_time(Wait.objects.all(), 3600, "deadline_at", "opened_at", "paused_at")
    assert rendezvous.expire_due() == 0
    question = again(child).questions.get()
    suspensions.respond(chat.pk, question.pk, resolved=True, payload="red", by="alice")
    wait.refresh_from_db()
    assert wait.paused_at is None
    assert 50 < (wait.deadline_at - wait.opened_at).total_seconds() - 3600 < 70
    assert rendezvous.expire_due() == 0
    assert expire() == 1


def test_a_wait_that_opens_above_an_open_question_stands_still_at_once(master):
    task, child = send(master)
    child = begin(child, "r2")
    respond_with(child, "", q=("ask_user", {}))
    memory.save_outcomes(child, [(memory.Call("q", "ask_user", "{}"), Ask(question="which?"))])
    wait_for(master, task)
    assert Wait.objects.get().paused_at is not None


def test_two_questions_below_hold_the_clock_until_both_are_closed(chat, master):
    (one, first), (two, second) = send(master, call_id="1"), send(master, "reviewer", call_id="2")
    wait_for(master, one, two)
    questions = []
    for child, runner in ((first, "r2"), (second, "r3")):
        child = begin(child, runner)
        respond_with(child, "", q=("ask_user", {}))
        memory.save_outcomes(child, [(memory.Call("q", "ask_user", "{}"), Ask(question="?"))])
        questions.append(again(child).questions.get())
    suspensions.respond(chat.pk, questions[0].pk, resolved=True, payload="a", by="alice")
    assert Wait.objects.get().paused_at is not None
    suspensions.respond(chat.pk, questions[1].pk, resolved=False, payload=None, by="alice")
    assert Wait.objects.get().paused_at is None


def test_the_tail_has_one_limit_however_often_it_is_waited(master):
    send(master, call_id="1")
    _, second = send(master, "reviewer", call_id="2")
    assert finish(master, "sent", "r1")
    assert again(master).status == "waiting_child"
    back_in_time(Wait.objects.all(), 100, "deadline_at", "opened_at")
    answer(second, "two", "r3")
    now = claim(again(master), "r9")
    assert len(memory.take_in(now)) == 1
    assert 0 < rendezvous.tail_left(now) < 25
    assert finish(now, "sent", "r9")
    assert again(now).status == "waiting_child"
    back_in_time(Wait.objects.all(), 100, "deadline_at", "opened_at")
    assert rendezvous.expire_due() == 1
    now = claim(again(master), "r9")
    assert finish(now, "sent", "r9") is False  # one more step is told what is missing
    assert len(memory.take_in(now)) == 1
    assert finish(now, "the end", "r9")
    assert again(master).status == "completed"


@pytest.mark.django_db(transaction=True)
def test_result_and_deadline_at_the_same_moment_use_it_once(redis_server):
    for _ in range(8):
        chat = new_chat()
        master = claim(post(chat))
        task, child = send(master)
        wait_for(master, task)
        child = begin(child, "r2")
        back_in_time(Wait.objects.filter(closed_at=None), 9999, "deadline_at", "opened_at")
        results = in_threads(
            lambda c=child: finish(c, "found", "r2"), rendezvous.expire_due, rendezvous.expire_due
        )
        assert results[0] is True, results
        assert sum(results[1:]) <= 1
        now = claim(again(master), "r9")
        rows, _ = memory.collect(now, [memory.Call("w1", "wait_for_results", "{}")])
        used = ("found" in rows[0].content) + len(memory.take_in(now))
        assert used == 1
        assert InboxMessage.objects.get(accepted_for=task).state == "acked"


@pytest.mark.django_db(transaction=True)
def test_the_wait_and_its_result_at_the_same_moment_miss_each_other_never(redis_server):
    for _ in range(8):
        chat = new_chat()
        master = claim(post(chat))
        task, child = send(master)
        child = begin(child, "r2")
        respond_with(master, "", w1=("wait_for_results", {}))
        call = (memory.Call("w1", "wait_for_results", "{}"), Await([task.pk], 60))
        saved, done = in_threads(
            lambda m=master, c=call: memory.save_outcomes(m, [c]).parked,
            lambda c=child: finish(c, "found", "r2"),
        )
        assert done is True
        assert again(master).status == ("queued" if saved else "running")
        assert Run.objects.get(pk=master.pk).waits.get().closed_at is not None
