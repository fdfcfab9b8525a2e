"""What a reader sees, through any node and after any cut (trial 12), on both ASGI servers."""

import pytest

from agentsite.processes import until
from tests.cluster.client import Chat, custom, finished, first, is_question, texts


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
