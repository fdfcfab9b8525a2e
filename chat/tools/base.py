"""What a tool is: a function whose signature is its schema.

    @tool
    def add(a: int, b: int) -> str:
        '''Add two numbers.'''
        return str(a + b)

A first parameter that is called ``context`` is no argument of the model's: it gets the
``ToolContext``. A tool returns what the model is to read (text or JSON), or a suspension: ``Ask``
(a person is to answer) or ``Await`` (results are to come). It raises ``ToolError`` with a text that
tells the model what to do instead. It may be called again after a crash, with the same
``idempotency_key`` in its context: use that, or say ``repeatable=False``. With
``requires_approval=True`` a person decides about each call before it is made (``chat.approvals``).

An async tool is cancelled at its next await, so it must not block. A plain ``def`` may block as
long as it likes: it runs in a process of its own (``chat.tools.processes``), is killed where an
async one would be cancelled, and takes nobody along when it crashes. So it stands at the top of its
module, its results can be pickled, and what it changes in memory is gone when it returns.
"""

from __future__ import annotations

import importlib
import inspect
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints, overload

from pydantic import ConfigDict, create_model

from chat.llm.protocol import ToolSpec
from coordination.models import Run
from coordination.suspensions import Ask

from . import processes
from .schemas import Arguments, DoesNotFit, Signature


class ToolError(Exception):
    """The call breaks a rule or failed; its text is the tool's result."""


@dataclass(frozen=True)
class ToolContext:
    """Who calls, and under which id. A plain tool gets a copy of it."""

    run: Run
    call_id: str

    @property
    def idempotency_key(self) -> str:
        """The same for every execution of this call, on whatever node."""
        return f"{self.run.pk}:{self.call_id}"


@dataclass(frozen=True)
class Value:
    """A finished call: what the model reads."""

    content: Any


@dataclass(frozen=True)
class TakeIn:
    """The call returns what waits in the inbox: read, acked and remembered in one transaction."""


@dataclass(frozen=True)
class Await:
    """The call ends when the results of these tasks have come, or time is over."""

    tasks: list[uuid.UUID]
    timeout: float
    mode: str = "all"


Outcome = Value | TakeIn | Ask | Await
Function = Callable[..., Any]


@dataclass(frozen=True)
class Tool:
    """A function, its schema, and what may be done with it."""

    name: str
    description: str
    arguments: Arguments
    function: Function
    repeatable: bool = True
    requires_approval: bool = False

    @cached_property  # before every model call, and building a schema takes a millisecond
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(self.name, self.description, self.arguments.schema())

    async def __call__(self, context: ToolContext, arguments: str) -> Outcome:
        """Validate and call. Raises ToolError for arguments that do not fit."""
        values = fitting(self.name, arguments, self.arguments.values)
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(*_first(self.function, context), **values)
        else:
            where = self.function.__module__, self.function.__qualname__
            result = await processes.call(call_plain, *where, context, values)
        return result if isinstance(result, Outcome) else Value(result)


def fitting(tool: str, arguments: str, read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """The arguments as ``read`` gives them. Raises ToolError where they do not fit the tool."""
    try:
        given = json.loads(arguments or "{}", parse_constant=_refuse)
        if not all(map(is_text, _strings(given))):
            raise ToolError(f"invalid_text: {tool}: leave out NUL and lone surrogates.")
        return read(given)
    except DoesNotFit as fault:
        raise ToolError(f"{tool}: {fault}. Correct the arguments and try again.") from None
    except ValueError:
        raise ToolError(f"{tool}: the arguments are not valid JSON.") from None


def call_plain(module: str, name: str, context: ToolContext, values: dict[str, Any]) -> Any:
    """Call a plain tool's function, wherever this is: the decorator keeps it from being pickled."""
    function = getattr(importlib.import_module(module), name).function
    return function(*_first(function, context), **values)


def _first(function: Function, context: ToolContext) -> tuple[ToolContext, ...]:
    """What comes before the arguments."""
    return (context,) if _takes_context(function) else ()


def _takes_context(function: Function) -> bool:
    return next(iter(inspect.signature(function).parameters), None) == "context"


def is_text(text: str) -> bool:
    """False for what a database, a log or a provider would choke on."""
    return not any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in text)


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case dict():
            for name, item in value.items():
                yield name
                yield from _strings(item)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


@overload
def tool(function: Function) -> Tool: ...
@overload
def tool(
    *, repeatable: bool = True, requires_approval: bool = False
) -> Callable[[Function], Tool]: ...


def tool(
    function: Function | None = None, *, repeatable: bool = True, requires_approval: bool = False
) -> Any:
    """Make a tool of a function: its name, docstring and typed parameters are what the model sees.

    ``repeatable=False``: after a crash the call is not made again; the model is told that it is
    unknown whether it took effect. ``requires_approval``: a person approves, denies or edits each
    call before it is made.
    """
    if function is None:
        return lambda f: _tool(f, repeatable, requires_approval)
    return _tool(function, repeatable, requires_approval)


def _tool(function: Function, repeatable: bool, requires_approval: bool) -> Tool:
    if not inspect.iscoroutinefunction(function) and "." in function.__qualname__:
        raise TypeError(f"{function.__qualname__}: a plain tool stands at the top of its module")
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    if _takes_context(function):
        del parameters[0]
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in parameters
    }
    arguments = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    description = inspect.cleandoc(function.__doc__ or "")
    name = function.__name__
    return Tool(name, description, Signature(arguments), function, repeatable, requires_approval)
