"""``manage.py chat [SESSION]``: talk from a terminal, or over a pipe.

Exit codes: 0 the person left, or the pipe's last turn ended well; 1 it failed; 3 the pipe ended
before an open question was answered; 130 left by Ctrl-C, or the pipe's last turn was stopped.
"""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.utils import translation
from django.utils.translation import gettext as _

from chat import actions, terminal
from chat.llm import is_demo
from chat.management.dialogue import Dialogue
from chat.management.keyboard import Keyboard
from chat.management.screen import Screen
from chat.models import ChatSession


class Command(terminal.TerminalCommand):
    help = (
        "Chat from the terminal. Ctrl-C stops the turn (twice: leaves), Ctrl-D leaves. Over a "
        "pipe each line is a message, or the answer to the question that is open."
    )
    log_level = logging.CRITICAL  # what concerns the person is said in the conversation

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("session", nargs="?", help="go on with this one, by a start of its id")
        parser.add_argument("--user", help="who talks; by default the (first) superuser")
        parser.add_argument(
            "--language",
            choices=[code for code, _name in settings.LANGUAGES],
            help="by default the session's, and a new one's by LANG",
        )
        parser.add_argument("--json", action="store_true", help="print the events, one a line")

    def handle(
        self, *, session: str | None, user: str | None, language: str | None, **options: Any
    ) -> None:
        person = find_user(user)
        chat = find_own_session(session, person) if session else None
        language = language or (chat.session.language if chat else system_language())
        with translation.override(language):
            code = terminal.run(self._talk(chat, person, language, as_json=options["json"]))
        if code:
            sys.exit(code)

    async def _talk(
        self, chat: ChatSession | None, person: User, language: str, *, as_json: bool
    ) -> int:
        if chat is None:
            chat = await actions.create_session(person, language=language)
        interactive = sys.stdin.isatty() and self.stdout.isatty()
        screen = Screen(self.stdout, self.stderr, self.style, as_json=as_json)
        # Before the first word: from then on Ctrl-C has the meaning that it tells.
        dialogue = Dialogue(chat, person, screen, Keyboard(interactive=interactive))
        screen.say(
            _("Session %(id)s, as %(user)s.") % {"id": chat.pk, "user": person.get_username()}
        )
        if interactive:
            screen.say(_("Ctrl-C stops the turn, twice leaves; Ctrl-D leaves."))
        if is_demo(settings.AGENT_MODEL):
            screen.say(_("The model is an offline demo; AGENT_MODEL names a real one."))
        code = await dialogue.run()
        if interactive:
            short = str(chat.pk)[: terminal.SHORT]
            screen.say(_("To go on: manage.py chat %(id)s") % {"id": short})
        return code


def find_user(name: str | None) -> User:
    """The person who talks. Raises CommandError that says how to get one."""
    active = User.objects.filter(is_active=True)
    if name is not None:
        found = active.filter(username=name).first()
        if found is None:
            raise CommandError(f"There is no active user {name!r}. `manage.py createsuperuser`?")
        return found
    found = active.filter(is_superuser=True).order_by("pk").first()
    if found is None:
        raise CommandError(
            "There is no superuser to talk as. Name a user with --user, or make one with "
            "`manage.py createsuperuser`."
        )
    return found


def find_own_session(text: str, person: User) -> ChatSession:
    """The person's own session. Raises CommandError; another's is named as such."""
    name = person.get_username()
    try:
        return terminal.find(
            ChatSession.objects.select_related("session").filter(owner=person, deleted_at=None),
            "session__id",
            text,
            what=f"session of {name}",
            hint="Without an id a new one begins.",
        )
    except CommandError:
        other = ChatSession.objects.filter(pk=actions.as_uuid(text), deleted_at=None).first()
        if other is None:
            raise
        owner = other.owner.get_username()
        raise CommandError(f"That session is {owner}'s: --user {owner} opens it.") from None


def system_language() -> str:
    """Chinese where the system speaks it, else English."""
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    spoken = next((name for name in names if name), "")
    return "zh-hans" if spoken.lower().startswith("zh") else "en"
