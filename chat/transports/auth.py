"""Who asks: a bearer token, or a browser's session cookie (with CSRF where it changes things).

A request that names a token is judged by the token alone: a wrong one is 401 even beside a good
cookie, so that nobody takes a browser's rights for a program's. Whose a chat session is, is not
asked here: ``actions.find_session`` looks for it among the user's own, so a stranger's session and
one that never was take the same path and get the same answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import get_language_from_request
from ninja.errors import HttpError
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from chat.models import ApiToken, digest
from coordination.db import db

from .errors import Unauthenticated

NOTE_USE_EVERY = dt.timedelta(minutes=1)  # "last used" need not be a write for each request

CSRF = (
    "The CSRF token is missing or wrong. Send the cookie 'csrftoken' back as the header "
    "'X-CSRFToken', or use a bearer token."
)


class BearerToken(AuthBase):
    """``Authorization: Bearer TOKEN``; ``manage.py api_token`` makes one."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    async def __call__(self, request: HttpRequest) -> AbstractBaseUser | None:
        header = request.headers.get("Authorization")
        return await user_of_header(header) if header is not None else None


class SessionCookie(AuthBase):
    """The cookie of somebody who has signed in; what changes something needs ``X-CSRFToken``."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "sessionid"

    async def __call__(self, request: HttpRequest) -> AbstractBaseUser | None:
        # Not ``request.auser()``: it would keep a database connection for as long as a stream runs.
        user = await db(_session_user, request)
        if user is not None and check_csrf(request) is not None:
            raise HttpError(403, CSRF)
        return user


SIGNED_IN = [BearerToken(), SessionCookie()]


def user(request: HttpRequest) -> Any:
    """Who was let in."""
    return request.auth  # type: ignore[attr-defined]


def name(request: HttpRequest) -> str:
    """The same, as the records have it."""
    return str(user(request).get_username())


def language(request: HttpRequest) -> str:
    """What the agents shall speak with whoever asks."""
    return "zh-hans" if get_language_from_request(request).startswith("zh") else "en"


async def user_of_header(header: str) -> AbstractBaseUser:
    """The user of an ``Authorization`` header. Raises Unauthenticated."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated
    found = await db(_token_user, token.strip())
    if found is None:
        raise Unauthenticated
    return found


async def user_of_scope(scope: Mapping[str, Any]) -> Any:
    """The user of a WebSocket: its own header, or the cookie that ``AuthMiddlewareStack`` read.

    A browser's cookie is safe here without CSRF: the origin of the handshake is checked.
    """
    for key, value in scope["headers"]:
        if key.lower() == b"authorization":
            return await user_of_header(value.decode("latin-1"))
    found = scope.get("user")
    if found is None or not found.is_authenticated or not found.is_active:
        raise Unauthenticated
    return found


def _session_user(request: HttpRequest) -> AbstractBaseUser | None:
    found = get_user(request)
    return found if isinstance(found, AbstractBaseUser) and found.is_active else None


def _token_user(token: str) -> AbstractBaseUser | None:
    now = timezone.now()
    valid = ApiToken.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=now), digest=digest(token), revoked_at=None
    )
    row = valid.select_related("user").first()
    if row is None or not row.user.is_active:
        return None
    if row.last_used_at is None or now - row.last_used_at > NOTE_USE_EVERY:
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return row.user
