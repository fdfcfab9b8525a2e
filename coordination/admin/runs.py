"""Runs: the tree, who owned them, what was asked of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from coordination import interrupts, runs
from coordination.errors import Conflict, Refused
from coordination.models import InboxMessage, Lease, Question, Run, Wait, WorkLogEntry

from .actions import Outcome, Plan, confirmed
from .cells import conversation_of, message_table, question_table, status_of
from .filters import recent, when
from .life import life_html
from .windows import (
    NOTHING,
    TREE_ROWS,
    ReadOnlyAdmin,
    link_to,
    moment,
    pretty,
    short,
    table,
    took,
    tree_html,
)

log = logging.getLogger(__name__)


def _interruption(run: Run) -> Plan:
    if run.is_terminal:
        return Plan(gettext("has ended (%s)") % run.status, refused=True)
    # A whole tree by its root, which is indexed; a part of one level by level.
    below = (
        Run.objects.filter(root_id=run.root_id).unfinished().count()
        if run.is_root
        else len([member for member in runs.tree(run) if not member.is_terminal])
    )
    words = ngettext("%d run is told to stop", "%d runs are told to stop", below)
    return Plan(words % below)


def _again(run: Run) -> Plan:
    if refusal := runs.why_not_again(run) or _deleted(run):
        return Plan(refusal, refused=True)
    if run.status == Run.Status.QUEUED:
        return Plan(gettext("is made known to the workers once more"))
    return Plan(gettext("stays as it ended; a new run goes on from the conversation as it stands"))


def _deleted(run: Run) -> str:
    chat = getattr(run.session, "chat_session", None)
    return gettext("The conversation was deleted.") if chat and chat.deleted_at else ""


class StopAsked(admin.SimpleListFilter):
    """Runs that somebody wanted stopped, whatever became of them."""

    title = _("stop")
    parameter_name = "stop"

    def lookups(self, *_args: Any) -> list[tuple[str, Any]]:
        return [("asked", _("was asked for")), ("pending", _("was asked for, not ended yet"))]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        if self.value() is None:
            return queryset
        asked = queryset.filter(stop_requested_at__isnull=False)
        return asked.filter(ended_at=None) if self.value() == "pending" else asked


async def _stop_all(members: Sequence[Run], by: str) -> list[interrupts.Stopped | BaseException]:
    """One that cannot be told takes nothing from what became of the others."""
    stops = (interrupts.stop(run.session_id, by=by, run_id=run.pk) for run in members)
    return await asyncio.gather(*stops, return_exceptions=True)


STOP_SAYS = {
    "stopped": _("is stopped: every run of it has ended"),
    "accepted": _("is told to stop; that it has ended is not proved yet"),
    "already_finished": _("had ended before"),
    "no_active_run": _("had ended before"),
}


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = [
        "short_id", "agent_id", "how", "conversation", "epoch", "queued_at", "lasted",
    ]  # fmt: skip
    list_display_links = ["short_id"]
    list_filter = [
        "status", "reason", StopAsked, when("queued_at"), recent("agent_id", _("agent")),
    ]  # fmt: skip
    relations = ["session__chat_session"]
    order_in_session = ["-position"]
    search_ids = ["id", "session", "root_id"]
    search_fields = ["detail", "stop_requested_by"]
    search_words = {
        "user": "session__chat_session__owner__username",
        "runner": "leases__runner_id",
        "node": "leases__node_id__startswith",
        "by": "stop_requested_by__icontains",
    }
    ordering = ["-queued_at"]
    fieldsets = [
        (None, {"fields": [
            "id", "agent_id", "how", "detail", "conversation", "parent_run", "task_message",
            "tree"]}),
        (_("Ownership"), {"fields": [
            "epoch", "runner_id", "lane", "attempts", "lease_history"]}),
        (_("Times"), {"fields": ["queued_at", "started_at", "last_progress_at", "ended_at"]}),
        (_("Stop"), {"fields": [
            "stop_requested_at", "stop_requested_by", "stop_reason", "stop_took"]}),
        (_("Messages"), {"fields": ["sent_messages", "received_messages", "waiting_for"]}),
        (_("Questions"), {"fields": ["asked"]}),
        (_("Also"), {"fields": ["usage_pretty", "hops", "saved_seq", "announced", "worklog"]}),
    ]  # fmt: skip

    embeds = {
        "task_message": InboxMessage, "sent_messages": InboxMessage,
        "received_messages": InboxMessage, "waiting_for": Wait, "asked": Question,
        "lease_history": Lease, "worklog": WorkLogEntry,
    }  # fmt: skip

    actions = ["interrupt", "requeue"]

    @confirmed(_("Interrupt"), plan=_interruption)
    def interrupt(self, chosen: Sequence[Run], by: str) -> Iterator[Outcome]:
        # In the server's own event loop where there is one: its hub tells the owners at once.
        for run, stopped in zip(chosen, async_to_sync(_stop_all)(chosen, by), strict=True):
            if isinstance(stopped, BaseException):
                log.error("stop_failed", exc_info=stopped, extra={"run": str(run.pk)})
                yield Outcome(run, gettext("could not be told to stop; try again"), won=False)
                continue
            won = stopped.status in ("stopped", "accepted")
            yield Outcome(run, str(STOP_SAYS[stopped.status]), won)

    @confirmed(_("Begin again"), plan=_again)
    def requeue(self, chosen: Sequence[Run], by: str) -> Iterator[Outcome]:
        for run in chosen:
            try:
                if refusal := _deleted(run):
                    raise Conflict("not_again", refusal)
                again = runs.again(run, by=by)
            except Refused as refused:
                yield Outcome(run, refused.detail, won=False)
            else:
                yield Outcome(run, gettext("is queued as run %s") % again.pk)

    @admin.display(description=_("run"), ordering="id")
    def short_id(self, run: Run) -> str:
        return str(run.pk)[:8]

    @admin.display(description=_("status"), ordering="status")
    def how(self, run: Run) -> str:
        return status_of(run)

    @admin.display(description=_("conversation"))
    def conversation(self, run: Run) -> str:
        return conversation_of(run.session)

    @admin.display(description=_("took"))
    def lasted(self, run: Run) -> str:
        return took(run.started_at, run.ended_at)

    @admin.display(description=_("sent by"))
    def parent_run(self, run: Run) -> str:
        return link_to(run.parent)

    @admin.display(description=_("task"))
    def task_message(self, run: Run) -> str:
        return link_to(run.task, short(run.task.content)) if run.task else NOTHING

    @admin.display(description=_("tree"))
    def tree(self, run: Run) -> str:
        members = list(Run.objects.filter(root_id=run.root_id).order_by("position")[:TREE_ROWS])
        return tree_html(
            members, lambda member: member.parent_id, run.pk,
            lambda member: [
                link_to(member, f"{member.agent_id} {str(member.pk)[:8]}"),
                status_of(member), moment(member.queued_at),
                took(member.started_at, member.ended_at),
            ],
        )  # fmt: skip

    @admin.display(description=_("leases"))
    def lease_history(self, run: Run) -> str:
        return life_html(run)

    @admin.display(description=_("from the stop to the end"))
    def stop_took(self, run: Run) -> str:
        return took(run.stop_requested_at, run.ended_at)

    @admin.display(description=_("sent"))
    def sent_messages(self, run: Run) -> str:
        return message_table(run.sent.order_by("position")[:TREE_ROWS])

    @admin.display(description=_("inbox"))
    def received_messages(self, run: Run) -> str:
        rows = InboxMessage.objects.filter(session=run.session_id, recipient=run.agent_id)
        return message_table(rows.order_by("-position")[:50])

    @admin.display(description=_("waits"))
    def waiting_for(self, run: Run) -> str:
        return table(
            [_("wait"), _("mode"), _("opened"), _("deadline"), _("closed"), _("timed out")],
            (
                (link_to(wait, str(wait.pk)), wait.mode, moment(wait.opened_at),
                 moment(wait.deadline_at), moment(wait.closed_at), wait.timed_out)
                for wait in run.waits.order_by("opened_at")[:TREE_ROWS]
            ),
        )  # fmt: skip

    @admin.display(description=_("questions"))
    def asked(self, run: Run) -> str:
        return question_table(run.questions.order_by("opened_at")[:TREE_ROWS])

    @admin.display(description=_("usage"))
    def usage_pretty(self, run: Run) -> str:
        return pretty(run.usage)

    @admin.display(description=_("work log"))
    def worklog(self, run: Run) -> str:
        rows = WorkLogEntry.objects.filter(session=run.session_id, run_id=run.pk)
        return table(
            [_("at"), _("kind"), _("text")],
            ((moment(row.at), row.kind, short(row.text, 200)) for row in rows.order_by("pk")[:100]),
        )
