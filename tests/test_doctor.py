"""The doctor finds what is wrong, says it in one line each, and says nothing wrong about health."""

import json

import pytest
from django.core.management import call_command

from agentsite import doctor
from coordination.models import WorkerNode


def found(check: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.check == check)


@pytest.mark.django_db(transaction=True)
def test_a_sound_node_has_no_fault(capsys):
    call_command("doctor", "--json")
    findings = json.loads(capsys.readouterr().out)
    assert [finding["check"] for finding in findings] == list(doctor.CHECKS)
    assert not [finding for finding in findings if finding["status"] == "fault"]


@pytest.mark.django_db(transaction=True)
def test_a_dead_redis_is_two_faults_and_exit_1(redis_server, capsys):
    redis_server.kill()
    try:
        with pytest.raises(SystemExit) as ended:
            call_command("doctor")
    finally:
        redis_server.start()
    assert ended.value.code == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fault")]
    assert [line.split()[1] for line in lines] == ["redis", "channel"]


@pytest.mark.django_db(transaction=True)
def test_without_redis_it_warns(settings):
    settings.REDIS_URLS = []
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    assert found("redis").status == "warning"
    assert found("channel layer").status == "warning"


@pytest.mark.django_db
def test_nobody_to_answer_is_a_warning():
    assert found("worker nodes").status == "warning"
    about = {"host": "h", "pid": 1, "processes": 1, "concurrency": 4, "cpus": 1}
    runners = [{"id": "n.1", "pid": 2, "age": 1, "quiet": 0, "runs": 3}]
    WorkerNode.beat("n", **about, runners=runners)
    finding = found("worker nodes")
    assert (finding.status, finding.text) == ("ok", "1 alive, 0 silent, 3 of 4 slots held")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "says"),
    [("openai-chat:gpt-5", "OPENAI_API_KEY"), ("nobody:model", "nobody")],
)
def test_a_model_that_cannot_be_reached_is_named(settings, monkeypatch, name, says):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    settings.AGENT_MODEL = name
    finding = found("model")
    assert finding.status == "fault"
    assert says in finding.text


@pytest.mark.django_db
def test_a_clock_that_is_off_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor, "_value", lambda sql: "2020-01-01 00:00:00.000000")
    assert found("clock").status == "fault"
    assert "from the database's clock" in found("clock").text


@pytest.mark.django_db
def test_wrong_isolation_is_a_fault(monkeypatch):
    monkeypatch.setattr(doctor, "_value", lambda sql: "delete")
    monkeypatch.setattr(
        doctor, "_variables", lambda *names: {"transaction_isolation": "REPEATABLE-READ"}
    )
    assert found("isolation level").status == "fault"
