"""The site's settings, and beside its tools those that tests need (``tools.py``).

A Django app brings them, so that nodes, which are processes of their own, have them too.
"""

from django.apps import AppConfig

from agentsite.settings import *  # noqa: F403
from agentsite.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.cluster.settings.TestTools"]


class TestTools(AppConfig):
    name = "tests.cluster"

    def ready(self) -> None:
        from tests.cluster import tools  # needs the models

        tools.give()
