"""Every word that the page's modules show, in the reader's language.

The modules have no words of their own: they look these up by name (``t("send_failed")``), and the
page carries them as a block of JSON. ``{braces}`` are filled in by the page.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

STRINGS = {
    # What an agent is called
    "agent_assistant": _("Assistant"),
    "agent_researcher": _("Researcher"),
    "agent_strategist": _("Strategist"),
    "agent_reviewer": _("Reviewer"),
    "agent_user": _("You"),
    "agent_system": _("System"),
    # A run's status
    "status_queued": _("queued"),
    "status_running": _("working"),
    "status_stalled": _("no progress"),
    "status_waiting_child": _("waiting for sub-agents"),
    "status_waiting_user": _("waiting for you"),
    "status_completed": _("completed"),
    "status_failed": _("failed"),
    "status_interrupted": _("stopped"),
    "status_timeout": _("lost"),
    # Why it ended, where the status alone does not say it
    "reason_completed": _("finished its work"),
    "reason_error": _("ended with an error"),
    "reason_interrupted": _("stopped by a person"),
    "reason_lease_expired": _("its heartbeat stopped: the worker was lost"),
    "reason_crashed": _("its worker process died"),
    "reason_fenced": _("did not obey and was cut off"),
    "reason_budget": _("used up its budget"),
    "reason_superseded": _("replaced by a newer message"),
    # The agents' panel
    "agents_none": _("No agent has worked here yet."),
    "heartbeat": _("Heartbeat"),
    "progress": _("Progress"),
    "lease_held_by": _("Lease"),
    "lease_epoch": _("epoch {epoch}"),
    "no_lease": _("no lease"),
    "task": _("Task"),
    "stop_agent": _("Stop {agent}"),
    "just_now": _("now"),
    "worklog_none": _("Nothing has happened yet."),
    "worklog_earlier": _("Earlier entries are in the admin."),
    # What the work log tells, by its kinds
    "log_run_completed": _("finished"),
    "log_run_failed": _("failed:"),
    "log_run_interrupted": _("was stopped"),
    "log_run_timeout": _("was lost:"),
    "log_question_opened": _("asked:"),
    "log_question_answered": _("was answered:"),
    "log_question_cancelled": _("question withdrawn:"),
    "log_question_superseded": _("question superseded:"),
    "log_question_expired": _("question expired:"),
    "log_stop_requested": _("stop requested:"),
    "log_run_stalled": _("makes no progress"),
    "log_run_moves": _("makes progress again"),
    "log_requeued": _("begins again elsewhere:"),
    "log_lease_expired": _("heartbeat timed out:"),
    "log_crashed": _("worker process died:"),
    "log_fenced": _("was cut off:"),
    "log_result_discarded": _("result discarded:"),
    # The conversation
    "tool_running": _("working"),
    "tool_done": _("done"),
    "tool_interrupted": _("interrupted"),
    "tool_arguments": _("Arguments"),
    "tool_result": _("Result"),
    "tool_send_message": _("Task for {agent}"),
    "tool_send_revision": _("Revision for {agent}"),
    "tool_wait_for_results": _("Waits for results"),
    "tool_check_inbox": _("Looks into its inbox"),
    "tool_stop_agent": _("Stops {agent}"),
    "tool_ask_user": _("Asks you"),
    "reasoning": _("Reasoning"),
    "message_from": _("Message from {agent}"),
    "message_superseded": _("The worker was lost here; what follows begins this step again."),
    "run_failed": _("The turn ended without an answer."),
    "earlier": _("Show earlier messages"),
    "copy": pgettext_lazy("a button", "Copy"),
    "copied": _("Copied"),
    "copy_failed": _("Not copied"),
    "thinking": _("{agent} is working"),
    "waiting_for_agents": _("Waiting for sub-agents"),
    "waiting_for_worker": _("Waiting for a free worker"),
    "answered": _("{agent} answered: {text}"),
    # Questions
    "question_from": _("{agent} asks"),
    "question_answer": _("Answer"),
    "question_skip": _("Do not answer"),
    "question_yes": _("Yes"),
    "question_no": _("No"),
    "question_other": _("Something else"),
    "question_other_label": _("Something else, in your words"),
    "question_choose": _("Please choose."),
    "question_required": _("required"),
    "question_supersedes": _("A new message closes the open question without an answer."),
    "question_answered": _("This question has been answered already."),
    "question_closed": _("This question is closed."),
    "question_announce": _("{agent} asks: {text}"),
    # A tool call to be approved
    "approval_approve": _("Approve"),
    "approval_deny": _("Deny"),
    "approval_edit": _("Change the arguments"),
    "approval_reason": _("Why not, if you deny it"),
    "approval_no_json": _("The arguments are not valid JSON."),
    # Sending and stopping
    "send_failed": _("The message was not sent: {detail}"),
    "stop_failed": _("Stopping failed: {detail}"),
    "stop_accepted": _("The stop is recorded and will take effect shortly."),
    "queue_title": _("Waiting to be sent to the agents"),
    "queue_edit": _("Edit “{text}”"),
    "queue_remove": _("Remove “{text}”"),
    "queue_words": _("The message’s new words"),
    "queue_save": _("Save"),
    "queue_keep": _("Leave as it was"),
    "queue_removed": _("Removed."),
    "queue_failed": _("The waiting message was not changed: {detail}"),
    "queue_started": _("Its turn has come already; nothing was changed."),
    "request_failed": _("the site does not answer"),
    # The connection
    "connected": _("Connected"),
    "reconnecting": _("Connection lost, reconnecting …"),
    "signed_out": _("You are signed out."),
    "session_gone": _("This conversation no longer exists."),
    # The list of conversations
    "untitled": _("New conversation"),
    "unread": _("unread"),
    "rename_session": _("Rename “{title}”"),
    "rename_failed": _("The title was not changed: {detail}"),
    "delete_session": _("Delete “{title}”"),
    "delete_failed": _("The conversation was not deleted: {detail}"),
}


def page_strings() -> dict[str, str]:
    """The words in the language of the request at hand."""
    return {name: str(text) for name, text in STRINGS.items()}
