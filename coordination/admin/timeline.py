"""A session's timeline as a page: who did what, how long each hop took, filtered and in pages."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from coordination import timeline
from coordination.models import Session

from .windows import link_to, moment, short, took

TEXT_CHARS = 160


def view(window: ModelAdmin[Session], request: HttpRequest, session_id: Any) -> HttpResponse:
    """The page. Rows of a kind that its reader may not see are not in it."""
    if not window.has_view_permission(request):
        raise PermissionDenied
    session = Session.objects.select_related("chat_session").filter(pk=session_id).first()
    if session is None:
        raise Http404
    asked = {name: request.GET.get(name, "") for name in ("agent", "kind", "upto")}
    page = timeline.page(
        session,
        upto=int(asked["upto"]) if re.fullmatch("[0-9]{1,18}", asked["upto"]) else None,
        kinds=[asked["kind"]] if asked["kind"] in timeline.Kind.values else timeline.Kind.values,
        agent_id=asked["agent"],
    )
    context = {
        **window.admin_site.each_context(request),
        "title": _("Timeline"),
        "opts": window.opts,
        "session": session,
        "conversation": link_to(getattr(session, "chat_session", None) or session),
        "entries": [_cells(e) for e in page.entries if _may_view(window, request, e)],
        "kinds": _choices(asked, "kind", list(timeline.Kind.choices)),
        "agents": _choices(asked, "agent", [(agent, agent) for agent in page.agents]),
        "earlier": _url(asked, upto=page.earlier) if page.earlier else None,
        "later": _url(asked, upto=page.later) if page.later else None,
    }
    return TemplateResponse(request, "admin/coordination/timeline.html", context)


def _may_view(window: ModelAdmin[Session], request: HttpRequest, entry: timeline.Entry) -> bool:
    shown_by = window.admin_site.get_model_admin(type(entry.row))
    return shown_by.has_view_permission(request)


def _cells(entry: timeline.Entry) -> dict[str, Any]:
    hop = f"{took(entry.since, entry.at)}" if entry.since else ""
    return {
        "at": moment(entry.at),
        "iso": entry.at.isoformat(),
        "hop": hop,
        "after": entry.after,
        "kind": entry.kind.value,
        "label": entry.kind.label,
        "what": link_to(entry.row, entry.what),
        "agent": entry.agent_id,
        "by": entry.by,
        "text": short(entry.text, TEXT_CHARS),
        "run": entry.run_id,
    }


def _url(asked: dict[str, str], **changed: Any) -> str:
    given = {**asked, **changed}
    return "?" + urlencode({name: value for name, value in given.items() if value})


def _choices(asked: dict[str, str], name: str, known: list[tuple[str, Any]]) -> list[Any]:
    """Links that filter by this; the one that is on is marked."""
    every = ("", _("all"))
    return [
        {"url": _url(asked, **{name: value}), "label": label, "on": asked[name] == value}
        for value, label in [every, *known]
    ]
