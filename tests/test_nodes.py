"""A node is called gone only where the kernel says so, and at once where it does."""

import os
import subprocess
import sys

import pytest

from coordination import nodes
from coordination.wakeups import runner_group

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is the kernel that proves")


def of(node_id: str, **changes: str) -> str:
    """The same name with another ``pid``, ``started``, ``boot`` or ``namespace``."""
    host, *parts = node_id.rsplit("-", 4)
    named = dict(zip(("pid", "started", "boot", "namespace"), parts, strict=True))
    return "-".join([host, *(named | changes).values()])


@pytest.fixture
def dead() -> str:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


def test_a_living_node_is_not_gone():
    assert not nodes.is_gone(nodes.new_node_id())


def test_a_node_whose_process_has_ended_is_gone(dead):
    assert nodes.is_gone(of(nodes.new_node_id(), pid=dead))


def test_the_next_process_with_its_pid_is_not_taken_for_it():
    me = nodes.new_node_id()
    assert nodes.is_gone(of(me, started="1"))
    assert of(me, pid=str(os.getpid())) == me


@pytest.mark.parametrize("elsewhere", ["boot", "namespace"])
def test_another_machine_s_and_another_container_s_pid_prove_nothing(dead, elsewhere):
    assert not nodes.is_gone(of(nodes.new_node_id(), pid=dead, **{elsewhere: "0123456789ab"}))


def test_a_process_that_is_not_to_be_seen_proves_nothing(monkeypatch):
    stranger = of(nodes.new_node_id(), started="1")

    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    monkeypatch.setattr(nodes, "_started", lambda pid: None)
    assert not nodes.is_gone(stranger)


def test_without_proc_a_name_is_unique_and_proves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(nodes, "PROC", tmp_path)
    one, other = nodes.new_node_id(), nodes.new_node_id()
    assert one != other
    assert not nodes.is_gone(one)


def test_any_host_s_name_leaves_room_for_the_runner_s_number(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "h" * 64)
    groups = {runner_group(f"{nodes.new_node_id()}.{number}") for number in range(1000)}
    assert len(groups) == 1000


@pytest.mark.parametrize("name", ["", "node", "n1", "a-b-c-d-e", "vm-12-0123"])
def test_a_name_that_is_none_proves_nothing(name):
    assert not nodes.is_gone(name)


def test_a_runner_is_part_of_its_supervisors_node(monkeypatch):
    monkeypatch.setattr(nodes, "_joined", [])
    assert nodes.here() == nodes.new_node_id()
    nodes.join("host-1-2-3-4")
    assert nodes.here() == "host-1-2-3-4"
    assert nodes.short(nodes.here()) == "host-1"
