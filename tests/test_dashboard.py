"""The dashboard: what is stuck is shown, what is well is not, and a crowd costs no more queries."""

import datetime as dt
import io
import json
import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from coordination import dashboard, interrupts, worklog
from coordination.conf import conf
from coordination.models import (
    InboxMessage,
    Lease,
    Question,
    Run,
    Wait,
    WorkerNode,
    WorkLogEntry,
)
from tests.core import back_in_time, claim, new_chat, post, send

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("core", "no_hints")]

SCRIPT = "<script>alert(1)</script>"


def node(node_id="h-1", runs=(1,), **changes):
    """A node that has just beaten, with so many runs in each runner."""
    runners = [
        {"id": f"{node_id}.{n}", "pid": 100 + n, "age": 60.0, "quiet": 0.4, "runs": held}
        for n, held in enumerate(runs, 1)
    ]
    about = {"host": "h", "pid": 1, "processes": len(runs), "concurrency": 16, "cpus": 2}
    WorkerNode.beat(node_id, **{**about, "load": 0.5, "runners": runners, **changes})
    return WorkerNode.objects.filter(pk=node_id)


def silent(rows, seconds=None):
    back_in_time(rows, conf.lease_ttl if seconds is None else seconds, "beat_at", "started_at")


@pytest.fixture
def chat():
    return new_chat()


@pytest.fixture
def staff(client):
    user = User.objects.create_superuser("op")
    client.force_login(user)
    return user


def page(client, **more):
    return client.get(reverse("admin_dashboard"), **more).content.decode()


# -- nodes -----------------------------------------------------------------------------------------


def test_a_node_is_alive_silent_or_has_left():
    node("living", runs=(3, 1))
    silent(node("killed"))
    node("gone")
    assert WorkerNode.leave("gone")
    assert not WorkerNode.leave("gone")
    found = {n.id: n for n in dashboard.nodes()}
    assert {n.id: n.state for n in found.values()} == {
        "living": "alive", "killed": "silent", "gone": "left",
    }  # fmt: skip
    assert (found["living"].runs, found["living"].slots) == (4, 32)
    assert (found["gone"].runs, found["gone"].slots) == (0, 0)
    assert found["killed"].beat_age >= conf.lease_ttl
    assert next(iter(found)) == "living"


def test_a_node_keeps_its_start_and_its_name_is_its_own():
    rows = node("a_5F/b c")
    back_in_time(rows, 5, "started_at", "beat_at")
    before = rows.get()
    node("a_5F/b c", runs=(2,))
    after = rows.get()
    assert after.started_at == before.started_at
    assert after.beat_at > before.beat_at
    assert after.runners[0]["runs"] == 2


def test_the_command_shows_nodes_and_their_runners():
    def command(*argv):
        out = io.StringIO()
        call_command("nodes", *argv, stdout=out)
        return out.getvalue()

    assert "agent_worker" in command()
    assert json.loads(command("--json")) == []
    node("living", runs=(3, 1))
    silent(node("killed", load=None))
    told = {row["id"]: row for row in json.loads(command("--json"))}
    assert (told["living"]["state"], told["living"]["runs"], told["living"]["slots"]) == (
        "alive", 4, 32,
    )  # fmt: skip
    assert [runner["pid"] for runner in told["living"]["runners"]] == [101, 102]
    assert told["killed"]["state"] == "silent"
    lines = [line.split() for line in command().splitlines()]
    assert [line[0] for line in lines] == ["NODE", "living", ".1", ".2", "killed"]
    assert lines[1][-3:] == ["4/32", "0.50/2", "1"]


# -- what is stuck ---------------------------------------------------------------------------------


def running(chat):
    return claim(post(chat))


def stopping(chat):
    run = running(chat)
    interrupts.request(chat.pk, by="alice")
    return Run.objects.filter(pk=run.pk), "stop_requested_at", conf.stop_grace


def stalled(chat):
    run = running(chat)
    Run.objects.filter(pk=run.pk).update(status="stalled")
    return Run.objects.filter(pk=run.pk), None, 0


def over(chat):
    run = running(chat)
    return Lease.objects.filter(run=run), "expires_at", conf.lease_ttl


def queued(chat):
    post(chat, on_busy="enqueue")
    post(chat, "waits for its turn, not for a runner")
    return chat.session.runs.filter(lane__isnull=False), "queued_at", conf.queue_patience


def waiting(chat):
    run = running(chat)
    now, later = timezone.now(), timezone.now() + dt.timedelta(seconds=60)
    Wait.objects.create(run=run, session_id=chat.pk, opened_at=now, deadline_at=later)
    return Wait.objects.filter(session_id=chat.pk), "deadline_at", 61


def asking(chat):
    soon = timezone.now() + dt.timedelta(seconds=conf.question_notice)
    Question.objects.create(
        session=chat.session, run=running(chat), agent_id="assistant", tool_call_id="c",
        ui_type="text", question=SCRIPT, expires_at=soon + dt.timedelta(seconds=30),
    )  # fmt: skip
    return chat.session.questions.all(), "expires_at", 31


def dead(chat):
    message, _ = send(running(chat))
    InboxMessage.objects.filter(pk=message.pk).update(state="dead")
    return InboxMessage.objects.filter(pk=message.pk), None, 0


KINDS = {
    "stop": stopping, "lease": over, "stalled": stalled, "queued": queued, "wait": waiting,
    "question": asking, "dead_letter": dead,
}  # fmt: skip


def test_every_kind_is_tried():
    assert set(KINDS) == set(dashboard.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stuck_is_shown_once_it_is(client, staff, chat, kind):
    node()
    rows, moved, by = KINDS[kind](chat)
    if moved:
        assert dashboard.stuck() == []
        assert "All is well" in page(client)
        back_in_time(rows, by, moved)
    (found,) = dashboard.stuck()
    (item,) = found.items
    assert (found.kind, found.total, item.pk) == (kind, 1, rows.get().pk)
    assert item.session_id == chat.pk
    shown = page(client)
    assert "All is well" not in shown
    assert (
        reverse(f"admin:coordination_{found.model._meta.model_name}_change", args=[item.pk])
        in shown
    )
    assert SCRIPT not in shown
    listed = shown.split(f'id="problem-{kind}"', 1)[1].split('href="', 1)[1].split('"', 1)[0]
    answer = client.get(listed.replace("&amp;", "&"))
    assert [str(row.pk) for row in answer.context["cl"].result_list] == [str(item.pk)]


def test_a_dead_letter_of_last_week_is_not_news(chat):
    rows, *_ = dead(chat)
    back_in_time(rows, 25 * 3600, "created_at")
    assert dashboard.stuck() == []


def test_the_log_of_the_last_hour_tells_guards_first(client, staff):
    node()
    worklog.write(None, "run_stalled", "a", level="warning")
    worklog.write(None, "run_stalled", SCRIPT, level="warning")
    worklog.write(None, "crashed", "b", level="error")
    worklog.write(None, "guard_late", "c", level="warning")
    worklog.write(None, "run_moves", "d")
    back_in_time(WorkLogEntry.objects.filter(text="a"), 60, "at")
    worklog.write(None, "fenced", "long ago", level="error")
    back_in_time(WorkLogEntry.objects.filter(kind="fenced"), 3601, "at")
    found = [(alarm.kind, alarm.count, alarm.text) for alarm in dashboard.alarms()]
    assert found == [("guard_late", 1, "c"), ("crashed", 1, "b"), ("run_stalled", 2, SCRIPT)]
    shown = page(client)
    assert "All is well" not in shown
    assert SCRIPT not in shown


def test_runs_are_counted_by_status_and_lately_by_reason(client, staff, chat):
    running(chat)
    post(chat)
    now = timezone.now()
    for status, reason, ended in (
        ("completed", "completed", now),
        ("timeout", "lease_expired", now),
        ("timeout", "lease_expired", now),
        ("failed", "crashed", now - dt.timedelta(hours=25)),
    ):
        pk = uuid.uuid4()
        Run.objects.create(
            pk=pk, session=chat.session, agent_id="assistant", root_id=pk, position=9,
            status=status, reason=reason, ended_at=ended,
        )  # fmt: skip
    under_way = [(c.status, c.runs) for c in dashboard.unfinished()]
    assert under_way == [("queued", 1), ("running", 1)]
    lately = [(c.status, c.reason, c.runs) for c in dashboard.ended()]
    assert lately == [("timeout", "lease_expired", 2), ("completed", "completed", 1)]
    shown = page(client)
    (listed,) = [
        part.split('"', 1)[0]
        for part in shown.split('href="')
        if "lease_expired" in part.split('"', 1)[0]
    ]
    rows = client.get(listed.replace("&amp;", "&")).context["cl"]
    assert rows.result_count == 2


# -- the page --------------------------------------------------------------------------------------


def test_it_asks_as_often_beside_a_crowd(client, staff, monkeypatch):
    monkeypatch.setattr(dashboard, "SHOWN", 1)

    def queries():
        with CaptureQueriesContext(connection) as captured:
            page(client)
        return len(captured)

    queries()
    still = queries()
    for number in range(2):
        node(f"n-{number}")
        for stick in KINDS.values():
            rows, moved, by = stick(new_chat())
            if moved:
                back_in_time(rows, by, moved)
        worklog.write(None, f"guard_{number}", "x", level="error")
    crowded = queries()
    assert crowded <= still + len(KINDS) + 1  # the totals, and the texts of the alarms
    assert crowded <= 25
    assert {kind.total for kind in dashboard.stuck()} >= {2}
    assert {len(kind.items) for kind in dashboard.stuck()} == {1}


def test_nobody_works_is_said(client, staff):
    assert "No worker node is alive" in page(client)
    silent(node())
    assert "No worker node is alive" in page(client)
    assert "All is well" not in page(client)
    node("other")
    assert "No worker node is alive" not in page(client)
    assert "All is well" in page(client)


def test_the_first_page_has_the_dashboard_and_the_list_of_models(client, staff):
    node(host=SCRIPT)
    shown = client.get(reverse("admin:index")).content.decode()
    assert 'id="board-nodes"' in shown
    assert reverse("admin:coordination_run_changelist") in shown
    assert SCRIPT not in shown
    chinese = page(client, headers={"accept-language": "zh-hans"})
    assert "一切正常" in chinese


def test_each_section_is_for_who_may_view_its_rows(client, chat):
    viewer = User.objects.create_user("viewer", is_staff=True)
    client.force_login(viewer)
    stalled(chat)
    node()
    nothing = page(client)
    for word in ("board-", "problem-", "All is well", "No worker node"):
        assert word not in nothing
    viewer.user_permissions.set(Permission.objects.filter(codename="view_run"))
    shown = page(client)
    assert 'id="problem-stalled"' in shown
    assert 'id="board-runs"' in shown
    assert "board-nodes" not in shown


def test_it_is_for_staff(client, staff):
    client.force_login(User.objects.create_user("ann"))
    for name in ("admin:index", "admin_dashboard"):
        assert client.get(reverse(name)).status_code == 302


def test_redis_that_is_away_is_said(client, staff, redis_server, settings):
    assert "Redis: answers" in page(client)
    redis_server.kill()
    try:
        assert "Redis: does not answer" in page(client)
    finally:
        redis_server.start()
    caches = {name: cache for name, cache in settings.CACHES.items() if name != "leases"}
    settings.CACHES = caches
    assert "Redis: not configured" in page(client)
