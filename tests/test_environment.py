"""A wrong variable is refused in one line that names it, and that tells no secret."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from agentsite.databases import database
from agentsite.environment import SiteEnvironment


@pytest.fixture
def env(monkeypatch, tmp_path):
    """The environment of a fresh node, and a way to change it."""
    for name in SiteEnvironment.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("DJANGO_SECRET_KEY", "x" * 50)
    monkeypatch.setenv("AGENTSITE_VAR", str(tmp_path))
    return monkeypatch.setenv


def test_a_fresh_node_needs_nothing_but_a_key(env):
    site = SiteEnvironment.read()
    assert (site.agent_model, site.redis_url, site.django_debug) == ("demo", (), False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgres://u:hidden@localhost/x"),
        ("DATABASE_URL", "mysql:hidden"),
        ("DATABASE_URL", "mysql://u:hidden@localhost:port/x"),
        ("REDIS_URL", "http://u:hidden@localhost"),
        ("REDIS_URL", "redis://localhost,localhost:6379"),
        ("AGENT_MODEL", "gpt"),
        ("AGENT_MCP_SERVERS", "{'it': 'hidden'}"),
        ("AGENT_MCP_SERVERS", '["hidden"]'),
        ("AGENT_MCP_SERVERS", '{"it": {"url": "ftp://hidden"}}'),
        ("AGENT_MCP_SERVERS", '{"it": {"headers": {"X-Key": "hidden"}}}'),
        ("AGENT_MCP_SERVERS", '{"it": {"url": "http://x/", "command": "hidden"}}'),
        ("AGENT_MCP_SERVERS", '{"it": {"url": "http://x/", "headers": {"X-Key": ["hidden"]}}}'),
        ("AGENT_MCP_SERVERS", '{"It": {"command": "hidden"}}'),
        ("DJANGO_DEBUG", "perhaps"),
        ("DJANGO_ALLOWED_HOSTS", "https://chat.example.org"),
        ("DJANGO_CSRF_TRUSTED_ORIGINS", "chat.example.org"),
        ("AGENTSITE_ROLE", "captain"),
    ],
)
def test_a_wrong_value_names_its_variable(env, name, value):
    env(name, value)
    with pytest.raises(ImproperlyConfigured) as refused:
        SiteEnvironment.read()
    text = str(refused.value)
    assert text.startswith(f"{name} should be ")
    assert "\n" not in text
    assert "hidden" not in text


def test_every_wrong_variable_is_named_at_once(env):
    env("DJANGO_DEBUG", "perhaps")
    env("REDIS_URL", "nonsense")
    with pytest.raises(ImproperlyConfigured, match=r"REDIS_URL.*DJANGO_DEBUG"):
        SiteEnvironment.read()


def test_a_node_without_a_key_refuses_to_start(env, monkeypatch):
    monkeypatch.delenv("DJANGO_SECRET_KEY")
    with pytest.raises(ImproperlyConfigured, match=r"DJANGO_SECRET_KEY .* not set"):
        SiteEnvironment.read()


def test_lists_are_separated_by_commas(env):
    env("REDIS_URL", "redis://one:6379/0, redis://two:6379/0")
    env("DJANGO_ALLOWED_HOSTS", "a.example.org,.b.example.org,")
    site = SiteEnvironment.read()
    assert site.redis_url == ("redis://one:6379/0", "redis://two:6379/0")
    assert site.django_allowed_hosts == ("a.example.org", ".b.example.org")


def test_an_empty_variable_counts_as_not_set(env, tmp_path):
    env("DATABASE_URL", "")
    assert database(SiteEnvironment.read())["NAME"] == str(tmp_path / "db.sqlite3")


def test_mysql_may_be_reached_over_a_socket(env):
    env("DATABASE_URL", "mysql://user:p%40ss@%2Frun%2Fmysqld%2Fmysqld.sock/chat")
    config = database(SiteEnvironment.read())
    assert (config["HOST"], config["PASSWORD"]) == ("/run/mysqld/mysqld.sock", "p@ss")
    assert config["OPTIONS"]["isolation_level"] == "read committed"


def test_only_a_worker_keeps_its_connections(env):
    assert database(SiteEnvironment.read())["CONN_MAX_AGE"] == 0
    env("AGENTSITE_ROLE", "worker")
    config = database(SiteEnvironment.read())
    assert config["CONN_MAX_AGE"] > 0
    assert config["CONN_HEALTH_CHECKS"]


@pytest.mark.django_db
def test_the_connection_keeps_the_rules_of_the_house():
    from agentsite import doctor

    assert doctor.isolation()
    assert abs(float(doctor.clock().split()[0])) < doctor.CLOCK_TOLERANCE
