"""Folding: of what finished runs have streamed, one event a message is kept instead of one a token.

The first of a message's deltas takes the text of all of them and the others go; where it begins and
ends, its calls, results and every other event stay as they are, so the log can be replayed from its
beginning, to the same text. A cursor inside of what was folded names no place any more:
``Session.first_seq`` is where the untouched log begins, and a reader from before it is given a
snapshot (``streams.Pruned``).

Of worker nodes that are gone, nothing is kept: their leases are the audit.

Each batch is a transaction of its own, which the session's row decides: it moves ``first_seq``, or
another prune has, and then nothing of it is written.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db.models import F, Min, Q
from django.db.models.functions import Now
from django.utils import timezone

from . import events
from .db import atomic
from .models import Event, Run, Session, WorkerNode
from .transactions import unit_of_work

BATCH = 500  # events read, and at most so many removed, in one transaction


@dataclass
class Folded:
    """What a prune has done, or would do."""

    sessions: int = 0  # in which there was anything to fold
    events: int = 0  # looked at
    removed: int = 0  # and now part of another


def prune(older_than: float, *, dry_run: bool = False) -> Folded:
    """Fold the events of finished runs that are older than so many seconds, in every session."""
    cutoff = timezone.now() - dt.timedelta(seconds=older_than)
    done = Folded()
    for session_id, first_seq in _sessions():
        removed = done.removed
        for batch in _batches(session_id, first_seq, cutoff):
            if not (dry_run or batch.commit()):
                break
            done.events += len(batch.rows)
            done.removed += len(batch.gone)
        done.sessions += done.removed > removed
    return done


def forget_nodes(older_than: float, *, dry_run: bool = False) -> int:
    """Delete the rows of worker nodes that were not heard of for so many seconds; how many."""
    gone = WorkerNode.objects.filter(beat_at__lt=Now() - dt.timedelta(seconds=older_than))
    return gone.count() if dry_run else gone.delete()[0]


def _sessions() -> Iterator[tuple[uuid.UUID, int]]:
    """Those that have said anything since they were last folded, page by page."""
    rows = Session.objects.filter(last_seq__gte=F("first_seq")).order_by("pk")
    page = list(rows.values_list("pk", "first_seq")[:BATCH])
    while page:
        yield from page
        page = list(rows.filter(pk__gt=page[-1][0]).values_list("pk", "first_seq")[:BATCH])


def _batches(session_id: uuid.UUID, first_seq: int, cutoff: dt.datetime) -> Iterator[_Batch]:
    """All before the first event that is too young or of a run that has not ended."""
    rows = Event.objects.filter(session_id=session_id, seq__gte=first_seq).order_by("seq")
    living = Run.objects.filter(session_id=session_id).unfinished().values_list("pk", flat=True)
    stays = Q(created_at__gte=cutoff) | Q(run_id__in=list(living))
    limit = rows.filter(stays).aggregate(first=Min("seq"))["first"]
    if limit is not None:
        rows = rows.filter(seq__lt=limit)
    while page := list(rows.filter(seq__gte=first_seq)[:BATCH]):
        yield _Batch(session_id, first_seq, page)
        first_seq = page[-1].seq + 1


class _Batch:
    """Neighbours in the log: what is kept of them, with its new text, and what goes."""

    def __init__(self, session_id: uuid.UUID, first_seq: int, rows: Sequence[Event]) -> None:
        self.session_id = session_id
        self.first_seq = first_seq
        self.rows = rows
        self.kept: list[Event] = []
        self.gone: list[int] = []
        for same in self._by_message():
            first, *others = [json.loads(row.data) for row in same]
            first["delta"] += "".join(event["delta"] for event in others)
            same[0].data = events.dumps(first)
            self.kept.append(same[0])
            self.gone += [row.pk for row in same[1:]]

    def _by_message(self) -> list[list[Event]]:
        """The deltas of each message that has several."""
        deltas: dict[tuple[str, str], list[Event]] = {}
        for row in self.rows:
            key = events.MERGED.get(row.type)
            if key is not None:
                deltas.setdefault((row.type, json.loads(row.data)[key]), []).append(row)
        return [same for same in deltas.values() if len(same) > 1]

    @unit_of_work
    def commit(self) -> bool:
        """Write it; False where somebody else has, or the session is gone."""
        with atomic():
            untouched = Session.objects.filter(pk=self.session_id, first_seq=self.first_seq)
            if untouched.update(first_seq=self.rows[-1].seq + 1) != 1:
                return False
            Event.objects.bulk_update(self.kept, ["data"])
            Event.objects.filter(pk__in=self.gone).delete()
        return True
