"""Database work from async code: one synchronous function is one unit of work.

The functions run in a small pool of threads of our own. Django's own ``thread_sensitive`` way puts
all queries of a process into one thread, where a slow query holds up everybody's; and a thread per
request leaks a connection per thread. Each thread of the pool keeps its connection, looks at its
health from time to time, and drops it after an error, or a database restart would be error 2006
for ever.

Cancelling the awaiting task does not undo the work: the thread still commits. So each unit is
conditional or idempotent, and ``settled`` lets a caller wait for the commit all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connection,
    connections,
    transaction,
)

from .conf import conf
from .errors import CommitUnknown

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 6  # GIL-bound work: more threads only wait; fewer queue behind a slow query
LOST_DURING_QUERY = (2013, 2055)  # MySQL: it was sent, and no answer came
RETRY_PAUSE = 0.5  # seconds between tries while the database is away
HEALTH_CHECK_EVERY = 15.0  # seconds between looks at an idle connection's health

_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="db")
_local = threading.local()


def _call(fn: Callable[[], T]) -> T:
    now = time.monotonic()
    if now - getattr(_local, "looked_at", 0.0) > HEALTH_CHECK_EVERY:
        close_old_connections()
        _local.looked_at = now
    try:
        return fn()
    except (DatabaseError, InterfaceError):
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
        raise


async def db(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one unit of database work in the pool and return what it returns."""
    context = contextvars.copy_context()
    work = functools.partial(context.run, functools.partial(fn, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_pool, _call, work)


@contextmanager
def atomic() -> Iterator[None]:
    """A transaction. Raises CommitUnknown where nothing but the answer to its COMMIT was lost."""
    outermost, whole = not connection.in_atomic_block, False
    try:
        with transaction.atomic():
            yield
            whole = outermost
    except OperationalError as error:
        if whole and error.args and error.args[0] in LOST_DURING_QUERY:
            raise CommitUnknown(*error.args) from error
        raise


async def patiently(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``db``, but an outage of the database is waited out, for ``AGENT_DATABASE_PATIENCE``.

    For a run's own units of work: a database that is away for seconds ends nobody's turn. What may
    have been committed is not repeated: CommitUnknown is raised at once.
    """
    return await _patiently(fn, *args, certain=False, **kwargs)


async def _patiently(fn: Callable[..., T], *args: Any, certain: bool, **kwargs: Any) -> T:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + conf.database_patience
    while True:
        try:
            return await db(fn, *args, **kwargs)
        except (OperationalError, InterfaceError) as error:
            if loop.time() > give_up or (isinstance(error, CommitUnknown) and not certain):
                raise
            await asyncio.sleep(RETRY_PAUSE)


async def settled(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``db``, but a cancellation waits for the commit, and is raised only then.

    For the short last step of a run: what was written must be known before the caller leaves. It
    is repeated after an unknown commit, too, so it must be conditional, as every settlement is.
    """
    task = asyncio.ensure_future(_patiently(fn, *args, certain=True, **kwargs))
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
        except BaseException:  # noqa: BLE001 - the task's own error; its result raises it below
            break
    if cancelled:
        task.exception()  # retrieved, so that it is not reported as lost
        raise asyncio.CancelledError
    return task.result()
