"""A prepared statement says what its queryset says, on every database, thread and connection."""

import json
import threading
import uuid

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from coordination.models import Event, Run, Session, WorkLogEntry
from coordination.prepared import Insert, Rows, Update, Values, given
from tests import core

pytestmark = pytest.mark.django_db


@pytest.fixture
def run():
    return core.claim(core.post(core.new_chat()))


def all_fields(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_rows_are_those_of_the_queryset_to_the_last_field(run):
    run.usage = {"input_tokens": 3, "提示": "值"}
    run.save()
    rows = Rows(lambda: Run.objects.filter(pk=given("run"), status__in=Run.OWNED))
    [found] = rows(run=run.pk)
    assert all_fields(found) == all_fields(Run.objects.get(pk=run.pk))
    assert not found._state.adding
    found.attempts += 1
    found.save(update_fields=["attempts"])  # as a row that was read, not as a new one
    assert rows.first(run=uuid.uuid4()) is None


def test_each_call_has_its_own_values(run):
    other = core.claim(core.post(core.new_chat()))
    rows = Values(lambda: Run.objects.filter(pk=given("run")).values_list("epoch", "session_id"))
    assert [rows(run=r.pk) for r in (run, other, run)] == [
        [(r.epoch, r.session_id)] for r in (run, other, run)
    ]


def test_none_is_equal_to_nothing(run):
    assert run.parent_id is None
    rows = Values(lambda: Run.objects.filter(parent=given("parent")).values_list("pk"))
    assert rows(parent=None) == []


def test_a_value_is_never_read_as_sql(run):
    rows = Values(lambda: Run.objects.filter(agent_id=given("agent")).values_list("pk"))
    for text in ("' OR 1=1 --", '"', "%s", "%(run)s", "\\", "é\u4e2d\U0001f600"):
        assert rows(agent=text) == []
        Run.objects.filter(pk=run.pk).update(agent_id=text)
        assert rows(agent=text) == [(run.pk,)]


def test_an_update_answers_how_many_rows_it_met(run):
    moment = timezone.now().replace(microsecond=123456)
    move = Update(
        lambda: Run.objects.filter(pk=given("run"), epoch=given("epoch")),
        epoch=F("epoch") + 1,
        started_at=given("at"),
        ended_at=Now(),
        usage=given("usage"),
        announced=given("announced"),
    )
    values = {"run": run.pk, "epoch": run.epoch, "at": moment, "announced": True}
    assert [move(**values, usage={"n": [1, "二"]}), move(**values, usage={})] == [1, 0]
    fresh = Run.objects.get(pk=run.pk)
    assert (fresh.epoch, fresh.started_at, fresh.usage) == (run.epoch + 1, moment, {"n": [1, "二"]})
    assert fresh.announced
    assert fresh.ended_at is not None
    same = Update(lambda: Run.objects.filter(pk=given("run")), announced=True)
    assert same(run=run.pk) == 1  # met, though nothing in it changes


def test_inserted_rows_are_what_create_makes(run):
    texts = ["one", "二\U0001f600", '"', "\\ %s"]
    insert = Insert(WorkLogEntry)
    insert(*(WorkLogEntry(session_id=run.session_id, kind="k", text=text) for text in texts))
    found = WorkLogEntry.objects.filter(kind="k").order_by("pk")
    assert [entry.text for entry in found] == texts
    like = WorkLogEntry.objects.create(session_id=run.session_id, kind="k", text="one")
    differing = ("id", "at")
    assert {**all_fields(found[0]), **dict.fromkeys(differing)} == {
        **all_fields(like),
        **dict.fromkeys(differing),
    }


def test_a_broken_rule_is_the_databases_word(run):
    [event] = Event.objects.filter(session=run.session_id)[:1]
    twin = Event(session_id=event.session_id, seq=event.seq, type="CUSTOM", data=json.dumps({}))
    with pytest.raises(IntegrityError), transaction.atomic():
        Insert(Event)(twin)


@pytest.mark.django_db(transaction=True)
def test_threads_build_and_ask_each_on_its_own_connection():
    sessions = [Session.objects.create() for _ in range(4)]
    rows = Rows(lambda: Session.objects.filter(pk=given("session")))
    said = {}

    def ask(session):
        said[session] = [rows.first(session=session.pk) for _ in range(50)]
        connection.close()

    threads = [threading.Thread(target=ask, args=[session]) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {session: [session] * 50 for session in sessions}
