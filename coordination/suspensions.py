"""A question to a human suspends its run: open, answer, withdraw, expire.

A question is a row and its run is parked: everything may restart before the answer comes. Answer,
stop, expiry, a newer message and a second answer all go through one UPDATE (``Question.close``):
one wins, the others say why, and only an answer ever counts as one.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from django.db.models.functions import Now

from . import events, rendezvous, runs, texts, usage, vocabulary, worklog
from .conf import conf
from .errors import Conflict, Invalid, NotFound
from .models import Question, Run, Session
from .prepared import Values, given
from .transactions import locked, unit_of_work


@dataclass(frozen=True)
class Ask:
    """A question as a tool asks it; see CONTRACT.md section 5, ``ask_user``."""

    question: str
    ui_type: str = Question.UiType.TEXT
    options: list[Any] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    default_value: Any = None
    allow_other: bool = False
    approval: dict[str, Any] | None = None  # the tool call it is about; then it is worded here

    def response_schema(self) -> dict[str, Any]:
        """The JSON schema an answer must fit."""
        values = [option_value(option) for option in self.options]
        match self.ui_type:
            case "select":
                return {"type": "string"} if self.allow_other else {"enum": values}
            case "multi_select":
                item = {"type": "string"} if self.allow_other else {"enum": values}
                return {"type": "array", "items": item}
            case "confirm":
                return {"type": "boolean"}
            case "number":
                return {"type": "number"}
            case "date":
                return {"type": "string", "format": "date"}
            case "form":
                needed = [str(f["name"]) for f in self.fields if f.get("required")]
                return {
                    "type": "object",
                    "properties": {str(f["name"]): _field_schema(f) for f in self.fields},
                    "required": needed,
                    "additionalProperties": False,
                }
            case _:
                return {"type": "string"}


def _field_schema(form_field: dict[str, Any]) -> dict[str, Any]:
    match form_field.get("type"):
        case "number":
            return {"type": "number"}
        case "date":
            return {"type": "string", "format": "date"}
        case "confirm":
            return {"type": "boolean"}
        case "select":
            return {"enum": [option_value(option) for option in form_field.get("options", ())]}
        case "text":
            return {"type": "string"}
        case "object":
            return {"type": "object"}
        case _:
            return {}


def option_value(option: Any) -> Any:
    """An option is its own value, or an object with ``value`` (and ``label``)."""
    return option.get("value") if isinstance(option, dict) else option


def open_question(session: Session, run: Run, tool_call_id: str, ask: Ask) -> Question:
    """Ask. The caller parks the run in the same transaction."""
    path = [above.agent_id for above in reversed(runs.ancestors(run))] + [run.agent_id]
    question = Question.objects.create(
        session=session,
        run=run,
        agent_id=run.agent_id,
        path=path,
        tool_call_id=tool_call_id,
        ui_type=ask.ui_type,
        question=texts.approval(session, ask.approval["tool"]) if ask.approval else ask.question,
        options=ask.options,
        fields=ask.fields,
        default_value=ask.default_value,
        allow_other=ask.allow_other,
        response_schema=ask.response_schema(),
        approval=ask.approval,
        opened_at=Now(),
        expires_at=Now() + dt.timedelta(seconds=conf.question_ttl),  # by the one clock of all nodes
    )
    question.refresh_from_db(fields=["opened_at", "expires_at"])
    events.append(session, run, vocabulary.question_changed(question))
    worklog.write(session, "question_opened", question.question, run=run)
    rendezvous.pause_above(run)
    return question


def fits(asked: Question | Ask, payload: Any) -> bool:
    """Whether this is an answer to the question."""
    kinds = {
        "text": lambda: isinstance(payload, str),
        "select": lambda: _is_option(asked, payload),
        "multi_select": lambda: (
            isinstance(payload, list) and all(_is_option(asked, item) for item in payload)
        ),
        "confirm": lambda: isinstance(payload, bool),
        "number": lambda: isinstance(payload, int | float) and not isinstance(payload, bool),
        "date": lambda: isinstance(payload, str) and _is_date(payload),
        "form": lambda: isinstance(payload, dict) and _fits_form(asked, payload),
    }
    return _is_json(payload) and kinds[asked.ui_type]()


def check_answer(question: Question, payload: Any) -> Any:
    """The answer as it is stored. Raises Invalid where it does not fit; the question stays open."""
    if not fits(question, payload):
        raise Invalid(
            "invalid_answer",
            f"The answer does not fit this question of type {question.ui_type}: it must match "
            f"{question.response_schema}. The question stays open; answer again.",
        )
    return payload


def _is_option(asked: Question | Ask, value: Any) -> bool:
    if asked.allow_other and isinstance(value, str):
        return True
    # 1 == True in Python, but not to the person who chose.
    return any(
        value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
        for allowed in map(option_value, asked.options)
    )


def _is_date(value: str) -> bool:
    try:
        dt.date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_json(value: Any) -> bool:
    """False for NaN and the infinities, which Python reads from JSON and no database takes."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _fits_form(asked: Question | Ask, payload: dict[str, Any]) -> bool:
    by_name = {str(f["name"]): f for f in asked.fields}
    needed = {name for name, f in by_name.items() if f.get("required")}
    given = {name for name, value in payload.items() if value not in (None, "")}
    if not (set(payload) <= set(by_name) and needed <= given):
        return False
    return all(_fits_field(by_name[name], payload[name]) for name in given)


def _fits_field(form_field: dict[str, Any], value: Any) -> bool:
    match form_field.get("type"):
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "date":
            return isinstance(value, str) and _is_date(value)
        case "confirm":
            return isinstance(value, bool)
        case "select":
            return value in map(option_value, form_field.get("options", ()))
        case "text":
            return isinstance(value, str)
        case "object":
            return isinstance(value, dict)
        case _:
            return True


@unit_of_work
def respond(
    session_id: uuid.UUID, question_id: uuid.UUID, *, resolved: bool, payload: Any, by: str
) -> uuid.UUID:
    """Answer (or decline) a question; its run's id. One UPDATE decides between all who try.

    Raises NotFound, Invalid (it stays open), or Conflict with the state it is in as ``code``.
    """
    with locked(session_id) as session:
        question = (
            Question.objects.select_related("run").filter(pk=question_id, session=session).first()
        )
        if question is None:
            raise NotFound("not_found", "There is no such question.")
        if question.state == Question.State.OPEN:
            answer = check_answer(question, payload) if resolved else None
            state = Question.State.ANSWERED if resolved else Question.State.CANCELLED
            if question.close(state, by=by, answer=answer):
                _closed(session, question)
                runs.resume_if_ready(session, question.run)
                return question.run_id
            question.refresh_from_db()
        raise _too_late(question)


def _too_late(question: Question) -> Conflict:
    code = "already_answered" if question.state == "answered" else question.state
    return Conflict(code, f"This question is closed ({question.state}); nothing was changed.")


def _closed(session: Session, question: Question) -> None:
    events.append(session, question.run, vocabulary.question_changed(question))
    worklog.write(
        session,
        f"question_{question.state}",
        f"{question.question} ({question.closed_by})",
        run=question.run,
    )
    rendezvous.go_on_above(question.run)


def withdraw(session: Session, run: Run, state: str, *, by: str) -> None:
    """Close what a run that has ended still asked."""
    for question in Question.objects.filter(run=run, state=Question.State.OPEN):
        question.run = run
        if question.close(state, by=by):
            _closed(session, question)


@unit_of_work
def expire_due(limit: int = 100) -> int:
    """Close questions nobody answered in time; their runs go on with the default. How many."""
    due = Question.objects.filter(state=Question.State.OPEN, expires_at__lte=Now())
    expired = 0
    for question_id, session_id in list(due.values_list("pk", "session_id")[:limit]):
        with locked(session_id) as session:
            question = Question.objects.select_related("run").get(pk=question_id)
            if question.close(Question.State.EXPIRED, by="system"):
                _closed(session, question)
                runs.resume_if_ready(session, question.run)
                expired += 1
    return expired


_OPEN = Values(
    lambda: Question.objects.filter(
        session=given("session"), state=Question.State.OPEN
    ).values_list("pk")[:1]
)


def announce_suspension(session: Session, run: Run) -> None:
    """Where nothing of the tree moves any more but a person's answer, tell the readers so.

    AG-UI calls this a run finished with outcome ``interrupt``; an answer starts it again.
    """
    if not _OPEN(session=session.pk):
        return
    members = runs.tree(Run.objects.get(pk=run.root_id))
    root = members[-1]
    moving = [m for m in members if m.status in Run.OWNED or (m.status == "queued" and m.lane)]
    questions = list(
        Question.objects.filter(run__in=members, state=Question.State.OPEN)
        .select_related("run")
        .order_by("opened_at")
    )
    if moving or not questions or root.is_terminal or not root.announced:
        return
    for member in members:
        if member.is_root or member.is_terminal or not member.announced:
            continue
        asked = [str(question.pk) for question in questions if question.run_id == member.pk]
        events.append(session, member, vocabulary.subagent_finished(member, asked))
        runs.set_announced(member, False)
    outcome = {
        "type": "interrupt",
        "interrupts": [vocabulary.agui_interrupt(question) for question in questions],
    }
    used = usage.of_turn(root, members[:-1])
    events.append(session, root, vocabulary.run_finished(root, outcome, used))
    runs.set_announced(root, False)
