"""A person decides about a tool call before it is made: yes, no and why, or yes but otherwise.

The call of a tool with ``requires_approval`` becomes a question of the type ``form`` whose
``approval`` is what the person is shown: ``{tool, arguments, digest}``. The answer gives the digest
back, so it approves what that person has seen and nothing else. Only a yes makes the call, with
the arguments of the row and not with what the model's message says; and it makes it once: a row is
taken up by one UPDATE, and whoever takes it up again after a crash knows that the call may have
been made. Denial, stop, newer message, expiry: each is a result that says so, and never a call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from chat.tools.base import Tool, ToolError, fitting
from chat.tools.schemas import Arguments, JsonSchema
from coordination.errors import Conflict, Invalid
from coordination.models import Question
from coordination.suspensions import Ask

APPROVE, DENY = "approve", "deny"
NOT_MADE = "The call was not made. Do not make it again unless the user asks for it."


def digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """The same for the same call, however its JSON was written."""
    shown = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(shown.encode()).hexdigest()


def ask_about(tool: Tool, arguments: str) -> Ask:
    """The question about one call. Raises ToolError for arguments that do not fit."""
    shown = fitting(tool.name, arguments, tool.arguments.shown)
    mark = digest(tool.name, shown)
    return Ask(
        question="",  # worded where the session's language is known
        ui_type=Question.UiType.FORM,
        fields=[
            {"name": "decision", "type": "select", "options": [APPROVE, DENY], "required": True},
            {"name": "digest", "type": "select", "options": [mark], "required": True},
            {"name": "reason", "type": "text"},
            {"name": "arguments", "type": "object", **_carried(tool.arguments)},
        ],
        default_value={"digest": mark},
        approval={"tool": tool.name, "arguments": shown, "digest": mark},
    )


def _carried(arguments: Arguments) -> dict[str, Any]:
    """A schema that came from elsewhere is known to the worker; the question takes it along."""
    return {"schema": arguments.given} if isinstance(arguments, JsonSchema) else {}


def check(question: Question, tools: Mapping[str, Tool], payload: Any) -> Any:
    """The answer as it is stored, edited arguments with their defaults.

    Raises Conflict ``digest_mismatch`` where something else was shown, and Invalid where the edited
    arguments do not fit the tool. What is no answer to the form at all is left to the form.
    """
    approval = question.approval
    if approval is None or not isinstance(payload, dict):
        return payload
    if payload.get("digest", approval["digest"]) != approval["digest"]:
        raise Conflict(
            "digest_mismatch",
            "This answer is about other arguments than those that are asked about. The question "
            "stays open; look at it again.",
        )
    if payload.get("decision") != APPROVE or payload.get("arguments") is None:
        return payload
    arguments = _arguments_of(question, tools)
    if arguments is None:
        raise Conflict("unknown_tool", "This tool is no longer offered. Deny the call.")
    try:
        edited = fitting(approval["tool"], json.dumps(payload["arguments"]), arguments.shown)
    except ToolError as fault:
        raise Invalid("invalid_answer", f"{fault} The question stays open.") from None
    return {**payload, "arguments": edited}


def _arguments_of(question: Question, tools: Mapping[str, Tool]) -> Arguments | None:
    for field in question.fields:
        if "schema" in field:
            return JsonSchema(field["schema"])
    tool = tools.get((question.approval or {})["tool"])
    return tool.arguments if tool else None


def approved_arguments(question: Question) -> dict[str, Any] | None:
    """What may run; None for whatever was not a yes to exactly what was shown."""
    approval, answer = question.approval, question.answer
    if approval is None or answer is None or answer["decision"] != APPROVE:
        return None
    if (
        not answer["digest"]
        == approval["digest"]
        == digest(approval["tool"], approval["arguments"])
    ):
        return None
    arguments: dict[str, Any] = answer.get("arguments") or approval["arguments"]
    return arguments


def refusal(question: Question) -> dict[str, Any]:
    """The result of a call that was not approved."""
    if question.answer is not None:
        reason = question.answer.get("reason") or None
        return {"status": "denied", "reason": reason, "detail": NOT_MADE}
    return {"status": question.state, "detail": f"The user did not approve it. {NOT_MADE}"}
