"""Folding the log: smaller, and not a letter different; nobody who reads or writes is disturbed."""

import io
import json
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from chat import memory
from chat.llm import Usage
from coordination import endings, events, prune, vocabulary
from coordination.conf import conf
from coordination.models import Event, Session, WorkerNode
from coordination.transactions import locked
from tests.core import (
    _assert_texts_are_the_messages,
    again,
    back_in_time,
    begin,
    claim,
    in_threads,
    logged,
    new_chat,
    post,
    send,
    write_stream,
)
from tests.verifier import verify

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]
for_real = pytest.mark.django_db(transaction=True)

DELTAS = tuple(events.MERGED)
ARGUMENTS = json.dumps({"id": "x" * 10})


@pytest.fixture
def chat():
    return new_chat()


def say(run, text, calls=()):
    """A step of the model: reasoning, text and calls, each letter an event; saved."""
    message_id, reasoning_id = uuid.uuid4(), str(uuid.uuid4())
    write_stream(run, *vocabulary.reasoning_start(run, reasoning_id))
    for letter in text:
        write_stream(run, vocabulary.reasoning_content(run, reasoning_id, letter))
    write_stream(
        run,
        *vocabulary.reasoning_end(run, reasoning_id),
        vocabulary.text_start(run, str(message_id)),
    )
    for letter in text:
        write_stream(run, vocabulary.text_content(run, str(message_id), letter))
    for call_id in calls:
        write_stream(run, vocabulary.tool_call_start(run, call_id, "f", str(message_id)))
        for letter in ARGUMENTS:
            write_stream(run, vocabulary.tool_call_args(run, call_id, letter))
        write_stream(run, vocabulary.tool_call_end(run, call_id))
    parts = [TextPart(text), *(ToolCallPart("f", ARGUMENTS, call_id) for call_id in calls)]
    memory.save_response(
        run, message_id, ModelResponse(parts=parts), Usage("p", "m", 1, 1), text_open=True
    )


def end(run):
    with locked(run.session_id) as session:
        assert endings.settle(
            session, again(run), "completed", reason="completed", by="test", result="ok"
        )


def a_turn(chat, text="a long answer"):
    """A master and its sub-agent speak at the same time, and end."""
    master = claim(post(chat))
    _, child = send(master)
    child = begin(child)
    message_ids = [str(uuid.uuid4()) for _ in (master, child)]
    for run, message_id in zip((master, child), message_ids, strict=True):
        write_stream(run, vocabulary.text_start(run, message_id))
    for letter in text:
        for run, message_id in zip((master, child), message_ids, strict=True):
            write_stream(run, vocabulary.text_content(run, message_id, letter))
    for run, message_id in zip((master, child), message_ids, strict=True):
        response = ModelResponse(parts=[TextPart(text)])
        usage = Usage("p", "m", 1, 1)
        memory.save_response(run, uuid.UUID(message_id), response, usage, text_open=True)
    say(child, text, calls=["c1", "c2"])
    say(child, text)
    end(child)
    say(master, text)
    end(master)


def folded(session_id):
    """Each message's deltas in one, by what it is of: what a reader of the whole log has then."""
    texts = {}
    for event in logged(session_id, *DELTAS):
        key = event["type"], event[events.MERGED[event["type"]]]
        texts[key] = texts.get(key, "") + event["delta"]
    return texts


def others(session_id):
    rows = Event.objects.filter(session_id=session_id).exclude(type__in=DELTAS)
    return list(rows.order_by("seq").values_list("seq", "data"))


@pytest.mark.parametrize("batch", [3, 500])
def test_one_event_a_message_is_left_and_says_the_same(chat, monkeypatch, batch):
    monkeypatch.setattr(prune, "BATCH", batch)
    a_turn(chat)
    before, around, count = folded(chat.pk), others(chat.pk), len(logged(chat.pk))
    done = prune.prune(0)
    assert (done.sessions, done.events) == (1, count)
    assert done.removed == count - len(logged(chat.pk)) > 50
    assert folded(chat.pk) == before
    assert others(chat.pk) == around
    if batch == 500:
        assert len(logged(chat.pk, *DELTAS)) == len(before)
    verify(logged(chat.pk))
    _assert_texts_are_the_messages(chat.pk)
    session = Session.objects.get(pk=chat.pk)
    assert session.first_seq == session.last_seq + 1
    assert prune.prune(0) == prune.Folded()


def test_what_is_young_or_of_a_run_that_has_not_ended_stays(chat):
    a_turn(chat)
    back_in_time(Event.objects.filter(session_id=chat.pk), 100, "created_at")
    last = Session.objects.get(pk=chat.pk).last_seq
    run = claim(post(chat))
    say(run, "not yet")
    lasting = [event for event in logged(chat.pk) if str(run.pk) in json.dumps(event)]
    assert prune.prune(200) == prune.Folded()
    assert prune.prune(50).removed > 0
    assert Session.objects.get(pk=chat.pk).first_seq == last + 1
    assert prune.prune(0).removed == 0  # of a run that is at work
    assert [e for e in logged(chat.pk) if str(run.pk) in json.dumps(e)] == lasting
    items = events.unsaved(again(run))
    assert items == events.OpenItems()
    end(run)
    assert prune.prune(0).removed > 0
    _assert_texts_are_the_messages(chat.pk)


def test_a_dry_run_says_the_same_and_does_nothing(chat):
    a_turn(chat)
    before = logged(chat.pk)
    would = prune.prune(0, dry_run=True)
    assert logged(chat.pk) == before
    assert Session.objects.get(pk=chat.pk).first_seq == 1
    assert prune.prune(0) == would


def test_of_two_at_once_each_batch_is_done_by_one(chat):
    a_turn(chat)
    (slow,) = prune._batches(chat.pk, 1, timezone.now())
    assert prune.prune(0).removed > 0
    after = logged(chat.pk)
    assert not slow.commit()
    assert logged(chat.pk) == after


@for_real
def test_beside_writers_and_another_prune(redis_server, monkeypatch):
    monkeypatch.setattr(prune, "BATCH", 20)
    chats = [new_chat() for _ in range(3)]
    for chat in chats[:2]:
        a_turn(chat)

    def write():
        for number in range(3):
            a_turn(chats[2], f"turn {number}")

    def fold():
        for _ in range(10):
            prune.prune(0)

    assert in_threads(write, fold, fold) == [None] * 3
    prune.prune(0)
    assert prune.prune(0) == prune.Folded()
    for chat in chats:
        verify(logged(chat.pk))
        _assert_texts_are_the_messages(chat.pk)


def test_nodes_that_are_gone_for_long_are_forgotten():
    for name in ("living", "gone"):
        WorkerNode.beat(name, host="h", pid=1, processes=1, concurrency=1, cpus=1)
    back_in_time(WorkerNode.objects.filter(pk="gone"), conf.node_memory, "beat_at")
    out = io.StringIO()
    call_command("prune", "--dry-run", stdout=out)
    assert out.getvalue().endswith("would forget 1 worker nodes that are gone\n")
    assert prune.forget_nodes(conf.node_memory) == 1
    assert prune.forget_nodes(conf.node_memory) == 0
    assert WorkerNode.objects.get().pk == "living"


def test_the_command_says_what_it_did(chat):
    a_turn(chat)

    def command(*argv):
        out = io.StringIO()
        call_command("prune", *argv, stdout=out)
        return out.getvalue()

    assert command() == "folded 0 of 0 events in 0 sessions\n"
    dry = command("--older-than", "0", "--dry-run")
    assert dry.startswith("would fold ")
    done = json.loads(command("--older-than", "0", "--json"))
    assert dry == f"would fold {done['removed']} of {done['events']} events in 1 sessions\n"
    with pytest.raises(CommandError, match="0 or more"):
        command("--older-than", "-1")
