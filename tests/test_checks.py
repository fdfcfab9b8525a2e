"""``manage.py check`` refuses what would kill the living or lose an interrupt."""

import pytest
from django.core.checks import run_checks
from django.db import connection

from coordination import checks
from coordination.conf import conf


def ids(errors):
    return [error.id for error in errors]


def test_the_settings_of_this_site_pass():
    assert checks.timings() == []
    assert checks.channel_layer() == []
    assert [e for e in run_checks() if e.id.startswith("coordination")] == []


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"lease_ttl": 10, "heartbeat_interval": 3.4}, "coordination.E001"),
        ({"guard_interval": 0.9, "lease_ttl": 0.8, "heartbeat_interval": 0.2}, "coordination.E002"),
        ({"await_default": 301}, "coordination.E003"),
        ({"stop_grace": 2.9}, "coordination.E006"),
        ({"guard_interval": 1.1}, "coordination.W001"),
        ({"stall_after": 601}, "coordination.W002"),
        ({"run_limit": 599}, "coordination.W003"),
        ({"tool_timeout": 3601}, "coordination.W004"),
    ],
)
def test_timings_that_contradict_each_other_are_refused(monkeypatch, values, fault):
    for name, value in values.items():
        monkeypatch.setattr(conf, name, value)
    (error,) = checks.timings()
    assert error.id == fault
    assert error.hint
    assert "AGENT_" in error.msg


def test_the_seeds_pair_and_three_beats_exactly_pass(monkeypatch):
    for ttl, interval in ((30, 10), (0.9, 0.3)):
        monkeypatch.setattr(conf, "lease_ttl", ttl)
        monkeypatch.setattr(conf, "heartbeat_interval", interval)
        monkeypatch.setattr(conf, "guard_interval", 0.1)
        assert checks.timings() == []


def test_the_layer_that_drops_messages_is_refused(settings):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer"}}
    assert ids(checks.channel_layer()) == ["coordination.E004"]


@pytest.mark.django_db
def test_the_isolation_level_is_looked_at():
    assert checks.isolation_level(databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "mysql", reason="SQLite has one level")
def test_another_isolation_level_is_refused():
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        try:
            assert ids(checks.isolation_level(databases=["default"])) == ["coordination.E005"]
        finally:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
