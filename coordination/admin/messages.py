"""Inbox messages and who waits for them: who answered whom, as a tree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from coordination import inbox
from coordination.models import InboxMessage, Run, Session, Wait, WaitItem

from .actions import Outcome, Plan, confirmed
from .cells import conversation_of, message_table, state_of, status_of
from .filters import StillOpen, recent, when
from .windows import (
    NOTHING,
    TREE_ROWS,
    ReadOnlyAdmin,
    link_by_id,
    link_to,
    moment,
    short,
    took,
    tree_html,
)

CHAIN_HOPS = 60
"""Replies above a message from which its chain is shown: a revision adds two."""


def _redelivery(message: InboxMessage) -> Plan:
    if message.state != InboxMessage.State.DEAD:
        return Plan(gettext("is no dead letter"), refused=True)
    words = gettext("gets all its tries again: %(recipient)s will read it in its next turn")
    return Plan(words % {"recipient": message.recipient})


@admin.register(InboxMessage)
class InboxMessageAdmin(ReadOnlyAdmin):
    list_display = [
        "preview", "kind", "sender", "recipient", "state", "reason", "late", "answers",
        "conversation", "created_at", "read_after",
    ]  # fmt: skip
    list_filter = [
        "kind", "state", "late", when("created_at"), recent("reason", _("reason")),
        recent("sender", _("sender")), recent("recipient", _("recipient")),
    ]  # fmt: skip
    relations = ["in_reply_to", "session__chat_session"]
    order_in_session = ["-position"]
    search_ids = ["id", "session", "in_reply_to", "sender_run"]
    search_fields = ["content"]
    search_words = {
        "user": "session__chat_session__owner__username", "from": "sender", "to": "recipient",
    }  # fmt: skip
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

    @confirmed(_("Deliver again"), plan=_redelivery)
    def redeliver(self, messages: Sequence[InboxMessage], by: str) -> Iterator[Outcome]:
        for message in messages:
            won = inbox.redeliver(message, by=by)
            words = gettext("will be delivered again") if won else gettext("is no dead letter")
            yield Outcome(message, words, won)

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
        return chain_html(message)


def chain_html(message: InboxMessage) -> str:
    """The reply tree: who answered whom after how long, who waited for it, and how that ended."""
    members = inbox.chain(message, hops=CHAIN_HOPS, limit=TREE_ROWS)
    answers = {member.accepted_for_id: member for member in members if member.accepted_for_id}
    awaited: dict[Any, list[Wait]] = {}
    items = WaitItem.objects.filter(task__in=members).select_related("wait__run").order_by("pk")
    for item in items[:TREE_ROWS]:
        awaited.setdefault(item.task_id, []).append(item.wait)

    def describe(member: InboxMessage) -> list[str]:
        answer = answers.get(member.pk)
        return [
            link_to(member, f"{member.kind}: {member.sender} → {member.recipient}"),
            short(member.content, 120),
            state_of(member),
            moment(member.created_at),
            _span(_("read after"), member.created_at, member.acked_at),
            _span(_("answered after"), member.created_at, answer.created_at if answer else None),
            _execution(getattr(member, "task_run", None)),
            *(_awaiting(wait, answer) for wait in awaited.get(member.pk, [])),
        ]

    return tree_html(members, lambda member: member.in_reply_to_id, message.pk, describe)


def _span(words: Any, start: dt.datetime, end: dt.datetime | None) -> str:
    return f"{words} {took(start, end)}" if end else ""


def _execution(run: Run | None) -> str:
    if run is None:
        return ""
    lasted = took(run.started_at, run.ended_at)
    return format_html("{} {} {}", link_to(run, str(_("run"))), status_of(run), lasted)


def _awaiting(wait: Wait, answer: InboxMessage | None) -> str:
    """Who waited, for how long, and whether the result, the deadline or an end came first."""
    if wait.closed_at is None:
        how = _("still waits")
    elif wait.timed_out:
        how = _("timed out")
    elif answer is not None and answer.created_at <= wait.closed_at:
        how = _("the result came")
    else:
        how = _("given up")
    lasted = took(wait.opened_at, wait.closed_at)
    words = gettext("awaited by %s") % wait.run.agent_id
    return format_html("{}: {}, {}", link_to(wait, words), how, lasted)


class OpenWaits(StillOpen):
    title = _("open now")
    field = "closed_at"


@admin.register(Wait)
class WaitAdmin(ReadOnlyAdmin):
    list_display = ["id", "run_link", "mode", "opened_at", "deadline_at", "closed_at", "timed_out"]
    list_filter = [OpenWaits, "mode", "timed_out", when("opened_at")]
    search_ids = ["run", "run__session"]
    search_fields = ["tool_call_id"]
    search_words = {"user": "run__session__chat_session__owner__username"}
    ordering = ["-opened_at"]
    fields = [
        "run_link", "session_link", "tool_call_id", "mode", "opened_at", "deadline_at",
        "paused_at", "closed_at", "lasted", "timed_out", "tasks",
    ]  # fmt: skip
    embeds = {"tasks": InboxMessage}

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
    relations = ["wait", "task"]
    search_ids = ["wait__run", "task"]
    ordering = ["-pk"]
    fields = ["wait_link", "task_link"]
    embeds = {"task_link": InboxMessage}

    @admin.display(description=_("wait"))
    def wait_link(self, item: WaitItem) -> str:
        return link_to(item.wait)

    @admin.display(description=_("task"))
    def task_link(self, item: WaitItem) -> str:
        return link_to(item.task, short(item.task.content) or str(item.task_id))
