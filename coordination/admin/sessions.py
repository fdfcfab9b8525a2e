"""Sessions, what was told of them (events) and what was logged of them."""

from __future__ import annotations

import functools
from typing import Any

from django.contrib import admin
from django.urls import path
from django.utils.html import format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from coordination import nodes
from coordination.models import Event, InboxMessage, Question, Run, Session, WorkLogEntry

from . import timeline
from .cells import conversation_of, question_table, run_table
from .filters import recent, when
from .windows import (
    NOTHING,
    ReadOnlyAdmin,
    link_by_id,
    link_to,
    link_to_list,
    options,
    pretty,
    short,
)


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    list_display = ["id", "conversation", "language", "events_so_far", "runs", "created_at"]
    relations = ["chat_session"]
    list_filter = ["language", when("created_at")]
    search_ids = ["id"]
    search_fields = ["chat_session__title"]
    search_words = {"user": "chat_session__owner__username"}
    ordering = ["-created_at"]
    fields = [
        "id", "conversation", "language", "created_at", "last_seq", "first_seq", "elsewhere",
        "recent_runs", "recent_questions",
    ]  # fmt: skip
    embeds = {"recent_runs": Run, "recent_questions": Question}

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(functools.partial(timeline.view, self))
        address = path("<uuid:session_id>/timeline/", view, name="coordination_session_timeline")
        return [address, *super().get_urls()]

    @admin.display(description=_("conversation"))
    def conversation(self, session: Session) -> str:
        return link_to(getattr(session, "chat_session", None))

    @admin.display(description=_("events"), ordering="last_seq")
    def events_so_far(self, session: Session) -> int:
        return session.last_seq

    @admin.display(description=_("runs"))
    def runs(self, session: Session) -> str:
        return link_to_list(Run, gettext("runs"), session__id__exact=session.pk)

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


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ["seq", "session_link", "type", "run_link", "beginning", "created_at"]
    list_filter = [recent("type", _("type")), when("created_at")]
    search_ids = ["session"]
    order_in_session = ["-seq"]
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
    list_display = [
        "at", "level", "kind", "agent_id", "preview", "door", "node", "conversation", "run_link",
    ]  # fmt: skip
    list_filter = [
        "level", when("at"), recent("kind", _("kind")), recent("agent_id", _("agent")),
        recent("door", _("door")),
    ]  # fmt: skip
    relations = ["session__chat_session"]
    search_ids = ["session", "run_id"]
    search_fields = ["text"]
    search_words = {
        "user": "session__chat_session__owner__username", "node": "node_id__startswith",
        "kind": "kind", "door": "door",
    }  # fmt: skip
    ordering = ["-pk"]
    fields = [
        "at", "level", "kind", "agent_id", "text", "door", "node_id", "conversation", "run_link",
    ]  # fmt: skip

    @admin.display(description=_("text"), ordering="text")
    def preview(self, entry: WorkLogEntry) -> str:
        return short(entry.text, 160)

    @admin.display(description=_("node"), ordering="node_id")
    def node(self, entry: WorkLogEntry) -> str:
        return nodes.short(entry.node_id) or NOTHING

    @admin.display(description=_("conversation"))
    def conversation(self, entry: WorkLogEntry) -> str:
        return conversation_of(entry.session)

    @admin.display(description=_("run"))
    def run_link(self, entry: WorkLogEntry) -> str:
        return link_by_id(Run, entry.run_id, str(entry.run_id)[:8])
