"""``manage.py api_token USER``: make a bearer token (shown this once), list tokens, end one."""

from __future__ import annotations

import datetime as dt
import re
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from chat import terminal
from chat.models import ApiToken

HEAD = ("ID", "NAME", "SCOPE", "STATE", "CREATED", "LAST USED", "EXPIRES")
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
NAME_CHARS = 100


class Command(terminal.TerminalCommand):
    help = "Print a bearer token for the API. It is shown once and stored hashed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="the name that the user signs in with")
        parser.add_argument("--create", action="store_true", help="make the user if there is none")
        parser.add_argument("--name", default="", help="what the token is for")
        parser.add_argument(
            "--scope",
            choices=ApiToken.Scope.values,
            default=ApiToken.Scope.WRITE,
            help="read: look and follow; write: whatever the user may do (default)",
        )
        parser.add_argument(
            "--expires", type=_life, metavar="30d", help="a number of m, h, d or w; else never"
        )
        parser.add_argument("--list", action="store_true", help="show the user's tokens instead")
        parser.add_argument("--revoke", type=int, metavar="ID", help="end this token instead")

    def handle(self, *, user: str, create: bool, **options: Any) -> None:
        found = self._user(user, create=create)
        if options["list"]:
            self._list(found)
        elif options["revoke"] is not None:
            self._revoke(found, options["revoke"])
        elif len(options["name"]) > NAME_CHARS:
            raise CommandError(f"--name: at most {NAME_CHARS} characters")
        else:
            self.stdout.write(
                ApiToken.issue(found, options["name"], options["scope"], options["expires"])
            )

    def _user(self, name: str, *, create: bool) -> User:
        users = get_user_model().objects
        found = users.filter(**{get_user_model().USERNAME_FIELD: name}).first()
        if found is None and not create:
            raise CommandError(f"There is no user {name!r}. --create makes one.")
        return found or users.create_user(name)  # without a usable password

    def _list(self, user: User) -> None:
        tokens = ApiToken.objects.filter(user=user).order_by("pk")
        for line in terminal.table(HEAD, [self._row(token) for token in tokens]):
            self.stdout.write(line)

    def _row(self, token: ApiToken) -> list[terminal.Cell]:
        state = "valid" if token.is_valid else "revoked" if token.revoked_at else "expired"
        times = (token.created_at, token.last_used_at, token.expires_at)
        return [
            str(token.pk),
            token.name or "-",
            token.scope,
            (state, self.style.SUCCESS if token.is_valid else self.style.WARNING),
            *(at.strftime("%Y-%m-%d %H:%M") if at else "-" for at in times),
        ]

    def _revoke(self, user: User, pk: int) -> None:
        token = ApiToken.objects.filter(user=user, pk=pk).first()
        if token is None:
            raise CommandError(f"{user} has no token {pk}. --list shows the tokens.")
        ended = token.revoke()
        self.stdout.write(f"Token {pk} {'is revoked' if ended else 'was revoked before'}.")


def _life(text: str) -> dt.timedelta:
    found = re.fullmatch(r"([1-9][0-9]{0,3})([mhdw])", text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no time; write 90m, 12h, 30d or 8w")
    return dt.timedelta(**{UNITS[found[2]]: int(found[1])})
