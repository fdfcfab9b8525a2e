"""One unit of work on one session: atomic, serial per session, retried when it only collided.

Lock order is the session's row first, then everything else; a beat or a claim that touches many
sessions takes no session lock. Nothing in here may wait, call a model or touch Redis.
"""

from __future__ import annotations

import functools
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, connection

from . import events
from .db import atomic
from .errors import NotFound
from .models import Session
from .prepared import Rows, Update, given

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 6  # a collision is over in milliseconds; six in a row is an outage
COLLISIONS = {1205, 1213, 1020}  # lock wait timeout, deadlock, changed since read (MariaDB 11.8)
GONE_BEFORE_SENT = {2006, 4031}  # the connection was dead before the statement was sent

_LOCKED = Rows(lambda: Session.objects.select_for_update().filter(pk=given("session")))
_COUNT = Update(
    lambda: Session.objects.filter(pk=given("session")),
    last_seq=given("seq"),
    last_position=given("position"),
)


def _is_transient(error: Exception) -> bool:
    code = error.args[0] if error.args else None
    if code in COLLISIONS or code in GONE_BEFORE_SENT:
        return True
    return "database is locked" in str(error)


def unit_of_work(fn: Callable[P, T]) -> Callable[P, T]:
    """Run ``fn`` again, as a whole, when its transaction only collided with another one.

    Inside an outer transaction it runs once: the outer unit is the one to repeat.
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if connection.in_atomic_block:
            return fn(*args, **kwargs)
        for attempt in range(ATTEMPTS):
            try:
                return fn(*args, **kwargs)
            except (OperationalError, InterfaceError) as error:
                if attempt == ATTEMPTS - 1 or not _is_transient(error):
                    raise
                connection.close_if_unusable_or_obsolete()
                time.sleep(random.uniform(0, 0.005 * 2**attempt))
        raise AssertionError("unreachable")

    return wrapper


@contextmanager
def locked(session_id: uuid.UUID) -> Iterator[Session]:
    """A transaction that holds the session's row; at its end it logs the events and the counts.

    Raises NotFound when there is no such session.
    """
    with atomic():
        session = _LOCKED.first(session=session_id)
        if session is None:
            raise NotFound("not_found", "There is no such session.")
        counted = session.last_seq, session.last_position
        yield session
        events.write_pending(session)
        if (session.last_seq, session.last_position) != counted:
            _COUNT(session=session.pk, seq=session.last_seq, position=session.last_position)
