"""Clusters to break: ``agentsite/cluster.py``, the same that ``manage.py cluster`` runs.

    def test_something(cluster):             # two web nodes, two worker nodes, fresh rows
    def test_something_else(start_cluster):  # any other shape
        cluster = start_cluster(workers=3, env={"AGENT_LEASE_TTL": "2"})

A cluster takes about three seconds to start. Every test here carries the mark ``cluster``: they run
one after the other, because they measure times.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentsite.cluster import Cluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.failed = report.failed  # type: ignore[attr-defined]
    return report
