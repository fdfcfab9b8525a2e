"""How the windows are narrowed down, without a look at the whole table to offer the choices."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

NEWEST = 500
"""Rows whose values a filter offers: all that ever were would be a look at every row."""
DAYS = 7  # offered one by one; older ones by "last 30 days", and then in order
LAST = {
    "15min": (_("last 15 minutes"), dt.timedelta(minutes=15)),
    "1h": (_("last hour"), dt.timedelta(hours=1)),
    "24h": (_("last 24 hours"), dt.timedelta(hours=24)),
    "30d": (_("last 30 days"), dt.timedelta(days=30)),
}


def when(field: str) -> type[admin.SimpleListFilter]:
    """By the time in this column: what was lately, or on one of the last days (UTC)."""

    class When(admin.SimpleListFilter):
        title = _("time")
        parameter_name = "when"

        def lookups(self, *_args: Any) -> list[tuple[str, Any]]:
            today = timezone.now().date()
            days = [today - dt.timedelta(days=ago) for ago in range(DAYS)]
            names = [gettext("today"), gettext("yesterday"), *(date_format(d) for d in days[2:])]
            named = [(day.isoformat(), name) for day, name in zip(days, names, strict=True)]
            return [*((key, words) for key, (words, _span) in LAST.items()), *named]

        def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            value = self.value()
            if value in LAST:
                return queryset.filter(**{f"{field}__gte": timezone.now() - LAST[value][1]})
            if value is None:
                return queryset
            try:
                day = dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC)
            except ValueError:
                return queryset.none()
            until = day + dt.timedelta(days=1)
            return queryset.filter(**{f"{field}__gte": day, f"{field}__lt": until})

    return When


class StillOpen(admin.SimpleListFilter):
    """What is open now, apart from the record of what was: by the time in ``field``."""

    field: str
    parameter_name = "open"

    def lookups(self, *_args: Any) -> list[tuple[str, Any]]:
        return [("yes", _("yes")), ("no", _("no"))]

    def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        return queryset.filter(**{f"{self.field}__isnull": self.value() == "yes"})


def recent(field: str, title: Any) -> type[admin.SimpleListFilter]:
    """By a value of this column, offered from the newest rows."""

    class Recent(admin.SimpleListFilter):
        parameter_name = field

        def lookups(self, _request: HttpRequest, window: Any) -> list[tuple[str, Any]]:
            newest = window.model._default_manager.order_by(*window.ordering)  # noqa: SLF001
            found = set(newest.values_list(field, flat=True)[:NEWEST]) - {"", None}
            asked = self.used_parameters.get(field)
            return [(value, value) for value in sorted(found | ({asked} if asked else set()))]

        def queryset(self, _request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            return queryset.filter(**{field: self.value()}) if self.value() else queryset

    Recent.title = title
    return Recent
