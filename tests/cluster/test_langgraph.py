"""LangGraph's clients on a cluster: what is streamed goes on when the nodes that carry it die."""

import asyncio

import pytest
from langgraph_sdk import get_client

from agentsite.services import Nginx
from tests.cluster.client import PATIENCE, Chat
from tests.javascript import JavaScript


@pytest.fixture
def front(site, tmp_path):
    """One address before both web nodes."""
    with Nginx(tmp_path, [node.port for node in site.cluster.web]) as nginx:
        yield nginx.url


def client_at(url, token):
    headers = {"Authorization": f"Bearer {token}"}
    return get_client(url=f"{url}/api/lg", api_key=None, headers=headers)


def human(script):
    return {"messages": [{"role": "user", "content": script}]}


async def collect(stream, parts, under_way):
    """The parts of either client, as they come; ``under_way`` with the first words."""
    try:
        async for part in stream:
            parts.append(part if isinstance(part, dict) else part._asdict())
            if parts[-1]["event"] == "messages":
                under_way.set()
    finally:
        under_way.set()


async def test_a_run_is_joined_on_one_node_and_cancelled_on_the_other(site):
    token = site.token("alice")
    script = site.play(assistant=[[{"text": "some words"}, {"hang": ""}]])
    async with client_at(site.web(1), token) as here, client_at(site.web(2), token) as there:
        run = await here.runs.create(None, "assistant", input=human(script))
        tid, run_id = run["thread_id"], run["run_id"]
        joined = asyncio.create_task(here.runs.join(tid, run_id))
        async for part in here.runs.join_stream(tid, run_id, stream_mode="messages-tuple"):
            if part.event == "messages":
                await there.runs.cancel(tid, run_id, wait=True)
                assert (await here.runs.get(tid, run_id))["status"] == "interrupted"
        assert part.data == {"run_id": run_id, "status": "interrupted"}
        assert (await joined)["messages"][1]["content"] == "some words"


async def test_streams_outlive_their_web_nodes_and_the_runs_worker(site, front):
    token, gate = site.token("alice"), "langgraph"
    words = {"tokens": 20, "rate": 100}
    script = site.play(assistant=[[words, {"hang": gate}, words]])
    modes = ["messages-tuple", "updates"]
    async with client_at(front, token) as python, JavaScript(front, token) as javascript:
        run = await python.runs.create(None, "assistant", input=human(script))
        tid, run_id = run["thread_id"], run["run_id"]
        in_python, in_javascript = [], []
        stream = python.runs.join_stream(tid, run_id, stream_mode=modes)
        other = javascript.stream("runs", "joinStream", tid, run_id, {"streamMode": modes})
        under_way = asyncio.Event(), asyncio.Event()
        readers = asyncio.gather(
            collect(stream, in_python, under_way[0]), collect(other, in_javascript, under_way[1])
        )
        async with asyncio.timeout(PATIENCE):
            for event in under_way:
                await event.wait()
        worker = await asyncio.to_thread(site.owner, Chat(site.api(), tid), "assistant")
        worker.kill()
        first, second = site.cluster.web  # whichever carries a stream, it dies
        first.kill()
        await asyncio.to_thread(first.start)
        second.kill()
        site.provider.release(gate)
        async with asyncio.timeout(PATIENCE):
            await readers
    assert in_python[-1]["data"] == {"run_id": run_id, "status": "success"}
    assert in_javascript == in_python

    async with client_at(site.web(1), token) as there:
        whole = []
        stream = there.runs.join_stream(tid, run_id, stream_mode=modes)
        await collect(stream, whole, asyncio.Event())
        assert whole == in_python
        joined = await there.runs.join(tid, run_id)
        assert joined["messages"][-1] == whole[-2]["data"]["assistant"]["messages"][0]
