"""A run's life as its leases tell it: each claim, how it ended, and what followed.

The bars stand in proportion to time, from the first claim to the last end; they are drawn by the
server, as attributes of an SVG, because a page has no inline style.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _

from coordination import timeline
from coordination.models import InboxMessage, Lease, Run

from .cells import status_of
from .windows import NOTHING, link_to, moment, seconds, took

WIDTH = 1000
LEAST = 4  # of WIDTH: a claim of a millisecond is still seen


def life_html(run: Run, current: int | None = None) -> str:
    """All epochs of the run. ``current`` is the lease whose page this is."""
    claims = timeline.life_of(run)
    if not claims:
        return NOTHING
    now = timezone.now()
    begin = claims[0].lease.acquired_at
    whole = max(claim.lease.released_at or now for claim in claims) - begin
    rows = [
        {**_cells(run, claim), **_bar(claim.lease, begin, whole, now),
         "here": claim.lease.pk == current}
        for claim in claims
    ]  # fmt: skip
    context = {"rows": rows, "width": WIDTH, "whole": seconds(whole.total_seconds())}
    return render_to_string("admin/coordination/life.html", context)


def _bar(lease: Lease, begin: dt.datetime, whole: dt.timedelta, now: dt.datetime) -> dict[str, int]:
    scale = WIDTH / max(whole.total_seconds(), 0.001)
    left = round((lease.acquired_at - begin).total_seconds() * scale)
    held = round(((lease.released_at or now) - lease.acquired_at).total_seconds() * scale)
    return {"left": min(left, WIDTH - LEAST), "held": max(held, LEAST)}


def _cells(run: Run, claim: timeline.Claim) -> dict[str, Any]:
    lease = claim.lease
    return {
        "epoch": link_to(lease, str(lease.epoch)),
        "runner": timeline.runner_of(lease),
        "claimed": moment(lease.acquired_at),
        "waited": f"{claim.waited_for} → {seconds(claim.waited)}" if claim.waits_since else NOTHING,
        "beats": lease.beats,
        "beat": moment(lease.beat_at),
        "held": took(lease.acquired_at, lease.released_at),
        "end": lease.end or _("held now"),
        "ended": moment(lease.released_at),
        "by": _("its owner") if lease.ended_by == lease.runner_id else lease.ended_by,
        "then": _then(run, claim),
    }


def _then(run: Run, claim: timeline.Claim) -> list[str]:
    """What became of the run after this epoch."""
    then: list[str] = []
    lease = claim.lease
    following = claim.then.epoch if claim.then else run.epoch + 1
    if lease.end and following > lease.epoch + 1:
        then.append(_("epoch %d voids what its owner still writes") % (lease.epoch + 1))
    if claim.then is not None:
        gap = took(lease.released_at, claim.then.acquired_at)
        words = _("claimed again after %s, epoch %d")
        then.append(words % (gap, claim.then.epoch))
    elif lease.end:
        then.append(status_of(run))
        answer = InboxMessage.objects.filter(accepted_for=run.task_id)
        if run.task_id and (result := answer.first()):
            then.append(link_to(result, _("result in its name, from %s") % result.sender))
    return then
