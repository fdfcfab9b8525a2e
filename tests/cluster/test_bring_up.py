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


@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_nodes_come_up_and_come_back(start_cluster, server):
    cluster = start_cluster(nginx=True, server=server)
    assert read(f"{cluster.url}/healthz")
    for node in (cluster.web[0], cluster.workers[0]):
        node.kill()
        assert not node.alive
        node.start()
        assert node.alive
    assert all(read(f"{node.url}/healthz") for node in cluster.web)


def test_a_killed_worker_takes_its_runners_along(start_cluster):
    cluster = start_cluster(web=0, workers=1)
    runners = cluster.workers[0].runners()
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    until(lambda: all(map(is_gone, runners)), what="the runners' end", timeout=30)


def test_every_node_ends_by_itself_when_asked(start_cluster):
    cluster = start_cluster(web=1, workers=1)
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
