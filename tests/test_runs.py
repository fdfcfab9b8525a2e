"""A run's life: one owner at a time, one run of an agent at a time, counted attempts."""

import pytest

from chat.executor import finish
from coordination import endings, interrupts, runs
from coordination.errors import Conflict, Fenced
from coordination.models import Lease, Run
from coordination.transactions import locked
from tests.core import (
    again,
    assert_at_rest,
    begin,
    claim,
    in_threads,
    lease_of,
    logged,
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


def test_a_claim_gives_an_epoch_and_a_lease(chat):
    run = claim(post(chat), "r1", "n1")
    assert (run.status, run.epoch, run.runner_id, run.attempts) == ("running", 1, "r1", 1)
    lease = lease_of(run)
    assert (lease.epoch, lease.runner_id, lease.node_id) == (1, "r1", "n1")
    assert lease.expires_at > lease.acquired_at


def test_a_run_that_is_owned_is_not_claimed_again(chat, master):
    assert runs.claim(master.pk, chat.pk, "r2", "n2") is None
    assert again(master).epoch == 1


def test_a_run_without_its_lane_is_not_claimable(chat, master):
    waiting = post(chat, "behind")
    assert [found.run_id for found in runs.claimable(10, idle=True)] == []
    assert runs.claim(waiting.pk, chat.pk, "r2", "n2") is None


def test_the_oldest_is_claimed_first():
    waiting = [post(new_chat()) for _ in range(3)]
    assert [found.run_id for found in runs.claimable(10, idle=True)] == [run.pk for run in waiting]
    assert [found.run_id for found in runs.claimable(2, idle=True)] == [
        run.pk for run in waiting[:2]
    ]


def test_a_run_that_is_to_stop_is_not_claimed(chat):
    run = post(chat)
    Run.objects.filter(pk=run.pk).update(stop_requested_at=run.queued_at)
    assert runs.claimable(10, idle=True) == []
    assert runs.claim(run.pk, chat.pk, "r1", "n1") is None


@pytest.mark.django_db(transaction=True)
def test_of_runners_that_claim_at_once_one_wins(redis_server):
    for _ in range(5):
        run = post(new_chat())
        claims = [lambda i=i, r=run: runs.claim(r.pk, r.session_id, f"r{i}", "n") for i in range(4)]
        won = [claimed for claimed in in_threads(*claims) if claimed is not None]
        assert len(won) == 1, won
        assert again(run).runner_id == won[0].runner_id
        assert Lease.objects.filter(run=run).count() == 1
        assert len(logged(run.session_id, "RUN_STARTED")) == 1


def test_the_turns_of_a_session_run_one_after_the_other_in_order(chat):
    first, second, third = (post(chat, name) for name in ("a", "b", "c"))
    for run, waits in ((first, second), (second, third)):
        assert again(waits).lane is None
        assert finish(begin(again(run)), "ok", "r1")
        assert again(waits).lane is not None
    assert finish(begin(again(third)), "ok", "r1")
    assert_at_rest(chat.pk)


def test_two_tasks_of_an_agent_run_one_after_the_other(chat, master):
    _, first = send(master, call_id="c1")
    _, second = send(master, call_id="c2")
    _, other = send(master, to="researcher-2", call_id="c3")
    assert (first.lane is None, second.lane is None, other.lane is None) == (False, True, False)
    assert finish(begin(first, "r2"), "one", "r2")
    assert again(second).lane is not None


def test_a_stopped_run_starts_no_child(chat, master):
    interrupts.request(chat.pk, by="alice")
    with locked(chat.pk) as session, pytest.raises(Conflict):
        runs.start(session, "researcher", parent=again(master))


def test_an_ended_run_starts_no_child(chat, master):
    endings.failed(master, "broken", by="r1")
    with locked(chat.pk) as session, pytest.raises(Conflict):
        runs.start(session, "researcher", parent=again(master))


def test_only_the_owner_passes(master):
    with runs.owned(master) as (_, fresh):
        assert fresh == master
    master.epoch += 1
    with pytest.raises(Fenced), runs.owned(master):
        pass
    with pytest.raises(Fenced):
        runs.check_owned(master)


def test_who_is_to_stop_passes_only_to_settle(chat, master):
    interrupts.request(chat.pk, by="alice")
    with pytest.raises(Fenced), runs.owned(master):
        pass
    with pytest.raises(Fenced):
        runs.check_owned(master)
    with runs.owned(master, though_stopped=True) as (_, fresh):
        assert fresh == master


def test_a_stalled_run_is_still_its_owner_s(master):
    Run.objects.update(status="stalled")
    runs.check_owned(master)
    assert endings.failed(master, "ended", by="r1")


def test_a_parked_run_has_no_owner_and_no_lease(chat, master):
    with runs.owned(master) as (session, fresh):
        assert runs.park(session, fresh, Run.Status.WAITING_CHILD)
    parked = again(master)
    assert (parked.status, parked.runner_id, parked.attempts) == ("waiting_child", "", 0)
    assert parked.lane is not None
    assert Lease.objects.get(run=master).end == Lease.End.RELEASED
    with pytest.raises(Fenced):
        runs.check_owned(master)


def test_a_tree_is_deepest_first(master):
    _, child = send(master)
    child = begin(child, "r2")
    _, grandchild = send(child, "reviewer")
    assert runs.tree(master) == [grandchild, child, master]
    assert runs.ancestors(grandchild) == [child, master]
    assert {run.root_id for run in runs.tree(master)} == {master.pk}


def test_a_start_is_announced_once_per_execution_of_the_turn(chat, master):
    endings.handed_over(master, by="r1")
    claim(again(master), "r2")
    assert len(logged(chat.pk, "RUN_STARTED")) == 1


def test_a_stale_object_moves_nothing(master):
    stale = again(master)
    endings.handed_over(master, by="r1")
    assert not stale.move("completed", frm=Run.OWNED)
    assert again(master).status == "queued"
