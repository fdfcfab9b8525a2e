"""A lease lives by its beats; its key in Redis is a mirror that decides nothing."""

import uuid

import pytest

from coordination import endings, interrupts, leases, runs
from coordination.conf import conf
from coordination.models import Lease, Run
from tests.core import again, back_in_time, claim, expire_leases, lease_of, new_chat, post

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def run():
    return claim(post(new_chat()), "r1", "n1")


def value_of(run):
    value = leases._redis().get(leases.key(run.session_id, run.agent_id))
    return value and value.decode()


def held(run, runner_id="r1"):
    return leases.Held(run.pk, run.session_id, run.agent_id, runner_id, run.epoch, False)


def test_a_beat_renews_every_lease_of_its_runners_and_no_other(run):
    other = claim(post(new_chat()), "r2", "n1")
    foreign = claim(post(new_chat()), "r3", "n2")
    back_in_time(Lease.objects.all(), 5, "expires_at", "beat_at")
    before = {lease.pk: lease.expires_at for lease in Lease.objects.all()}
    assert {h.run_id for h in leases.renew(["r1", "r2"])} == {run.pk, other.pk}
    moved = {lease.run_id for lease in Lease.objects.all() if lease.expires_at > before[lease.pk]}
    assert moved == {run.pk, other.pk}
    assert lease_of(run).beats == 1
    assert lease_of(foreign).beats == 0


def test_the_answer_of_a_beat_is_an_order(run):
    (order,) = leases.renew(["r1"])
    assert (order.run_id, order.epoch, order.stop_requested) == (run.pk, 1, False)
    interrupts.request(run.session_id, by="alice")
    (order,) = leases.renew(["r1"])
    assert order.stop_requested
    endings.stopped(run, by="r1")
    assert leases.renew(["r1"]) == []


def test_a_closed_lease_is_never_renewed(run):
    lease = lease_of(run)
    endings.lost(lease, end=Lease.End.CRASHED, by="s")
    lease.refresh_from_db()
    closed = (lease.expires_at, lease.beats, lease.released_at)
    assert leases.renew(["r1"]) == []
    lease.refresh_from_db()
    assert (lease.expires_at, lease.beats, lease.released_at) == closed


def test_a_lease_that_was_over_is_renewed_by_a_late_beat(run):
    expire_leases(run)
    assert len(leases.expired(grace=0)) == 1
    leases.renew(["r1"])
    assert leases.expired(grace=0) == []


def test_expiry_is_by_the_database_s_clock(run):
    assert leases.expired(grace=0) == []
    expire_leases(run, seconds=5)
    assert len(leases.expired(grace=4)) == 1
    assert leases.expired(grace=6) == []


def test_each_claim_has_a_lease_of_its_own(run):
    endings.handed_over(run, by="r1")
    claim(again(run), "r2", "n2")
    rows = Lease.objects.filter(run=run).order_by("pk")
    assert (rows[0].epoch, rows[0].runner_id, rows[0].end) == (1, "r1", "handed_over")
    assert rows[1].released_at is None
    assert leases.open_nodes() == {"n2": 1}


def test_the_mirror_has_the_seeds_key_and_the_life_of_the_lease(run):
    assert leases.mirror([held(run)])
    key = f"agent:lease:{run.session_id}:assistant"
    assert leases.key(run.session_id, "assistant") == key
    assert value_of(run).startswith("r1:")
    assert 0 < leases._redis().pttl(key) <= conf.lease_ttl * 1000


def test_the_mirror_is_not_taken_from_another_runner(run):
    leases.mirror([held(run, "r9")])
    leases.mirror([held(run, "r1")])
    assert value_of(run).startswith("r9:")
    leases.unmirror(run.session_id, run.agent_id, "r1")
    assert value_of(run).startswith("r9:")
    leases.unmirror(run.session_id, run.agent_id, "r9")
    assert value_of(run) is None


def test_a_runner_whose_name_begins_another_s_is_somebody_else(run):
    leases.mirror([held(run, "r11")])
    leases.unmirror(run.session_id, run.agent_id, "r1")
    assert value_of(run).startswith("r11:")
    assert leases.mirrored([lease_of(run)]) == set()


def test_mirrored_tells_alive_from_absent(run):
    lease = lease_of(run)
    assert leases.mirrored([lease]) == set()
    leases.mirror([held(run)])
    assert leases.mirrored([lease]) == {lease.pk}
    leases._redis().flushdb()
    assert leases.mirrored([lease]) == set()


def test_redis_away_is_unknown_and_not_absent(run, redis_server):
    redis_server.kill()
    try:
        assert leases.mirrored([lease_of(run)]) is None
        assert leases.mirror([held(run)]) is False
        leases.unmirror(run.session_id, run.agent_id, "r1")
    finally:
        redis_server.start()
    assert leases.mirror([held(run)])


def test_a_parked_run_has_no_lease_to_beat(run):
    with runs.owned(run) as (session, fresh):
        runs.park(session, fresh, Run.Status.WAITING_USER)
    assert leases.renew(["r1"]) == []


def test_a_beat_that_knows_the_last_one_answers_the_same(run, django_assert_num_queries):
    known = {}
    assert leases.renew(["r1"], known) == leases.renew(["r1"])
    other = claim(post(new_chat()), "r1", "n1")
    assert {h.run_id for h in leases.renew(["r1"], known)} == {run.pk, other.pk}
    with django_assert_num_queries(3):  # the leases, their ids and the stops: nothing else is new
        leases.renew(["r1"], known)
    interrupts.request(run.session_id, by="alice")
    orders = {h.run_id: h.stop_requested for h in leases.renew(["r1"], known)}
    assert orders == {run.pk: True, other.pk: False}
    endings.stopped(run, by="r1")
    assert [h.run_id for h in leases.renew(["r1"], known)] == [other.pk]


def test_more_keys_than_one_call_takes_are_all_written(run, monkeypatch):
    monkeypatch.setattr(leases, "MIRRORED_AT_ONCE", 2)
    some = [leases.Held(uuid.uuid4(), uuid.uuid4(), "assistant", "r1", 1) for _ in range(5)]
    assert leases.mirror(some)
    keys = [leases.key(h.session_id, h.agent_id) for h in some]
    assert leases._redis().exists(*keys) == 5


def test_what_a_run_waited_for_is_no_work_of_it(run):
    assert leases.held_before(run) == 0
    back_in_time(Lease.objects.filter(run=run), 100, "acquired_at")
    endings.handed_over(run, by="r1")
    back_in_time(Lease.objects.filter(run=run), 500, "acquired_at", "released_at")
    second = claim(again(run), "r2")
    assert leases.held_before(second) == pytest.approx(100, abs=5)


def test_nothing_is_held_by_nobody():
    assert leases.renew([]) == []
    assert leases.renew([str(uuid.uuid4())]) == []
    assert leases.mirror([])
