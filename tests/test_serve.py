"""``manage.py serve`` as a newcomer meets it: it comes up, it says where, it leaves nothing."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from agentsite.environment import BASE_DIR
from agentsite.processes import Child, descendants, free_port, spawn, until
from tests.test_services import is_gone

# Each starts four processes and more: what hangs is ended, what is slow is not.
pytestmark = pytest.mark.timeout(300)

UNSET = {"DATABASE_URL", "REDIS_URL", "DJANGO_SECRET_KEY", "DJANGO_SETTINGS_MODULE"}


@pytest.fixture
def env(tmp_path) -> dict[str, str]:
    """A machine on which nothing is set."""
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**env, "AGENTSITE_VAR": str(tmp_path / "var"), "PYTHONUNBUFFERED": "1"}


class Serve:
    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self.env = env
        argv = [sys.executable, "manage.py", "serve", "--port", str(self.port)]
        self.child: Child = spawn(argv, name="serve", log=log, env=env, cwd=BASE_DIR)

    @property
    def said(self) -> str:
        return self.child.last_words(lines=100)

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.said, child=self.child, what=f"{text!r} from serve", timeout=240)

    @property
    def family(self) -> list[int]:
        return [self.child.pid, *descendants(self.child.pid)]


@pytest.fixture
def serve(env, tmp_path):
    running = Serve(env, tmp_path / "serve.log")
    try:
        running.wait_for("Ctrl-C stops everything")
        yield running
    finally:
        running.child.stop(timeout=60)


def manage(env: dict[str, str], *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", *argv],
        env=env,
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        timeout=240,
    )


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code


def test_it_serves_signs_in_once_and_leaves_nothing(serve):
    site = f"http://127.0.0.1:{serve.port}"
    assert status(f"{site}/healthz") == 200
    link = re.search(rf"{site}/signin/\S+", serve.said)
    assert link, serve.said

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    assert browser.open(link[0], timeout=10).status == 200
    assert status(link[0]) >= 400  # it works once

    family = serve.family
    assert len(family) >= 4  # serve, Valkey, web, worker
    assert serve.child.stop(timeout=60), serve.said
    assert serve.said.endswith("stopped")
    until(lambda: all(map(is_gone, family)), what="the end of every process", timeout=30)


def test_its_secret_is_its_own_and_stays(serve, tmp_path):
    key = tmp_path / "var" / "secret_key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_text()) >= 50


def test_the_operators_commands_find_it(serve):
    report = manage(serve.env, "doctor", "--json")
    findings = {finding["check"]: finding for finding in json.loads(report.stdout)}
    assert report.returncode == 0, report.stdout
    assert findings["redis"]["status"] == "ok"
    assert findings["channel layer"]["status"] == "ok"


def test_a_process_that_dies_is_started_again(serve):
    web = next(pid for pid in serve.family if "daphne" in command_of(pid))
    os.kill(web, signal.SIGKILL)
    serve.wait_for("web died unexpectedly")
    until(lambda: answers(serve.port), child=serve.child, what="the web node's return")
    assert serve.child.stop(timeout=60), serve.said


def test_killed_without_warning_it_leaves_nothing(serve):
    family = serve.family
    os.kill(serve.child.pid, signal.SIGKILL)
    until(lambda: all(map(is_gone, family)), what="the end of every process", timeout=60)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_in_use_is_said_at_once(env):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = manage(env, "serve", "--port", str(port))
    assert refused.returncode == 1
    assert f"port {port} is in use" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_node_without_a_key_says_so_in_one_line(env):
    refused = manage(env, "agent_worker")
    assert refused.returncode == 1
    assert refused.stderr.startswith("agentsite: DJANGO_SECRET_KEY should be")
    assert refused.stderr.count("\n") == 1
