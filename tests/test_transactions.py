"""One unit of work on one session: serial, repeated when it only collided, undone as a whole."""

import uuid

import pytest
from django.db import IntegrityError, OperationalError, transaction

from coordination import transactions
from coordination.errors import NotFound
from coordination.models import Session
from coordination.transactions import locked, unit_of_work
from tests.core import in_threads

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("coordination.transactions.time.sleep", lambda seconds: None)


@pytest.mark.parametrize(
    "error",
    [
        OperationalError(1205, "lock wait timeout"),
        OperationalError(1213, "deadlock"),
        OperationalError(1020, "changed since read"),
        OperationalError(2006, "gone away"),
        OperationalError("database is locked"),
    ],
    ids=str,
)
def test_a_collision_is_tried_again(error):
    failures = [error, error]

    @unit_of_work
    def work():
        if failures:
            raise failures.pop()
        return "done"

    assert work() == "done"


@pytest.mark.parametrize(
    "error", [OperationalError(1045, "access denied"), IntegrityError(1062, "duplicate")], ids=str
)
def test_what_is_no_collision_is_raised_at_once(error):
    calls = []

    @unit_of_work
    def work():
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        work()
    assert calls == [1]


def test_six_collisions_in_a_row_are_an_outage():
    calls = []

    @unit_of_work
    def work():
        calls.append(1)
        raise OperationalError(1213, "deadlock")

    with pytest.raises(OperationalError):
        work()
    assert len(calls) == transactions.ATTEMPTS


def test_inside_another_unit_the_outer_one_is_tried_again():
    calls = []

    @unit_of_work
    def inner():
        calls.append("inner")
        if len(calls) < 3:
            raise OperationalError(1213, "deadlock")

    @unit_of_work
    def outer():
        calls.append("outer")
        with transaction.atomic():
            inner()

    outer()
    assert calls == ["outer", "inner", "outer", "inner"]


def test_there_is_no_lock_on_what_is_not_there():
    with pytest.raises(NotFound), locked(uuid.uuid4()):
        pass


def test_the_work_on_one_session_is_serial():
    session = Session.objects.create()

    @unit_of_work
    def count():
        with locked(session.pk) as held:
            held.next_position()

    assert in_threads(*[lambda: [count() for _ in range(5)] for _ in range(4)]) == [[None] * 5] * 4
    assert Session.objects.get().last_position == 20
