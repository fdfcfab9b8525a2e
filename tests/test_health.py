"""Probes and metrics: what they say, and that they say it when something is missing."""

import pytest
from django.db import OperationalError
from django.test import AsyncClient
from prometheus_client.parser import text_string_to_metric_families

from chat.transports import health
from coordination import worklog
from coordination.conf import conf
from coordination.db import db
from coordination.models import Lease, WorkerNode
from coordination.wakeups import Hub
from tests.clients import Caller, claim

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def hub(redis_server):
    hub = Hub.current()
    yield hub
    await hub.close()


@pytest.fixture
def client():
    return AsyncClient()


async def test_a_node_that_is_up_says_so(client):
    assert (await client.get("/healthz")).json() == {"status": "ok"}


async def test_a_node_that_can_work_is_ready(client):
    ready = await client.get("/readyz")
    assert ready.status_code == 200, ready.content
    checks = {"database": "ok", "redis": "ok", "listener": "ok"}
    assert ready.json() == {"status": "ready", "checks": checks}


async def test_a_node_without_its_database_is_up_and_not_ready(client, monkeypatch):
    def away():
        raise OperationalError(2002, "at a secret address")

    monkeypatch.setattr(health, "_ask_database", away)
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert "database: OperationalError" in answer.json()["detail"]
    assert b"secret" not in answer.content
    assert (await client.get("/healthz")).status_code == 200


async def test_a_node_without_its_redis_is_not_ready(client, settings):
    settings.REDIS_URLS = ["redis://127.0.0.1:1/0"]
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["redis"] == "ConnectionError"


async def test_a_node_that_does_not_hear_is_not_ready(client, monkeypatch):
    monkeypatch.setattr(Hub, "listening", False)
    monkeypatch.setattr(conf, "redis_timeout", 0.05)
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["listener"] == "no answer in time"


async def test_a_node_that_was_given_no_redis_says_so_and_is_ready(client, settings):
    settings.REDIS_URLS = []
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["checks"]["redis"] == health.NO_REDIS


async def test_metrics_count_what_is_under_way_and_name_nobody(client):
    alice = await Caller.named("alice")
    sid = await alice.new_session(title="secret title")
    for content in ("one", "two"):
        posted = await alice.call("post", f"/chat/{sid}/messages", {"content": content})
        assert posted.status_code == 202
        if content == "one":
            await claim(posted.json()["run_id"])
    text = (await client.get("/metrics")).content.decode()
    numbers = {
        (sample.name, sample.labels.get("status", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert numbers["agentsite_runs", "running"] == 1
    assert numbers["agentsite_runs", "queued"] == 1
    assert numbers["agentsite_leases_open", ""] == 1
    assert numbers["agentsite_leases_overdue", ""] == 0
    assert numbers["agentsite_inbox_pending", ""] == 0
    assert numbers["agentsite_stream_readers", ""] == 0
    for secret in ("alice", sid, "secret title"):
        assert secret not in text


async def test_metrics_count_what_has_lately_happened(client):
    from coordination import endings
    from tests.core import back_in_time, judge, lease_of, new_chat, post
    from tests.core import claim as claimed

    def happen():
        endings.handed_over(claimed(post(new_chat())), by="r1")
        for end in ("crashed", "crashed", "lease_expired"):
            judge(claimed(post(new_chat())), end)
        judge(claimed(post(new_chat())), "crashed")
        old = Lease.objects.order_by("-pk")[:1].values_list("pk", flat=True)
        back_in_time(Lease.objects.filter(pk=old[0]), 601, "released_at")
        worklog.write(None, "guard_late", "did not look", level="warning")
        lease = lease_of(claimed(post(new_chat())))
        late = 2 * conf.heartbeat_interval + 1
        back_in_time(Lease.objects.filter(pk=lease.pk), late, "beat_at")
        for name in ("living", "killed", "left"):
            WorkerNode.beat(name, host="h", pid=1, processes=1, concurrency=1, cpus=1)
        gone = WorkerNode.objects.exclude(pk="living")
        back_in_time(gone, conf.lease_ttl, "beat_at")
        WorkerNode.leave("left")

    await db(happen)
    text = (await client.get("/metrics")).content.decode()
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    numbers = {(s.name, *s.labels.values()): s.value for s in samples}
    assert numbers["agentsite_verdicts", "crashed"] == 2
    assert numbers["agentsite_verdicts", "lease_expired"] == 1
    assert numbers["agentsite_verdicts", "fenced"] == 0
    assert numbers["agentsite_handovers",] == 1
    assert numbers["agentsite_guard_alarms", "guard_late"] == 1
    assert numbers["agentsite_guard_alarms", "guard_mass_event"] == 0
    assert numbers["agentsite_beats_late",] == 1
    assert numbers["agentsite_nodes_alive",] == 1
    assert numbers["agentsite_nodes_silent",] == 1
    assert numbers["agentsite_event_lag",] == 0


async def test_probes_need_no_user_and_take_no_orders(client):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await client.post(path)).status_code == 405
