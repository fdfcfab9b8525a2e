"""Rows as they appear on other rows' pages: a conversation, a table of runs, a state."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from coordination.models import InboxMessage, Question, Run, Session

from .windows import NOTHING, link_to, moment, short, table, took


def run_table(runs: Iterable[Run]) -> str:
    """Runs, as they appear on other rows' pages."""
    return table(
        [_("run"), _("agent"), _("status"), _("reason"), _("queued"), _("took")],
        (
            (link_to(run, str(run.pk)[:8]), run.agent_id, run.status, run.reason or NOTHING,
             moment(run.queued_at), took(run.started_at, run.ended_at))
            for run in runs
        ),
    )  # fmt: skip


def question_table(questions: Iterable[Question]) -> str:
    """Questions, as they appear on other rows' pages."""
    return table(
        [_("question"), _("agent"), _("kind"), _("state"), _("closed by"), _("open for")],
        (
            (link_to(question, short(question.question, 60)), question.agent_id, question.ui_type,
             question.state, question.closed_by or NOTHING,
             took(question.opened_at, question.closed_at))
            for question in questions
        ),
    )  # fmt: skip


STATUS_SIGNS = {
    "completed": "✓", "failed": "✗", "timeout": "⚡", "interrupted": "■", "running": "▶",
    "stalled": "⏸", "queued": "…", "waiting_child": "⋯", "waiting_user": "?",
}  # fmt: skip


def status_of(run: Run) -> str:
    """Status and reason in one cell; a lost run never looks like a completed one."""
    reason = f" ({run.reason})" if run.reason and run.reason != run.status else ""
    sign = STATUS_SIGNS.get(run.status, "")
    return format_html('<span class="run-{}">{} {}{}</span>', run.status, sign, run.status, reason)


def conversation_of(session: Session | None) -> str:
    """A link to the conversation, by its title where it has one."""
    if session is None:
        return NOTHING
    chat = getattr(session, "chat_session", None)
    return link_to(chat, short(str(chat), 40)) if chat else link_to(session)


def message_table(messages: Iterable[InboxMessage]) -> str:
    """Inbox messages, as they appear on other rows' pages."""
    return table(
        [_("message"), _("type"), _("from"), _("to"), _("state"), _("written"), _("read after")],
        (
            (link_to(message, short(message.content, 60) or str(message.pk)), message.kind,
             message.sender, message.recipient, state_of(message), moment(message.created_at),
             took(message.created_at, message.acked_at))
            for message in messages
        ),
    )  # fmt: skip


def state_of(message: InboxMessage) -> str:
    """State, and what is special about it."""
    notes = [message.state, message.reason, "late" if message.late else ""]
    return ", ".join(note for note in notes if note)
