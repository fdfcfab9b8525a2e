"""Who is lost, and who only seems to be."""

import datetime as dt

import pytest
from django.db import InterfaceError, OperationalError

from coordination import endings, guard, interrupts, leases
from coordination.conf import conf
from coordination.guard import LeaseGuard
from coordination.models import InboxMessage, Lease, Run, WorkLogEntry
from tests.core import (
    again,
    assert_at_rest,
    back_in_time,
    begin,
    claim,
    customs,
    expire_leases,
    in_threads,
    new_chat,
    post,
    send,
    worklog_kinds,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints", "regular")]


@pytest.fixture
def regular(monkeypatch):
    """The guard of these tests looks every second and forgives for two."""
    monkeypatch.setattr(conf, "guard_interval", 1)
    monkeypatch.setattr(conf, "lease_grace", 2)
    monkeypatch.setattr(conf, "lease_ttl", 10)


@pytest.fixture
def child():
    master = claim(post(new_chat()))
    return begin(send(master)[1], "r2")


def look(it, *times):
    return [lease.run_id for now in times for lease in it.sweep(now=now)]


def test_a_lost_sub_agent_is_judged_after_its_grace(child):
    it = LeaseGuard("g")
    expire_leases(child)
    assert look(it, 100, 101) == []
    assert look(it, 102) == [child.pk]
    now = again(child)
    assert (now.status, now.reason, now.epoch) == ("timeout", "lease_expired", child.epoch + 1)
    assert Lease.objects.get(run=child).end == "lease_expired"
    result = InboxMessage.objects.get(kind="result")
    assert (result.sender, result.reason) == ("system", "lease_expired")
    assert customs(child.session_id, "ax")[-1]["reason"] == "lease_expired"
    assert "lease_expired" in worklog_kinds(child.session_id)
    assert_at_rest(child.session_id)
    assert look(it, 103, 104) == []


def test_a_beat_between_the_look_and_the_verdict_is_in_time(child):
    expire_leases(child)
    [looked_at] = leases.expired(grace=0)
    leases.renew([child.runner_id])
    assert endings.lost(looked_at, end=Lease.End.EXPIRED, by="guard") is False
    assert again(child).status == "running"


def test_a_late_beat_is_forgiven_and_the_grace_starts_again(child):
    it = LeaseGuard("g")
    expire_leases(child)
    assert look(it, 100, 101) == []
    leases.renew(["r2"])
    assert look(it, 102) == []
    expire_leases(child)
    assert look(it, 103, 104) == []
    assert look(it, 105) == [child.pk]


def test_a_key_that_is_there_speaks_for_its_runner(child):
    it = LeaseGuard("g")
    expire_leases(child)
    leases.mirror([leases.Held(child.pk, child.session_id, "researcher", "r2", 1, False)])
    assert look(it, 100, 101, 102, 103) == []
    leases.unmirror(child.session_id, "researcher", "r2")
    assert look(it, 104, 105) == []
    assert look(it, 106) == [child.pk]


def test_a_key_of_another_runner_speaks_for_nobody_else(child):
    it = LeaseGuard("g")
    expire_leases(child)
    leases.mirror([leases.Held(child.pk, child.session_id, "researcher", "r9", 1, False)])
    assert look(it, 100, 101, 102) == [child.pk]


def test_redis_away_keeps_nobody_alive_and_kills_nobody(child, redis_server):
    it = LeaseGuard("g")
    redis_server.kill()
    try:
        assert look(it, 100, 101, 102) == []
        expire_leases(child)
        assert look(it, 103, 104, 105) == [child.pk]
        assert WorkLogEntry.objects.filter(kind="guard_redis").count() == 1  # once, not each look
    finally:
        redis_server.start()


def test_a_guard_that_was_away_begins_again(child):
    it = LeaseGuard("g")
    expire_leases(child)
    assert look(it, 100) == []
    assert look(it, 106, 107) == []
    assert look(it, 108) == [child.pk]
    assert "did not look for 6.0 s" in WorkLogEntry.objects.get(kind="guard_late").text


def test_a_guard_that_was_away_for_a_lease_s_life_trusts_nobody_s_silence(child):
    it = LeaseGuard("g")
    assert look(it, 100) == []
    expire_leases(child)
    assert look(it, *range(200, 212)) == []
    assert look(it, 212, 213) == [child.pk]


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_the_database_must_be_back_for_a_lease_and_its_grace(child, monkeypatch, error):
    it = LeaseGuard("g")
    assert look(it, 100) == []
    with monkeypatch.context() as away:
        away.setattr(leases, "expired", _raises(error))
        for now in (101, 102, 103):
            with pytest.raises(error):
                it.sweep(now=now)
    expire_leases(child)
    assert look(it, *range(104, 115)) == []
    assert look(it, 115, 116) == [child.pk]


@pytest.mark.parametrize("hangs", ["database_now", "expired"])
def test_a_database_that_hung_must_be_back_as_long(child, monkeypatch, hangs):
    """Nobody could beat meanwhile, and no error says so: the guard's own query took as long."""
    it = LeaseGuard("g")
    clock = [100.0]
    real = getattr(leases, hangs)

    def hang(*args, **kwargs):
        clock[0] += 60
        expire_leases(child)
        return real(*args, **kwargs)

    monkeypatch.setattr("coordination.guard.time.monotonic", lambda: clock[0])
    assert it.sweep() == []
    with monkeypatch.context() as frozen:
        frozen.setattr(leases, hangs, hang)
        assert it.sweep() == []
    back = clock[0]
    while clock[0] < back + conf.lease_ttl + conf.lease_grace - 1:
        clock[0] += 1
        assert it.sweep() == [], clock[0] - back
    for _ in range(2 + int(conf.lease_grace)):
        clock[0] += 1
        judged = it.sweep()
        if judged:
            break
    assert [lease.run_id for lease in judged] == [child.pk]


def _raises(error):
    def away(grace):
        raise error

    return away


@pytest.mark.parametrize(("leap", "judged"), [(60, False), (6, True)])
def test_a_clock_that_leaps_ends_no_lease(child, monkeypatch, leap, judged):
    """As when the database's machine slept, or its clock was set."""
    it = LeaseGuard("g")
    assert look(it, 100) == []
    later = leases.database_now() + dt.timedelta(seconds=leap)
    monkeypatch.setattr(leases, "database_now", lambda: later)
    expire_leases(child)
    assert look(it, 101, 102, 103) == ([child.pk] if judged else [])
    assert WorkLogEntry.objects.filter(kind="guard_clock").count() == (not judged)


def test_a_beat_between_the_look_and_the_verdict_saves(child, monkeypatch):
    it = LeaseGuard("g")
    expire_leases(child)
    assert look(it, 100, 101) == []
    suspects = it._suspects()
    leases.renew(["r2"])
    monkeypatch.setattr(it, "_suspects", lambda: suspects)
    assert look(it, 102) == []
    assert again(child).status == "running"


def test_a_verdict_that_fails_holds_up_no_other(child, monkeypatch):
    other = begin(send(claim(post(new_chat()), "r3"))[1], "r4")
    real = endings.lost

    def lost(lease, **how):
        if lease.run_id == child.pk:
            raise ValueError("poison")
        return real(lease, **how)

    monkeypatch.setattr(endings, "lost", lost)
    for run in (child, other):
        expire_leases(run)
    assert look(LeaseGuard("g"), 100, 101, 102) == [other.pk]


def test_a_duty_that_fails_holds_up_no_other(monkeypatch):
    def fails():
        raise ValueError("poison")

    monkeypatch.setattr(guard, "mark_stalled", fails)
    run = claim(post(new_chat()))
    interrupts.request(run.session_id, by="alice")
    back_in_time(Run.objects.all(), conf.stop_grace + 1, "stop_requested_at")
    guard.rounds(LeaseGuard("g"))
    assert again(run).status == "interrupted"


def many(count, nodes):
    return [claim(post(new_chat()), f"r{n}", f"n{n % nodes}") for n in range(count)]


def test_half_of_the_cluster_at_once_is_an_alarm_and_no_verdict():
    members = many(6, nodes=3)
    for run in members[:4]:
        expire_leases(run)
    it = LeaseGuard("g")
    assert look(it, *range(100, 110)) == []
    assert WorkLogEntry.objects.filter(kind="guard_mass_event").count() == 1
    assert set(look(it, 110, 111)) == {run.pk for run in members[:4]}


def test_one_node_s_death_is_no_mass_event_whatever_its_share():
    members = many(6, nodes=1)
    for run in members:
        expire_leases(run)
    it = LeaseGuard("g")
    assert set(look(it, 100, 101, 102)) == {run.pk for run in members}


def test_few_leases_are_no_mass_event():
    members = many(3, nodes=3)
    for run in members:
        expire_leases(run)
    assert len(look(LeaseGuard("g"), 100, 101, 102)) == 3


def test_a_lost_master_goes_on_and_one_that_is_lost_too_often_is_given_up():
    chat = new_chat()
    run = post(chat)
    for attempt in range(conf.max_attempts):
        expire_leases(claim(again(run), f"r{attempt}"))
        assert look(LeaseGuard("g"), 100, 101, 102) == [run.pk]
    now = again(run)
    assert (now.status, now.reason) == ("timeout", "lease_expired")
    assert "3 attempts" in now.detail
    assert_at_rest(chat.pk)


def test_master_and_sub_agent_are_lost_together(child):
    master = Run.objects.get(pk=child.parent_id)
    expire_leases(master)
    expire_leases(child)
    assert len(look(LeaseGuard("g"), 100, 101, 102)) == 2
    assert again(child).status == "timeout"
    assert again(master).status == "queued"
    assert_at_rest(child.session_id)


def test_a_run_that_was_stopped_and_lost_is_stopped(child):
    interrupts.request(child.session_id, by="alice")
    for run in (child, Run.objects.get(pk=child.parent_id)):
        expire_leases(run)
    look(LeaseGuard("g"), 100, 101, 102)
    assert set(Run.objects.values_list("status", flat=True)) == {"interrupted"}
    assert_at_rest(child.session_id)


def test_a_parked_or_queued_run_is_never_lost():
    run = claim(post(new_chat()))
    endings.handed_over(run, by="r1")
    back_in_time(Run.objects.all(), 99999, "queued_at", "last_progress_at")
    assert look(LeaseGuard("g"), *range(100, 130)) == []


def test_a_stop_that_is_ignored_is_enforced_after_the_grace_and_not_before():
    run = claim(post(new_chat()))
    interrupts.request(run.session_id, by="alice")
    back_in_time(Run.objects.all(), conf.stop_grace - 1, "stop_requested_at")
    assert guard.enforce_stops("g") == 0
    back_in_time(Run.objects.all(), 2, "stop_requested_at")
    assert guard.enforce_stops("g") == 1
    assert guard.enforce_stops("g") == 0
    now = again(run)
    assert (now.status, now.epoch) == ("interrupted", run.epoch + 1)
    assert "fenced" in worklog_kinds(run.session_id)
    assert_at_rest(run.session_id)


def test_silence_is_stalled_and_a_word_is_running_again():
    run = claim(post(new_chat()))
    assert guard.mark_stalled() == 0
    back_in_time(Run.objects.filter(pk=run.pk), conf.stall_after + 1, "last_progress_at")
    assert guard.mark_stalled() == 1
    assert guard.mark_stalled() == 0
    assert again(run).status == "stalled"
    from tests.core import say

    say(run, "still here")
    guard.mark_stalled()
    guard.mark_stalled()
    assert again(run).status == "running"
    said = [kind for kind in worklog_kinds(run.session_id) if kind in ("run_stalled", "run_moves")]
    assert said == ["run_stalled", "run_moves"]
    shown = [agents[0]["status"] for agents in customs(run.session_id, "agents")]
    assert shown[-2:] == ["stalled", "running"]


def test_of_many_guards_one_says_that_a_run_is_stalled():
    run = claim(post(new_chat()))
    back_in_time(Run.objects.filter(pk=run.pk), conf.stall_after + 1, "last_progress_at")
    silent = Run.objects.filter(status="running")
    seen = [silent.get(), silent.get()]
    assert [guard._mark(each, silent, Run.Status.STALLED) for each in seen] == [True, False]
    assert worklog_kinds(run.session_id).count("run_stalled") == 1


def test_a_run_past_its_limit_is_taken_from_a_runner_that_does_not_end_it(child):
    leases_of = Lease.objects.filter(run=child)
    back_in_time(leases_of, conf.run_limit + conf.stop_grace - 5, "acquired_at")
    assert guard.enforce_limits("g") == 0
    back_in_time(leases_of, 10, "acquired_at")
    assert guard.enforce_limits("g") == 1
    assert guard.enforce_limits("g") == 0
    now = again(child)
    assert (now.status, now.reason, now.epoch) == ("failed", "budget", child.epoch + 1)
    assert Lease.objects.get(run=child).end == "fenced"
    assert InboxMessage.objects.get(kind="result").reason == "budget"
    assert_at_rest(child.session_id)


def test_who_waits_for_a_person_or_a_child_is_not_stalled():
    from coordination import runs

    for status in (Run.Status.WAITING_CHILD, Run.Status.WAITING_USER):
        run = claim(post(new_chat()))
        with runs.owned(run) as (session, fresh):
            runs.park(session, fresh, status)
    claim_none = post(new_chat())
    back_in_time(Run.objects.all(), 99999, "last_progress_at", "queued_at")
    assert guard.mark_stalled() == 0
    assert again(claim_none).status == "queued"


def test_a_round_looks_at_everything():
    guard.rounds(LeaseGuard("g"))


@pytest.mark.django_db(transaction=True)
def test_many_guards_judge_once(redis_server):
    for _ in range(3):
        chat = new_chat()
        child = begin(send(claim(post(chat)))[1], "r2")
        expire_leases(child)
        guards = [LeaseGuard(f"g{n}") for n in range(4)]
        for it in guards:
            look(it, 100, 101)
        judged = in_threads(*[lambda it=it: look(it, 102) for it in guards])
        assert sorted(map(len, judged)) == [0, 0, 0, 1], judged
        assert_at_rest(chat.pk)
