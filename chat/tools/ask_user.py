"""``ask_user``: a question to the person. The run is parked until it is closed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordination.errors import Refused
from coordination.inbox import check_size
from coordination.suspensions import Ask, fits, option_value

from .base import Outcome, ToolError, tool


class Option(BaseModel):
    """One choice, where its label is not its value."""

    model_config = ConfigDict(extra="forbid")
    value: str
    label: str = ""


class FormField(BaseModel):
    """One field of a form."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=64)]
    label: str = ""
    type: Literal["text", "number", "date", "confirm", "select"] = "text"
    options: list[str] = []
    required: bool = False


@tool
async def ask_user(
    question: Annotated[str, Field(min_length=1)],
    ui_type: Literal[
        "text", "select", "multi_select", "confirm", "form", "date", "number"
    ] = "text",
    options: Annotated[list[str | Option], Field(max_length=100)] = [],  # noqa: B006
    fields: Annotated[list[FormField], Field(max_length=50)] = [],  # noqa: B006
    default_value: Any = None,
    allow_other: Annotated[bool, Field(description="an answer outside the options")] = False,
) -> Outcome:
    """Ask the user something only the user can decide or know, and wait for the answer."""
    choices = [o.model_dump() if isinstance(o, Option) else o for o in options]
    if ui_type in ("select", "multi_select") and not choices and not allow_other:
        raise ToolError(f"options: a {ui_type} needs options to choose from.")
    if len({str(option_value(choice)) for choice in choices}) != len(choices):
        raise ToolError("options: each option must be different.")
    if ui_type == "form" and not fields:
        raise ToolError("fields: a form needs fields.")
    if len({field.name for field in fields}) != len(fields):
        raise ToolError("fields: each field must have a name of its own.")
    try:
        check_size(question)
    except Refused as refusal:
        raise ToolError(f"{refusal.code}: {refusal.detail}") from None
    if any(field.type == "select" and not field.options for field in fields):
        raise ToolError("fields: a select needs options to choose from.")
    asked = Ask(
        question=question,
        ui_type=ui_type,
        options=choices,
        fields=[field.model_dump() for field in fields],
        default_value=default_value,
        allow_other=allow_other,
    )
    if default_value is not None and not fits(asked, default_value):
        raise ToolError(
            "default_value: it must be an answer to the question, for it stands in for one that "
            f"does not come; it does not match {asked.response_schema()}."
        )
    return asked
