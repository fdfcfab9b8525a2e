"""What an operator may do: few things, shown before they are done, and on record afterwards.

An action names, for each row, what will happen to it or why nothing will (``Plan``); only the
confirmed request does it. It is written down twice: in Django's own log of the admin, and, by the
door that everybody uses, in the work log, under the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from coordination import worklog

from .windows import options

AT_ONCE = 50
"""Rows of one action: a page of a list. More than that nobody has looked at."""
NAME_CHARS = 150  # of whoever closed a question or asked for a stop


@dataclass(frozen=True)
class Plan:
    """What an action will do to a row, in words; or, where ``refused``, why it does nothing."""

    words: str
    refused: bool = False


@dataclass(frozen=True)
class Outcome:
    """What it has done. ``won``: something changed."""

    row: Model
    words: str
    won: bool = True


Do = Callable[[Any, Sequence[Any], str], Iterable[Outcome]]


def operator(request: HttpRequest) -> str:
    """Who acts here, for the record: never to be taken for the conversation's owner."""
    return f"operator {request.user.get_username()}"[:NAME_CHARS]


def confirmed(description: Any, *, plan: Callable[[Any], Plan]) -> Callable[[Do], Any]:
    """Make an admin action of a method ``(rows, by) -> outcomes``: first shown, then done."""

    def decorate(do: Do) -> Any:
        def action(
            window: Any, request: HttpRequest, queryset: QuerySet[Any]
        ) -> HttpResponse | None:
            is_confirmed = "confirmed" in request.POST
            if is_confirmed:  # what was shown, though the list's filter may have lost it since
                chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
                queryset = window.get_queryset(request).filter(pk__in=chosen)
            rows = list(queryset.order_by("pk")[: AT_ONCE + 1])
            if len(rows) > AT_ONCE:
                text = _("At most %d rows at once: select fewer.") % AT_ONCE
                window.message_user(request, text, messages.ERROR)
                return None
            if not is_confirmed:
                return _ask(window, request, do.__name__, description, rows, plan)
            with worklog.through("admin"):
                _record(window, request, do.__name__, do(window, rows, operator(request)))
            return _back(window, rows)

        action.__name__ = do.__name__
        return admin.action(action, permissions=["operate"], description=description)

    return decorate


def _ask(
    window: Any,
    request: HttpRequest,
    name: str,
    description: Any,
    rows: Sequence[Model],
    plan: Callable[[Any], Plan],
) -> HttpResponse:
    plans = [(row, plan(row)) for row in rows]
    planned = sum(not planned.refused for _row, planned in plans)
    context = {
        **window.admin_site.each_context(request),
        "title": description,
        "opts": window.opts,
        "action": name,
        "checkbox": ACTION_CHECKBOX_NAME,
        "rows": rows,
        "happens": [pair for pair in plans if not pair[1].refused],
        "refused": [pair for pair in plans if pair[1].refused],
        "summary": ngettext(
            "It will change %d row.", "It will change %d rows.", planned
        ) % planned,
    }  # fmt: skip
    return TemplateResponse(request, "admin/coordination/confirm.html", context)


def _record(window: Any, request: HttpRequest, name: str, outcomes: Iterable[Outcome]) -> None:
    """Log each as soon as it is done; tell the operator of alike ones together."""
    alike: dict[tuple[str, bool], list[Model]] = {}
    for outcome in outcomes:
        if outcome.won:
            window.log_change(request, outcome.row, f"{name}: {outcome.words}")
        alike.setdefault((outcome.words, outcome.won), []).append(outcome.row)
    for (words, won), rows in alike.items():
        text = f"{rows[0]}: {words}" if len(rows) == 1 else f"{len(rows)} × {words}"
        window.message_user(request, text, messages.SUCCESS if won else messages.WARNING)


def _back(window: Any, rows: Sequence[Model]) -> HttpResponse | None:
    """To the one row that this was about; None is the list."""
    if len(rows) != 1:
        return None
    meta = options(window.model)
    name = f"admin:{meta.app_label}_{meta.model_name}_change"
    return HttpResponseRedirect(reverse(name, args=[rows[0].pk]))
