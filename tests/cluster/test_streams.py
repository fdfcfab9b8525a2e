"""What a reader sees, through any node and after any cut (trial 12), on both ASGI servers."""

import time
from contextlib import ExitStack

import httpx
import pytest

from agentsite.processes import until
from agentsite.services import Nginx
from tests.cluster.client import Chat, custom, finished, first, is_question, texts
from tests.cluster.conftest import IN_FULL


def said(message):
    return {message["id"]: message["content"]}


def test_the_run_goes_on_when_the_tab_is_closed(site):
    """Reopened on another node, in the middle and at the end: the whole text, and the end."""
    chat = site.session()
    other = chat.at(site.web(2))
    gate = chat.id
    script = site.play(
        assistant=[[{"tokens": 20, "rate": 100}, {"hang": gate}, {"tokens": 20, "rate": 100}]]
    )
    with chat.events() as tab:
        run_id = chat.post(script)["run_id"]
        tab.until(first("TEXT_MESSAGE_CONTENT"))
    with other.events(last_event_id=tab.cursor) as reopened, other.events() as fresh:
        snapshot = fresh.until(first("MESSAGES_SNAPSHOT"))
        assert fresh.events[0].type == "RUN_STARTED"
        site.provider.release(gate)
        for reader in (reopened, fresh):
            assert reader.until(finished(run_id)).event["outcome"] == {"type": "success"}
    answer = other.until_idle()["messages"][-1]
    assert answer["content"] == " ".join(f"w{n}" for n in (*range(20), *range(20))) + " "
    assert texts([*tab.events, *reopened.events]) == said(answer)
    partial = snapshot.event["messages"][-1]
    rest = "".join(e.event["delta"] for e in fresh.events if e.type == "TEXT_MESSAGE_CONTENT")
    assert partial["id"] == answer["id"]
    assert partial["content"] + rest == answer["content"]
    with chat.events(0) as replay:
        replay.until(finished(run_id))
    assert texts(replay.events) == said(answer)


def test_the_first_token_is_with_the_reader_at_once(site):
    """Measured at a stream on the other node: 250 ms from the message, and from the provider."""
    script = site.play(assistant=[[{"text": "first"}, {"hang": ""}]])
    from_provider = []
    for _ in range(5):
        chat = site.session()
        with chat.at(site.web(2)).events() as reader:
            reader.until(first("MESSAGES_SNAPSHOT"))
            chat.post(script)
            token = reader.until(first("TEXT_MESSAGE_CONTENT"))
        exchange = site.provider.log(containing=script)[-1]
        from_provider.append(token.at - exchange.chunks[0])
        assert chat.interrupt()["status"] == "stopped"
    assert sorted(from_provider)[2] < 0.25, from_provider


def told(reader, message_id):
    """The answer as this reader has it: from the snapshot it began with, and what came after."""
    begun = [
        message.get("content", "")
        for arrived in reader.events
        for message in arrived.event.get("messages", ())
        if message["id"] == message_id
    ]
    came = [e.event for e in reader.events if e.event.get("messageId") == message_id]
    return "".join([*begun, *(event.get("delta", "") for event in came)])


def test_readers_at_every_moment_and_a_slow_one(site):
    """All end with the same text and the end; who takes one at a time gets all (trials 41, 42)."""
    count, tokens, pause = (200, 500, 1.0) if IN_FULL else (8, 40, 0.0)
    chat = site.session()
    with ExitStack() as opened:
        slow = opened.enter_context(chat.socket(cursor=0, window=1))
        run_id = chat.post(site.play(assistant=[[{"tokens": tokens, "rate": 30}]]))["run_id"]
        readers = []
        for number in range(count):
            way = chat.at(site.web(1 + number % 2))
            cursor = (0, None)[number // 2 % 2]
            readers.append(opened.enter_context(way.events(cursor)))
            time.sleep(tokens / 30 / count)
        for reader in readers:
            reader.until(lambda events: finished(run_id)(events) or is_idle(events))
        answer = chat.until_idle()["messages"][-1]
        for reader in readers:
            assert told(reader, answer["id"]) == answer["content"]
        assert len(slow.events) == 1
        while not finished(run_id)(slow.events):
            time.sleep(pause)
            slow.take_more()
        assert texts(slow.events) == said(answer)


def is_idle(events):
    """The stream began after the end of the turn."""
    states = [e.event["snapshot"]["status"] for e in events if e.type == "STATE_SNAPSHOT"]
    return (states == ["idle"] and first("MESSAGES_SNAPSHOT")(events)) or None


class PlainNginx(Nginx):
    """nginx with nothing said about streams: it buffers, speaks HTTP/1.0, and here compresses."""

    def _config(self):
        before, _, rest = super()._config().partition("location / {")
        directives = f"gzip on; gzip_types *; proxy_pass http://127.0.0.1:{self.upstream[0]};"
        return f"{before}location / {{ {directives} }}{rest.partition('}')[2]}"


def test_tokens_come_one_by_one_through_nginx_with_its_defaults(site, tmp_path):
    """Each is with the reader while the provider holds back the next (trial 43)."""
    gates = [f"{tmp_path}-{number}" for number in range(3)]
    script = site.play(
        assistant=[[action for gate in gates for action in ({"text": gate}, {"hang": gate})]]
    )
    chat = site.session()
    address = f"/api/chat/{chat.id}/events?cursor=0"
    accepts = {**chat.api.headers, "Accept-Encoding": "gzip"}
    with (
        PlainNginx(tmp_path / "nginx", [site.cluster.web[0].port]) as nginx,
        httpx.Client(base_url=nginx.url, headers=accepts, timeout=20, trust_env=False) as client,
        client.stream("GET", address) as stream,
    ):
        assert stream.headers["Content-Encoding"] == "gzip"
        chat.post(script)
        lines = stream.iter_lines()
        for gate in gates:
            next(line for line in lines if f'"delta":"{gate}"' in line)
            site.provider.release(gate)
        next(line for line in lines if "RUN_FINISHED" in line)


def test_a_socket_through_nginx_streams_and_stops(site, tmp_path):
    """A Stop is heard on the socket that the turn is streamed over, and which is behind with it."""
    script = site.play(assistant=[[{"tokens": 100_000, "rate": 50}]])
    ports = [node.port for node in site.cluster.web]
    chat = site.session()
    with (
        Nginx(tmp_path / "nginx", ports) as nginx,
        chat.at(nginx.url).socket(cursor=0, window=20) as socket,
    ):
        run_id = socket.ask("message", content=script)["run_id"]
        socket.until(lambda events: len(events) == 20 or None)
        assert socket.ask("interrupt")["status"] == "stopped"
        assert len(socket.events) == 20
        while not finished(run_id)(socket.events):
            socket.take_more()
        assert socket.events[-1].event["outcome"] == {"type": "cancelled"}
    (answer,) = [m for m in chat.messages() if m["status"] == "interrupted"]
    assert texts(socket.events) == said(answer)


@pytest.fixture(params=["daphne", "uvicorn"])
def two_nodes(request, site):
    """Addresses of two web nodes of which the first is served by the ASGI server in question."""
    daphne = request.param == "daphne"
    return site.web(1) if daphne else request.getfixturevalue("uvicorn_url"), site.web(2)


def test_a_whole_conversation_on_every_server(site, two_nodes):
    """Message, stream, sub-agent, question, answer, stop: over HTTP, SSE and the WebSocket."""
    here, there = two_nodes
    ask = {"question": "Which colour?", "ui_type": "select", "options": ["red", "blue"]}
    delegate = {"to": "researcher", "content": "$SCRIPT", "await_result": True}
    script = site.play(
        assistant=[
            [{"text": "Let me see."}, {"call": "send_message", "args": delegate}],
            [{"call": "ask_user", "args": ask}],
            [{"text": "You chose: $RESULTS"}, {"hang": ""}],
        ],
        researcher=[[{"text": "found"}]],
    )
    chat = Chat(site.api(), site.session().id).at(here)
    with chat.socket() as socket, chat.events() as reader:
        run_id = socket.ask("message", content=script)["run_id"]
        question = socket.until(custom("question", state="open")).event["value"]
        reader.until(custom("ax", agentId="researcher", reason="completed"))
        reader.until(lambda events: next(filter(is_question, events), None))
        assert chat.at(there).snapshot()["status"] == "suspended"
        assert socket.ask("respond", question_id=question["id"], payload="blue")
        reader.until(
            lambda events: next((t for t in texts(events).values() if "You chose" in t), None)
        )
        assert socket.ask("interrupt")["status"] == "stopped"
        for stream in (socket, reader):
            assert stream.until(finished(run_id)).event["outcome"] == {"type": "cancelled"}
        assert chat.at(there).interrupt()["status"] == "no_active_run"
    assert [e.event for e in reader.events if e.id > socket.events[0].id] == [
        e.event for e in socket.events if e.id > socket.events[0].id
    ]
    roles = [(m["role"], m["status"]) for m in chat.messages()]
    assert ("assistant", "interrupted") in roles


def test_a_reader_that_leaves_is_noticed(site, two_nodes):
    """Streams are not kept for readers that are gone."""
    here, _ = two_nodes
    chat = Chat(site.api(), site.session().id).at(here)

    def readers():
        lines = chat.api.http.get("/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith("agentsite_stream_readers ")]
        return float(line.split()[1])

    before = readers()
    with chat.events() as reader, chat.socket() as socket:
        for stream in (reader, socket):
            stream.until(first("MESSAGES_SNAPSHOT"))
        assert readers() == before + 2
    until(lambda: readers() == before, what="the readers' leave", timeout=5)
