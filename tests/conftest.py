"""What every test may use. Importing this starts nothing."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from django.utils import translation

from agentsite.services import Redis, Valkey
from tests.settings import TEST_DIR


@pytest.fixture(autouse=True)
def english() -> None:
    """A request in Chinese leaves its thread speaking Chinese, until the next one."""
    translation.deactivate()


@pytest.fixture(scope="session", autouse=True)
def redis_server() -> Iterator[Valkey | Redis]:
    """The Redis that the settings point to: this process's own, to flush, freeze, kill and start.

    A Valkey by default; with ``AGENTSITE_TEST_REDIS=redis-server`` the system's Redis, behind the
    same socket.
    """
    with server_for_tests() as server:
        yield server


def server_for_tests() -> Valkey | Redis:
    if os.environ.get("AGENTSITE_TEST_REDIS") == "redis-server":
        return RedisOnSocket(TEST_DIR / "redis")
    return Valkey(TEST_DIR / "redis")


class RedisOnSocket(Redis):
    """Debian's redis-server where the settings of the tests expect a Valkey."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        valkey = Valkey(folder)
        self.socket, self.url = valkey.socket, valkey.url

    def _argv(self) -> list[str]:
        return [*super()._argv(), "--unixsocket", str(self.socket)]


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short polls, for tests of the core that work rows or a runner in this process."""
    from coordination.conf import conf

    for name in ("claim_poll", "await_poll", "guard_interval"):
        monkeypatch.setattr(conf, name, 0.05)
    monkeypatch.setattr(conf, "model_retry_pause", 0)


@pytest.fixture
def no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are sent to nobody: whatever is heard now is heard by a poll."""
    from coordination import wakeups

    monkeypatch.setattr(wakeups, "_send", lambda group, message: None)


@pytest.fixture
async def hub(redis_server: Valkey | Redis) -> AsyncIterator[object]:
    """This loop's hub, closed with the test."""
    from coordination.wakeups import Hub

    yield Hub.current()
    await Hub.current().close()
