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
from chat.models import ApiToken, digest

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
        self.add_json(parser)

    def handle(self, *, user: str, create: bool, **options: Any) -> None:
        found = self._user(user, create=create)
        if options["list"]:
            self._list(found, as_json=options["json"])
        elif options["revoke"] is not None:
            self._revoke(found, options["revoke"], as_json=options["json"])
        elif len(options["name"]) > NAME_CHARS:
            raise CommandError(f"--name: at most {NAME_CHARS} characters")
        else:
            self._issue(found, **options)

    def _user(self, name: str, *, create: bool) -> User:
        users = get_user_model().objects
        found = users.filter(**{get_user_model().USERNAME_FIELD: name}).first()
        if found is None and not create:
            raise CommandError(f"There is no user {name!r}. --create makes one.")
        return found or users.create_user(name)  # without a usable password

    def _issue(
        self, user: User, *, name: str, scope: str, expires: dt.timedelta | None, **options: Any
    ) -> None:
        secret = ApiToken.issue(user, name, scope, expires)
        if options["json"]:
            token = ApiToken.objects.get(digest=digest(secret))
            self.dump({**_describe(token), "token": secret})
        else:
            self.stdout.write(secret)

    def _list(self, user: User, *, as_json: bool) -> None:
        tokens = ApiToken.objects.filter(user=user).order_by("pk")
        if as_json:
            self.dump([_describe(token) for token in tokens])
            return
        for line in terminal.table(HEAD, [self._row(token) for token in tokens]):
            self.stdout.write(line)

    def _row(self, token: ApiToken) -> list[terminal.Cell]:
        times = (token.created_at, token.last_used_at, token.expires_at)
        return [
            str(token.pk),
            token.name or "-",
            token.scope,
            (_state(token), self.style.SUCCESS if token.is_valid else self.style.WARNING),
            *(at.strftime("%Y-%m-%d %H:%M") if at else "-" for at in times),
        ]

    def _revoke(self, user: User, pk: int, *, as_json: bool) -> None:
        token = ApiToken.objects.filter(user=user, pk=pk).first()
        if token is None:
            raise CommandError(f"{user} has no token {pk}. --list shows the tokens.")
        ended = token.revoke()
        if as_json:
            token.refresh_from_db()
            self.dump({**_describe(token), "revoked_now": ended})
        else:
            self.stdout.write(f"Token {pk} {'is revoked' if ended else 'was revoked before'}.")


def _state(token: ApiToken) -> str:
    return "valid" if token.is_valid else "revoked" if token.revoked_at else "expired"


def _describe(token: ApiToken) -> dict[str, Any]:
    times = ("created_at", "last_used_at", "expires_at", "revoked_at")
    moments = {name: getattr(token, name) for name in times}
    return {
        "id": token.pk,
        "name": token.name,
        "scope": token.scope,
        "state": _state(token),
        **{name: at.isoformat() if at else None for name, at in moments.items()},
    }


def _life(text: str) -> dt.timedelta:
    found = re.fullmatch(r"([1-9][0-9]{0,3})([mhdw])", text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no time; write 90m, 12h, 30d or 8w")
    return dt.timedelta(**{UNITS[found[2]]: int(found[1])})
