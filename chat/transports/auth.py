"""Who asks: a bearer token, or a browser's session cookie (with CSRF where it changes things).

A request that names a token is judged by the token alone: a wrong one is 401 even beside a good
cookie, so that nobody takes a browser's rights for a program's. Whose a chat session is, is not
asked here: ``actions.find_session`` looks for it among the user's own, so a stranger's session and
one that never was take the same path and get the same answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
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

    async def __call__(self, request: HttpRequest) -> User | None:
        header = request.headers.get("Authorization")
        return await user_of_header(header) if header is not None else None


class SessionCookie(AuthBase):
    """The cookie of somebody who has signed in; what changes something needs ``X-CSRFToken``."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "sessionid"

    async def __call__(self, request: HttpRequest) -> User | None:
        # Not ``request.auser()``: it would keep a database connection for as long as a stream runs.
        found = await db(_session_user, request.session.session_key)
        if found is not None and check_csrf(request) is not None:
            raise HttpError(403, CSRF)
        return found


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


async def user_of_header(header: str) -> User:
    """The user of an ``Authorization`` header. Raises Unauthenticated."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated
    found = await db(_token_user, token.strip())
    if found is None:
        raise Unauthenticated
    return found


async def user_again(request: HttpRequest) -> User:
    """Who asks, looked up anew: a stream outlives a sign-out. Raises Unauthenticated."""
    return await _user(request.headers.get("Authorization"), request.session.session_key)


async def user_of_scope(scope: Mapping[str, Any]) -> User:
    """The user of a WebSocket: its own header, or its cookie. Raises Unauthenticated.

    A browser's cookie is safe here without CSRF: the origin of the handshake is checked.
    """
    headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
    session = scope.get("session")
    return await _user(headers.get(b"authorization"), session.session_key if session else None)


async def _user(header: str | None, session_key: str | None) -> User:
    if header is not None:
        return await user_of_header(header)
    found = await db(_session_user, session_key)
    if found is None:
        raise Unauthenticated
    return found


def _session_user(session_key: str | None) -> User | None:
    if not session_key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    found = get_user(request)
    return found if isinstance(found, User) and found.is_active else None


def _token_user(token: str) -> User | None:
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
