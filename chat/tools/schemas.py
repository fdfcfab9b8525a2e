"""What a call may say: the schema that the model is told, and the check of what it gives.

    Signature    the parameters of a function of ours; values come out as Python has them
    JsonSchema   a stranger's schema, an MCP server's; values come out as they are

A stranger's schema is checked before anybody is told of it, and checking against it is bounded: it
may be large, refer to itself without end, or to the network, and its regular expressions may take
for ever. So references lead nowhere but into the schema, patterns are left to the server that wrote
them, and each step is counted (``AGENT_SCHEMA_STEPS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ValidationError

from coordination.conf import conf

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

FAULTS_SHOWN = 5  # of a call's arguments; the model corrects them one by one at worst
FAULT_CHARS = 300  # a fault quotes the value, which may be long

LEFT_TO_THE_SERVER = frozenset({"pattern", "patternProperties"})


class DoesNotFit(Exception):
    """Its text says where and why, for the model."""


class Arguments(Protocol):
    """What a tool takes."""

    def schema(self) -> dict[str, Any]:
        """As the model is told: a JSON schema of type object."""
        ...

    def values(self, given: Any) -> dict[str, Any]:
        """As the function gets them. Raises DoesNotFit."""
        ...

    def shown(self, given: Any) -> dict[str, Any]:
        """The same as JSON, defaults filled in, for a person to see. Raises DoesNotFit."""
        ...


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, as a model of them."""

    model: type[BaseModel]

    def schema(self) -> dict[str, Any]:
        schema = self.model.model_json_schema()
        schema.pop("title", None)
        return schema

    def values(self, given: Any) -> dict[str, Any]:
        fitting = self._fitting(given)
        return {name: getattr(fitting, name) for name in self.model.model_fields}

    def shown(self, given: Any) -> dict[str, Any]:
        return self._fitting(given).model_dump(mode="json")

    def _fitting(self, given: Any) -> BaseModel:
        try:
            return self.model.model_validate(given)
        except ValidationError as error:
            faults = (
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()
            )
            raise DoesNotFit("; ".join(faults)) from None


@dataclass(frozen=True)
class JsonSchema:
    """A schema that came from elsewhere. ``check`` it before anybody is told of it."""

    given: dict[str, Any]

    def check(self) -> None:
        """Raises ValueError where it is no schema of an object. Slow: some milliseconds."""
        from jsonschema.exceptions import SchemaError

        if self.given.get("type") != "object":
            raise ValueError("its schema is not of type object")
        try:
            self._dialect.check_schema(self.given)
        except SchemaError as error:
            raise ValueError(f"its schema is none: {_short(error.message)}") from None
        except (RecursionError, ArithmeticError, TypeError) as error:
            raise ValueError(f"its schema is none: {type(error).__name__}") from None

    def schema(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.given.items() if name not in ("$schema", "title")
        }

    def values(self, given: Any) -> dict[str, Any]:
        from referencing.exceptions import Unresolvable

        try:
            faults = list(self._faults(given))
        except (RecursionError, ArithmeticError, _TooManyStepsError, Unresolvable) as error:
            raise DoesNotFit(f"its schema cannot be followed ({type(error).__name__})") from None
        if faults:
            raise DoesNotFit("; ".join(faults))
        if not isinstance(given, dict):
            raise DoesNotFit("arguments: they should be an object")
        return given

    def shown(self, given: Any) -> dict[str, Any]:
        return self.values(given)

    def _faults(self, given: Any) -> Iterator[str]:
        for number, error in enumerate(self._counting().iter_errors(given)):
            if number == FAULTS_SHOWN:
                return
            where = ".".join(map(str, error.absolute_path)) or "arguments"
            yield f"{where}: {_short(error.message)}"

    def _counting(self) -> Validator:
        """A validator for one check: it gives up after so many steps, and asks no network."""
        from jsonschema.validators import extend
        from referencing import Registry

        steps = iter(range(conf.schema_steps))

        def counted(check: _Check) -> _Check:
            def step(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
                if next(steps, None) is None:
                    raise _TooManyStepsError
                yield from check(validator, value, instance, schema) or ()

            return step

        checks = {
            keyword: _anything if keyword in LEFT_TO_THE_SERVER else counted(check)
            for keyword, check in self._dialect.VALIDATORS.items()
        }
        validator: Validator = extend(self._dialect, checks)(self.given, registry=Registry())
        return validator

    @cached_property
    def _dialect(self) -> Any:
        from jsonschema.validators import Draft202012Validator, validator_for

        return validator_for(self.given, default=Draft202012Validator)


_Check = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


class _TooManyStepsError(Exception):
    """``AGENT_SCHEMA_STEPS`` are used up."""


def _anything(*_: Any) -> Iterable[Any]:
    return ()


def _short(text: str) -> str:
    return text if len(text) <= FAULT_CHARS else text[: FAULT_CHARS - 1] + "…"
