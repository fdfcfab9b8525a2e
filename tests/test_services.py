"""Private servers: they answer, they survive a kill where they were, they leave nothing behind."""

import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import redis

from agentsite.environment import BASE_DIR
from agentsite.processes import ProcessFault, descendants, free_port, spawn, until
from agentsite.services import MariaDB, MissingProgram, Nginx, Redis, Valkey


def is_gone(pid: int) -> bool:
    """Ended; a zombie whose new parent has not looked yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(params=[Valkey, Redis, MariaDB], ids=lambda kind: kind.name)
def service(request, tmp_path):
    with request.param(tmp_path / "service") as started:
        yield started


def test_a_killed_server_comes_back_at_its_address(service):
    address = service.url
    assert service.ping()
    service.kill()
    assert not service.ping()
    service.start()
    assert service.ping()
    assert service.url == address


def test_a_stopped_server_is_gone(service):
    pid = service.child.pid
    service.stop()
    assert is_gone(pid)
    assert not service.ping()


def test_rows_survive_a_killed_database(tmp_path):
    with MariaDB(tmp_path) as mariadb:
        mariadb.query("CREATE TABLE agentsite.t (n INT); INSERT INTO agentsite.t VALUES (7)")
        mariadb.kill()
        mariadb.start()
        assert mariadb.query("SELECT n FROM agentsite.t").strip() == "7"


def test_a_second_valkey_attaches_to_the_first(tmp_path):
    with Valkey(tmp_path) as first:
        second = Valkey(tmp_path).start()
        assert second.child is None
        second.stop()  # it started nothing, so it stops nothing
        assert first.ping()


def test_a_valkey_whose_folder_is_deep_has_a_socket_all_the_same(tmp_path):
    with Valkey(tmp_path / ("deep" * 20) / ("deeper" * 20)) as valkey:
        assert redis.Redis.from_url(valkey.url).set("key", "value")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_the_process_that_started_it(tmp_path, signum):
    program = f"""
        import time
        from pathlib import Path
        from agentsite.services import Valkey
        valkey = Valkey(Path({str(tmp_path)!r})).start()
        print(valkey.child.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=BASE_DIR,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signum)
    until(lambda: is_gone(pid), what="Valkey's end", timeout=30)


def test_nginx_goes_to_the_node_that_lives(tmp_path):
    alive, dead = free_port(), free_port()
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("here")
    argv = [sys.executable, "-m", "http.server", str(alive), "--bind", "127.0.0.1"]
    web = spawn([*argv, "--directory", page], name="page", log=tmp_path / "page.log")
    try:
        until(lambda: read(f"http://127.0.0.1:{alive}") == b"here", child=web, what="the page")
        with Nginx(tmp_path / "nginx", [dead, alive]) as nginx:
            assert [read(nginx.url) for _ in range(3)] == [b"here"] * 3
    finally:
        web.stop()


def read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except urllib.error.URLError:
        return b""


def test_a_missing_server_is_named_with_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(
        MissingProgram, match=r"redis-server is not installed.*package redis-server"
    ):
        Redis(tmp_path).start()


def test_a_child_that_dies_at_birth_says_its_last_words(tmp_path):
    argv = [sys.executable, "-c", "raise SystemExit('no coffee')"]
    child = spawn(argv, name="grumpy", log=tmp_path / "log")
    with pytest.raises(ProcessFault, match=r"grumpy: ended with 1(?s:.)*no coffee"):
        until(lambda: False, child=child, what=child.name)


def test_a_child_that_ignores_sigterm_ends_with_all_that_it_started(tmp_path):
    program = """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("ready", flush=True)
        time.sleep(60)
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    child = spawn(argv, name="stubborn", log=tmp_path / "log", env=dict(os.environ))
    until(lambda: "ready" in child.last_words(), child=child, what=child.name)
    family = [child.pid, *descendants(child.pid)]
    assert len(family) == 2
    assert child.stop(timeout=0.3) is False
    until(lambda: all(map(is_gone, family)), what="the end of the family", timeout=30)
