"""A plain tool runs in a process of its own: it is killed, and dies, alone."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chat.tools import processes
from chat.tools.base import ToolContext, ToolError, Value, tool
from coordination.conf import conf
from coordination.errors import Fenced
from coordination.models import Run
from coordination.suspensions import Ask
from tests.fakes import tools


async def make(made, call_id="c1", **arguments):
    return await made(ToolContext(Run(), call_id), json.dumps(arguments))


async def test_it_has_another_process_and_the_context_of_its_call():
    run = Run()
    outcome = await tools.plain(ToolContext(run, "c1"), '{"text": "x", "times": 2}')
    assert isinstance(outcome, Value)
    assert outcome.content["pid"] != os.getpid()
    assert outcome.content["key"] == f"{run.pk}:c1"
    assert outcome.content["text"] == "xx"


async def test_what_it_prints_is_not_said_to_the_supervisor(capfd):
    await make(tools.plain, text="x")
    said = capfd.readouterr()
    assert said.out == ""


async def test_a_large_result_crosses_whole():
    outcome = await make(tools.plain, text="é" * 1000, times=3000)
    assert outcome.content["text"] == "é" * 3_000_000


async def test_many_at_once_do_not_wait_for_each_other():
    outcomes = await asyncio.gather(*(make(tools.plain, text=str(n)) for n in range(40)))
    assert [outcome.content["text"] for outcome in outcomes] == [str(n) for n in range(40)]
    assert len({outcome.content["pid"] for outcome in outcomes}) == 40


ENDS = {
    "segfault": (processes.Died, "SIGSEGV"),
    "exit": (processes.Died, "exited with 0"),
    "sys.exit": (processes.Died, "SystemExit: done here"),
    "unpicklable": (TypeError, "cannot leave its process"),
    "raise": (LookupError, "no such shelf"),
    "odd": (RuntimeError, "OddError: 1 and 2"),
    "refuse": (ToolError, "ask somebody else"),
    "fenced": (Fenced, "gone"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_each_way_to_end_badly_is_told_and_takes_nobody_along(how):
    kind, said = ENDS[how]
    other = asyncio.ensure_future(make(tools.plain, text="x"))
    with pytest.raises(kind, match=said):
        await make(tools.crash, how=how)
    assert (await other).content["text"] == "x"


async def test_where_it_was_raised_is_for_the_log():
    with pytest.raises(LookupError) as error:
        await make(tools.crash, how="raise")
    assert "fakes/tools.py" in error.value.__notes__[0]


async def test_it_may_suspend_its_run():
    assert await make(tools.crash, how="ask") == Ask(question="which?")


async def until(condition: Callable[[], bool]) -> None:
    """As ``core.until``, without a database."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a process outside has no event
            await asyncio.sleep(0.005)


async def hanging(folder: Path, name: str, **more: object) -> tuple[asyncio.Task, list[int]]:
    """A call that hangs, and the ids of its processes."""
    task = asyncio.ensure_future(make(tools.hang, name, folder=str(folder), **more))
    said = folder / name
    await until(lambda: said.exists() and said.read_text().endswith("\n"))
    return task, [int(pid) for pid in said.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it is read
        return False
    return not stat.rpartition(")")[2].startswith(" Z")


@pytest.mark.parametrize("deaf", [False, True])
async def test_cancelled_it_is_killed_and_the_caller_does_not_wait(tmp_path, monkeypatch, deaf):
    other, others = await hanging(tmp_path, "other")
    task, pids = await hanging(tmp_path, "it", deaf=deaf)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < conf.tool_kill_grace
    await until(lambda: not any(map(is_alive, pids)))
    assert not deaf or time.monotonic() - began > conf.tool_kill_grace
    assert all(map(is_alive, others))
    other.cancel()
    await until(lambda: not any(map(is_alive, others)))


async def test_a_server_that_is_killed_takes_its_calls_along_and_is_started_again(tmp_path):
    task, pids = await hanging(tmp_path, "it")
    server = processes._current.process
    assert server
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(processes.Died, match="lost"):
        await task
    await until(lambda: not is_alive(pids[0]))
    assert (await make(tools.plain, text="x")).content["text"] == "x"
    os.kill(pids[1], signal.SIGKILL)  # nobody was left to do it


async def test_a_program_that_nobody_reads_holds_up_nobody_by_its_end(tmp_path):
    filled = tmp_path / "filled"
    fill = (
        "import os\nos.set_blocking(1, False)\n"
        "try:\n while True: os.write(1, bytes(65536))\n"
        f"except BlockingIOError: os.set_blocking(1, True); open({str(filled)!r}, 'w')"
    )
    reader, writer = await processes.start([sys.executable, "-c", fill], {}, 1024)
    reader._transport.pause_reading()
    await until(filled.exists)
    async with asyncio.timeout(30):
        assert (await make(tools.plain, text="x")).content["text"] == "x"
    writer.transport.abort()


def test_a_plain_tool_inside_a_function_is_refused_when_it_is_written():
    with pytest.raises(TypeError, match="top of its module"):

        @tool
        def nested(context: ToolContext) -> str:
            """Cannot be found by another process."""
            return ""
