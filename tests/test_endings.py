"""However a run ends, everything that follows is there, once, and written by one transaction."""

import uuid

import pytest

from chat import actions, memory
from chat.executor import finish
from chat.llm import Usage
from chat.models import Message
from chat.tools.base import TakeIn, Value
from coordination import (
    endings,
    inbox,
    interrupts,
    leases,
    panel,
    rendezvous,
    runs,
    suspensions,
    vocabulary,
    worklog,
)
from coordination.conf import conf
from coordination.errors import Fenced
from coordination.models import Event, InboxMessage, Lease, Question, Run, Wait
from coordination.suspensions import Ask
from coordination.transactions import locked
from tests.core import (
    again,
    assert_at_rest,
    begin,
    claim,
    customs,
    expire_leases,
    in_threads,
    judge,
    lease_of,
    logged,
    new_chat,
    post,
    respond_with,
    say,
    send,
    worklog_kinds,
    write_stream,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


@pytest.fixture
def master(chat):
    return claim(post(chat))


def settle(run, status="completed", reason="completed", **values):
    with locked(run.session_id) as session:
        return endings.settle(session, again(run), status, reason=reason, by="r1", **values)


def crash(run, end=Lease.End.CRASHED):
    return judge(run, end, by="supervisor")


WAYS_TO_END = {
    "completed": lambda run: finish(run, "the end", "r1"),
    "failed": lambda run: endings.failed(run, "it broke", by="r1"),
    "budget": lambda run: endings.failed(run, "too long", reason="budget", by="r1"),
    "stopped": lambda run: (
        interrupts.request(run.session_id, by="alice", run_id=run.pk),
        endings.stopped(run, by="r1"),
    )[-1],
    "crashed": lambda run: crash(run),
    "lease_expired": lambda run: crash(run, Lease.End.EXPIRED),
    "fenced": lambda run: (
        interrupts.request(run.session_id, by="alice", run_id=run.pk),
        endings.fence(lease_of(run), by="guard"),
    )[-1],
}
STATUS_AND_REASON = {
    "completed": ("completed", "completed"),
    "failed": ("failed", "error"),
    "budget": ("failed", "budget"),
    "stopped": ("interrupted", "interrupted"),
    "crashed": ("failed", "crashed"),
    "lease_expired": ("timeout", "lease_expired"),
    "fenced": ("interrupted", "interrupted"),
}


@pytest.fixture
def last_attempt(monkeypatch):
    """A lost master is given up at once."""
    monkeypatch.setattr(conf, "max_attempts", 1)


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_every_way_a_master_ends_leaves_one_end(chat, master, way, last_attempt):
    say(master, "I was saying")
    assert WAYS_TO_END[way](master)
    ended = again(master)
    assert (ended.status, ended.reason) == STATUS_AND_REASON[way]
    if way != "completed":  # a completed step is saved before its run ends
        assert_at_rest(chat.pk)


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_every_way_a_sub_agent_ends_answers_its_task_once(chat, master, way):
    task, child = send(master)
    child = begin(child, "r2")
    assert WAYS_TO_END[way](child)
    result = InboxMessage.objects.get(accepted_for=task)
    assert result.in_reply_to == task
    assert result.reason == STATUS_AND_REASON[way][1]
    assert result.sender == ("researcher" if way == "completed" else "system")
    assert_at_rest(chat.pk)


@pytest.mark.parametrize("first", WAYS_TO_END)
def test_of_two_ends_of_a_sub_agent_the_first_stands(chat, master, first):
    _, child = send(master)
    child = begin(child, "r2")
    lease = lease_of(child)
    WAYS_TO_END[first](child)
    stood = again(child)
    with pytest.raises(Fenced):
        finish(child, "late", "r2")
    for late in (
        lambda: endings.failed(child, "late", by="r2"),
        lambda: endings.stopped(child, by="r2"),
        lambda: endings.handed_over(child, by="r2"),
        lambda: endings.lost(lease, end="crashed", by="late"),
        lambda: endings.lost(lease, end="lease_expired", by="late"),
        lambda: endings.fence(lease, by="late"),
        lambda: endings.abandoned(child.pk, "r2"),
    ):
        assert late() is False
    now = again(child)
    assert (now.status, now.reason, now.ended_at) == (stood.status, stood.reason, stood.ended_at)
    assert_at_rest(chat.pk)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_lost_sub_agent_is_spoken_for_in_the_language_of_the_session(language):
    chat = new_chat(language=language)
    master = claim(post(chat))
    task, child = send(master)
    crash(begin(child, "r2"), Lease.End.EXPIRED)
    said = {
        "en": "[sub-agent lost] heartbeat timed out",
        "zh-hans": "[子 Agent 失联] 心跳超时",
    }
    assert InboxMessage.objects.get(accepted_for=task).content == said[language]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_stopped_turn_ends_with_a_marked_word_to_the_user(language):
    chat = new_chat(language=language)
    master = claim(post(chat))
    WAYS_TO_END["stopped"](master)
    said = {
        "en": "Stopped. What can I help you with next?",
        "zh-hans": "已停止生成。请告诉我接下来有什么可以帮您的？",
    }
    (end,) = logged(chat.pk, "RUN_FINISHED")
    assert end["outcome"] == {"type": "cancelled"}
    assert end["result"] == {"kind": "stopped", "reason": "interrupted", "text": said[language]}


def test_nothing_follows_the_terminal_event_of_a_quiet_turn(chat, master):
    send(master)
    endings.failed(master, "it broke", by="r1")
    assert logged(chat.pk)[-1]["type"] == "RUN_ERROR"


def test_the_end_of_a_master_that_failed_stops_its_sub_agents(chat, master):
    _, working = send(master, call_id="c1")
    _, waiting = send(master, call_id="c2")
    working = claim(working, "r2")
    endings.failed(master, "it broke", by="r1")
    assert again(waiting).status == Run.Status.FAILED
    assert again(working).stop_requested_at is not None
    with pytest.raises(Fenced):
        runs.check_owned(working)
    assert endings.stopped(working, by="r2")
    assert again(working).status == Run.Status.FAILED  # interrupted is only ever the person's stop
    assert_at_rest(chat.pk)


def test_a_sub_agent_of_a_completed_master_may_go_on(chat, master):
    task, child = send(master)
    child = begin(child, "r2")
    settle(master)
    assert again(child).stop_requested_at is None
    assert finish(child, "found", "r2")
    result = InboxMessage.objects.get(accepted_for=task)
    assert (result.state, result.late) == (InboxMessage.State.PENDING, False)
    assert_at_rest(chat.pk)


def test_a_lost_master_goes_back_to_the_queue_with_its_memory(chat, master):
    respond_with(master, "I look", c1=("check_inbox", {}))
    half = say(master, "half a sen", ended=False)
    assert crash(master)
    waiting = again(master)
    assert (waiting.status, waiting.epoch) == (Run.Status.QUEUED, master.epoch + 1)
    assert logged(chat.pk, "TEXT_MESSAGE_END")[-1]["messageId"] == half
    rows = memory.conversation(chat.pk, "assistant")
    assert [call.call_id for call in memory.open_calls(rows[:-1])] == ["c1"]
    assert claim(waiting, "r2").epoch == master.epoch + 2
    assert worklog_kinds(chat.pk)[-1] == "crashed"


def test_a_step_that_broke_is_shown_but_never_given_to_the_model(chat, master):
    say(master, "half a sen", ended=False)
    crash(master)
    rows = memory.conversation(chat.pk, "assistant")
    assert rows[-1].content == "half a sen"
    assert "half a sen" not in str(memory.history(rows))
    assert memory.open_calls(rows) == []


def test_the_open_calls_survive_a_broken_step_behind_them(chat, master):
    """The text of a broken step stands behind the calls: it must not hide them."""
    respond_with(master, "", c1=("check_inbox", {}))
    say(master, "half", ended=False)
    crash(master)
    rows = memory.conversation(chat.pk, "assistant")
    assert [call.call_id for call in memory.open_calls(rows)] == ["c1"]


def test_a_master_that_kills_its_worker_is_given_up_at_the_third_time(chat):
    run = post(chat)
    for attempt in range(1, conf.max_attempts + 1):
        claimed = claim(again(run), f"r{attempt}")
        assert crash(claimed)
    ended = again(run)
    assert (ended.status, ended.reason) == ("failed", "crashed")
    assert "3 attempts" in ended.detail
    assert_at_rest(chat.pk)


def test_a_tool_that_kills_its_worker_is_made_three_times(chat):
    """Taking the step up again is no progress: attempts count from the last saved step."""
    run = post(chat)
    claimed = claim(run)
    respond_with(claimed, "", c1=("poison", {}))
    made = 1
    while crash(claimed) and again(run).status == Run.Status.QUEUED:
        claimed = claim(again(run))
        rows, to_make = memory.collect(
            claimed, memory.open_calls(memory.conversation(chat.pk, "assistant"))
        )
        assert not rows
        assert [call.call_id for call in to_make] == ["c1"]
        made += 1
        assert made < 10, "for ever"
    assert made == conf.max_attempts
    assert again(run).reason == "crashed"
    assert_at_rest(chat.pk)


def test_a_step_that_was_saved_starts_the_count_again(chat):
    run = post(chat)
    crash(claim(run))
    second = claim(again(run))
    assert second.attempts == 2
    respond_with(second, "", c1=("check_inbox", {}))
    assert crash(second)
    third = claim(again(run))
    assert crash(third)
    assert again(run).status == Run.Status.QUEUED


@pytest.mark.parametrize("saved", [False, True])
def test_a_shutdown_hands_over_and_counts_as_no_attempt(chat, saved):
    run = post(chat)
    for _ in range(conf.max_attempts + 2):
        claimed = claim(again(run))
        if saved:
            respond_with(claimed, "so far")
        claimed.usage = memory.add_usage(claimed.usage, Usage("m", "m", 3, 1))
        assert endings.handed_over(claimed, by="r1")
        assert again(run).status == Run.Status.QUEUED
        assert again(run).attempts == 0
        assert again(run).lane is not None
    assert not logged(chat.pk, "RUN_FINISHED", "RUN_ERROR")
    assert Lease.objects.filter(run=run, end=Lease.End.HANDED_OVER).count() == conf.max_attempts + 2
    steps = conf.max_attempts + 2  # what each began has cost something, saved or cut off
    assert again(run).usage["total_tokens"] == steps * (4 + 15 * saved)


def test_a_stop_that_came_first_is_not_handed_over(chat, master):
    interrupts.request(chat.pk, by="alice")
    assert endings.handed_over(master, by="r1")
    assert again(master).status == Run.Status.INTERRUPTED
    assert_at_rest(chat.pk)


def test_a_stop_that_came_first_is_what_an_error_ends_as(chat, master):
    interrupts.request(chat.pk, by="alice")
    assert endings.failed(master, "the stream broke", by="r1")
    assert again(master).status == Run.Status.INTERRUPTED
    assert_at_rest(chat.pk)


def test_a_stop_is_what_a_lost_owner_ends_as(chat, master):
    interrupts.request(chat.pk, by="alice")
    assert crash(master)
    assert again(master).status == Run.Status.INTERRUPTED
    assert again(master).epoch == master.epoch + 1
    assert_at_rest(chat.pk)


def test_a_run_that_nobody_told_to_stop_is_not_fenced(chat, master):
    assert not endings.fence(lease_of(master), by="guard")
    assert again(master).status == Run.Status.RUNNING


def test_the_next_message_starts_when_a_turn_ends_however_it_ends(chat, master):
    waiting = post(chat, "and this")
    assert waiting.lane is None
    endings.failed(master, "it broke", by="r1")
    assert again(waiting).lane is not None
    assert claim(again(waiting)).status == Run.Status.RUNNING


def test_a_turn_that_waits_for_several_things_ends_with_none_of_them_open(chat, master):
    task, _ = send(master)
    with runs.owned(master) as (session, fresh):
        suspensions.open_question(session, fresh, "q1", Ask(question="which?"))
        rendezvous.open_wait(session, fresh, tool_call_id="w1", tasks=[task.pk], timeout=60)
        runs.park(session, fresh, Run.Status.WAITING_USER)
    interrupts.request(chat.pk, by="alice")
    assert again(master).status == Run.Status.INTERRUPTED
    assert Question.objects.get().state == Question.State.CANCELLED
    assert Wait.objects.get().closed_at is not None
    assert_at_rest(chat.pk)


@pytest.mark.parametrize("end", [Lease.End.CRASHED, Lease.End.EXPIRED])
def test_a_task_marked_repeatable_begins_again_and_is_given_up_at_the_third_time(chat, master, end):
    with runs.owned(master) as (session, fresh):
        task = inbox.send_task(
            session,
            fresh,
            to="researcher",
            content="look",
            kind="task",
            tool_call_id="c1",
            repeatable=True,
        )
    child = Run.objects.get(task=task)
    for attempt in range(conf.max_attempts):
        assert again(child).status == Run.Status.QUEUED
        assert inbox.is_outstanding(task.pk)
        crash(claim(again(child), f"r{attempt}"), end)
    assert again(child).status in ("failed", "timeout")
    assert InboxMessage.objects.get(accepted_for=task).reason == end
    assert_at_rest(chat.pk)


# -- fencing: a zombie writes nothing ------------------------------------------------------------


@pytest.fixture(params=["requeued", "settled", "claimed again"])
def zombie(request, chat, master):
    """A runner that was frozen past its lease, and thaws."""
    task, _ = send(master)
    respond_with(master, "", c1=("send_message", {}))
    if request.param == "settled":
        settle(master, "failed", "error")
    else:
        crash(master, Lease.End.EXPIRED)
    if request.param == "claimed again":
        claim(again(master), "r9")
    master.task_sent = task
    return master


def _ask(zombie):
    with runs.owned(zombie) as (session, fresh):
        suspensions.open_question(session, fresh, "q", Ask(question="?"))


def _wait(zombie):
    with runs.owned(zombie) as (session, fresh):
        tasks = [zombie.task_sent.pk]
        rendezvous.open_wait(session, fresh, tool_call_id="w", tasks=tasks, timeout=60)


def _park(zombie):
    with runs.owned(zombie) as (session, fresh):
        runs.park(session, fresh, Run.Status.WAITING_USER)


def _log_work(zombie):
    with runs.owned(zombie) as (session, fresh):
        worklog.write(session, "late", "late", run=fresh)


def _count_usage(zombie):
    with runs.owned(zombie) as (session, fresh):
        runs.mark_saved(session, fresh, {"total_tokens": 99})


def _ack(zombie):
    """The inbox tool's messages are acked where its result is saved."""
    memory.save_outcomes(zombie, [(_call(), TakeIn())])


def _call(call_id="c1"):
    return memory.Call(call_id, "send_message", "{}")


FENCED_WRITERS = {
    "events": lambda zombie: say(zombie, "from the grave"),
    "response": lambda zombie: respond_with(zombie, ""),
    "outcomes": lambda zombie: memory.save_outcomes(zombie, [(_call(), Value("late"))]),
    "collect": lambda zombie: memory.collect(zombie, [_call()]),
    "take in": memory.take_in,
    "send": lambda zombie: send(zombie, "reviewer", call_id="late"),
    "ask": _ask,
    "wait": _wait,
    "park": _park,
    "work log": _log_work,
    "usage": _count_usage,
    "ack": _ack,
    "look": memory.look_before_model_call,
    "finish": lambda zombie: finish(zombie, "late", "r1"),
    "owned though stopped": lambda zombie: runs.owned(zombie, though_stopped=True).__enter__(),
}


@pytest.mark.parametrize("writer", FENCED_WRITERS)
def test_a_fenced_runner_writes_nothing(chat, zombie, writer):
    before = _everything(chat.pk)
    with pytest.raises(Fenced):
        FENCED_WRITERS[writer](zombie)
    assert _everything(chat.pk) == before


@pytest.mark.parametrize("end", ["failed", "stopped", "handed_over", "abandoned"])
def test_a_fenced_runner_ends_nothing(chat, zombie, end):
    before = _everything(chat.pk)
    zombie.usage = {"total_tokens": 99}
    ends = {
        "failed": lambda: endings.failed(zombie, "late", by="r1"),
        "stopped": lambda: endings.stopped(zombie, by="r1"),
        "handed_over": lambda: endings.handed_over(zombie, by="r1"),
        "abandoned": lambda: endings.abandoned(zombie.pk, "r1"),
    }
    assert ends[end]() is False
    assert _everything(chat.pk) == before


def test_a_fenced_runner_renews_and_releases_nothing(chat, zombie):
    known = {1: leases.Held(zombie.pk, chat.pk, "assistant", "r1", zombie.epoch)}
    assert leases.renew(["r1"], known) == []
    leases.mirror([leases.Held(zombie.pk, chat.pk, "assistant", "r9", zombie.epoch + 2)])
    leases.unmirror(chat.pk, "assistant", "r1")
    assert leases._redis().get(leases.key(chat.pk, "assistant")).startswith(b"r9:")
    before = sorted(Lease.objects.filter(session_id=chat.pk).values_list())
    assert not Lease.close(zombie.pk, zombie.epoch, Lease.End.RELEASED, by="r1")
    assert sorted(Lease.objects.filter(session_id=chat.pk).values_list()) == before


def _everything(session_id):
    from chat.models import Message
    from coordination.models import Event, WorkLogEntry

    tables = (Event, InboxMessage, Question, Wait, WorkLogEntry, Message)
    of_session = [
        sorted(map(str, t.objects.filter(session_id=session_id).values_list())) for t in tables
    ]
    return [*of_session, sorted(map(str, Run.objects.filter(session_id=session_id).values_list()))]


# -- races on the database -----------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_completion_and_verdict_at_the_same_moment_agree():
    for _ in range(8):
        chat = new_chat()
        master = claim(post(chat))
        task, child = send(master)
        child = begin(child, "r2")
        expire_leases(child)
        lease = lease_of(child)
        results = in_threads(
            lambda child=child: finish(child, "found", "r2"),
            lambda lease=lease: endings.lost(lease, end=Lease.End.EXPIRED, by="g1"),
            lambda lease=lease: endings.lost(lease, end=Lease.End.EXPIRED, by="g2"),
        )
        won = [result for result in results if result is True]
        assert len(won) == 1, results
        reason = InboxMessage.objects.get(accepted_for=task).reason
        assert reason == again(child).reason
        assert len([e for e in customs(chat.pk, "ax") if e["runId"] == str(child.pk)]) == 1
        assert_at_rest(chat.pk)


@pytest.mark.django_db(transaction=True)
def test_stop_and_completion_at_the_same_moment_have_one_winner():
    for _ in range(8):
        chat = new_chat()
        master = claim(post(chat))
        results = in_threads(
            lambda master=master: finish(master, "the end", "r1"),
            lambda chat=chat: interrupts.request(chat.pk, by="alice"),
        )
        now = again(master)
        if now.status == Run.Status.COMPLETED:
            assert results == [True, interrupts.Stopped("no_active_run", [])]
        else:
            assert isinstance(results[0], Fenced)
            assert results[1].status == "accepted"
            assert endings.stopped(master, by="r1")
        assert_at_rest(chat.pk)


def test_a_stranger_run_is_not_settled(chat):
    run = Run(pk=uuid.uuid4(), session_id=chat.pk, agent_id="assistant", epoch=1)
    assert endings.failed(run, "?", by="r1") is False


# -- what the log may hold -----------------------------------------------------------------------


def kinds(chat, run):
    rows = Event.objects.filter(session_id=chat.pk, run_id=run.pk).order_by("seq")
    return [kind for kind in rows.values_list("type", flat=True) if kind != "CUSTOM"]


@pytest.mark.parametrize("paused", [False, True])
def test_a_turn_that_is_stopped_while_it_waits_is_told_after_the_one_before(chat, paused):
    first = claim(post(chat))
    waiting, behind = post(chat, "and this"), post(chat, "and that")
    if paused:
        ask(first)
    interrupts.request(chat.pk, by="alice", run_id=waiting.pk)
    assert customs(chat.pk, "ax") == [
        {
            "agentId": "assistant",
            "runId": str(waiting.pk),
            "status": "interrupted",
            "reason": "interrupted",
        }
    ]
    assert kinds(chat, waiting) == []
    assert_at_rest(chat.pk)
    assert panel.session_status(chat.pk)[1] == first.pk
    assert [agent["run_id"] for agent in panel.agents(chat.pk)] == [str(first.pk)]
    if paused:
        interrupts.request(chat.pk, by="alice")
    else:
        finish(again(first), "done", "r1")
    assert kinds(chat, first)[-1] == "RUN_FINISHED"
    assert kinds(chat, waiting) == ["RUN_STARTED", "RUN_FINISHED"]
    assert_at_rest(chat.pk)
    finish(claim(again(behind)), "done", "r1")
    assert kinds(chat, waiting) == ["RUN_STARTED", "RUN_FINISHED"]
    assert_at_rest(chat.pk)
    words = [m.content for m in memory.conversation(chat.pk, "assistant") if m.role == "user"]
    assert words == ["hello", "and this", "and that"]


def ask(run):
    respond_with(run, "", q=("ask_user", {}))
    memory.save_outcomes(run, [(memory.Call("q", "ask_user", "{}"), Ask(question="?"))])


@pytest.mark.parametrize("began", [False, True])
def test_a_session_that_is_deleted_with_a_queue_ends_in_order(chat, began):
    first = post(chat)
    first = claim(first) if began else first
    waiting = [post(chat, "two"), post(chat, "three")]
    actions._delete(chat.pk, "alice")
    if began:
        endings.stopped(first, by="r1")
    starts = [event["runId"] for event in logged(chat.pk, "RUN_STARTED")]
    assert starts == [str(run.pk) for run in (first, *waiting)]
    assert_at_rest(chat.pk)


def outliving(chat, *, said="before, "):
    """A sub-agent in mid-sentence whose master's turn has ended."""
    master = claim(post(chat))
    _, child = send(master)
    child = begin(child, "r2")
    message_id = say(child, said, ended=False)
    with locked(chat.pk) as session:
        endings.settle(session, again(master), "completed", reason="completed", by="r1")
    return child, message_id


def test_a_sub_agent_that_outlives_the_turn_is_heard_no_more_and_loses_nothing(chat):
    child, message_id = outliving(chat)
    assert_at_rest(chat.pk)
    heard = kinds(chat, child)
    seen = again(child).last_progress_at
    write_stream(child, vocabulary.text_content(child, message_id, "after."))
    assert again(child).last_progress_at > seen
    save_text(child, message_id, "before, after.")
    respond_with(child, "", c9=("check_inbox", {}))
    memory.save_outcomes(child, [(memory.Call("c9", "check_inbox", "{}"), Value("nothing"))])
    finish(child, "before, after.", "r2")
    assert kinds(chat, child) == heard
    assert customs(chat.pk, "ax")[-1]["runId"] == str(child.pk)
    said = [m.content for m in memory.conversation(chat.pk, "researcher") if m.role == "assistant"]
    assert said == ["before, after.", ""]
    assert_at_rest(chat.pk)


def save_text(run, message_id, text):
    from pydantic_ai.messages import ModelResponse, TextPart

    response = ModelResponse(parts=[TextPart(text)])
    usage = Usage("scripted", "scripted", 10, 5)
    memory.save_response(run, uuid.UUID(message_id), response, usage, text_open=True)


def test_what_a_sub_agent_says_after_the_turn_and_does_not_finish_is_kept_as_it_was_heard(chat):
    child, message_id = outliving(chat)
    following = claim(post(chat, "next"), "r3")
    write_stream(child, vocabulary.text_content(child, message_id, "after"))
    interrupts.request(chat.pk, by="alice", agent_id="researcher")
    assert endings.stopped(child, by="r2")
    kept = Message.objects.get(run_id=child.pk, role="assistant")
    assert (str(kept.pk), kept.content, kept.status) == (message_id, "before, ", "interrupted")
    finish(following, "ok", "r3")
    assert_at_rest(chat.pk)


def test_a_parked_sub_agent_of_a_turn_that_fails_ends_in_the_log_before_it(chat):
    master = claim(post(chat))
    _, child = send(master)
    ask(begin(child, "r2"))
    assert endings.failed(master, "the provider is away", by="r1")
    assert kinds(chat, child)[-1] == "SUBAGENT_ERROR"
    assert_at_rest(chat.pk)
