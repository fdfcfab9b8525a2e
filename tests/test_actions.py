"""What people do: each action has happened, once, when it is answered."""

from functools import partial

import pytest

from chat import actions
from chat.executor import finish
from chat.models import ChatSession, Message
from coordination import endings
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Conflict, Invalid, NotFound
from coordination.models import Question, Run
from tests.core import (
    again,
    assert_at_rest,
    begin,
    claim,
    customs,
    in_threads,
    new_chat,
    post,
    respond_with,
    send,
)

pytestmark = [pytest.mark.usefixtures("core", "no_hints")]
in_transaction = pytest.mark.django_db
for_real = pytest.mark.django_db(transaction=True)


@pytest.fixture
def chat(db):
    return new_chat()


def say(chat, content="hello", key=None, on_busy="enqueue"):
    return actions._post(chat.pk, content, key, on_busy, "alice")


def test_a_message_and_its_run_are_one(chat):
    posted = say(chat, "first line\nsecond")
    assert posted.status == "started"
    message = Message.objects.get()
    assert (message.content, message.run_id) == ("first line\nsecond", posted.run_id)
    assert Run.objects.get().pk == posted.run_id
    assert ChatSession.objects.get().title == "first line"


def test_the_same_id_again_is_the_same_message(chat):
    first = say(chat, "hello", "k1")
    assert say(chat, "hello", "k1") == first
    assert Run.objects.count() == Message.objects.count() == 1


def test_the_same_id_gets_the_same_answer_though_its_turn_has_come_since(chat):
    run = claim(post(chat))
    first = say(chat, "and this", "k1")
    assert first.status == "queued"
    finish(run, "ok", "r1")
    assert Message.objects.get(pk=first.message_id).position is not None
    assert say(chat, "and this", "k1") == first


def test_the_same_id_with_another_body_is_refused(chat):
    say(chat, "hello", "k1")
    with pytest.raises(Conflict) as refusal:
        say(chat, "else", "k1")
    assert refusal.value.code == "id_conflict"
    assert Message.objects.count() == 1


def test_an_id_is_the_session_s_own(chat):
    say(chat, "hello", "k1")
    say(new_chat("bob"), "hello", "k1")
    assert Run.objects.count() == 2


@pytest.mark.parametrize("on_busy", ["reject", "interrupt"])
def test_the_same_id_again_neither_rejects_nor_interrupts_its_own_turn(chat, on_busy):
    first = say(chat, "hello", "k1")
    claim(Run.objects.get())
    assert say(chat, "hello", "k1", on_busy).run_id == first.run_id
    assert Run.objects.get().stop_requested_at is None


@for_real
def test_the_same_id_at_the_same_moment_is_one_message(redis_server):
    chat = new_chat()
    results = in_threads(*[lambda: say(chat, "hello", "k1").run_id for _ in range(6)])
    assert len(set(results)) == 1, results
    assert Run.objects.count() == Message.objects.count() == 1


def test_a_busy_session_keeps_the_message_in_the_queue(chat):
    run = claim(post(chat))
    posted = say(chat, "and this")
    assert posted.status == "queued"
    assert customs(chat.pk, "queue")[-1]["items"] == [
        {"id": str(posted.message_id), "content": "and this"}
    ]
    finish(run, "ok", "r1")
    assert customs(chat.pk, "queue")[-1]["items"] == []
    assert Message.objects.get(pk=posted.message_id).position is not None


def test_a_busy_session_rejects_when_it_is_asked_to(chat):
    claim(post(chat))
    with pytest.raises(Conflict) as refusal:
        say(chat, "and this", on_busy="reject")
    assert refusal.value.code == "busy"
    assert Message.objects.count() == 1


def test_a_message_may_interrupt_what_runs(chat):
    run = claim(post(chat))
    posted = say(chat, "rather this", on_busy="interrupt")
    assert again(run).stop_requested_at is not None
    assert posted.status == "queued"
    endings.stopped(run, by="r1")
    assert claim(Run.objects.get(pk=posted.run_id))


def test_the_queue_keeps_its_order_and_the_memory_its_words(chat):
    run = claim(post(chat, "one"))
    say(chat, "two")
    say(chat, "three")
    respond_with(run, "answer one")
    finish(run, "answer one", "r1")
    from chat import memory

    contents = [m.content for m in memory.conversation(chat.pk, "assistant")]
    assert contents == ["one", "answer one", "two"]


def test_what_interrupts_is_the_next_to_run_and_those_who_wait_stay_behind_it(chat):
    first = claim(post(chat, "one"))
    waiting = [say(chat, "two"), say(chat, "three")]
    urgent = say(chat, "rather this", on_busy="interrupt")
    order = [urgent.message_id, *(posted.message_id for posted in waiting)]
    assert [item["id"] for item in customs(chat.pk, "queue")[-1]["items"]] == list(map(str, order))
    endings.stopped(first, by="r1")
    for posted in (urgent, *waiting):
        run = Run.objects.get(parent=None, lane__isnull=False)
        assert run.pk == posted.run_id
        finish(claim(run), "ok", "r1")
    assert_at_rest(chat.pk)


@pytest.mark.parametrize("state", ["queued", "suspended"])
def test_what_interrupts_a_turn_that_nobody_executes_begins_at_once(chat, state):
    first = post(chat, "one")
    say(chat, "two")
    if state == "suspended":
        ask(claim(first))
    posted = say(chat, "rather this", on_busy="interrupt")
    assert again(first).status == "interrupted"
    assert posted.status == "started"
    assert claim(Run.objects.get(pk=posted.run_id))
    assert [item["content"] for item in customs(chat.pk, "queue")[-1]["items"]] == ["two"]
    assert_at_rest(chat.pk)


def test_what_interrupts_an_idle_session_just_begins(chat):
    posted = say(chat, on_busy="interrupt")
    assert posted.status == "started"
    assert Run.objects.get().stop_requested_at is None


# -- the queue -----------------------------------------------------------------------------------


def edit(chat, posted, content):
    return actions._edit_waiting(chat.pk, str(posted.message_id), content)


def remove(chat, posted):
    actions._remove_waiting(chat.pk, str(posted.message_id), "alice")


def users_words(chat):
    from chat import memory

    return [m.content for m in memory.conversation(chat.pk, "assistant") if m.role == "user"]


def test_a_message_that_waits_can_be_edited_and_keeps_its_place_run_and_key(chat):
    first = claim(post(chat, "one"))
    posted = say(chat, "two", "k1")
    say(chat, "three")
    item = edit(chat, posted, "too")
    assert item == {"id": str(posted.message_id), "content": "too"}
    edit(chat, posted, "2")
    assert [i["content"] for i in customs(chat.pk, "queue")[-1]["items"]] == ["2", "three"]
    assert say(chat, "two", "k1") == posted  # the sender's retry knows nothing of the edit
    with pytest.raises(Conflict) as refusal:
        say(chat, "too", "k1")
    assert refusal.value.code == "id_conflict"
    finish(first, "ok", "r1")
    assert claim(Run.objects.get(pk=posted.run_id))
    assert users_words(chat) == ["one", "2"]
    assert Message.objects.get(pk=posted.message_id).parts == [{"type": "text", "text": "2"}]


def test_a_message_that_was_removed_never_runs_and_is_never_read(chat):
    first = claim(post(chat, "one"))
    posted = say(chat, "two", "k1")
    say(chat, "three")
    remove(chat, posted)
    run = Run.objects.get(pk=posted.run_id)
    assert (run.status, run.reason, run.lane) == ("interrupted", "interrupted", None)
    change = customs(chat.pk, "queue")[-1]
    assert [item["content"] for item in change["items"]] == ["three"]
    assert change["removed"] == str(posted.message_id)
    assert say(chat, "two", "k1") == posted
    finish(first, "ok", "r1")
    following = Run.objects.get(parent=None, lane__isnull=False)
    finish(claim(following), "ok", "r1")
    assert users_words(chat) == ["one", "three"]
    assert Run.objects.count() == 3
    assert again(run).epoch == 0
    assert not Message.objects.filter(run_id=run.pk).exclude(pk=posted.message_id).exists()
    assert_at_rest(chat.pk)


def test_what_has_left_the_queue_is_neither_edited_nor_removed(chat):
    first = claim(post(chat, "one"))
    started, removed = say(chat, "two"), say(chat, "three")
    remove(chat, removed)
    finish(first, "ok", "r1")
    for posted, code in ((started, "already_started"), (removed, "already_removed")):
        for change in (lambda p=posted: edit(chat, p, "x"), lambda p=posted: remove(chat, p)):
            with pytest.raises(Conflict) as refusal:
                change()
            assert refusal.value.code == code
    assert again(Run.objects.get(pk=started.run_id)).stop_requested_at is None
    assert users_words(chat) == ["one", "two"]


@for_real
@pytest.mark.parametrize(
    "change", [partial(edit, content="edited"), remove], ids=["edit", "remove"]
)
def test_an_edit_or_removal_against_the_turn_s_beginning_has_one_winner(redis_server, change):
    for turn in range(8):
        chat = new_chat(f"user {turn}")
        first = claim(post(chat, "one"))
        posted = say(chat, "two")
        both = [partial(change, chat, posted), partial(finish, first, "ok", "r1")]
        result = in_threads(*both)[0] if turn % 2 else in_threads(*reversed(both))[1]
        run = Run.objects.get(pk=posted.run_id)
        if isinstance(result, Exception):
            assert getattr(result, "code", result) == "already_started"
            assert (run.lane is not None, users_words(chat)) == (True, ["one", "two"])
        elif change is remove:
            assert (run.status, users_words(chat)) == ("interrupted", ["one"])
        else:
            assert (run.lane is not None, users_words(chat)) == (True, ["one", "edited"])
        assert_at_rest(chat.pk)


def ask(run):
    from chat import memory
    from coordination.suspensions import Ask

    respond_with(run, "", q=("ask_user", {}))
    memory.save_outcomes(run, [(memory.Call("q", "ask_user", "{}"), Ask(question="?"))])
    return Question.objects.get(run=run)


def test_a_newer_message_supersedes_the_open_question(chat):
    question = ask(claim(post(chat)))
    posted = say(chat, "never mind")
    assert Question.objects.get().state == "superseded"
    assert again(question.run).reason == "superseded"
    assert posted.status == "started"
    assert_at_rest(chat.pk)


def test_a_message_that_may_be_rejected_leaves_the_question_open(chat):
    question = ask(claim(post(chat)))
    with pytest.raises(Conflict):
        say(chat, "or this?", on_busy="reject")
    question.refresh_from_db()
    assert question.state == "open"


def test_the_question_of_a_sub_agent_that_outlived_its_turn_is_superseded_too(chat):
    master = claim(post(chat))
    _, child = send(master)
    from coordination.transactions import locked

    with locked(chat.pk) as session:
        endings.settle(session, again(master), "completed", reason="completed", by="r1")
    question = ask(begin(child, "r2"))
    say(chat, "never mind")
    question.refresh_from_db()
    assert question.state == "superseded"


@for_real
@pytest.mark.parametrize(
    ("content", "code"),
    [("", "empty"), (" \n", "empty"), ("a\x00b", "invalid_text"), ("\ud800", "invalid_text")],
)
async def test_what_cannot_be_kept_is_refused(transactional_db, content, code):
    chat = await db(new_chat)
    with pytest.raises(Invalid) as refusal:
        await actions.post_message(chat, content, by="alice")
    assert refusal.value.code == code
    assert not await db(Message.objects.exists)


@for_real
async def test_the_largest_message_passes_and_one_byte_more_does_not(transactional_db, monkeypatch):
    monkeypatch.setattr(conf, "message_bytes", 10)
    chat = await db(new_chat)
    assert await actions.post_message(chat, "é" * 5, by="alice")
    with pytest.raises(Invalid) as refusal:
        await actions.post_message(chat, "é" * 5 + "a", by="alice")
    assert refusal.value.code == "too_large"


@for_real
async def test_a_stranger_s_session_is_the_same_as_none(transactional_db):
    chat = await db(new_chat)
    bob = await db(lambda: new_chat("bob").owner)
    assert await actions.find_session(chat.owner, chat.pk) == chat
    for user, pk in ((bob, chat.pk), (chat.owner, "nonsense"), (chat.owner, chat.pk.hex[:-1])):
        with pytest.raises(NotFound) as refusal:
            await actions.find_session(user, pk)
        assert refusal.value.code == "not_found"


@for_real
async def test_deleting_stops_what_runs_and_what_waits(transactional_db):
    chat = await db(new_chat)
    run = await db(lambda: claim(post(chat)))
    waiting = await db(lambda: post(chat, "two"))
    await actions.delete_session(chat, by="alice")
    with pytest.raises(NotFound):  # found before it was deleted, sent after it
        await actions.post_message(chat, "and this", by="alice")
    assert (await db(again, waiting)).status == "interrupted"
    assert (await db(again, run)).stop_requested_at is not None
    with pytest.raises(NotFound):
        await actions.find_session(chat.owner, chat.pk)


@for_real
@pytest.mark.parametrize("status", ["maybe", "", "answered"])
async def test_an_answer_has_one_of_two_statuses(transactional_db, status):
    chat = await db(new_chat)
    question = await db(lambda: ask(claim(post(chat))))
    with pytest.raises(Invalid):
        await actions.respond(chat, question.pk, status=status, payload="x", by="alice")
    assert (await db(Question.objects.get)).state == "open"


@for_real
@pytest.mark.parametrize(
    "payload", ["a\x00", ["a", "\ud800"], {"n": "\x00"}, {"\x00": "n"}, "x" * 2_000_000]
)
async def test_an_answer_that_no_column_takes_is_refused(transactional_db, payload):
    chat = await db(new_chat)
    question = await db(lambda: ask(claim(post(chat))))
    with pytest.raises(Invalid):
        await actions.respond(chat, question.pk, payload=payload, by="alice")
    assert (await db(Question.objects.get)).state == "open"


@for_real
async def test_ids_that_are_none_are_not_found(transactional_db, hub):
    chat = await db(new_chat)
    with pytest.raises(NotFound):
        await actions.respond(chat, "nonsense", payload="x", by="alice")
    with pytest.raises(NotFound):
        await actions.stop(chat, run_id="nonsense", by="alice")
