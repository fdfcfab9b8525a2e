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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connections,
)

from .conf import conf

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 6  # GIL-bound work: more threads only wait; fewer queue behind a slow query
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


async def patiently(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``db``, but an outage of the database is waited out, for ``AGENT_DATABASE_PATIENCE``.

    For a run's own units of work, all of which are conditional or idempotent: a database that is
    away for seconds ends nobody's turn.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + conf.database_patience
    while True:
        try:
            return await db(fn, *args, **kwargs)
        except (OperationalError, InterfaceError):
            if loop.time() > give_up:
                raise
            await asyncio.sleep(RETRY_PAUSE)


async def settled(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``db``, but a cancellation waits for the commit, and is raised only then.

    For the short last step of a run: what was written must be known before the caller leaves.
    """
    task = asyncio.ensure_future(patiently(fn, *args, **kwargs))
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
