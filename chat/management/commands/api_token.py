"""``manage.py api_token USER``: print a bearer token, the only time that it is seen."""

from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from chat.models import ApiToken


class Command(BaseCommand):
    help = "Print a bearer token for the API. It is shown once and stored hashed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="the name that the user signs in with")
        parser.add_argument("--create", action="store_true", help="make the user if there is none")
        parser.add_argument("--name", default="", help="what the token is for; the admin shows it")

    def handle(self, *, user: str, create: bool, name: str, **options: Any) -> None:
        users = get_user_model().objects
        found = users.filter(**{get_user_model().USERNAME_FIELD: user}).first()
        if found is None and not create:
            raise CommandError(f"There is no user {user!r}. --create makes one.")
        if found is None:
            found = users.create_user(user)  # without a usable password
        self.stdout.write(ApiToken.issue(found, name))
