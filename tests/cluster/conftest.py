"""Clusters to break: ``agentsite/cluster.py``, the same that ``manage.py cluster`` runs.

    def test_something(cluster):             # two web nodes, two worker nodes, fresh rows
    def test_something_else(start_cluster):  # any other shape
        cluster = start_cluster(workers=3, env={"AGENT_LEASE_TTL": "2"})
    def test_a_conversation(site):           # a whole site, its agents scripted; shared by all

A cluster takes seconds to start, so there is one ``site`` for the whole run: each test uses
sessions of its own, and may kill whatever it likes, for the next one finds everything healed.

Every test here carries the mark ``cluster``: they run one after the other, because they measure
times. They hold what was promised; ``benchmarks/spine.py`` says how far below that it is.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentsite.cluster import Cluster
from tests.cluster.site import SHORT_TIMES, Site

HERE = Path(__file__).parent
TIMEOUT = 300  # seconds: a hang, not a busy machine. The first test starts the site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture
def start_cluster(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster of any shape; ends it after the test, and shows its logs if that failed."""
    with ExitStack() as stack:
        started: list[Cluster] = []

        def start(**shape: Any) -> Cluster:
            folder = tmp_path / f"cluster-{len(started)}"
            cluster = stack.enter_context(Cluster(folder, **shape))
            started.append(cluster)
            return cluster

        yield start
        if getattr(request.node, "failed", True):
            for cluster in started:
                print(cluster.last_words())


@pytest.fixture
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster()


# As often as the trials ask for: some minutes more.
IN_FULL = bool(os.environ.get("TRIALS_IN_FULL"))

LEASE, GRACE, BEAT = (
    float(SHORT_TIMES[f"AGENT_{name}"])
    for name in ("LEASE_TTL", "LEASE_GRACE", "HEARTBEAT_INTERVAL")
)


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="session")
def uvicorn_url(shared_site: Site) -> Iterator[str]:
    """One more web node of the shared site, served by uvicorn."""
    node = shared_site.add_web("uvicorn")
    yield node.url
    assert node.terminate(timeout=30)


@pytest.fixture
def site(shared_site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Two web nodes, two worker nodes, a scripted provider; whole, whatever was broken before."""
    shared_site.heal()
    yield shared_site
    if getattr(request.node, "failed", True):
        print(shared_site.cluster.last_words())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.failed = report.failed
    return report
