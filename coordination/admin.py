"""The admin: read-only windows on runs, leases, messages, questions, events and the work log.

All of it is history or the business of running processes, so nothing can be added, changed or
deleted here; only a dead letter can be put back into the inbox. What people look for, who answered
whom and who held what when, is one click away. Lists are read with their relations, and trees level
by level, so that no page asks once per row.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.messages import SUCCESS
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from . import inbox
from .models import Event, InboxMessage, Lease, Question, Run, Session, Wait, WaitItem, WorkLogEntry

if TYPE_CHECKING:  # generic to the type checker only
    _Paginator = Paginator[Any]
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _Paginator = Paginator
    _ModelAdmin = admin.ModelAdmin

NOTHING = "—"
TREE_ROWS = 500
"""Members shown of one tree or one list inside a page: more than anybody reads."""


def options(model: type[models.Model] | models.Model) -> Any:
    """Django's description of a model; a public API, though it looks private."""
    return model._meta  # noqa: SLF001


def link_to(row: models.Model | None, text: str = "") -> str:
    """A link to the row's admin page."""
    return NOTHING if row is None else link_by_id(type(row), row.pk, text or str(row))


def link_by_id(model: type[models.Model], pk: Any, text: str = "") -> str:
    """The same for a row that need not be read."""
    if pk is None or pk == "":
        return NOTHING
    meta = options(model)
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[pk])
    return format_html('<a href="{}">{}</a>', url, text or pk)


def link_to_list(model: type[models.Model], text: str, **filters: Any) -> str:
    """A link to the model's list, filtered."""
    meta = options(model)
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return format_html('<a href="{}?{}">{}</a>', url, query, text)


def count(model: type[models.Model], relation: str) -> Coalesce:
    """How many rows belong to each: a subquery, so that only the rows of the page are counted."""
    rows = model._default_manager.filter(**{relation: OuterRef("pk")}).order_by()  # noqa: SLF001
    counted = rows.values(relation).annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counted), 0)


def short(text: str, length: int = 80) -> str:
    """The text on one line, cut; still text, whatever markup is in it."""
    return Truncator(" ".join(text[: length * 4].split())).chars(length)


def pretty(value: Any) -> str:
    """JSON for people; what is no JSON as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return format_html("<pre>{}</pre>", value)
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))


def took(start: dt.datetime | None, end: dt.datetime | None) -> str:
    """How long something took."""
    if start is None or end is None:
        return NOTHING
    seconds = (end - start).total_seconds()
    return f"{seconds:.3f} s" if seconds < 60 else str(dt.timedelta(seconds=round(seconds)))


def moment(at: dt.datetime | None) -> str:
    """A time to the millisecond: seconds are too coarse for what happens here."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if at else NOTHING


def at(field: str) -> Callable[[Any], str]:
    """A column with a time of the row, to the millisecond."""

    def column(row: Any) -> str:
        return moment(getattr(row, field))

    column.__name__ = field
    return admin.display(column, description=field.replace("_", " "), ordering=field)


class EstimatingPaginator(_Paginator):
    """Counts no further than anybody pages: a log of millions has no useful exact number."""

    MOST = 100_000

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return rows.order_by().values("pk")[: self.MOST].count()


class ReadOnlyAdmin(_ModelAdmin):
    """Look, do not touch."""

    actions: Any = None
    list_per_page = 50
    show_full_result_count = False
    paginator = EstimatingPaginator
    save_on_top = False

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [self._precise(name) for name in super().get_list_display(request)]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            (title, {**given, "fields": [self._precise(name) for name in given["fields"]]})
            for title, given in super().get_fieldsets(request, obj)
        ]

    def _precise(self, name: Any) -> Any:
        """Times to the millisecond: Django's own columns end at the minute."""
        names = {f.name for f in self.opts.fields if isinstance(f, models.DateTimeField)}
        return at(name) if name in names else name

    def has_add_permission(self, *_args: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False


def tree_html(members: Sequence[Any], parent_of: Any, current: Any, describe: Any) -> str:
    """Rows as a nested list. ``describe`` gives the cells of one member, ready for the page."""
    nodes = {member.pk: {"cells": describe(member), "here": member.pk == current, "below": []}
             for member in members}  # fmt: skip
    roots: list[dict[str, Any]] = []
    for member in members:
        above = nodes.get(parent_of(member))
        (above["below"] if above else roots).append(nodes[member.pk])
    return render_to_string("admin/coordination/tree.html", {"nodes": roots})


def by_levels(rows: QuerySet[Any], root: Any, parent: str) -> list[Any]:
    """The tree below ``root``: one query per level, at most TREE_ROWS members."""
    members = [root]
    level = [root.pk]
    while level and len(members) < TREE_ROWS:
        children = list(rows.filter(**{f"{parent}__in": level})[: TREE_ROWS - len(members)])
        members += children
        level = [child.pk for child in children]
    return members


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    list_display = ["id", "conversation", "language", "events_so_far", "runs", "created_at"]
    list_filter = ["language", "created_at"]
    search_fields = ["=id"]
    date_hierarchy = "created_at"
    ordering = ["-created_at"]
    fields = [
        "id", "conversation", "language", "created_at", "last_seq", "first_seq", "elsewhere",
        "recent_runs", "recent_questions",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        rows: QuerySet[Session] = super().get_queryset(request)
        return rows.select_related("chat_session").annotate(run_count=count(Run, "session"))

    @admin.display(description=_("conversation"))
    def conversation(self, session: Session) -> str:
        return link_to(getattr(session, "chat_session", None))

    @admin.display(description=_("events"), ordering="last_seq")
    def events_so_far(self, session: Session) -> int:
        return session.last_seq

    @admin.display(description=_("runs"))
    def runs(self, session: Any) -> str:
        return link_to_list(Run, str(session.run_count), session__id__exact=session.pk)

    @admin.display(description=_("elsewhere"))
    def elsewhere(self, session: Session) -> str:
        links = [
            (link_to_list(model, str(options(model).verbose_name_plural), session__id__exact=pk),)
            for model in (Run, InboxMessage, Question, WorkLogEntry, Event)
            for pk in [session.pk]
        ]
        return format_html_join(" · ", "{}", links)

    @admin.display(description=_("newest runs"))
    def recent_runs(self, session: Session) -> str:
        return run_table(session.runs.order_by("-position")[:50])

    @admin.display(description=_("newest questions"))
    def recent_questions(self, session: Session) -> str:
        return question_table(session.questions.order_by("-opened_at")[:50])


def table(heads: Iterable[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A plain table; a cell that is not marked safe is escaped."""
    body = [tuple(row) for row in rows]
    if not body:
        return NOTHING
    head = format_html_join("", "<th>{}</th>", ((head,) for head in heads))
    cells = [(format_html_join("", "<td>{}</td>", ((cell,) for cell in row)),) for row in body]
    return format_html(
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
        head,
        format_html_join("", "<tr>{}</tr>", cells),
    )


def run_table(runs: Iterable[Run]) -> str:
    """Runs, as they appear on other rows' pages."""
    return table(
        [_("run"), _("agent"), _("status"), _("reason"), _("queued"), _("took")],
        (
            (link_to(run, str(run.pk)[:8]), run.agent_id, run.status, run.reason or NOTHING,
             moment(run.queued_at), took(run.started_at, run.ended_at))
            for run in runs
        ),
    )  # fmt: skip


def question_table(questions: Iterable[Question]) -> str:
    """Questions, as they appear on other rows' pages."""
    return table(
        [_("question"), _("agent"), _("kind"), _("state"), _("closed by"), _("open for")],
        (
            (link_to(question, short(question.question, 60)), question.agent_id, question.ui_type,
             question.state, question.closed_by or NOTHING,
             took(question.opened_at, question.closed_at))
            for question in questions
        ),
    )  # fmt: skip


STATUS_SIGNS = {
    "completed": "✓", "failed": "✗", "timeout": "⚡", "interrupted": "■", "running": "▶",
    "stalled": "⏸", "queued": "…", "waiting_child": "⋯", "waiting_user": "?",
}  # fmt: skip


def status_of(run: Run) -> str:
    """Status and reason in one cell; a lost run never looks like a completed one."""
    reason = f" ({run.reason})" if run.reason and run.reason != run.status else ""
    sign = STATUS_SIGNS.get(run.status, "")
    return format_html('<span class="run-{}">{} {}{}</span>', run.status, sign, run.status, reason)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = [
        "short_id", "agent_id", "how", "conversation", "epoch", "queued_at", "lasted",
    ]  # fmt: skip
    list_display_links = ["short_id"]
    list_filter = ["status", "reason", "agent_id", "queued_at"]
    list_select_related = ["session__chat_session"]
    search_fields = ["=id", "=session__id", "=root_id", "=runner_id", "detail"]
    date_hierarchy = "queued_at"
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
        return table(
            [_("epoch"), _("runner"), _("claimed"), _("last beat"), _("beats"), _("ended"),
             _("how"), _("by")],
            (
                (link_to(lease, str(lease.epoch)), lease.runner_id, moment(lease.acquired_at),
                 moment(lease.beat_at), lease.beats, moment(lease.released_at),
                 lease.end or NOTHING, lease.ended_by or NOTHING)
                for lease in run.leases.order_by("epoch")[:TREE_ROWS]
            ),
        )  # fmt: skip

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


def conversation_of(session: Session | None) -> str:
    """A link to the conversation, by its title where it has one."""
    if session is None:
        return NOTHING
    chat = getattr(session, "chat_session", None)
    return link_to(chat, short(str(chat), 40)) if chat else link_to(session)


def message_table(messages: Iterable[InboxMessage]) -> str:
    """Inbox messages, as they appear on other rows' pages."""
    return table(
        [_("message"), _("type"), _("from"), _("to"), _("state"), _("written"), _("read after")],
        (
            (link_to(message, short(message.content, 60) or str(message.pk)), message.kind,
             message.sender, message.recipient, state_of(message), moment(message.created_at),
             took(message.created_at, message.acked_at))
            for message in messages
        ),
    )  # fmt: skip


def state_of(message: InboxMessage) -> str:
    """State, and what is special about it."""
    notes = [message.state, message.reason, "late" if message.late else ""]
    return ", ".join(note for note in notes if note)


@admin.register(InboxMessage)
class InboxMessageAdmin(ReadOnlyAdmin):
    list_display = [
        "preview", "kind", "sender", "recipient", "state", "reason", "late", "answers",
        "conversation", "created_at", "read_after",
    ]  # fmt: skip
    list_filter = ["kind", "state", "late", "reason", "recipient", "created_at"]
    list_select_related = ["in_reply_to", "session__chat_session"]
    search_fields = ["=id", "=session__id", "content"]
    date_hierarchy = "created_at"
    ordering = ["-created_at"]
    fieldsets = [
        (None, {"fields": [
            "id", "kind", "sender", "recipient", "content", "state", "reason", "late",
            "conversation"]}),
        (_("Reply chain"), {"fields": ["reply_chain"]}),
        (_("Links"), {"fields": ["answers", "accepted", "sent_by_run", "done_by_run"]}),
        (_("Times"), {"fields": [
            "created_at", "delivered_at", "deliveries", "acked_at", "read_after"]}),
        (_("Also"), {"fields": ["position", "send_key"]}),
    ]  # fmt: skip
    actions = ["redeliver"]

    def has_redeliver_permission(self, request: HttpRequest) -> bool:
        """It changes nothing but the state, so it needs the permission to change messages."""
        return request.user.has_perm("coordination.change_inboxmessage")

    @admin.action(
        description=_("Deliver the selected dead letters again"), permissions=["redeliver"]
    )
    def redeliver(self, request: HttpRequest, messages: QuerySet[InboxMessage]) -> None:
        by = str(request.user.get_username())
        again = [message for message in messages if inbox.redeliver(message, by=by)]
        for message in again:
            self.log_change(request, message, "redelivered")
        text = ngettext(
            "%d dead letter will be delivered again.",
            "%d dead letters will be delivered again.",
            len(again),
        )
        self.message_user(request, text % len(again), SUCCESS)

    @admin.display(description=_("message"), ordering="content")
    def preview(self, message: InboxMessage) -> str:
        return short(message.content) or str(message.pk)

    @admin.display(description=_("in reply to"), ordering="in_reply_to")
    def answers(self, message: InboxMessage) -> str:
        replied = message.in_reply_to
        return link_to(replied, short(replied.content, 40)) if replied else NOTHING

    @admin.display(description=_("conversation"))
    def conversation(self, message: InboxMessage) -> str:
        return conversation_of(message.session)

    @admin.display(description=_("read after"))
    def read_after(self, message: InboxMessage) -> str:
        return took(message.created_at, message.acked_at)

    @admin.display(description=_("accepted result of"))
    def accepted(self, message: InboxMessage) -> str:
        return link_by_id(InboxMessage, message.accepted_for_id)

    @admin.display(description=_("sent by run"))
    def sent_by_run(self, message: InboxMessage) -> str:
        return link_to(message.sender_run)

    @admin.display(description=_("executed by run"))
    def done_by_run(self, message: InboxMessage) -> str:
        return link_to(Run.objects.filter(task=message).first())

    @admin.display(description=_("reply chain"))
    def reply_chain(self, message: InboxMessage) -> str:
        root = root_of(message)
        rows = InboxMessage.objects.select_related("task_run").order_by("position")
        members = by_levels(rows, root, "in_reply_to")
        return tree_html(
            members, lambda member: member.in_reply_to_id, message.pk,
            self._cells,
        )  # fmt: skip

    def _cells(self, message: InboxMessage) -> list[str]:
        run = getattr(message, "task_run", None)
        return [
            link_to(message, f"{message.kind}: {message.sender} → {message.recipient}"),
            short(message.content, 120),
            state_of(message),
            moment(message.created_at),
            format_html("{} {}", _("read after"), took(message.created_at, message.acked_at)),
            format_html("{} {}", link_to(run, str(_("run"))), status_of(run)) if run else "",
        ]


def root_of(message: InboxMessage) -> InboxMessage:
    """The message that the chain began with, or one that is far enough above."""
    for _hop in range(TREE_ROWS):
        if message.in_reply_to is None:
            break
        message = message.in_reply_to
    return message


class OpenLeases(admin.SimpleListFilter):
    """Leases that are held now, apart from the audit of those that were."""

    title = _("held now")
    parameter_name = "open"

    def lookups(self, *_args: Any) -> list[tuple[str, Any]]:
        return [("yes", _("yes")), ("no", _("no"))]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(released_at__isnull=self.value() == "yes")


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "agent_id", "run_link", "epoch", "node_id", "runner_id", "acquired_at", "beat_at",
        "beats", "released_at", "end", "ended_by",
    ]  # fmt: skip
    list_filter = [OpenLeases, "end", "node_id", "agent_id", "acquired_at"]
    search_fields = ["=run__id", "=session_id", "=runner_id", "=node_id"]
    date_hierarchy = "acquired_at"
    ordering = ["-acquired_at"]
    fields = [
        "run_link", "session_link", "agent_id", "epoch", "node_id", "runner_id", "acquired_at",
        "beat_at", "beats", "expires_at", "released_at", "held_for", "end", "ended_by",
    ]  # fmt: skip

    @admin.display(description=_("run"), ordering="run")
    def run_link(self, lease: Lease) -> str:
        return link_by_id(Run, lease.run_id, str(lease.run_id)[:8])

    @admin.display(description=_("session"))
    def session_link(self, lease: Lease) -> str:
        return link_by_id(Session, lease.session_id)

    @admin.display(description=_("held for"))
    def held_for(self, lease: Lease) -> str:
        return took(lease.acquired_at, lease.released_at)


@admin.register(Question)
class QuestionAdmin(ReadOnlyAdmin):
    list_display = [
        "preview", "agent_id", "ui_type", "state", "closed_by", "conversation", "run_link",
        "opened_at", "open_for",
    ]  # fmt: skip
    list_filter = ["state", "ui_type", "agent_id", "opened_at"]
    list_select_related = ["session__chat_session"]
    search_fields = ["=id", "=run__id", "=session__id", "question", "closed_by"]
    date_hierarchy = "opened_at"
    ordering = ["-opened_at"]
    fields = [
        "id", "question", "agent_id", "path", "ui_type", "choices", "allow_other", "default_value",
        "call_asked_about", "taken_up_at", "state", "answer_pretty", "closed_by", "opened_at",
        "closed_at", "open_for", "expires_at", "conversation", "run_link", "tool_call_id",
    ]  # fmt: skip

    @admin.display(description=_("question"), ordering="question")
    def preview(self, question: Question) -> str:
        return short(question.question)

    @admin.display(description=_("choices"))
    def choices(self, question: Question) -> str:
        return pretty(question.fields or question.options)

    @admin.display(description=_("tool call asked about"))
    def call_asked_about(self, question: Question) -> str:
        return NOTHING if question.approval is None else pretty(question.approval)

    @admin.display(description=_("answer"))
    def answer_pretty(self, question: Question) -> str:
        return NOTHING if question.answer is None else pretty(json.dumps(question.answer))

    @admin.display(description=_("open for"))
    def open_for(self, question: Question) -> str:
        return took(question.opened_at, question.closed_at)

    @admin.display(description=_("run"))
    def run_link(self, question: Question) -> str:
        return link_by_id(Run, question.run_id, str(question.run_id)[:8])

    @admin.display(description=_("conversation"))
    def conversation(self, question: Question) -> str:
        return conversation_of(question.session)


@admin.register(Wait)
class WaitAdmin(ReadOnlyAdmin):
    list_display = ["id", "run_link", "mode", "opened_at", "deadline_at", "closed_at", "timed_out"]
    list_filter = ["mode", "timed_out", "opened_at"]
    search_fields = ["=run__id", "=session_id", "=tool_call_id"]
    date_hierarchy = "opened_at"
    ordering = ["-opened_at"]
    fields = [
        "run_link", "session_link", "tool_call_id", "mode", "opened_at", "deadline_at",
        "paused_at", "closed_at", "lasted", "timed_out", "tasks",
    ]  # fmt: skip

    @admin.display(description=_("run"), ordering="run")
    def run_link(self, wait: Wait) -> str:
        return link_by_id(Run, wait.run_id, str(wait.run_id)[:8])

    @admin.display(description=_("session"))
    def session_link(self, wait: Wait) -> str:
        return link_by_id(Session, wait.session_id)

    @admin.display(description=_("took"))
    def lasted(self, wait: Wait) -> str:
        return took(wait.opened_at, wait.closed_at)

    @admin.display(description=_("tasks"))
    def tasks(self, wait: Wait) -> str:
        items = wait.items.select_related("task").order_by("pk")[:TREE_ROWS]
        return message_table(item.task for item in items)


@admin.register(WaitItem)
class WaitItemAdmin(ReadOnlyAdmin):
    list_display = ["id", "wait_link", "task_link"]
    list_select_related = ["wait", "task"]
    search_fields = ["=wait__run__id", "=task__id"]
    ordering = ["-pk"]
    fields = ["wait_link", "task_link"]

    @admin.display(description=_("wait"))
    def wait_link(self, item: WaitItem) -> str:
        return link_to(item.wait)

    @admin.display(description=_("task"))
    def task_link(self, item: WaitItem) -> str:
        return link_to(item.task, short(item.task.content) or str(item.task_id))


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ["seq", "session_link", "type", "run_link", "beginning", "created_at"]
    list_filter = ["type", "created_at"]
    search_fields = ["=session__id", "=run_id"]
    ordering = ["-pk"]
    fields = ["session_link", "seq", "type", "run_link", "data_pretty", "created_at"]

    @admin.display(description=_("session"), ordering="session")
    def session_link(self, event: Event) -> str:
        return link_by_id(Session, event.session_id, str(event.session_id)[:8])

    @admin.display(description=_("run"))
    def run_link(self, event: Event) -> str:
        return link_by_id(Run, event.run_id, str(event.run_id)[:8])

    @admin.display(description=_("data"))
    def beginning(self, event: Event) -> str:
        return short(event.data, 120)

    @admin.display(description=_("data"))
    def data_pretty(self, event: Event) -> str:
        return pretty(event.data)


@admin.register(WorkLogEntry)
class WorkLogEntryAdmin(ReadOnlyAdmin):
    list_display = ["at", "level", "kind", "agent_id", "preview", "conversation", "run_link"]
    list_filter = ["level", "kind", "agent_id", "at"]
    list_select_related = ["session__chat_session"]
    search_fields = ["=session__id", "=run_id", "text"]
    date_hierarchy = "at"
    ordering = ["-pk"]
    fields = ["at", "level", "kind", "agent_id", "text", "conversation", "run_link"]

    @admin.display(description=_("text"), ordering="text")
    def preview(self, entry: WorkLogEntry) -> str:
        return short(entry.text, 160)

    @admin.display(description=_("conversation"))
    def conversation(self, entry: WorkLogEntry) -> str:
        return conversation_of(entry.session)

    @admin.display(description=_("run"))
    def run_link(self, entry: WorkLogEntry) -> str:
        return link_by_id(Run, entry.run_id, str(entry.run_id)[:8])
