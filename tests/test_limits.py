"""Rate limits: of a user, of an address, of passwords; over all nodes, and without Redis."""

import asyncio
import time
import uuid

import pytest
from django.contrib.auth import get_user_model
from django_redis import get_redis_connection
from pydantic import IPvAnyNetwork, TypeAdapter

from chat.transports import limits
from chat.transports.errors import RateLimited
from coordination.conf import conf
from coordination.wakeups import Hub
from tests.clients import Caller
from tests.test_websocket import Socket

FEW = 3
CHANGES = [
    ("post", "/chat", {}),
    ("patch", "/chat/{sid}", {"title": "x"}),
    ("delete", "/chat/{sid}", None),
    ("post", "/chat/{sid}/messages", {"content": "x"}),
    ("post", "/chat/{sid}/respond", {"question_id": str(uuid.UUID(int=1))}),
    ("patch", f"/chat/{{sid}}/queue/{uuid.UUID(int=1)}", {"content": "x"}),
    ("delete", f"/chat/{{sid}}/queue/{uuid.UUID(int=1)}", None),
    ("post", "/agui", {"threadId": "{sid}", "runId": "r", "messages": []}),
]


@pytest.fixture(autouse=True)
def everything_paid_back(redis_server, monkeypatch):
    """Whoever comes after us, maybe under the same number, owes nothing; nor do we.

    What other tests have done to Redis is forgotten, too: connections, and that it was away.
    """
    monkeypatch.setattr(limits, "_counter", limits.Counter())
    redis = get_redis_connection("leases")
    redis.connection_pool.disconnect()
    yield
    redis.flushdb()


@pytest.fixture
def who():
    """A name that nobody else takes from."""
    return uuid.uuid4().hex


@pytest.fixture
def node(redis_server):
    """Another web node's counter."""
    return limits.Counter


# -- counting -------------------------------------------------------------------------------------


async def test_what_many_nodes_take_at_once_is_taken_from_one_allowance(node, who):
    nodes = [node(), node(), node()]
    takes = [one.take([who], [limits.MINUTE / FEW]) for one in nodes for _ in range(4)]
    waits = await asyncio.gather(*takes)
    assert sum(wait == 0 for wait in waits) == FEW
    assert all(0 < wait <= limits.MINUTE / FEW for wait in waits if wait)


@pytest.mark.parametrize("where", ["in Redis", "alone"])
async def test_an_allowance_comes_back_bit_by_bit(node, who, where, monkeypatch):
    if where == "alone":
        monkeypatch.setattr(limits, "redis_configured", lambda: False)
    counter, cost = node(), limits.MINUTE / 600
    waits = [await counter.take([who], [cost]) for _ in range(600)]
    assert sum(waits) == 0
    begun = time.monotonic()
    while wait := await counter.take([who], [cost]):
        assert wait <= cost
        await asyncio.sleep(wait / 1000)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("where", ["in Redis", "alone"])
async def test_of_two_allowances_both_are_taken_or_none(node, who, where, monkeypatch):
    if where == "alone":
        monkeypatch.setattr(limits, "redis_configured", lambda: False)
    counter, cost = node(), limits.MINUTE / FEW
    whole, spent = f"{who}-whole", f"{who}-spent"
    for _ in range(FEW):
        assert await counter.take([spent], [cost]) == 0
    for _ in range(2 * FEW):
        assert await counter.take([whole, spent], [cost, cost]) > 0
    assert [await counter.take([whole], [cost]) for _ in range(FEW)] == [0] * FEW


async def test_no_limit_is_no_limit(node, who):
    assert [await node().take([], []) for _ in range(5)] == [0] * 5


@pytest.mark.parametrize("outage", ["stop", "freeze"])
async def test_without_redis_nobody_is_refused_and_nobody_hangs(node, who, outage, redis_server):
    counter, cost = node(), limits.MINUTE / FEW
    assert await counter.take([who], [cost]) == 0
    getattr(redis_server, outage)()
    try:
        begun = time.monotonic()
        first = [await counter.take([who], [cost]) for _ in range(FEW)]
        assert first == [0] * FEW  # this process begins to count for itself
        assert time.monotonic() - begun < 2 * conf.redis_timeout  # and Redis was asked once
        assert await counter.take([who], [cost]) > 0
    finally:
        redis_server.thaw()
        redis_server.start()


async def test_this_process_remembers_no_more_than_it_must(node, who, monkeypatch):
    monkeypatch.setattr(limits, "redis_configured", lambda: False)
    monkeypatch.setattr(limits, "REMEMBERED", 10)
    counter = node()
    for number in range(100):
        await counter.take([f"{who}-{number}"], [0.001])
    assert len(counter._paid) <= 11


# -- addresses ------------------------------------------------------------------------------------


def networks(*named):
    return TypeAdapter(tuple[IPvAnyNetwork, ...]).validate_python(named)


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("203.0.113.9", "", "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # no proxy of ours: it may say anything
        ("10.0.0.2", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.2", "made-up, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.2", "198.51.100.1, 10.0.0.3", "198.51.100.1"),
        ("10.0.0.2", "", "10.0.0.2"),
        ("::1", "2001:db8::7", "2001:db8::/64"),
        ("2001:db8::8", "", "2001:db8::/64"),
        ("::ffff:203.0.113.9", "", "203.0.113.9"),  # heard by a socket of both kinds
        ("::ffff:10.0.0.2", "::ffff:198.51.100.1", "198.51.100.1"),
        ("", "198.51.100.1", ""),
    ],
)
def test_an_address_is_what_trusted_proxies_say_and_no_others(settings, peer, forwarded, found):
    settings.TRUSTED_PROXIES = networks("10.0.0.0/8", "::1")
    assert limits.address(peer, forwarded) == found


# -- on the wires ---------------------------------------------------------------------------------


@pytest.fixture
async def alice(redis_server, monkeypatch):
    monkeypatch.setattr(conf, "redis_timeout", 30)  # a busy machine is no Redis that is away
    hub = Hub.current()
    yield await Caller.named(f"alice-{uuid.uuid4().hex[:8]}")
    await hub.close()


async def spend(user_id, address="127.0.0.1"):
    """Until nothing is left: what was taken a moment ago, while more was allowed, is back soon."""
    refusal = None
    while refusal is None or refusal.retry_after == 1:
        try:
            await limits.take_change(user_id, address)
        except RateLimited as refused:
            refusal = refused


@pytest.mark.django_db(transaction=True)
async def test_every_change_is_counted_and_a_refusal_says_when_to_come_again(alice, monkeypatch):
    sid = await alice.new_session()
    monkeypatch.setattr(conf, "rate_user", FEW)
    await spend(alice.user.pk)
    for method, path, body in CHANGES:
        answer = await alice.call(method, path.format(sid=sid), body)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited"), path
        assert 1 <= int(answer["Retry-After"]) <= 60 / FEW
        assert f"in {answer['Retry-After']} s" in answer.json()["detail"]
    for path in ("/chat", f"/chat/{sid}", f"/chat/{sid}/messages", f"/chat/{sid}/events"):
        assert (await alice.call("get", path)).status_code == 200
    stopped = await alice.call("post", f"/chat/{sid}/interrupt", {})
    assert stopped.status_code == 200


@pytest.mark.django_db(transaction=True)
async def test_users_do_not_spend_each_others_allowance_but_that_of_their_address(
    alice, monkeypatch, settings
):
    monkeypatch.setattr(conf, "rate_user", FEW)
    await spend(alice.user.pk)
    bob = await Caller.named(f"bob-{uuid.uuid4().hex[:8]}")
    assert (await bob.call("post", "/chat", {})).status_code == 201
    monkeypatch.setattr(conf, "rate_user", 1000)
    monkeypatch.setattr(conf, "rate_address", FEW)
    settings.TRUSTED_PROXIES = networks("127.0.0.1")
    await spend(0, "192.0.2.7")
    here, elsewhere = {"X-Forwarded-For": "192.0.2.7"}, {"X-Forwarded-For": "192.0.2.8"}
    assert (await bob.call("post", "/chat", {}, **here)).status_code == 429
    assert (await bob.call("get", "/chat", **here)).status_code == 200
    assert (await bob.call("post", "/chat", {}, **elsewhere)).status_code == 201


@pytest.mark.django_db(transaction=True)
async def test_frames_are_counted_but_stop_and_ack(alice, monkeypatch):
    sid = await alice.new_session()
    monkeypatch.setattr(conf, "rate_user", FEW)
    await spend(alice.user.pk)
    async with await Socket.of(alice, sid) as socket:
        for frame in (
            {"type": "message", "content": "x"},
            {"type": "respond", "question_id": str(uuid.UUID(int=1))},
        ):
            refused = await socket.ask(frame["type"], **frame)
            assert refused["error"]["code"] == "rate_limited"
        assert "ok" in await socket.ask("a", type="ack", id=0)
        assert (await socket.ask("s", type="interrupt"))["ok"]["status"] == "no_active_run"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", ["/accounts/login/", "/admin/login/"])
def test_passwords_are_not_tried_without_end(client, page, monkeypatch):
    get_user_model().objects.create_superuser("ann", password="secret")
    address = "198.51.100.4"
    monkeypatch.setattr(conf, "rate_signin", FEW)
    right, wrong = (
        {"username": "ann", "password": password, "next": "/"} for password in ("secret", "no")
    )
    for _ in range(FEW):
        assert client.post(page, wrong, REMOTE_ADDR=address).status_code == 200
    refused = client.post(page, right, REMOTE_ADDR=address)
    assert refused.status_code == 429
    assert f"in {refused['Retry-After']} second" in refused.content.decode()
    assert client.get(page, REMOTE_ADDR=address).status_code == 200
    elsewhere = client.post(page, right, REMOTE_ADDR="203.0.113.200")
    assert elsewhere.status_code == 302
