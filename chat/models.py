"""The product's rows: whose a conversation is, what was said in it, and who may come in.

``Message`` is both what people read and an agent's memory: one row per message of one agent's
conversation, in ``position`` order. A user's message that waits in the queue has no position yet.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from coordination.models import Session


class ChatSession(models.Model):
    """One conversation of one person. Its stream and lock are ``coordination.Session``."""

    session = models.OneToOneField(
        Session, models.CASCADE, primary_key=True, related_name="chat_session"
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="chat_sessions"
    )
    title = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True)  # 404 from then on; the rows stay for the audit

    class Meta:
        indexes = [
            models.Index(fields=["owner", "created_at"], name="chat_of_owner"),
            models.Index(fields=["created_at"], name="chat_newest"),
        ]

    def __str__(self) -> str:
        return self.title or str(self.pk)


class Message(models.Model):
    """One message of one agent's conversation.

    ``parts`` is what the page shows and, but for the assistant's, what the model is given;
    ``model_json`` is the provider's response as Pydantic AI serialises it, so that signatures and
    reasoning go back to the provider as they came.
    """

    class Role(models.TextChoices):
        USER = "user"  # a person's words; for a sub-agent, its task
        ASSISTANT = "assistant"
        TOOL = "tool"  # one tool call's result
        SYSTEM = "system"  # inbox messages taken in, and notices

    class Status(models.TextChoices):
        COMPLETE = "complete"
        PARTIAL = "partial"  # under way; only in snapshots, never stored
        INTERRUPTED = "interrupted"
        REMOVED = "removed"  # out of the queue, before its turn: kept for its key, never shown

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(ChatSession, models.CASCADE, related_name="messages")
    agent_id = models.CharField(max_length=64)
    run_id = models.UUIDField(db_index=True)
    position = models.PositiveBigIntegerField(null=True)
    role = models.CharField(max_length=16, choices=Role)
    status = models.CharField(max_length=16, choices=Status, default=Status.COMPLETE)
    content = models.TextField(blank=True)
    parts = models.JSONField(default=list, blank=True)
    model_json = models.TextField(blank=True)
    # The hash of the key that the sender gave: to a collation of MySQL "a", "A" and "a " are one.
    client_key = models.CharField(max_length=128, null=True)
    sent_digest = models.CharField(max_length=64, blank=True)  # of its first words, once edited
    has_queued = models.BooleanField(default=False)  # what its sender was told, and is told again
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [
            models.Index(fields=["session", "agent_id", "position"], name="message_conversation"),
            models.Index(fields=["session", "position"], name="message_order"),
            models.Index(fields=["created_at"], name="message_newest"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["session", "client_key"], name="message_client_key"),
        ]

    def __str__(self) -> str:
        return f"{self.role}: {self.content[:80]}"


def digest(secret: str) -> str:
    """How secrets are stored: they are long and random, so one plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class ApiToken(models.Model):
    """A bearer token. The token itself is shown once; the row keeps its hash, also once revoked."""

    class Scope(models.TextChoices):
        READ = "read"  # looks and follows, changes nothing
        WRITE = "write"  # whatever its user may do

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100, blank=True)
    digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=8, choices=Scope, default=Scope.WRITE)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.user}: {self.name or self.pk}"

    @classmethod
    def issue(
        cls,
        user: models.Model,
        name: str = "",
        scope: str = Scope.WRITE,
        life: dt.timedelta | None = None,
    ) -> str:
        """Make a token and return it, the only time it is seen. Without a ``life`` it stays."""
        token = secrets.token_urlsafe(32)
        expires_at = timezone.now() + life if life else None
        cls.objects.create(
            user=user, name=name, digest=digest(token), scope=scope, expires_at=expires_at
        )
        return token

    @property
    def is_valid(self) -> bool:
        """It opens something: neither revoked nor expired."""
        return not self.revoked_at and (not self.expires_at or self.expires_at > timezone.now())

    def revoke(self) -> bool:
        """True for the one call that ended it."""
        valid = ApiToken.objects.filter(pk=self.pk, revoked_at=None)
        return valid.update(revoked_at=timezone.now()) == 1


class SignInLink(models.Model):
    """A link that signs its user in, once. ``serve`` prints one."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.user}, {'used' if self.used_at else 'unused'}"

    def use(self) -> bool:
        """True for the one request that used it in time."""
        now = timezone.now()
        rows = SignInLink.objects.filter(pk=self.pk, used_at=None, expires_at__gt=now)
        return rows.update(used_at=now) == 1
