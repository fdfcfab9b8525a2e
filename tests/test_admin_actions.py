"""What an operator may do: shown first, done once, by whom it may be, and on record."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from chat import memory
from chat.models import ApiToken, ChatSession
from coordination import endings, interrupts
from coordination.admin.actions import AT_ONCE
from coordination.conf import conf
from coordination.db import db
from coordination.models import InboxMessage, Lease, Question, Run, WorkLogEntry
from coordination.suspensions import Ask
from tests.core import (
    again,
    assert_at_rest,
    at_rest,
    begin,
    claim,
    ended,
    judge,
    new_chat,
    node,
    post,
    respond_with,
    send,
    until,
)
from tests.fakes.step_model import Gate, ScriptedModel

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core")]

ADDRESS = {
    Run: "coordination_run", InboxMessage: "coordination_inboxmessage",
    Question: "coordination_question", ApiToken: "chat_apitoken",
}  # fmt: skip


@pytest.fixture
def chat():
    return new_chat()


@pytest.fixture
def staff(client):
    user = User.objects.create_superuser("olga")
    client.force_login(user)
    return user


def address(model):
    return reverse(f"admin:{ADDRESS[model]}_changelist")


def form(action, *rows, confirmed=False):
    return {
        "action": action,
        "_selected_action": [row.pk for row in rows],
        **({"confirmed": "yes"} if confirmed else {}),
    }


def shown(client, action, *rows):
    """The page that asks, as text."""
    answer = client.post(address(type(rows[0])), form(action, *rows))
    assert answer.status_code == 200
    return answer.content.decode()


def do(client, action, *rows):
    """Confirmed; what the next page says."""
    data = form(action, *rows, confirmed=True)
    return client.post(address(type(rows[0])), data, follow=True).content.decode()


def logged(row):
    return list(LogEntry.objects.filter(object_id=str(row.pk)).values_list("user__username"))


def line(kind):
    """The one line of the work log; it names the door."""
    found = WorkLogEntry.objects.get(kind=kind)
    assert found.door == "admin"
    return found.text


# -- one mechanism for all ---------------------------------------------------------------------


def rows_to_act_on(chat):
    """Each action with a row that it changes, and how to see whether it has."""
    run = begin(post(chat))
    task, _child = send(run)
    InboxMessage.objects.filter(pk=task.pk).update(state="dead")
    question = ask(run)
    ApiToken.issue(chat.owner, "laptop")
    other = post(new_chat("bob"))
    return {
        "interrupt": (other, lambda: again(other).stop_requested_at),
        "requeue": (other, lambda: WorkLogEntry.objects.filter(kind="woken").exists()),
        "redeliver": (task, lambda: InboxMessage.objects.get(pk=task.pk).state == "pending"),
        "withdraw": (question, lambda: Question.objects.get(pk=question.pk).state != "open"),
        "revoke": (ApiToken.objects.get(), lambda: ApiToken.objects.get().revoked_at),
    }


ACTIONS = ["interrupt", "requeue", "redeliver", "withdraw", "revoke"]


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_shown_before_it_is_done(client, staff, chat, action):
    row, done = rows_to_act_on(chat)[action]
    page = shown(client, action, row)
    assert "It will change 1 row." in page
    assert str(row.pk) in page
    assert not done()
    assert logged(row) == []


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_needs_the_permission_to_change_such_rows(client, chat, action):
    row, done = rows_to_act_on(chat)[action]
    name = ADDRESS[type(row)].partition("_")[2]
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename=f"view_{name}"))
    client.force_login(viewer)
    change = reverse(f"admin:{ADDRESS[type(row)]}_change", args=[row.pk])
    assert f'value="{action}"' not in client.get(change).content.decode()
    do(client, action, row)
    assert not done()


@pytest.mark.parametrize("action", ACTIONS)
def test_a_rows_own_page_offers_its_actions(client, staff, chat, action):
    row, _done = rows_to_act_on(chat)[action]
    change = reverse(f"admin:{ADDRESS[type(row)]}_change", args=[row.pk])
    assert f'value="{action}"' in client.get(change).content.decode()


def test_more_rows_than_anybody_has_looked_at_are_refused(client, staff, chat):
    for number in range(AT_ONCE + 1):
        ApiToken.issue(chat.owner, str(number))
    page = do(client, "revoke", *ApiToken.objects.all())
    assert f"At most {AT_ONCE} rows at once" in page
    assert not ApiToken.objects.filter(revoked_at__isnull=False).exists()


# -- each of them ------------------------------------------------------------------------------


def ask(run):
    respond_with(run, "", q1=("ask_user", {}))
    assert memory.save_outcomes(
        run, [(memory.Call("q1", "ask_user", "{}"), Ask(question="which?"))]
    ).parked
    return run.questions.get()


def test_a_token_is_revoked_once(client, staff, chat):
    ApiToken.issue(chat.owner, "laptop")
    token = ApiToken.objects.get()
    assert "is revoked" in do(client, "revoke", token)
    first = ApiToken.objects.get().revoked_at
    assert first is not None
    assert logged(token) == [("olga",)]
    assert "by operator olga" in line("token_revoked")
    assert "It will change 0 rows." in shown(client, "revoke", token)
    assert "was revoked before" in do(client, "revoke", token)
    assert ApiToken.objects.get().revoked_at == first


def test_a_dead_letter_is_delivered_again_and_nothing_else_is(client, staff, chat):
    run = begin(post(chat))
    dead, _ = send(run)
    done, _ = send(run, to="strategist", call_id="c2")
    InboxMessage.objects.filter(pk=dead.pk).update(state="dead", deliveries=5)
    InboxMessage.objects.filter(pk=done.pk).update(state="acked")
    page = shown(client, "redeliver", dead, done)
    assert "It will change 1 row." in page
    assert "is no dead letter" in page
    do(client, "redeliver", dead, done)
    states = dict(InboxMessage.objects.values_list("pk", "state"))
    assert states == {dead.pk: "pending", done.pk: "acked"}
    assert f"{dead.pk} by operator olga" in line("redelivered")
    assert (logged(dead), logged(done)) == ([("olga",)], [])


def test_a_question_is_withdrawn_and_its_run_goes_on(client, staff, chat):
    question = ask(begin(post(chat)))
    assert "is withdrawn" in do(client, "withdraw", question)
    question.refresh_from_db()
    assert (question.state, question.closed_by) == ("cancelled", "operator olga")
    assert again(question.run).status == "queued"
    assert "operator olga" in line("question_cancelled")
    assert logged(question) == [("olga",)]
    assert "is closed already (cancelled)" in shown(client, "withdraw", question)
    assert "nothing was changed" in do(client, "withdraw", question)
    assert_at_rest(chat.pk)


# -- interrupt ---------------------------------------------------------------------------------


async def press(client, action, *rows):
    answer = await client.post(address(Run), form(action, *rows, confirmed=True), follow=True)
    return answer.content.decode()


@pytest.fixture
async def operator(async_client, transactional_db, hub):
    """An operator at a web node: the pages are served from the loop that the hub is of."""
    user = await db(User.objects.create_superuser, "olga")
    await async_client.aforce_login(user)
    return async_client


async def test_a_run_is_interrupted_with_its_tree_and_the_answer_is_true(operator):
    chat, gate = await db(new_chat), Gate()
    model = ScriptedModel(assistant=[["Hel", gate, "lo"]])
    async with node(model):
        run = await db(post, chat)
        await gate.reached()
        assert "is stopped: every run of it has ended" in await press(operator, "interrupt", run)
        run = await ended(run)
    assert (run.status, run.stop_requested_by) == ("interrupted", "operator olga")
    assert "by operator olga" in await db(line, "stop_requested")
    assert await db(logged, run) == [("olga",)]
    assert "had ended before" in await press(operator, "interrupt", run)
    await at_rest(chat)


async def test_a_stop_that_is_not_proved_is_not_called_stopped(operator, monkeypatch):
    monkeypatch.setattr(conf, "stop_ack", 0)
    chat = await db(new_chat)
    run = await db(lambda: claim(post(chat)))  # its owner hears nothing
    assert "is not proved yet" in await press(operator, "interrupt", run)
    assert (await db(again, run)).status == "running"


def test_the_page_that_asks_counts_the_runs_that_will_stop(client, staff, chat):
    run = begin(post(chat))
    _task, child = send(run)
    assert "2 runs are told to stop" in shown(client, "interrupt", run)
    assert "1 run is told to stop" in shown(client, "interrupt", child)


def test_a_row_that_the_lists_filter_has_lost_since_is_still_answered_for(client, staff, chat):
    run = post(chat)
    filtered = f"{address(Run)}?status__exact=queued"
    assert b"is made known" in client.post(filtered, form("requeue", run)).content
    claim(run)
    answer = client.post(filtered, form("requeue", run, confirmed=True), follow=True)
    assert "Interrupt it first" in answer.content.decode()


# -- begin again -------------------------------------------------------------------------------


async def test_a_turn_that_failed_is_begun_again_as_a_new_run_of_the_same_words(operator):
    chat = await db(new_chat)
    run = await db(lambda: claim(post(chat, "what is it?")))
    await db(endings.failed, run, "the provider was away", by="r1")
    model = ScriptedModel(assistant=[["It is this."]])
    async with node(model):
        assert "is queued as run" in await press(operator, "requeue", run)
        new = await until(lambda: Run.objects.exclude(pk=run.pk).filter(parent=None).first())
        assert (await ended(new)).status == "completed"
    assert (await db(again, run)).status == "failed"
    (request,) = model.requests
    asked = [part.content for message in request.history for part in message.parts]
    assert asked == ["what is it?"]
    assert "by operator olga" in await db(line, "begun_again")
    assert await db(chat.messages.filter(role="user").count) == 1
    await at_rest(chat)


def test_a_run_in_the_queue_is_made_known_again_and_stays_itself(client, staff, chat):
    run = post(chat)
    assert f"is queued as run {run.pk}" in do(client, "requeue", run)
    assert Run.objects.count() == 1
    assert "by operator olga" in line("woken")


def refused(client, run):
    """The page says why not; pressed all the same, it changes nothing."""
    before = list(Run.objects.order_by("pk").values())
    page = shown(client, "requeue", run)
    assert "It will change 0 rows." in page
    do(client, "requeue", run)
    assert list(Run.objects.order_by("pk").values()) == before
    return page


def test_what_was_answered_for_stopped_or_goes_on_is_not_begun_again(client, staff, chat):
    run = begin(post(chat))
    assert "Interrupt it first" in refused(client, run)
    _task, child = send(run)
    child = claim(child, "r2")
    judge(child)
    assert "Its task has been answered for" in refused(client, child)
    behind = post(chat, "and then")
    assert "behind another run" in refused(client, behind)
    endings.failed(run, "broken", by="r1")
    assert "has gone on since" in refused(client, run)
    question = ask(begin(behind))
    assert "waits for results or for a person" in refused(client, question.run)

    interrupts.request(chat.pk, by="alice")
    assert "A person has stopped it" in refused(client, behind)


def test_a_deleted_conversation_begins_nothing(client, staff, chat):
    run = claim(post(chat))
    endings.failed(run, "broken", by="r1")
    ChatSession.objects.update(deleted_at=run.queued_at)
    assert "The conversation was deleted." in refused(client, run)


def test_a_lost_turn_that_has_used_up_its_attempts_may_be_tried_once_more(client, staff, chat):
    run = post(chat)
    for _attempt in range(conf.max_attempts):
        run = claim(again(run))
        assert judge(run, Lease.End.CRASHED)
    assert again(run).status == "failed"
    assert "is queued as run" in do(client, "requeue", run)
    new = Run.objects.exclude(pk=run.pk).get()
    assert (new.status, new.attempts, again(run).status) == ("queued", 0, "failed")
    assert_at_rest(chat.pk)
