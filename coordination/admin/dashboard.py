"""The admin's first page: nodes, runs by status, what is stuck; each for who may view its rows.

The whole page is Django's own index with these sections above it (``admin/index.html``); the
fragment is the sections alone, which ``dashboard.js`` fetches again while somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from coordination import dashboard
from coordination.models import Lease, Run, Session, WorkerNode, WorkLogEntry

from .cells import STATUS_SIGNS
from .nodes import STATES, ago, lasting, load_of, state_of
from .windows import NOTHING, link_by_id, link_to_list, table

TITLES = {
    "stop": _("Stops that are not obeyed"),
    "lease": _("Leases that are over"),
    "stalled": _("Runs without progress"),
    "queued": _("Runs that no runner takes"),
    "wait": _("Waits past their deadline"),
    "question": _("Questions about to expire"),
    "dead_letter": _("Dead letters of the last day"),
}
FILTERS: dict[str, dict[str, str]] = {
    "stop": {"status__in": ",".join(Run.OWNED), "stop_requested_at__isnull": "False"},
    "lease": {"open": "yes"},
    "stalled": {"status__exact": Run.Status.STALLED},
    "queued": {"status__exact": Run.Status.QUEUED, "lane__isnull": "False"},
    "wait": {"closed_at__isnull": "True"},
    "question": {"state__exact": "open"},
    "dead_letter": {"state__exact": "dead"},
}
MODELS: set[type[Model]] = {
    *(WorkerNode, Run, WorkLogEntry),
    *(kind.model for kind in dashboard.KINDS.values()),
}
QUIET_LOOP = 3.0  # seconds without a runner's sign, of which there is one each second


def index(request: HttpRequest) -> HttpResponse:
    """Django's first page with the dashboard above its list of models."""
    return admin.site.index(request, {"board": board(request)})


def fragment(request: HttpRequest) -> HttpResponse:
    """The dashboard alone."""
    return render(request, "admin/coordination/dashboard.html", {"board": board(request)})


def board(request: HttpRequest) -> dict[str, Any]:
    """The sections that this person may see, as the template shows them."""
    seen = {model for model in MODELS if _may_view(request, model)}
    nodes = dashboard.nodes() if WorkerNode in seen else None
    problems = [_problem(kind) for kind in dashboard.stuck(seen)]
    if WorkLogEntry in seen and (alarms := dashboard.alarms()):
        problems.append(_alarm_table(alarms))
    idle = nodes is not None and not any(node.state == "alive" for node in nodes)
    return {
        "problems": problems,
        "no_node": idle,
        "well": bool(seen) and not problems and not idle,
        "nodes": None if nodes is None else {"title": _count(nodes), "table": _node_table(nodes)},
        "runs": _runs() if Run in seen else None,
        "health": _health(),
        "at": timezone.now(),
    }


def _may_view(request: HttpRequest, model: type[Model]) -> bool:
    return bool(admin.site.get_model_admin(model).has_view_permission(request))


# -- what is stuck ---------------------------------------------------------------------------


def _problem(found: dashboard.Stuck) -> dict[str, Any]:
    total = f"{found.total}+" if found.total == dashboard.COUNTED else str(found.total)
    rows = (
        (
            link_by_id(found.model, item.pk, item.about),
            link_by_id(Session, item.session_id, str(item.session_id)[:8]),
            ago(item.seconds) if item.seconds >= 0 else _("in %s") % lasting(-item.seconds),
        )
        for item in found.items
    )
    return {
        "kind": found.kind,
        "title": TITLES[found.kind],
        "all": link_to_list(found.model, total, **FILTERS[found.kind]),
        "table": table([_("which"), _("session"), _("when")], rows),
    }


def _alarm_table(alarms: list[dashboard.Alarm]) -> dict[str, Any]:
    rows = (
        (
            link_to_list(WorkLogEntry, alarm.kind, kind=alarm.kind, level__exact=alarm.level),
            format_html('<span class="log-{}">{}</span>', alarm.level, alarm.level),
            alarm.count,
            link_by_id(WorkLogEntry, alarm.newest, alarm.text),
            ago(alarm.seconds),
        )
        for alarm in alarms
    )
    since = timezone.now() - dashboard.ALARMED_WITHIN
    filters = {"level__in": "warning,error", "at__gte": since.isoformat()}
    return {
        "kind": "alarm",
        "title": _("Warnings and errors of the last hour"),
        "all": link_to_list(WorkLogEntry, str(sum(a.count for a in alarms)), **filters),
        "table": table([_("kind"), _("level"), _("count"), _("newest"), _("when")], rows),
    }


# -- nodes -----------------------------------------------------------------------------------


def _count(nodes: list[dashboard.Node]) -> str:
    """How many of each state."""
    states = [node.state for node in nodes]
    return ", ".join(f"{states.count(s)} {word}" for s, word in STATES.items() if s in states)


def _node_table(nodes: list[dashboard.Node]) -> str:
    return table(
        [_("node"), _("state"), _("last beat"), _("runs"), _("load"), _("up for"), _("runners")],
        (
            (
                link_by_id(WorkerNode, node.id, f"{node.host} {node.pid}"),
                state_of(node),
                ago(node.beat_age),
                _held(node),
                load_of(node),
                lasting(node.up),
                _runner_lines(node),
            )
            for node in nodes
        ),
    )


def _held(node: dashboard.Node) -> str:
    if node.state != "alive":  # what was held then is no news
        return NOTHING
    link = link_to_list(Lease, f"{node.runs} / {node.slots}", node_id=node.id, open="yes")
    return format_html(
        '{} <meter min="0" max="{}" value="{}" aria-hidden="true"></meter>',
        link, max(1, node.slots), node.runs,
    )  # fmt: skip


def _runner_lines(node: dashboard.Node) -> str:
    """Its runners, and those that it should have and has not."""
    if node.state != "alive":
        return NOTHING
    missing = node.processes - len(node.runners)
    lines = [
        (
            "quiet" if runner.quiet > QUIET_LOOP else "turns",
            _("process {pid}: {runs} / {slots}, loop turned {ago}, up for {age}").format(
                pid=runner.pid, runs=runner.runs, slots=node.concurrency,
                ago=ago(runner.quiet), age=lasting(runner.age),
            ),
        )
        for runner in node.runners
    ]  # fmt: skip
    if missing > 0:
        text = ngettext("%d runner is missing", "%d runners are missing", missing) % missing
        lines.append(("quiet", text))
    return format_html("<ul>{}</ul>", format_html_join("", '<li class="loop-{}">{}</li>', lines))


# -- runs ------------------------------------------------------------------------------------


def _runs() -> dict[str, Any]:
    since = {"ended_at__gte": (timezone.now() - dashboard.ENDED_WITHIN).isoformat()}
    return {
        "unfinished": _tiles(dashboard.unfinished(), {}),
        "ended": _tiles(dashboard.ended(), since),
    }


def _tiles(counts: Iterable[dashboard.Counted], filters: dict[str, str]) -> list[dict[str, Any]]:
    """One for each status and reason: how many, and where they are listed."""
    return [
        {
            "status": count.status,
            "sign": STATUS_SIGNS.get(count.status, ""),
            "reason": count.reason if count.reason != count.status else "",
            "link": link_to_list(
                Run, str(count.runs), status__exact=count.status,
                **({"reason__exact": count.reason} if count.reason else {}), **filters,
            ),
        }
        for count in counts
    ]  # fmt: skip


# -- this web node ---------------------------------------------------------------------------


def _health() -> list[dict[str, Any]]:
    """That the page is there says that the database answers."""
    found = dashboard.health()
    words: dict[bool | None, tuple[str, Any]] = {
        True: ("good", _("answers")),
        False: ("bad", _("does not answer: everything works, slower")),
        None: ("none", _("not configured: everything goes by polling")),
    }
    hears: dict[bool | None, tuple[str, Any]] = {
        True: ("good", _("hears")),
        False: ("bad", _("hears nothing: everything works, slower")),
        None: ("none", _("does not listen yet")),
    }
    lines = [(_("Database"), words[True]), (_("Redis"), words[found.redis])]
    if found.redis is not None:
        lines.append((_("This web node"), hears[found.hears]))
    return [{"name": name, "tone": tone, "text": text} for name, (tone, text) in lines]
