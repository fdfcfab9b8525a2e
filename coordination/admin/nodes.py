"""Worker nodes: who is there, how busy, and since when one is silent."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from coordination import dashboard
from coordination.models import Lease, WorkerNode

from .windows import NOTHING, ReadOnlyAdmin, link_to_list, table

STATES = {
    "alive": pgettext_lazy("a worker node", "alive"),
    "silent": pgettext_lazy("a worker node", "silent"),
    "left": pgettext_lazy("a worker node", "left"),
}


@admin.register(WorkerNode)
class WorkerNodeAdmin(ReadOnlyAdmin):
    list_display = [
        "id", "state", "beat_age", "runs", "load_average", "runner_count", "leases", "started_at",
        "left_at",
    ]  # fmt: skip
    list_filter = ["host", "started_at", "left_at"]
    search_fields = ["id", "host"]
    ordering = ["-beat_at"]
    fields = [
        "id", "host", "pid", "state", "started_at", "beat_at", "beat_age", "left_at", "runs",
        "load_average", "processes", "runner_table", "leases",
    ]  # fmt: skip

    def get_queryset(self, _request: HttpRequest) -> QuerySet[Any]:
        return dashboard.as_of_now()

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        return state_of(dashboard.node_of(row))

    @admin.display(description=_("last beat"), ordering="beat_at")
    def beat_age(self, row: Any) -> str:
        return ago(dashboard.node_of(row).beat_age)

    @admin.display(description=_("runs"))
    def runs(self, row: Any) -> str:
        node = dashboard.node_of(row)
        return f"{node.runs} / {node.slots}"

    @admin.display(description=_("load"), ordering="load")
    def load_average(self, row: Any) -> str:
        return load_of(dashboard.node_of(row))

    @admin.display(description=_("runners"))
    def runner_count(self, row: Any) -> int:
        return len(row.runners)

    @admin.display(description=_("leases"))
    def leases(self, row: Any) -> str:
        every = link_to_list(Lease, str(_("all")), node_id=row.pk)
        held = link_to_list(Lease, str(_("held now")), node_id=row.pk, open="yes")
        return format_html("{} · {}", held, every)

    @admin.display(description=_("runners"))
    def runner_table(self, row: Any) -> str:
        node = dashboard.node_of(row)
        return table(
            [_("runner"), _("process"), _("runs"), _("age"), _("loop turned")],
            (
                (runner.id, runner.pid, f"{runner.runs} / {node.concurrency}",
                 lasting(runner.age), ago(runner.quiet))
                for runner in node.runners
            ),
        )  # fmt: skip


def state_of(node: dashboard.Node) -> str:
    """A node's state, as a word with its colour."""
    return format_html('<span class="node-{}">{}</span>', node.state, STATES[node.state])


def load_of(node: dashboard.Node) -> str:
    """The machine's load beside what it can bear."""
    return NOTHING if node.load is None else f"{node.load:.2f} / {node.cpus}"


def ago(seconds: float) -> str:
    """How long ago."""
    return str(_("%s ago") % lasting(seconds))


def lasting(seconds: float) -> str:
    """A span of time, as exact as it is looked at."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
