"""Inbox messages and who waits for them: who answered whom, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from coordination import inbox
from coordination.models import InboxMessage, Run, Session, Wait, WaitItem

from .actions import Outcome, Plan, confirmed
from .cells import conversation_of, message_table, state_of, status_of
from .windows import (
    NOTHING,
    TREE_ROWS,
    ReadOnlyAdmin,
    by_levels,
    link_by_id,
    link_to,
    moment,
    short,
    took,
    tree_html,
)


def _redelivery(message: InboxMessage) -> Plan:
    if message.state != InboxMessage.State.DEAD:
        return Plan(gettext("is no dead letter"), refused=True)
    return Plan(
        gettext("gets all its tries again: %(recipient)s will read it in its next turn")
        % {
            "recipient": message.recipient,
        }
    )


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
