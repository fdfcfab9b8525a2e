"""Leases: who vouched for which run, and how it ended. The open ones and the audit."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from coordination.models import Lease, Run, Session

from .windows import ReadOnlyAdmin, link_by_id, took


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
