"""Every number comes from the environment, once, and a wrong one is named."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from pydantic import ValidationError

from coordination.conf import Conf, load

CONTRACT = {
    "LEASE_TTL": 10,
    "HEARTBEAT_INTERVAL": 3,
    "LEASE_GRACE": 2,
    "GUARD_INTERVAL": 1,
    "STALL_AFTER": 300,
    "AWAIT_DEFAULT": 120,
    "AWAIT_MAX": 300,
    "AWAIT_POLL": 1,
    "TAIL_LIMIT": 120,
    "STOP_ACK": 3,
    "STOP_GRACE": 10,
    "DRAIN": 20,
    "QUESTION_TTL": 86400,
    "MAX_DEPTH": 3,
    "MAX_HOPS": 64,
    "INBOX_LIMIT": 1000,
}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in Conf.model_fields:
        monkeypatch.delenv(f"AGENT_{name.upper()}", raising=False)


@pytest.mark.parametrize("name", CONTRACT)
def test_the_defaults_are_the_contract_s(name):
    assert getattr(load(), name.lower()) == CONTRACT[name]


@pytest.mark.parametrize("name", [n for n in CONTRACT if not n.startswith(("MAX", "INBOX"))])
def test_times_take_fractions(monkeypatch, name):
    monkeypatch.setenv(f"AGENT_{name}", "0.25")
    assert getattr(load(), name.lower()) == 0.25


@pytest.mark.parametrize("value", ["", "ten", "-1", "nan", "10s"])
def test_a_wrong_value_is_refused_with_the_name_of_its_variable(monkeypatch, value):
    monkeypatch.setenv("AGENT_LEASE_TTL", value)
    with pytest.raises(ImproperlyConfigured, match="AGENT_LEASE_TTL"):
        load()


def test_all_wrong_variables_are_named_at_once(monkeypatch):
    monkeypatch.setenv("AGENT_LEASE_TTL", "x")
    monkeypatch.setenv("AGENT_MAX_DEPTH", "0")
    with pytest.raises(ImproperlyConfigured, match=r"AGENT_LEASE_TTL.*AGENT_MAX_DEPTH"):
        load()


def test_a_number_set_later_is_checked_too():
    conf = load()
    with pytest.raises(ValidationError):
        conf.lease_ttl = -1
    conf.lease_ttl = 0.5
    assert conf.lease_ttl == 0.5


def test_every_number_has_its_reason():
    assert all(field.description for field in Conf.model_fields.values())
