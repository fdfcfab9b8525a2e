"""Questions to people, and who answered them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from django.contrib import admin
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from coordination import suspensions
from coordination.errors import Refused
from coordination.models import Question, Run

from .actions import Outcome, Plan, confirmed
from .cells import conversation_of
from .filters import recent, when
from .windows import NOTHING, ReadOnlyAdmin, link_by_id, pretty, short, took


def _withdrawal(question: Question) -> Plan:
    if question.state != Question.State.OPEN:
        return Plan(gettext("is closed already (%s)") % question.state, refused=True)
    return Plan(gettext("is cancelled: its agent hears that nobody answers, and goes on"))


@admin.register(Question)
class QuestionAdmin(ReadOnlyAdmin):
    list_display = [
        "preview", "agent_id", "ui_type", "state", "closed_by", "conversation", "run_link",
        "opened_at", "open_for",
    ]  # fmt: skip
    list_filter = ["state", "ui_type", when("opened_at"), recent("agent_id", _("agent"))]
    relations = ["session__chat_session"]
    search_ids = ["id", "run", "session"]
    search_fields = ["question", "closed_by"]
    search_words = {
        "user": "session__chat_session__owner__username",
        "by": "closed_by__icontains",
    }
    ordering = ["-opened_at"]
    fields = [
        "id", "question", "agent_id", "path", "ui_type", "choices", "allow_other", "default_value",
        "call_asked_about", "taken_up_at", "state", "answer_pretty", "closed_by", "opened_at",
        "closed_at", "open_for", "expires_at", "conversation", "run_link", "tool_call_id",
    ]  # fmt: skip

    actions = ["withdraw"]

    @confirmed(_("Withdraw the question"), plan=_withdrawal)
    def withdraw(self, questions: Sequence[Question], by: str) -> Iterator[Outcome]:
        for question in questions:
            try:
                suspensions.respond(
                    question.session_id, question.pk, resolved=False, payload=None, by=by
                )
            except Refused as refusal:
                yield Outcome(question, refusal.detail, won=False)
            else:
                yield Outcome(question, gettext("is withdrawn"))

    @admin.display(description=_("question"), ordering="question")
    def preview(self, question: Question) -> str:
        return short(question.question)

    @admin.display(description=_("choices"))
    def choices(self, question: Question) -> str:
        return pretty(question.fields or question.options)

    @admin.display(description=_("tool call asked about"))
    def call_asked_about(self, question: Question) -> str:
        return NOTHING if question.approval is None else pretty(question.approval)

    @admin.display(description=_("answer"))
    def answer_pretty(self, question: Question) -> str:
        return NOTHING if question.answer is None else pretty(json.dumps(question.answer))

    @admin.display(description=_("open for"))
    def open_for(self, question: Question) -> str:
        return took(question.opened_at, question.closed_at)

    @admin.display(description=_("run"))
    def run_link(self, question: Question) -> str:
        return link_by_id(Run, question.run_id, str(question.run_id)[:8])

    @admin.display(description=_("conversation"))
    def conversation(self, question: Question) -> str:
        return conversation_of(question.session)
