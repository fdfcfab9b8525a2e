"""What every window of the admin is made of: links, tables, trees, times, and no way to change."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.paginator import Page, Paginator
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.text import Truncator

from coordination.models import Session
from coordination.timeline import SPAN

if TYPE_CHECKING:  # generic to the type checker only
    _Paginator = Paginator[Any]
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _Paginator = Paginator
    _ModelAdmin = admin.ModelAdmin

NOTHING = "—"
TREE_ROWS = 500
"""Members shown of one tree or one list inside a page: more than anybody reads."""


def options(model: type[models.Model] | models.Model) -> Any:
    """Django's description of a model; a public API, though it looks private."""
    return model._meta  # noqa: SLF001


def link_to(row: models.Model | None, text: str = "") -> str:
    """A link to the row's admin page."""
    return NOTHING if row is None else link_by_id(type(row), row.pk, text or str(row))


def link_by_id(model: type[models.Model], pk: Any, text: str = "") -> str:
    """The same for a row that need not be read."""
    if pk is None or pk == "":
        return NOTHING
    meta = options(model)
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(pk)])
    return format_html('<a href="{}">{}</a>', url, text or pk)


def link_to_list(model: type[models.Model], text: str, **filters: Any) -> str:
    """A link to the model's list, filtered."""
    meta = options(model)
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    return format_html('<a href="{}?{}">{}</a>', url, urlencode(filters), text)


def short(text: str, length: int = 80) -> str:
    """The text on one line, cut; still text, whatever markup is in it."""
    return Truncator(" ".join(text[: length * 4].split())).chars(length)


def pretty(value: Any) -> str:
    """JSON for people; what is no JSON as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return format_html("<pre>{}</pre>", value)
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))


def took(start: dt.datetime | None, end: dt.datetime | None) -> str:
    """How long something took."""
    return seconds(None if start is None or end is None else (end - start).total_seconds())


def seconds(span: float | None) -> str:
    """A span of time, to the millisecond where that says something."""
    if span is None:
        return NOTHING
    return f"{span:.3f} s" if span < 60 else str(dt.timedelta(seconds=round(span)))


def moment(at: dt.datetime | None) -> str:
    """A time to the millisecond: seconds are too coarse for what happens here."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if at else NOTHING


def at(field: str) -> Callable[[Any], str]:
    """A column with a time of the row, to the millisecond."""

    def column(row: Any) -> str:
        return moment(getattr(row, field))

    column.__name__ = field
    return admin.display(column, description=field.replace("_", " "), ordering=field)


def timeline_url(row: models.Model) -> str | None:
    """The timeline of the row's session: from the place of the row on, or of its run."""
    session_id = row.pk if isinstance(row, Session) else getattr(row, "session_id", None)
    if session_id is None:
        return None
    url = reverse("admin:coordination_session_timeline", args=[session_id])
    place = getattr(row, "position", None) or getattr(getattr(row, "run", None), "position", None)
    return url if place is None else f"{url}?upto={place + SPAN - 1}"


class EstimatingPaginator(_Paginator):
    """Counts no further than anybody pages: a log of millions has no useful exact number."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return rows.order_by().values("pk")[: self.MOST].count()

    def page(self, number: Any) -> Any:
        """Which rows, an index says alone; only they are read, however far back the page is."""
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return super().page(number)
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        keys = list(rows.values_list("pk", flat=True)[first : first + self.per_page])
        return Page(rows.filter(pk__in=keys), number, self)


def _as_uuid(word: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(word)
    except ValueError:
        return None


class ReadOnlyAdmin(_ModelAdmin):
    """Look, do not touch."""

    actions: Any = None
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = EstimatingPaginator
    save_on_top = False
    change_form_template = "admin/coordination/change_form.html"
    relations: Sequence[str] = ()
    """Read after the rows, never joined: a join tempts MariaDB to sort all there are."""
    order_in_session: Sequence[str] = ()
    """The order of the rows of one session, by an index that begins with the session."""
    search_ids: Sequence[str] = ()
    """Where an id is looked up: exactly, by an index; words are looked for in ``search_fields``."""
    search_words: Mapping[str, str] = {}
    """``word:value`` in a search, and the lookup it stands for."""
    embeds: Mapping[str, type[models.Model]] = {}
    """Fields that show what other rows say, and of which model: only for who may view those."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.search_help_text = " ".join(f"{word}:…" for word in cls.search_words)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.prefetch_related(*self.relations)

    def get_ordering(self, request: HttpRequest) -> Any:
        """Newest first, by whichever index serves it."""
        in_session = {"session__id__exact", "session__exact"} & request.GET.keys()
        if in_session and self.order_in_session:
            return self.order_in_session
        return super().get_ordering(request)

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return [*self.search_ids, *super().get_search_fields(request)]

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Each word narrows it down. No row is found twice."""
        for word in search_term.split():
            queryset = queryset.filter(self._search(word))
        return queryset, False

    def _search(self, word: str) -> Q:
        name, _, value = word.partition(":")
        if value and name in self.search_words:
            rows = self.model._default_manager.filter(**{self.search_words[name]: value})  # noqa: SLF001
            return Q(pk__in=rows.values("pk"))
        asked: list[tuple[str, Any]] = [
            (f"{field}__icontains", word) for field in self.search_fields
        ]
        if self.search_ids and (row_id := _as_uuid(word)):
            asked = [(lookup, row_id) for lookup in self.search_ids]
        return Q(*asked, _connector=Q.OR) if asked else Q(pk__in=[])

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The row, with what may be done about it and the way to its session's timeline."""
        context = {
            "operations": [action[1:] for action in self.get_actions(request).values() if action],
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        context["timeline"] = timeline_url(obj) if obj else None
        return super().render_change_form(request, context, add, change, form_url, obj)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Actions change no more than a state, so they need the permission to change such rows."""
        name = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return request.user.has_perm(name)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [self._precise(name) for name in super().get_list_display(request)]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            (
                title,
                {
                    **given,
                    "fields": [
                        self._precise(name)
                        for name in given["fields"]
                        if self._may_see(request, name)
                    ],
                },
            )
            for title, given in super().get_fieldsets(request, obj)
        ]

    def _may_see(self, request: HttpRequest, name: Any) -> bool:
        shown = self.embeds.get(name)
        if shown is None:
            return True
        return bool(self.admin_site.get_model_admin(shown).has_view_permission(request))

    def _precise(self, name: Any) -> Any:
        """Times to the millisecond: Django's own columns end at the minute."""
        names = {f.name for f in self.opts.fields if isinstance(f, models.DateTimeField)}
        return at(name) if name in names else name

    def has_add_permission(self, *_args: Any) -> bool:
        return False

    def has_change_permission(self, *_args: Any) -> bool:
        return False

    def has_delete_permission(self, *_args: Any) -> bool:
        return False


def tree_html(members: Sequence[Any], parent_of: Any, current: Any, describe: Any) -> str:
    """Rows as a nested list. ``describe`` gives the cells of one member, ready for the page."""
    nodes = {member.pk: {"cells": describe(member), "here": member.pk == current, "below": []}
             for member in members}  # fmt: skip
    roots: list[dict[str, Any]] = []
    for member in members:
        above = nodes.get(parent_of(member))
        (above["below"] if above else roots).append(nodes[member.pk])
    return render_to_string("admin/coordination/tree.html", {"nodes": roots})


def table(heads: Iterable[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A plain table; a cell that is not marked safe is escaped."""
    body = [tuple(row) for row in rows]
    if not body:
        return NOTHING
    head = format_html_join("", "<th>{}</th>", ((head,) for head in heads))
    cells = [(format_html_join("", "<td>{}</td>", ((cell,) for cell in row)),) for row in body]
    return format_html(
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
        head,
        format_html_join("", "<tr>{}</tr>", cells),
    )
