"""The cluster itself: it comes up, its nodes can be broken one by one, it leaves nothing behind."""

import os
import re
import signal
import sys
import urllib.request

import pytest

from agentsite.environment import BASE_DIR
from agentsite.processes import descendants, spawn, until
from tests.test_services import is_gone


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


@pytest.mark.parametrize(("server", "workers"), [("daphne", 1), ("uvicorn", 0)])
def test_nodes_come_up_come_back_and_end_when_asked(start_cluster, server, workers):
    """A worker whose supervisor is killed takes its runners along."""
    cluster = start_cluster(nginx=True, server=server, workers=workers)
    assert read(f"{cluster.url}/healthz")
    runners = [runner for node in cluster.workers for runner in node.runners()]
    for node in (cluster.web[0], *cluster.workers):
        os.kill(node.pid, signal.SIGKILL)
        until(lambda node=node: not node.alive, what="its end")
    until(lambda: all(map(is_gone, runners)), what="the runners' end", timeout=30)
    for node in (cluster.web[0], *cluster.workers):
        node.start()
        assert node.alive
    assert all(read(f"{node.url}/healthz") for node in cluster.web)
    assert all(node.terminate(timeout=60) for node in cluster.nodes)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_what_runs_where_and_ends_cleanly(tmp_path, signum):
    argv = [sys.executable, "manage.py", "cluster", "--folder", tmp_path / "cluster"]
    argv += ["--web", "1", "--workers", "1"]
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    log = tmp_path / "said"
    command = spawn(argv, name="cluster", log=log, cwd=BASE_DIR, env=env)
    try:
        until(
            lambda: "Ctrl-C stops everything" in log.read_text(),
            child=command,
            what="the cluster",
            timeout=240,
        )
        said = log.read_text()
        family = [command.pid, *descendants(command.pid)]
        link = re.search(r"http://\S+/signin/\S+", said)
        assert link, said
        assert read(link[0])
        command.send(signum)
        assert command.wait(timeout=60), log.read_text()
    finally:
        command.stop()
    assert command.returncode == 0, log.read_text()
    assert log.read_text().endswith("stopped\n")
    until(lambda: all(map(is_gone, family)), what="the end of every process", timeout=30)
