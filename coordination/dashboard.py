"""What an operator looks at first: the nodes, the runs by status, and whatever is stuck.

Numbers as they are now, by the database's clock; no HTML. Each question is one statement (a second
one where more is stuck than is shown) that an index serves, and reads nothing of what ended long
ago: it costs the same after a hundred thousand runs. (Nodes alone have no index: they are few.) It
judges nothing: "stuck" is what a person should look at; guards and deadlines go on without it.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import Count, F, Max, Model, QuerySet
from django.db.models.functions import Left, Now

from . import leases, wakeups
from .conf import conf
from .models import InboxMessage, Lease, Question, Run, Wait, WorkerNode, WorkLogEntry

SHOWN = 10  # rows of one kind that are named; more are counted
COUNTED = 1000  # and no further
NODES = 50  # those heard of last
TEXT = 120  # characters of a line's or a question's text
ENDED_WITHIN = dt.timedelta(hours=24)  # the shift before this one, too
ALARMED_WITHIN = dt.timedelta(hours=1)

State = Literal["alive", "silent", "left"]


# -- nodes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runner:
    """One runner process, as of its node's last beat; seconds."""

    id: str
    pid: int
    age: float
    quiet: float  # since its loop last said that it turns
    runs: int


@dataclass(frozen=True, slots=True)
class Node:
    """A worker node. ``silent``: by now every lease it has renewed is over."""

    id: str
    host: str
    pid: int
    state: State
    beat_age: float
    up: float  # seconds from its start to its end, or to its last beat
    started_at: dt.datetime
    left_at: dt.datetime | None
    processes: int  # runners that it keeps
    concurrency: int
    load: float | None
    cpus: int
    runners: list[Runner]

    @property
    def runs(self) -> int:
        """Runs that its runners hold."""
        return sum(runner.runs for runner in self.runners)

    @property
    def slots(self) -> int:
        """Runs that its runners may hold."""
        return len(self.runners) * self.concurrency


def nodes() -> list[Node]:
    """The nodes that were heard of last: those that live, the silent ones, those that have left."""
    found = [node_of(row) for row in as_of_now().order_by("-beat_at")[:NODES]]
    living = sorted((n for n in found if n.state == "alive"), key=lambda n: n.id)
    return [
        *living,
        *(n for n in found if n.state == "silent"),
        *(n for n in found if n.state == "left"),
    ]


def as_of_now() -> QuerySet[Any]:
    """Nodes that know what time it is for the database, as ``node_of`` needs them."""
    return WorkerNode.objects.annotate(now=Now())


def node_of(row: Any) -> Node:
    """The node that a row of ``as_of_now`` tells of."""
    age = (row.now - row.beat_at).total_seconds()
    state: State = "alive" if age < conf.lease_ttl else "silent"
    return Node(
        id=row.pk, host=row.host, pid=row.pid, state="left" if row.left_at else state,
        beat_age=age, up=((row.left_at or row.beat_at) - row.started_at).total_seconds(),
        started_at=row.started_at, left_at=row.left_at, processes=row.processes,
        concurrency=row.concurrency, load=row.load, cpus=row.cpus,
        # Of a newer node some things may not be known here yet.
        runners=[Runner(**{name: r[name] for name in Runner.__slots__}) for r in row.runners],
    )  # fmt: skip


# -- runs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted:
    """So many runs have this status, and ended for this reason."""

    status: str
    reason: str
    runs: int


def unfinished() -> list[Counted]:
    """Runs that have not ended, by status, in the order of a run's life."""
    order = [status for status in Run.Status if status not in Run.TERMINAL]
    rows = Run.objects.filter(status__in=order).values_list("status").annotate(n=Count("pk"))
    found = dict(rows.order_by())
    return [Counted(status, "", found[status]) for status in order if status in found]


def ended() -> list[Counted]:
    """Runs that have ended in the last day, by status and reason, most first."""
    rows = Run.objects.filter(ended_at__gte=Now() - ENDED_WITHIN)
    counts = rows.values_list("status", "reason").annotate(n=Count("pk")).order_by("-n", "reason")
    return [Counted(*row) for row in counts]


# -- what is stuck ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """One row that is stuck; for so many seconds, or (negative) it will be in so many."""

    pk: Any
    session_id: uuid.UUID | None
    about: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stuck:
    """Rows of one kind, the worst first. ``total`` goes no further than ``COUNTED``."""

    kind: str
    model: type[Model]
    items: list[Item]
    total: int


@dataclass(frozen=True, slots=True)
class _Kind:
    model: type[Model]
    rows: Callable[[], QuerySet[Any]]
    since: str  # the field that tells since when
    about: tuple[str | Left, ...]  # what tells whose it is
    newest_first: bool = False


def _ago(seconds: float) -> Any:
    return Now() - dt.timedelta(seconds=seconds)


KINDS: dict[str, _Kind] = {
    "stop": _Kind(  # told to stop, and past the grace still there
        Run,
        lambda: Run.objects.filter(
            status__in=Run.OWNED, stop_requested_at__lt=_ago(conf.stop_grace)
        ),
        "stop_requested_at",
        ("agent_id", "runner_id"),
    ),
    "lease": _Kind(  # over, and no guard has judged it yet
        Lease,
        lambda: Lease.objects.filter(released_at=None, expires_at__lt=Now()),
        "expires_at",
        ("agent_id", "runner_id"),
    ),
    "stalled": _Kind(
        Run,
        lambda: Run.objects.filter(status=Run.Status.STALLED),
        "last_progress_at",
        ("agent_id", "runner_id"),
    ),
    "queued": _Kind(  # it holds its lane, and no runner takes it
        Run,
        lambda: Run.objects.claimable().filter(queued_at__lt=_ago(conf.queue_patience)),
        "queued_at",
        ("agent_id",),
    ),
    "wait": _Kind(  # whose deadline nobody has enforced
        Wait,
        lambda: Wait.objects.filter(
            closed_at=None, deadline_at__lt=_ago(2 * conf.await_poll), paused_at=None
        ),
        "deadline_at",
        ("run__agent_id",),
    ),
    "question": _Kind(
        Question,
        lambda: Question.objects.filter(
            state=Question.State.OPEN, expires_at__lt=_ago(-conf.question_notice)
        ),
        "expires_at",
        ("agent_id", Left("question", TEXT)),
    ),
    "dead_letter": _Kind(  # of the last day: it stays dead until somebody delivers it again
        InboxMessage,
        lambda: InboxMessage.objects.filter(
            state=InboxMessage.State.DEAD, created_at__gte=Now() - ENDED_WITHIN
        ),
        "created_at",
        ("sender", "recipient"),
        newest_first=True,
    ),
}


def stuck(of: Container[type[Model]] | None = None) -> list[Stuck]:
    """Whatever is stuck, kind by kind; only rows of these models, where some are named."""
    found = (_look(name, kind) for name, kind in KINDS.items() if of is None or kind.model in of)
    return [kind for kind in found if kind.items]


def _look(name: str, kind: _Kind) -> Stuck:
    since = F(kind.since)
    rows = kind.rows().order_by(since.desc() if kind.newest_first else since.asc())
    columns = rows.values_list("pk", "session_id", Now() - since, *kind.about)
    items = [
        Item(pk, session_id, " · ".join(filter(None, about)), span.total_seconds())
        for pk, session_id, span, *about in columns[: SHOWN + 1]
    ]
    total = len(items)
    if total > SHOWN:
        total = kind.rows().order_by().values("pk")[:COUNTED].count()
    return Stuck(name, kind.model, items[:SHOWN], total)


# -- alarms ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alarm:
    """Warnings or errors of one kind in the work log of the last hour, with the newest one."""

    kind: str
    level: str
    count: int
    newest: int  # its row
    text: str
    seconds: float  # ago


def alarms() -> list[Alarm]:
    """What guards have doubted first, then errors, then warnings; most first."""
    level = WorkLogEntry.Level
    rows = WorkLogEntry.objects.filter(
        level__in=(level.WARNING, level.ERROR), at__gte=Now() - ALARMED_WITHIN
    )
    kinds = list(rows.values_list("kind", "level").annotate(n=Count("pk"), newest=Max("pk")))
    lines = WorkLogEntry.objects.filter(pk__in=[newest for *_, newest in kinds])
    said = {
        pk: (text, (now - at).total_seconds())
        for pk, text, at, now in lines.values_list("pk", Left("text", TEXT), "at", Now())
    }
    found = [
        Alarm(kind, of, count, newest, *said[newest])
        for kind, of, count, newest in kinds
        if newest in said
    ]
    return sorted(
        found, key=lambda a: (not a.kind.startswith("guard_"), a.level != level.ERROR, -a.count)
    )


# -- this web node ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Health:
    """What hurries this process; None where there is none."""

    redis: bool | None
    hears: bool | None  # hints reach it; None too until it first listens


def health() -> Health:
    """Ask Redis, for as long as anybody waits for it, and whether hints come through."""
    if not leases.redis_configured():
        return Health(redis=None, hears=None)
    return Health(redis=leases.redis_answers(), hears=wakeups.heard())
