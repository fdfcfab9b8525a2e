"""Leases: who vouched for which run, and how it ended. The open ones and the audit."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from coordination.models import Lease, Run, Session

from .filters import StillOpen, recent, when
from .life import life_html
from .windows import ReadOnlyAdmin, link_by_id, took


class OpenLeases(StillOpen):
    title = _("held now")
    field = "released_at"


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "agent_id", "run_link", "epoch", "node_id", "runner_id", "acquired_at", "beat_at",
        "beats", "released_at", "end", "ended_by",
    ]  # fmt: skip
    list_filter = [
        OpenLeases, "end", when("acquired_at"), recent("node_id", _("node")),
        recent("agent_id", _("agent")),
    ]  # fmt: skip
    search_ids = ["run", "session_id"]
    search_fields = ["runner_id", "ended_by"]
    search_words = {
        "user": "run__session__chat_session__owner__username",
        "runner": "runner_id",
        "node": "node_id__startswith",
        "by": "ended_by__icontains",
    }
    ordering = ["-acquired_at"]
    fields = [
        "run_link", "session_link", "agent_id", "epoch", "node_id", "runner_id", "acquired_at",
        "beat_at", "beats", "expires_at", "released_at", "held_for", "end", "ended_by", "life",
    ]  # fmt: skip

    @admin.display(description=_("run"), ordering="run")
    def run_link(self, lease: Lease) -> str:
        return link_by_id(Run, lease.run_id, str(lease.run_id)[:8])

    @admin.display(description=_("session"))
    def session_link(self, lease: Lease) -> str:
        return link_by_id(Session, lease.session_id)

    @admin.display(description=_("all epochs of the run"))
    def life(self, lease: Lease) -> str:
        return life_html(lease.run, current=lease.pk)

    @admin.display(description=_("held for"))
    def held_for(self, lease: Lease) -> str:
        return took(lease.acquired_at, lease.released_at)
