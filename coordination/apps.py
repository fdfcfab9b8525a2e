"""The coordination app: runs, leases, messages, questions, events."""

from django.apps import AppConfig


class CoordinationConfig(AppConfig):
    """Registers the system checks."""

    name = "coordination"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import for the side effect of registering."""
        from . import checks  # noqa: F401
