"""The chat app: people, agents, models, tools."""

from django.apps import AppConfig


class ChatConfig(AppConfig):
    """Connects the product to what coordination tells it."""

    name = "chat"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import for the side effect of connecting, and of being asked by ``manage.py check``."""
        from . import checks, timeline, turns  # noqa: F401
