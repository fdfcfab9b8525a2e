"""What was said, for a session's timeline (``coordination.timeline``)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from django.utils.translation import gettext as _

from chat.models import Message
from coordination.timeline import MOST, SOURCES, Entry, Kind, Rows


def said(rows: Rows) -> Iterator[Entry]:
    """The messages that stand in the span, and those in the queue that belong to a run of it.

    The first thing that a run says follows its start; what it says next follows that.
    """
    placed = Message.objects.filter(**rows.span.filters()).order_by("position")
    waiting = Message.objects.filter(run_id__in=rows.run_ids, position=None)
    before = {run.pk: (_("claimed"), run.started_at) for run in rows.runs}
    for message in chain(placed[:MOST], waiting[:MOST]):
        is_step = message.role in (Message.Role.ASSISTANT, Message.Role.TOOL)
        after, since = before.get(message.run_id, ("", None)) if is_step else ("", None)
        yield Entry(
            message.created_at,
            Kind.MESSAGE,
            message.role,
            message,
            agent_id=message.agent_id,
            text=message.content,
            run_id=message.run_id,
            after=after,
            since=since,
        )
        if is_step:
            before[message.run_id] = (message.role, message.created_at)


SOURCES.append(said)
