"""``manage.py signin_link``: for the operator who is signed out of their own machine."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from chat.signin import one_time_link


class Command(BaseCommand):
    help = "Print the path of a sign-in link that works once. A user that is not there is made."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", nargs="?", default="admin")

    def handle(self, *, username: str, **options: Any) -> None:
        self.stdout.write(one_time_link(username=username))
