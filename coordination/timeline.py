"""A session's timeline: what happened, in one order, each thing with the one that it follows.

Nothing is written for it. A row tells several moments (a run is queued, claimed, told to stop,
ended), and each is an entry. A page is a span of the session's order (``position``), so it is
bounded however long the session is: what was born in that span, with all that became of it, sorted
by time. So a run that outlives its page ends on the page where it began, not on the next.

What people and models said is the product's: it brings its entries through ``SOURCES``.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from . import nodes
from .models import InboxMessage, Lease, Question, Run, Session, Wait, WorkLogEntry

SPAN = 100
"""Places of the session's order on one page: about what fits a person's patience."""
MOST = 2000
"""Rows read of one kind for one page: a span has fewer, unless something went very wrong."""


class Kind(models.TextChoices):
    """What an entry is about."""

    MESSAGE = "message", gettext_lazy("conversation")
    INBOX = "inbox", gettext_lazy("inbox")
    RUN = "run", gettext_lazy("runs")
    LEASE = "lease", gettext_lazy("leases")
    WAIT = "wait", gettext_lazy("waits")
    QUESTION = "question", gettext_lazy("questions")
    STOP = "stop", gettext_lazy("stops")
    LOG = "log", gettext_lazy("work log")


@dataclass(frozen=True)
class Entry:
    """One moment. ``after`` and ``since``: what it follows, and when that was."""

    at: dt.datetime
    kind: Kind
    what: str
    row: models.Model  # that tells it
    agent_id: str = ""
    text: str = ""
    by: str = ""
    run_id: uuid.UUID | None = None
    after: str = ""
    since: dt.datetime | None = None

    @property
    def took(self) -> float | None:
        """Seconds of this hop."""
        return (self.at - self.since).total_seconds() if self.since else None


@dataclass(frozen=True)
class Span:
    """A stretch of a session's order; the last page has no end, for the session goes on."""

    session: Session
    first: int
    last: int | None

    def filters(self) -> dict[str, Any]:
        """For rows with a position."""
        upto = {} if self.last is None else {"position__lte": self.last}
        return {"session": self.session.pk, "position__gte": self.first, **upto}


@dataclass
class Rows:
    """The rows of a span, by what they belong to."""

    span: Span
    runs: list[Run]
    inbox: list[InboxMessage]
    leases: dict[uuid.UUID, list[Lease]] = field(default_factory=dict)
    questions: dict[uuid.UUID, list[Question]] = field(default_factory=dict)
    waits: dict[uuid.UUID, list[Wait]] = field(default_factory=dict)
    log: list[WorkLogEntry] = field(default_factory=list)

    @property
    def run_ids(self) -> list[uuid.UUID]:
        """The runs that were born in the span."""
        return [run.pk for run in self.runs]


@dataclass(frozen=True)
class Page:
    """Entries, the oldest first. ``earlier`` and ``later``: ``upto`` of the pages beside it."""

    entries: list[Entry]
    agents: list[str]
    earlier: int | None
    later: int | None


Source = Callable[[Rows], Iterator[Entry]]

SOURCES: list[Source] = []
"""Who else has something to tell; the product adds itself."""


def page(
    session: Session,
    *,
    upto: int | None = None,
    kinds: Collection[str] = tuple(Kind),
    agent_id: str = "",
) -> Page:
    """The newest page, or the one that ends with the place ``upto``.

    Ten queries or so, whatever the session holds.
    """
    span = _span(session, upto)
    rows = read(span)
    said = [entry for source in SOURCES for entry in source(rows)]
    entries = sorted([*said, *_entries(rows, _asked_at(said))], key=lambda entry: entry.at)
    return Page(
        [e for e in entries if e.kind in kinds and agent_id in ("", e.agent_id)],
        agents=sorted({entry.agent_id for entry in entries if entry.agent_id}),
        earlier=span.first - 1 if span.first > 1 else None,
        later=None if span.last is None else span.last + SPAN,
    )


def _span(session: Session, upto: int | None) -> Span:
    newest = session.last_position
    if upto is None or upto >= newest:
        return Span(session, max(1, newest - SPAN + 1), None)
    last = max(1, upto)
    return Span(session, max(1, last - SPAN + 1), last)


def read(span: Span) -> Rows:
    """What was born in the span, and what belongs to it."""
    runs = list(Run.objects.filter(**span.filters()).select_related("task").order_by("position"))
    inbox = InboxMessage.objects.filter(**span.filters()).select_related("in_reply_to")
    rows = Rows(span, runs, list(inbox.order_by("position")))
    ids = rows.run_ids
    rows.leases = _by_run(Lease.objects.filter(run__in=ids).order_by("run", "epoch"))
    rows.questions = _by_run(Question.objects.filter(run__in=ids).order_by("opened_at"))
    rows.waits = _by_run(Wait.objects.filter(run__in=ids).order_by("pk"))
    log = WorkLogEntry.objects.filter(session=span.session, run_id__in=ids)
    rows.log = list(log.order_by("pk")[:MOST])
    return rows


def _by_run(rows: models.QuerySet[Any]) -> dict[uuid.UUID, list[Any]]:
    found: defaultdict[uuid.UUID, list[Any]] = defaultdict(list)
    for row in rows[:MOST]:
        found[row.run_id].append(row)
    return found


def _asked_at(said: Sequence[Entry]) -> dict[uuid.UUID, dt.datetime]:
    """When the message came that a turn answers: ``queued_at`` is of the last time in the queue."""
    return {e.run_id: e.at for e in said if e.what == "user" and e.run_id is not None}


def _entries(rows: Rows, asked_at: dict[uuid.UUID, dt.datetime]) -> Iterator[Entry]:
    for run in rows.runs:
        claims = claims_of(
            run,
            rows.leases.get(run.pk, []),
            rows.questions.get(run.pk, []),
            rows.waits.get(run.pk, []),
            born_at=asked_at.get(run.pk),
        )
        yield from _of_run(run, asked_at.get(run.pk))
        for claim in claims:
            yield from _of_claim(run, claim)
        for question in rows.questions.get(run.pk, []):
            yield from _of_question(question)
        for wait in rows.waits.get(run.pk, []):
            yield from _of_wait(run, wait)
    for message in rows.inbox:
        yield from _of_message(message)
    for line in rows.log:
        yield _of_line(line)


def _of_run(run: Run, asked_at: dt.datetime | None) -> Iterator[Entry]:
    def entry(at: dt.datetime, what: str, **more: Any) -> Entry:
        kind = more.pop("kind", Kind.RUN)
        return Entry(at, kind, what, run, agent_id=run.agent_id, run_id=run.pk, **more)

    cause = run.task.created_at if run.task else asked_at
    queued = first_queued_at(run, asked_at)
    if queued is not None:
        yield entry(queued, "queued", after=_("message") if cause else "", since=cause)
    if run.stop_requested_at:
        yield entry(
            run.stop_requested_at, "stop", kind=Kind.STOP, text=run.stop_reason,
            by=run.stop_requested_by,
        )  # fmt: skip
    if run.ended_at:
        begun = run.stop_requested_at or run.started_at
        after = _("stop") if run.stop_requested_at else _("claimed") if begun else ""
        text = ": ".join(part for part in (run.reason, run.detail) if part)
        yield entry(run.ended_at, run.status, text=text, after=after, since=begun)


def first_queued_at(run: Run, asked_at: dt.datetime | None = None) -> dt.datetime | None:
    """When the run was born; None where only a later time in the queue is on record."""
    if run.started_at is None or run.queued_at <= run.started_at:
        return run.queued_at
    return run.task.created_at if run.task else asked_at


# -- claims ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One epoch's execution: what it was claimed after, and what followed its end."""

    lease: Lease
    waited_for: str
    waits_since: dt.datetime | None
    then: Lease | None  # the next claim

    @property
    def waited(self) -> float | None:
        """Seconds between what made the run ready and this claim."""
        if self.waits_since is None:
            return None
        return (self.lease.acquired_at - self.waits_since).total_seconds()


def claims_of(
    run: Run,
    leases: Sequence[Lease],
    questions: Sequence[Question],
    waits: Sequence[Wait],
    *,
    born_at: dt.datetime | None = None,
) -> list[Claim]:
    """The leases of a run as a chain, in the order of their epochs."""
    closed = [(q.closed_at, _("answer")) for q in questions if q.closed_at]
    closed += [(w.closed_at, _("result")) for w in waits if w.closed_at]
    claims = []
    for before, lease, then in zip([None, *leases], leases, [*leases[1:], None], strict=False):
        waited_for, since = _ready(run, before, lease, closed, born_at)
        claims.append(Claim(lease, waited_for, since, then))
    return claims


def _ready(
    run: Run,
    before: Lease | None,
    lease: Lease,
    closed: Sequence[tuple[dt.datetime, str]],
    born_at: dt.datetime | None,
) -> tuple[str, dt.datetime | None]:
    """What made the run claimable, and when."""
    if before is None:
        since = first_queued_at(run, born_at)
        return (_("queued"), since) if since else ("", None)
    given_back = before.released_at
    if given_back is None:
        return "", None
    freeing = [(at, what) for at, what in closed if given_back <= at <= lease.acquired_at]
    if freeing:
        at, what = max(freeing)
        return what, at
    return before.end, given_back


def life_of(run: Run) -> list[Claim]:
    """The claims of one run, read here."""
    leases = list(run.leases.order_by("epoch")[:MOST])
    questions = list(run.questions.filter(closed_at__isnull=False)[:MOST])
    waits = list(run.waits.filter(closed_at__isnull=False)[:MOST])
    return claims_of(run, leases, questions, waits)


def runner_of(lease: Lease) -> str:
    """Its node in short, and which of the node's runners."""
    return f"{nodes.short(lease.node_id)} ({lease.runner_id.rpartition('.')[2]})"


def _of_claim(run: Run, claim: Claim) -> Iterator[Entry]:
    lease = claim.lease

    def entry(at: dt.datetime, what: str, **more: Any) -> Entry:
        return Entry(
            at, Kind.LEASE, what, lease, agent_id=run.agent_id, run_id=run.pk,
            text=f"{_('epoch')} {lease.epoch}", **more,
        )  # fmt: skip

    runner = runner_of(lease)
    yield entry(
        lease.acquired_at, "claimed", by=runner, after=claim.waited_for, since=claim.waits_since
    )
    if lease.released_at:
        yield entry(
            lease.released_at, lease.end, after=_("claimed"), since=lease.acquired_at,
            by=runner if lease.ended_by == lease.runner_id else lease.ended_by,
        )  # fmt: skip


# -- what else is told -------------------------------------------------------------------------


def _of_question(question: Question) -> Iterator[Entry]:
    def entry(at: dt.datetime, what: str, **more: Any) -> Entry:
        return Entry(
            at, Kind.QUESTION, what, question, agent_id=question.agent_id,
            text=question.question, run_id=question.run_id, **more,
        )  # fmt: skip

    yield entry(question.opened_at, "opened")
    if question.closed_at:
        yield entry(
            question.closed_at, question.state, by=question.closed_by, after=_("question"),
            since=question.opened_at,
        )  # fmt: skip


def _of_wait(run: Run, wait: Wait) -> Iterator[Entry]:
    def entry(at: dt.datetime, what: str, **more: Any) -> Entry:
        return Entry(
            at, Kind.WAIT, what, wait, agent_id=run.agent_id, run_id=run.pk, text=wait.mode, **more
        )

    yield entry(wait.opened_at, "waits")
    if wait.closed_at:
        what = "timed_out" if wait.timed_out else "goes_on"
        yield entry(wait.closed_at, what, after=_("wait"), since=wait.opened_at)


def _of_message(message: InboxMessage) -> Iterator[Entry]:
    def entry(at: dt.datetime, what: str, **more: Any) -> Entry:
        return Entry(
            at, Kind.INBOX, what, message, text=message.content, run_id=message.sender_run_id,
            **more,
        )  # fmt: skip

    replied = message.in_reply_to
    yield entry(
        message.created_at, message.kind, agent_id=message.sender,
        by=f"{message.sender} → {message.recipient}",
        after=replied.kind if replied else "", since=replied.created_at if replied else None,
    )  # fmt: skip
    read_at = message.acked_at or message.delivered_at
    if read_at:
        what = f"{message.kind} {message.state}"
        yield entry(
            read_at, what, agent_id=message.recipient, by=message.recipient, after=message.kind,
            since=message.created_at,
        )  # fmt: skip


def _of_line(line: WorkLogEntry) -> Entry:
    """A stop's line is the stop: it says who, through which door, and which node took it."""
    return Entry(
        line.at,
        Kind.STOP if line.kind == "stop_requested" else Kind.LOG,
        line.kind,
        line,
        agent_id=line.agent_id,
        text=line.text,
        by=origin_of(line),
        run_id=line.run_id,
    )


def origin_of(line: WorkLogEntry) -> str:
    """The door and the node of a work-log line, in short."""
    return " @ ".join(part for part in (line.door, nodes.short(line.node_id)) if part)
