"""The statements of the hot path, built once: most of a short one's time is Django building it.

    _OPEN = prepared.Rows(lambda: Lease.objects.filter(run=given("run"), released_at=None))
    [lease] = _OPEN(run=run.pk)

The queryset is written as ever, with ``given`` where a value will stand. Each thread builds the SQL
at its first call and keeps it; a call only binds values, so a constant in the queryset (a setting,
a time) is the one of the first call. None fits nowhere: ``= NULL`` is true of no row. An error
inside of ``atomic`` must leave it: it is not marked as broken, as Django's own methods do. Whatever
is not asked several times in each turn stays an ordinary queryset.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from django.db import connection, models
from django.db.models import Expression, QuerySet
from django.db.models.sql import UpdateQuery

M = TypeVar("M", bound=models.Model)


class given(Expression):  # noqa: N801 - reads as a word of the query
    """The place of a value that each call brings, by its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def as_sql(self, *_args: Any, **_kwargs: Any) -> tuple[str, Any]:
        return "%s", (self,)


@dataclass(frozen=True)
class _Built:
    sql: str
    params: Sequence[Any]  # constants, and ``given`` where a call's value stands
    compiler: Any = None
    converters: Any = None  # of columns whose values Python has in another way

    def run(self, cursor: Any, values: dict[str, Any]) -> None:
        bound = [
            _adapted(values[param.name]) if isinstance(param, given) else param
            for param in self.params
        ]
        cursor.execute(self.sql, bound)


class _Statement(ABC):
    """What is built once for each thread, as a connection is a thread's own."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def _built(self) -> _Built:
        if not hasattr(self._local, "built"):
            self._local.built = self._build()
        return cast(_Built, self._local.built)

    @abstractmethod
    def _build(self) -> _Built: ...


class _Query(_Statement):
    def __init__(self, queryset: Callable[[], QuerySet[Any, Any]]) -> None:
        super().__init__()
        self._queryset = queryset

    def _build(self) -> _Built:
        queryset = self._queryset()
        compiler = queryset.query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        columns = [column for column, _sql, _alias in compiler.select]
        return _Built(sql, tuple(params), compiler, compiler.get_converters(columns))

    def _fetch(self, values: dict[str, Any]) -> Iterable[Sequence[Any]]:
        built = self._built
        with connection.cursor() as cursor:
            built.run(cursor, values)
            rows = cursor.fetchall()
        if built.converters:
            rows = built.compiler.apply_converters(rows, built.converters)
        return cast(Iterable[Sequence[Any]], rows)


class Values(_Query):
    """Rows as tuples of what ``values_list`` names."""

    def __call__(self, **values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._fetch(values)]


class Rows(_Query, Generic[M]):
    """Whole rows of one table, as objects."""

    def __init__(self, queryset: Callable[[], QuerySet[M, M]]) -> None:
        super().__init__(queryset)

    def __call__(self, **values: Any) -> list[M]:
        rows = self._fetch(values)
        model = self._built.compiler.klass_info["model"]
        names = [field.attname for field in model._meta.concrete_fields]  # noqa: SLF001 - public
        return [model.from_db(connection.alias, names, row) for row in rows]

    def first(self, **values: Any) -> M | None:
        """The first of them, or None. All are read: for a queryset of one row at most."""
        return next(iter(self(**values)), None)


class Update(_Statement):
    """An UPDATE. A call answers how many rows it met."""

    def __init__(self, queryset: Callable[[], QuerySet[Any, Any]], **values: Any) -> None:
        super().__init__()
        self._queryset, self._values = queryset, values

    def __call__(self, **values: Any) -> int:
        with connection.cursor() as cursor:
            self._built.run(cursor, values)
            return cast(int, cursor.rowcount)

    def _build(self) -> _Built:
        query = cast(UpdateQuery, self._queryset().query.chain(UpdateQuery))
        query.add_update_values(self._values)
        sql, params = query.get_compiler(connection=connection).as_sql()
        return _Built(sql, tuple(params))


class Insert(Generic[M]):
    """New rows of one table, without their ids being read back."""

    def __init__(self, model: type[M]) -> None:
        meta = model._meta  # noqa: SLF001 - public
        self._fields = [field for field in meta.concrete_fields if not field.auto_created]
        self._table = meta.db_table

    def __call__(self, *rows: M) -> None:
        quote = connection.ops.quote_name
        columns = ", ".join(quote(str(field.column)) for field in self._fields)
        places = ", ".join(["%s"] * len(self._fields))
        sql = f"INSERT INTO {quote(self._table)} ({columns}) VALUES ({places})"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.executemany(sql, [self._values(row) for row in rows])
        for row in rows:
            row._state.adding, row._state.db = False, connection.alias  # noqa: SLF001

    def _values(self, row: M) -> list[Any]:
        return [
            field.get_db_prep_save(field.pre_save(row, add=True), connection)
            for field in self._fields
        ]


def _adapted(value: Any) -> Any:
    """The value as this database takes it."""
    match value:
        case uuid.UUID():
            return value if connection.features.has_native_uuid_field else value.hex
        case dt.datetime():
            return connection.ops.adapt_datetimefield_value(value)
        case dict() | list():
            return json.dumps(value)
    return value
