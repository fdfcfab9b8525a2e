"""What the system says in an agent's name, in the session's language.

Programs read the fields (``reason``, ``kind``), never these words.
"""

from __future__ import annotations

from django.utils import translation
from django.utils.translation import gettext

from .models import InboxMessage, Run, Session

BY_AGENT = "agent:"  # how ``stop_requested_by`` begins where an agent, not a person, stopped it


def in_an_agents_name(session: Session, run: Run) -> str:
    """The result that is written for a run which cannot write its own."""
    with translation.override(session.language):
        match run.reason:
            case Run.Reason.LEASE_EXPIRED:
                return gettext("[sub-agent lost] heartbeat timed out")
            case Run.Reason.CRASHED:
                return gettext("[sub-agent lost] its worker process died")
            case Run.Reason.FENCED:
                return gettext("[sub-agent lost] it did not obey and was cut off")
            case Run.Reason.INTERRUPTED if run.stop_requested_by.startswith(BY_AGENT):
                return gettext("[sub-agent stopped] It was stopped as you asked.")
            case Run.Reason.INTERRUPTED:
                return gettext(
                    "[sub-agent stopped] The user stopped it. Do not send the task again yourself."
                )
            case Run.Reason.SUPERSEDED:
                return gettext("[sub-agent stopped] A newer message replaced its turn.")
            case Run.Reason.BUDGET:
                budget = gettext("[sub-agent failed] it used up its budget")
                return f"{budget}: {run.detail}" if run.detail else budget
            case _:
                failed = gettext("[sub-agent failed] it ended with an error")
                return f"{failed}: {run.detail}" if run.detail else failed


def stopped(session: Session) -> str:
    """How a stopped turn ends."""
    with translation.override(session.language):
        return gettext("Stopped. What can I help you with next?")


def lost_master(session: Session, run: Run) -> str:
    """Why a turn failed whose workers died too often."""
    with translation.override(session.language):
        return gettext(
            "The turn was given up after %(attempts)d attempts: each time its worker was lost."
        ) % {"attempts": run.attempts}


def interrupted_call(session: Session, run: Run) -> str:
    """The result of a tool call that a stop, or the end of its run, left open."""
    with translation.override(session.language):
        if run.status == Run.Status.INTERRUPTED:
            return gettext("Interrupted by the user; this call did not finish.")
        return gettext("The run ended before this call did; its effect is unknown.")


def approval(session: Session, tool: str) -> str:
    """What a person is asked before a tool is called."""
    with translation.override(session.language):
        return gettext("May %(tool)s be called with these arguments?") % {"tool": tool}


def missing_results(session: Session, agents: list[str]) -> str:
    """What a master is told when its sub-agents outlast the tail of its turn."""
    with translation.override(session.language):
        return gettext(
            "No result has come from %(agents)s in time. Say so plainly; it will be delivered in a "
            "later turn if it still comes."
        ) % {"agents": ", ".join(agents)}


def dead_letter(session: Session, message: InboxMessage) -> str:
    """What an agent is told of a message that could not be given to it."""
    with translation.override(session.language):
        return gettext(
            "A message from %(sender)s could not be delivered to you and was put aside. Say so "
            "plainly."
        ) % {"sender": message.sender}


def discarded(session: Session) -> str:
    """A result that no model will read."""
    with translation.override(session.language):
        return gettext("A result of a stopped turn arrived and was discarded.")
