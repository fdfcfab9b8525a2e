"""The admin: every list and every row opens, shows markup as text, and changes nothing."""

import datetime as dt
import uuid

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from chat.models import ApiToken, ChatSession, Message, SignInLink
from chat.signin import one_time_link
from coordination.models import (
    Event,
    InboxMessage,
    Lease,
    Question,
    Run,
    Session,
    Wait,
    WaitItem,
    WorkerNode,
    WorkLogEntry,
)

SCRIPT = "<script>alert(1)</script>"
MODELS = [
    WorkerNode, Session, Run, InboxMessage, Lease, Question, Wait, WaitItem, Event, WorkLogEntry,
    ChatSession, Message, ApiToken, SignInLink,
]  # fmt: skip

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(client) -> User:
    user = User.objects.create_superuser(SCRIPT)
    client.force_login(user)
    return user


@pytest.fixture
def story(staff) -> ChatSession:
    """One turn: a master, two sub-agents, one of them lost, a question."""
    return tell(staff)


def tell(user: User, children: int = 2) -> ChatSession:
    now = timezone.now()
    session = Session.objects.create(last_seq=1)
    chat = ChatSession.objects.create(session=session, owner=user, title=SCRIPT)
    root_id = uuid.uuid4()
    root = Run.objects.create(
        id=root_id, session=session, agent_id="assistant", root_id=root_id, position=1,
        status="completed", reason="completed", started_at=now, ended_at=now,
    )  # fmt: skip
    wait = Wait.objects.create(run=root, session_id=session.pk, opened_at=now, deadline_at=now)
    for number in range(children):
        task = InboxMessage.objects.create(
            session=session, position=10 + number, sender=SCRIPT, sender_run=root,
            recipient=SCRIPT, kind="task", content=SCRIPT, acked_at=now,
        )  # fmt: skip
        run = Run.objects.create(
            session=session, agent_id=SCRIPT, parent=root, root_id=root_id, depth=1,
            task=task, position=100 + number, status="timeout", reason="lease_expired",
            detail=SCRIPT, stop_requested_by=SCRIPT,
        )  # fmt: skip
        InboxMessage.objects.create(
            session=session, position=200 + number, sender="system", recipient="assistant",
            kind="result", content=SCRIPT, reason="lease_expired", in_reply_to=task,
            accepted_for=task,
        )  # fmt: skip
        Lease.objects.create(
            run=run, session_id=session.pk, agent_id=SCRIPT, epoch=1, node_id=SCRIPT,
            runner_id=SCRIPT, acquired_at=now, beat_at=now, expires_at=now, released_at=now,
            end="lease_expired",
        )  # fmt: skip
        WaitItem.objects.create(wait=wait, task=task)
    Question.objects.create(
        session=session, run=root, agent_id=SCRIPT, tool_call_id=SCRIPT, ui_type="text",
        question=SCRIPT, state="answered", answer=SCRIPT, options=[SCRIPT], closed_by=SCRIPT,
        expires_at=now,
    )  # fmt: skip
    Event.objects.create(session=session, seq=1, run_id=root_id, type="CUSTOM", data=f'"{SCRIPT}"')
    WorkLogEntry.objects.create(session=session, kind="x", run_id=root_id, text=SCRIPT)
    for position, role in enumerate(("user", "assistant", "tool", "system"), 1):
        Message.objects.create(
            session=chat, agent_id=SCRIPT, run_id=root_id, position=position, role=role,
            content=SCRIPT, parts=[{"type": "text", "text": SCRIPT, SCRIPT: SCRIPT}],
            model_json=f'"{SCRIPT}"', client_key=f"{SCRIPT}{role}",
        )  # fmt: skip
    WorkerNode.beat(
        SCRIPT, host=SCRIPT, pid=1, processes=1, concurrency=4, cpus=2, load=0.5,
        runners=[{"id": SCRIPT, "pid": 2, "age": 9.0, "quiet": 0.1, "runs": 1}],
    )  # fmt: skip
    ApiToken.issue(user, SCRIPT)
    one_time_link(user.get_username())
    return chat


def address(model, page: str, *args) -> str:
    path = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
    return reverse(path, args=[quote(arg) for arg in args])


def test_every_model_is_listed():
    assert set(MODELS) <= set(admin.site._registry)


@pytest.mark.parametrize("model", MODELS)
def test_every_list_opens_and_shows_markup_as_text(client, story, model):
    page = client.get(address(model, "changelist"))
    assert page.status_code == 200
    assert SCRIPT not in page.content.decode()
    assert 'class="field-' in page.content.decode()


@pytest.mark.parametrize("model", MODELS)
def test_every_row_opens_and_shows_markup_as_text(client, story, model):
    for row in model.objects.all():
        page = client.get(address(model, "change", row.pk))
        assert page.status_code == 200
        assert SCRIPT not in page.content.decode()


@pytest.mark.parametrize("model", MODELS)
def test_history_cannot_be_added_to_changed_or_deleted(client, story, model):
    row = model.objects.first()
    assert client.get(address(model, "add")).status_code == 403
    assert client.post(address(model, "change", row.pk), {}).status_code == 403
    assert client.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    listed = client.get(address(model, "changelist")).content.decode()
    assert "delete_selected" not in listed
    assert model.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("model", MODELS)
def test_every_list_can_be_searched(client, story, model):
    for query in ("script", str(uuid.uuid4()), "' OR 1=1"):
        assert client.get(address(model, "changelist"), {"q": query}).status_code == 200


@pytest.mark.parametrize("model", [m for m in MODELS if m not in (ApiToken, SignInLink)])
def test_a_list_asks_the_database_no_more_often_for_more_rows(client, story, model):
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address(model, "changelist")).status_code == 200
        return len(captured)

    queries()
    few = queries()
    for _ in range(3):
        tell(story.owner)
    assert queries() <= few + 2  # at most: a second page to count, and to choose from


@pytest.mark.parametrize("model", [Run, InboxMessage, ChatSession, Session])
def test_a_row_with_a_large_tree_asks_no_more_often(client, staff, model):
    def queries(chat: ChatSession) -> int:
        rows = {
            Run: chat.session.runs.get(depth=0),
            InboxMessage: chat.session.inbox.filter(kind="result")[0],
            ChatSession: chat,
            Session: chat.session,
        }
        with CaptureQueriesContext(connection) as captured:
            client.get(address(model, "change", rows[model].pk))
        return len(captured)

    small, large = tell(staff, children=2), tell(staff, children=12)
    queries(small)
    assert queries(large) <= queries(small)


def test_a_message_shows_the_chain_it_stands_in(client, story):
    task = InboxMessage.objects.filter(kind="task")[0]
    result = task.replies.get()
    page = client.get(address(InboxMessage, "change", result.pk)).content.decode()
    tree = page.split('<ul class="tree">', 1)[1]
    assert tree.index(address(InboxMessage, "change", task.pk)) < tree.index(
        address(InboxMessage, "change", result.pk)
    )
    assert "lease_expired" in tree


def test_a_run_shows_its_tree_and_its_leases(client, story):
    child = Run.objects.filter(depth=1)[0]
    page = client.get(address(Run, "change", child.pk)).content.decode()
    assert address(Run, "change", child.parent_id) in page
    assert address(Lease, "change", child.leases.get().pk) in page
    assert address(InboxMessage, "change", child.task_id) in page


def test_the_links_between_lists_lead_somewhere(client, story):
    for model in (Run, InboxMessage, Question, WorkLogEntry, Event):
        answer = client.get(address(model, "changelist"), {"session__id__exact": story.pk})
        assert answer.status_code == 200
    said = client.get(address(Message, "changelist"), {"session__exact": story.pk})
    assert said.status_code == 200


def test_leases_held_now_can_be_told_from_the_audit(client, story):
    Lease.objects.filter(pk=Lease.objects.all()[0].pk).update(released_at=None)
    held = client.get(address(Lease, "changelist"), {"open": "yes"}).context["cl"].result_count
    past = client.get(address(Lease, "changelist"), {"open": "no"}).context["cl"].result_count
    assert (held, past) == (1, 1)


def test_a_node_leads_to_its_leases(client, story):
    Lease.objects.filter(pk=Lease.objects.all()[0].pk).update(released_at=None)
    page = client.get(address(WorkerNode, "change", SCRIPT)).content.decode()
    held, every = (
        client.get(part.split('"', 1)[0].replace("&amp;", "&")).context["cl"].result_count
        for part in page.split('href="')[1:]
        if "node_id=" in part.split('"', 1)[0]
    )
    assert (held, every) == (1, 2)


def test_a_search_finds_ids_texts_and_named_things(client, story):
    def found(model, query):
        return set(client.get(address(model, "changelist"), {"q": query}).context["cl"].queryset)

    root, child = Run.objects.get(depth=0), Run.objects.filter(depth=1)[0]
    other = tell(User.objects.create_user("bob"))
    assert found(Run, str(child.pk)) == {child}
    assert found(Run, str(root.root_id)) == set(story.session.runs.all())
    assert found(Run, "user:bob") == set(other.session.runs.all())
    assert found(Run, f"user:bob {root.pk}") == set()
    assert found(Lease, "user:bob node:<scr") == {
        r.leases.get() for r in other.session.runs.filter(depth=1)
    }
    assert root not in found(Run, f"runner:{SCRIPT}")
    assert child in found(Run, f"runner:{SCRIPT}")
    assert found(Question, "by:script user:bob") == set(other.session.questions.all())
    assert found(Session, "nothing") == set()
    assert found(ApiToken, "script") == set(ApiToken.objects.all())


def test_a_list_is_narrowed_to_a_day(client, story):
    def count(when):
        page = client.get(address(Run, "changelist"), {"when": when})
        return page.context["cl"].result_count

    yesterday = timezone.now() - dt.timedelta(days=1)
    Run.objects.filter(depth=0).update(queued_at=yesterday)
    assert count(yesterday.date().isoformat()) == 1
    assert count(timezone.now().date().isoformat()) == 2
    assert (count("1h"), count("30d"), count("nonsense")) == (2, 3, 0)


def test_a_filter_offers_what_the_newest_rows_have_and_what_was_asked_for(client, story):
    page = client.get(address(Run, "changelist"), {"agent_id": "of old"})
    assert page.context["cl"].result_count == 0
    offered = page.context["cl"].get_filters(page.wsgi_request)[0]
    choices = [
        value for spec in offered if spec.title == "agent" for value, _ in spec.lookup_choices
    ]
    assert choices == sorted([SCRIPT, "assistant", "of old"])


# -- a row's story ---------------------------------------------------------------------------


def test_a_lease_and_its_run_show_all_epochs_and_what_followed(client, story):
    lease = Lease.objects.all()[0]
    Lease.objects.filter(pk=lease.pk).update(epoch=1, ended_by="guard of n3")
    run = lease.run
    Run.objects.filter(pk=run.pk).update(epoch=2)
    result = InboxMessage.objects.get(accepted_for=run.task_id)
    for model, pk in ((Lease, lease.pk), (Run, run.pk)):
        life = client.get(address(model, "change", pk)).content.decode()
        life = life.split('<table class="life">')[1].split("</table>")[0]
        assert "lease_expired" in life
        assert "by guard of n3" in life
        assert "epoch 2 voids" in life
        assert address(InboxMessage, "change", result.pk) in life
        assert '<rect class="end-lease_expired"' in life


def test_a_chain_says_how_long_an_answer_took_and_who_waited_for_it(client, story):
    task = InboxMessage.objects.filter(kind="task")[0]
    result = task.replies.get()
    InboxMessage.objects.filter(pk=task.pk).update(
        created_at=result.created_at - dt.timedelta(seconds=3)
    )
    wait = Wait.objects.get()

    def tree():
        page = client.get(address(InboxMessage, "change", task.pk)).content.decode()
        return page.split('<ul class="tree">', 1)[1]

    assert "answered after 3.000 s" in tree()
    assert f"{address(Wait, 'change', wait.pk)}" in tree()
    assert "still waits" in tree()
    after = result.created_at + dt.timedelta(seconds=1)
    for changed, how in (
        ({"closed_at": after}, "the result came"),
        ({"closed_at": after, "timed_out": True}, "timed out"),
        (
            {"closed_at": result.created_at - dt.timedelta(seconds=1), "timed_out": False},
            "given up",
        ),
    ):
        Wait.objects.update(**changed)
        assert how in tree()


def test_a_long_chain_of_revisions_asks_no_more_often(client, staff):
    chat = tell(staff, children=1)
    last = InboxMessage.objects.get(kind="result")

    def queries():
        with CaptureQueriesContext(connection) as captured:
            client.get(address(InboxMessage, "change", last.pk))
        return len(captured)

    few = queries()
    for position in range(1000, 1040):
        last = InboxMessage.objects.create(
            session=chat.session, position=position, sender="a", recipient="b",
            kind="revision", content=str(position), in_reply_to=last,
        )  # fmt: skip
    assert queries() <= few


# -- the timeline ----------------------------------------------------------------------------


def timeline(client, chat, **asked):
    url = reverse("admin:coordination_session_timeline", args=[chat.pk])
    return client.get(url, asked)


def test_the_timeline_is_linked_from_its_rows_and_shows_markup_as_text(client, story):
    url = reverse("admin:coordination_session_timeline", args=[story.pk])
    rows = [
        story, story.session, Run.objects.all()[0], Lease.objects.all()[0],
        Question.objects.get(), InboxMessage.objects.all()[0], Message.objects.all()[0],
    ]  # fmt: skip
    for row in rows:
        assert url in client.get(address(type(row), "change", row.pk)).content.decode()
    page = timeline(client, story)
    assert page.status_code == 200
    assert SCRIPT not in page.content.decode()
    for name in ("run", "inbox", "question", "lease", "message", "log"):
        assert f'class="kind-{name}"' in page.content.decode()


def test_the_timeline_is_narrowed_and_odd_wishes_do_no_harm(client, story):
    page = timeline(client, story, kind="question").content.decode()
    assert 'class="kind-question"' in page
    assert 'class="kind-run"' not in page
    for asked in ({"kind": "x"}, {"upto": "-1"}, {"upto": "9" * 5000}, {"agent": SCRIPT}):
        page = timeline(client, story, **asked)
        assert page.status_code == 200
        assert SCRIPT not in page.content.decode()
    nowhere = reverse("admin:coordination_session_timeline", args=[uuid.uuid4()])
    assert client.get(nowhere).status_code == 404


def test_the_timeline_shows_nothing_that_its_reader_may_not_see(client, story):
    viewer = User.objects.create_user("viewer", is_staff=True)
    client.force_login(viewer)
    assert timeline(client, story).status_code == 403
    allowed = ["view_session", "view_run"]
    viewer.user_permissions.set(Permission.objects.filter(codename__in=allowed))
    page = timeline(client, story).content.decode()
    assert 'class="kind-run"' in page
    assert 'class="kind-message"' not in page
    assert 'class="kind-inbox"' not in page


def test_a_row_s_page_shows_of_others_what_its_reader_may_see(client, story):
    viewer = User.objects.create_user("viewer", is_staff=True)
    client.force_login(viewer)
    run = Run.objects.get(task__isnull=True)
    InboxMessage.objects.update(content="a secret between agents")
    for codename, sees in (("view_run", False), ("view_inboxmessage", True)):
        viewer.user_permissions.add(Permission.objects.get(codename=codename))
        page = client.get(address(Run, "change", run.pk))
        assert page.status_code == 200
        assert ("a secret between agents" in page.content.decode()) is sees


# -- secrets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [ApiToken, SignInLink])
def test_no_hash_is_shown_in_full(client, story, model):
    row = model.objects.first()
    for page in (address(model, "changelist"), address(model, "change", row.pk)):
        text = client.get(page).content.decode()
        assert row.digest not in text
        assert row.digest[:8] in text


def test_the_admin_is_for_staff(client, story):
    client.force_login(User.objects.create_user("ann"))
    for model in MODELS:
        assert client.get(address(model, "changelist")).status_code == 302


def test_times_are_told_to_the_millisecond():
    from coordination.admin.windows import moment, took

    at = dt.datetime(2025, 1, 2, 3, 4, 5, 678_900, tzinfo=dt.UTC)
    assert moment(at) == "2025-01-02 03:04:05.678"
    assert took(at, at + dt.timedelta(milliseconds=1500)) == "1.500 s"
    assert took(at, at + dt.timedelta(hours=1)) == "1:00:00"
    assert took(at, None) == "—"
