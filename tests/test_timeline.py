"""A session's timeline: everything that happened, in order, each hop with the time it took."""

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chat import actions, memory
from chat.executor import finish
from chat.management.commands import interrupt as interrupt_command
from chat.models import ApiToken
from coordination import endings, interrupts, nodes, suspensions, timeline
from coordination.db import db
from coordination.models import InboxMessage, Run, Session, WorkLogEntry
from coordination.suspensions import Ask
from coordination.worklog import through
from tests.core import again, back_in_time, begin, claim, judge, new_chat, post, respond_with, send

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]


@pytest.fixture
def chat():
    return new_chat()


def page(chat, **asked):
    return timeline.page(Session.objects.get(pk=chat.pk), **asked)


def told(chat, **asked):
    return [f"{entry.kind.value} {entry.what}" for entry in page(chat, **asked).entries]


def the(chat, kind, what, agent_id="assistant"):
    found = [
        e for e in page(chat).entries if (e.kind, e.what, e.agent_id) == (kind, what, agent_id)
    ]
    assert len(found) == 1, [(e.kind.value, e.what, e.agent_id) for e in page(chat).entries]
    return found[0]


def ask(run):
    respond_with(run, "", q1=("ask_user", {}))
    call = memory.Call("q1", "ask_user", "{}")
    assert memory.save_outcomes(run, [(call, Ask(question="which?"))]).parked
    return run.questions.get()


def test_a_turn_is_told_from_its_message_to_its_end(chat):
    run = begin(post(chat))
    message = respond_with(run, "hello")
    assert finish(run, message.content, "r1")
    heard = told(chat)
    in_order = ["message user", "run queued", "lease claimed", "message assistant", "run completed"]
    assert [line for line in heard if line in in_order] == in_order
    assert "lease released" in heard
    assert "log run_completed" in heard


def test_each_hop_says_what_it_follows_and_how_long_it_took(chat):
    run = post(chat)
    back_in_time(Run.objects.filter(pk=run.pk), 7, "queued_at")
    run = begin(run)
    claimed = the(chat, "lease", "claimed")
    assert claimed.after == "queued"
    assert 7 <= claimed.took < 60
    respond_with(run, "hello")
    said = the(chat, "message", "assistant")
    assert said.after == "claimed"
    assert 0 <= said.took < 60


def test_a_task_is_followed_by_its_result_and_a_lost_run_says_who_judged(chat):
    run = begin(post(chat))
    task, child = send(run)
    back_in_time(InboxMessage.objects.filter(pk=task.pk), 5, "created_at")
    child = claim(child, "r2", "n2")
    assert judge(child, by="guard of n3")
    result = the(chat, "inbox", "result", "system")
    assert result.after == "task"
    assert 5 <= result.took < 60
    assert the(chat, "lease", "lease_expired", "researcher").by == "guard of n3"
    assert the(chat, "run", "timeout", "researcher").text == "lease_expired"


def test_a_question_says_who_answered_after_how_long_and_the_next_claim_follows_it(chat):
    question = ask(begin(post(chat)))
    back_in_time(type(question).objects.filter(pk=question.pk), 9, "opened_at")
    suspensions.respond(chat.pk, question.pk, resolved=True, payload="red", by="alice")
    answered = the(chat, "question", "answered")
    assert answered.by == "alice"
    assert 9 <= answered.took < 60
    claim(again(question.run))
    claims = [e for e in page(chat).entries if e.what == "claimed"]
    assert [entry.after for entry in claims] == ["queued", "answer"]


def test_a_stop_says_who_through_which_door_on_which_node_and_how_long_each_run_took(chat):
    run = begin(post(chat))
    _task, child = send(run)
    child = claim(child, "r2", "n2")
    with through("page"):
        interrupts.request(chat.pk, by="alice")
    endings.stopped(child, by="r2")
    endings.stopped(run, by="r1")
    stop = the(chat, "stop", "stop_requested")
    assert "by alice" in stop.text
    assert stop.by == f"page @ {nodes.short(nodes.here())}"
    for agent_id in ("assistant", "researcher"):
        assert the(chat, "stop", "stop", agent_id).by == "alice"
        ended = the(chat, "run", "interrupted", agent_id)
        assert ended.after == "stop"
        assert ended.took is not None


def test_it_is_narrowed_by_kind_and_agent(chat):
    run = begin(post(chat))
    send(run)
    assert set(told(chat, kinds=["inbox"])) == {"inbox task"}
    assert {e.agent_id for e in page(chat, agent_id="researcher").entries} == {"researcher"}
    assert page(chat, agent_id="researcher").agents == ["assistant", "researcher"]


def fill(chat, number):
    """That many notes, after what is there."""
    session = Session.objects.get(pk=chat.pk)
    first = session.last_position + 1
    InboxMessage.objects.bulk_create(
        InboxMessage(
            session=session, position=place, sender="a", recipient="b", kind="note",
            content=str(place),
        )
        for place in range(first, first + number)
    )  # fmt: skip
    Session.objects.filter(pk=chat.pk).update(last_position=first + number - 1)


def test_pages_lead_to_the_beginning_and_back_and_tell_everything_once(chat):
    begin(post(chat))
    fill(chat, 3 * timeline.SPAN)
    seen, found, upto = [], page(chat), None
    assert found.later is None
    while True:
        notes = [entry.row.pk for entry in found.entries if entry.what == "note"]
        assert len(notes) <= timeline.SPAN
        seen += notes
        if found.earlier is None:
            break
        upto = found.earlier
        found = page(chat, upto=upto)
        assert found.later is not None
    assert len(seen) == len(set(seen)) == 3 * timeline.SPAN
    assert "message user" in [f"{e.kind.value} {e.what}" for e in found.entries]


def test_a_message_that_waits_is_on_its_runs_page(chat):
    begin(post(chat))
    post(chat, "and then")
    assert told(chat).count("message user") == 2


def test_a_longer_session_asks_no_more_often(chat):
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            page(chat)
        return len(captured)

    run = begin(post(chat))
    few = queries()
    send(run)
    fill(chat, 500)
    assert queries() <= few <= 10


# -- where a line of the work log comes from ---------------------------------------------------


async def test_a_stop_over_the_api_names_its_door(transactional_db, hub, async_client):
    chat = await db(new_chat)
    await actions.post_message(chat, "hello", by="alice")
    token = await db(ApiToken.issue, chat.owner)
    for header, door in (({"Authorization": f"Bearer {token}"}, "api"), (None, "page")):
        if header is None:
            await async_client.aforce_login(chat.owner)
            await actions.post_message(chat, "again", by="alice")
        answer = await async_client.post(
            f"/api/chat/{chat.pk}/interrupt", {}, "application/json", headers=header
        )
        assert answer.status_code == 200
        line = await db(WorkLogEntry.objects.filter(kind="stop_requested").latest, "pk")
        assert line.door == door


@pytest.mark.django_db(transaction=True)
def test_a_stop_from_the_terminal_names_its_door(chat):
    post(chat)
    call_command(interrupt_command.Command(), str(chat.pk))
    assert WorkLogEntry.objects.get(kind="stop_requested").door == "terminal"
