"""A question to the person, as lines: numbered options, one field after the other.

A tool call to be approved is shown, and takes one line: yes, no, or the arguments changed.

What is typed becomes the JSON that ``actions.respond`` takes. An empty line takes the default where
there is one; ``/skip`` declines. What does not fit is said, and asked again.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any

from django.utils.translation import gettext as _

SKIP = "/skip"
YES = {"y", "yes", "是", "好", "对"}
NO = {"n", "no", "否", "不", "不是"}

Read = Callable[[str], Awaitable[str]]
Say = Callable[[str], None]


class Skipped(Exception):
    """The person does not want to answer."""


class Wrong(Exception):
    """This line does not fit; the text says what would."""


async def fill(question: dict[str, Any], read: Read, say: Say) -> Any:
    """Show the question and read its answer. Raises Skipped."""
    if question["approval"]:
        return await _decide(question["approval"], read, say)
    if question["ui_type"] != "form":
        return await _ask(question, "> ", read, say)
    defaults = question["default_value"] if isinstance(question["default_value"], dict) else {}
    answer = {}
    say(_("(%(skip)s: do not answer)") % {"skip": SKIP})
    for field in question["fields"]:
        name = field["name"]
        part = {
            "ui_type": field.get("type") or "text",
            "options": field.get("options") or [],
            "default_value": defaults.get(name),
            "required": bool(field.get("required")),
        }
        value = await _ask(part, f"{_prompt(field)}> ", read, say)
        if value is not None:
            answer[name] = value
    return answer


async def _decide(approval: dict[str, Any], read: Read, say: Say) -> dict[str, Any]:
    """Approve, deny with a reason, or approve with other arguments."""
    say(f"  {approval['tool']} {json.dumps(approval['arguments'], ensure_ascii=False, indent=2)}")
    say(_("(y, n, n and the reason, or other arguments as JSON; %(skip)s: no)") % {"skip": SKIP})
    answer = {"digest": approval["digest"], "decision": "approve"}
    while True:
        line = (await read("> ")).strip()
        word, _space, rest = line.partition(" ")
        if line == SKIP:
            raise Skipped
        if line.lower() in YES:
            return answer
        if word.lower() in NO:
            return {**answer, "decision": "deny", "reason": rest.strip()}
        try:
            changed = json.loads(line)
        except ValueError:
            changed = None
        if isinstance(changed, dict):
            return {**answer, "arguments": {**approval["arguments"], **changed}}
        say(_("Please type y, n, or a JSON object."))


def _prompt(field: dict[str, Any]) -> str:
    label = field.get("label") or field["name"]
    return f"{label} ({_('required')}) " if field.get("required") else f"{label} "


async def _ask(part: dict[str, Any], prompt: str, read: Read, say: Say) -> Any:
    """One value; None for a field that may be left empty, and is."""
    kind, default = part["ui_type"], part.get("default_value")
    for number, option in enumerate(part["options"], start=1):
        say(f"  {number}) {_label(option)}")
    if part.get("required") is None:
        say(_hint(part))
    if default is not None:
        say(_("(empty: %(default)s)") % {"default": _shown(default)})
    while True:
        line = (await read(prompt)).strip()
        if line == SKIP:
            raise Skipped
        if not line and default is not None:
            return default
        if not line and part.get("required") is False:
            return None
        try:
            return PARSERS[kind](part, line)
        except Wrong as wrong:
            say(str(wrong))


def _hint(part: dict[str, Any]) -> str:
    hints = {
        "text": _("your answer"),
        "select": _("a number"),
        "multi_select": _("numbers, with commas between them"),
        "confirm": _("y or n"),
        "date": _("a date like 2026-01-31"),
        "number": _("a number"),
    }
    hint = hints[part["ui_type"]]
    if part.get("allow_other"):
        hint = _("%(hint)s, or something else in your words") % {"hint": hint}
    return _("(%(hint)s; %(skip)s: do not answer)") % {"hint": hint, "skip": SKIP}


def _label(option: Any) -> str:
    if isinstance(option, dict):
        return str(option.get("label") or option.get("value"))
    return str(option)


def _value(option: Any) -> Any:
    return option.get("value") if isinstance(option, dict) else option


def _shown(value: Any) -> str:
    match value:
        case bool():
            return _("Yes") if value else _("No")
        case list():
            return ", ".join(map(_shown, value))
    return str(value)


# -- one line, one value ---------------------------------------------------------------------


def _text(part: dict[str, Any], line: str) -> str:  # noqa: ARG001
    if not line:
        raise Wrong(_("Please write something."))
    return line


def _select(part: dict[str, Any], line: str) -> Any:
    options = part["options"]
    for option in options:  # the words themselves come first: an option may be called "2"
        if line in (str(_value(option)), _label(option)):
            return _value(option)
    if line.isascii() and line.isdigit() and 1 <= int(line[:9]) <= len(options):
        return _value(options[int(line) - 1])
    if part.get("allow_other") and line:
        return line
    raise Wrong(_("Please choose a number from 1 to %(last)d.") % {"last": len(options)})


def _multi_select(part: dict[str, Any], line: str) -> list[Any]:
    pieces = [piece.strip() for piece in re.split(r"[,，、;；]", line)]
    if len(pieces) == 1 and re.fullmatch(r"[\d\s]+", line):
        pieces = line.split()  # "1 3" means what "1, 3" means
    chosen = [_select(part, piece) for piece in pieces if piece]
    if not chosen:
        raise Wrong(_("Please choose."))
    return list({repr(value): value for value in chosen}.values())


def _confirm(part: dict[str, Any], line: str) -> bool:  # noqa: ARG001
    if line.lower() in YES:
        return True
    if line.lower() in NO:
        return False
    raise Wrong(_("Please type y or n."))


def _date(part: dict[str, Any], line: str) -> str:  # noqa: ARG001
    try:
        return dt.date.fromisoformat(line).isoformat()
    except ValueError:
        raise Wrong(_("Please type a date like 2026-01-31.")) from None


def _number(part: dict[str, Any], line: str) -> int | float:  # noqa: ARG001
    try:
        return int(line)
    except ValueError:
        pass
    try:
        value = float(line)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Wrong(_("Please type a number."))
    return value


PARSERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "text": _text,
    "select": _select,
    "multi_select": _multi_select,
    "confirm": _confirm,
    "date": _date,
    "number": _number,
}
