"""The admin of the product's rows: conversations, what was said in them, and who may come in.

Conversations and messages are history and cannot be changed here. A token can be revoked; neither a
token nor a link can be made here, because their secret is shown once, by the command that makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from coordination import worklog
from coordination.admin.actions import Outcome, Plan, confirmed
from coordination.admin.cells import question_table, run_table
from coordination.admin.filters import recent, when
from coordination.admin.windows import (
    NOTHING,
    ReadOnlyAdmin,
    link_by_id,
    link_to,
    link_to_list,
    moment,
    options,
    pretty,
    short,
    table,
    timeline_url,
)
from coordination.models import InboxMessage, Question, Run, WorkLogEntry

from .models import ApiToken, ChatSession, Message, SignInLink

HASH_SHOWN = 8
"""Characters of a secret's hash: enough to tell two rows apart."""


@admin.register(ChatSession)
class ChatSessionAdmin(ReadOnlyAdmin):
    list_display = ["name", "owner", "runs", "said", "places", "created_at", "deleted_at"]
    relations = ["owner", "session"]
    list_filter = [when("created_at"), ("deleted_at", admin.EmptyFieldListFilter)]
    search_ids = ["session"]
    search_fields = ["title", "owner__username"]
    search_words = {"user": "owner__username"}
    ordering = ["-created_at"]
    fields = [
        "name", "owner_link", "session_link", "created_at", "deleted_at", "elsewhere",
        "recent_runs", "recent_questions", "recent_messages",
    ]  # fmt: skip
    embeds = {"recent_runs": Run, "recent_questions": Question, "recent_messages": Message}

    @admin.display(description=_("title"), ordering="title")
    def name(self, chat: ChatSession) -> str:
        return short(str(chat))

    @admin.display(description=_("owner"))
    def owner_link(self, chat: ChatSession) -> str:
        url = reverse("admin:auth_user_change", args=[chat.owner_id])
        return format_html('<a href="{}">{}</a>', url, chat.owner)

    @admin.display(description=_("session"))
    def session_link(self, chat: ChatSession) -> str:
        return link_to(chat.session)

    @admin.display(description=_("runs"))
    def runs(self, chat: ChatSession) -> str:
        return link_to_list(Run, gettext("runs"), session__id__exact=chat.pk)

    @admin.display(description=_("messages"))
    def said(self, chat: ChatSession) -> str:
        return link_to_list(Message, gettext("messages"), session__exact=chat.pk)

    @admin.display(description=_("timeline"))
    def places(self, chat: ChatSession) -> str:
        """How much has happened: runs, letters and messages have one count of places."""
        return format_html('<a href="{}">{}</a>', timeline_url(chat), chat.session.last_position)

    @admin.display(description=_("elsewhere"))
    def elsewhere(self, chat: ChatSession) -> str:
        links = [
            link_to_list(model, str(options(model).verbose_name_plural), session__id__exact=chat.pk)
            for model in (Run, InboxMessage, Question, WorkLogEntry)
        ]
        return format_html(" · ".join(["{}"] * len(links)), *links)

    @admin.display(description=_("newest runs"))
    def recent_runs(self, chat: ChatSession) -> str:
        return run_table(chat.session.runs.order_by("-position")[:50])

    @admin.display(description=_("newest questions"))
    def recent_questions(self, chat: ChatSession) -> str:
        return question_table(chat.session.questions.order_by("-opened_at")[:50])

    @admin.display(description=_("newest messages"))
    def recent_messages(self, chat: ChatSession) -> str:
        rows = chat.messages.order_by("-position")[:50]
        return table(
            [_("at"), _("agent"), _("role"), _("message")],
            (
                (moment(row.created_at), row.agent_id, row.role,
                 link_to(row, short(row.content, 120) or str(row.pk)))
                for row in rows
            ),
        )  # fmt: skip


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = [
        "preview", "role", "agent_id", "status", "conversation", "run_link", "created_at",
    ]  # fmt: skip
    list_filter = ["role", "status", when("created_at"), recent("agent_id", _("agent"))]
    relations = ["session"]
    order_in_session = ["-position"]
    search_ids = ["id", "session", "run_id"]
    search_fields = ["content"]
    search_words = {"user": "session__owner__username"}
    ordering = ["-created_at"]
    fields = [
        "id", "conversation", "run_link", "agent_id", "position", "role", "status", "content",
        "parts_pretty", "model_pretty", "client_key", "created_at",
    ]  # fmt: skip

    @admin.display(description=_("message"), ordering="content")
    def preview(self, message: Message) -> str:
        return short(message.content, 100) or str(message.pk)

    @admin.display(description=_("conversation"))
    def conversation(self, message: Message) -> str:
        return link_to(message.session, short(str(message.session), 40))

    @admin.display(description=_("run"))
    def run_link(self, message: Message) -> str:
        return link_by_id(Run, message.run_id, str(message.run_id)[:8])

    @admin.display(description=_("parts"))
    def parts_pretty(self, message: Message) -> str:
        return pretty(message.parts)

    @admin.display(description=_("as the model said it"))
    def model_pretty(self, message: Message) -> str:
        return pretty(message.model_json) if message.model_json else NOTHING


class SecretAdmin(ReadOnlyAdmin):
    """A row whose secret is stored as a hash; even of that, only the beginning is shown."""

    @admin.display(description=_("hash"))
    def beginning(self, row: Any) -> str:
        return f"{row.digest[:HASH_SHOWN]}…"


def _revocation(token: ApiToken) -> Plan:
    if token.revoked_at:
        return Plan(gettext("was revoked before"), refused=True)
    return Plan(gettext("opens nothing any more, for ever"))


@admin.register(ApiToken)
class ApiTokenAdmin(SecretAdmin):
    list_display = [
        "name_or_number", "user", "scope", "beginning", "created_at", "last_used_at", "expires_at",
        "revoked_at",
    ]  # fmt: skip
    list_filter = ["scope", "created_at", "revoked_at", "expires_at"]
    list_select_related = ["user"]
    search_fields = ["name", "user__username"]
    ordering = ["-created_at"]
    fields = [
        "user", "name", "scope", "beginning", "created_at", "last_used_at", "expires_at",
        "revoked_at",
    ]  # fmt: skip
    actions = ["revoke"]

    @admin.display(description=_("name"), ordering="name")
    def name_or_number(self, token: ApiToken) -> str:
        return token.name or str(token.pk)

    @confirmed(_("Revoke"), plan=_revocation)
    def revoke(self, tokens: Sequence[ApiToken], by: str) -> Iterator[Outcome]:
        for token in tokens:
            won = token.revoke()
            if won:
                worklog.write(None, "token_revoked", f"{token}, by {by}")
            words = gettext("is revoked") if won else gettext("was revoked before")
            yield Outcome(token, words, won)


@admin.register(SignInLink)
class SignInLinkAdmin(SecretAdmin):
    list_display = ["id", "user", "beginning", "created_at", "expires_at", "used_at"]
    list_filter = ["created_at", "used_at"]
    list_select_related = ["user"]
    search_fields = ["user__username"]
    ordering = ["-created_at"]
    fields = ["user", "beginning", "created_at", "expires_at", "used_at"]
