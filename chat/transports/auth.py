"""Who asks: a bearer token, or a browser's session cookie (with CSRF where it changes things).

A request that names a token is judged by the token alone: a wrong one is 401 even beside a good
cookie, so that nobody takes a browser's rights for a program's. What changes something needs the
scope ``write``, and is counted (``limits``); a stop is never refused for being one too many. Whose
a chat session is, is not asked here: ``actions.find_session`` looks for it among the user's own, so
a stranger's session and one that never was take the same path and get the same answer.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import get_language_from_request
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from chat.models import ApiToken, digest
from coordination import worklog
from coordination.db import db

from . import limits
from .errors import Forbidden, Unauthenticated

NOTE_USE_EVERY = dt.timedelta(minutes=1)  # "last used" need not be a write for each request

CSRF = (
    "The CSRF token is missing or wrong. Send the cookie 'csrftoken' back as the header "
    "'X-CSRFToken', or use a bearer token."
)


INSUFFICIENT_SCOPE = (
    "This token may only read. Use one with the scope 'write': "
    "`manage.py api_token USER --scope write` makes it."
)
SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and whether they may change anything."""

    user: User
    may_write: bool = True

    def check_may_write(self) -> None:
        """Raises Forbidden."""
        if not self.may_write:
            raise Forbidden("insufficient_scope", INSUFFICIENT_SCOPE)


class SignedIn(AuthBase):
    """One way to say who asks.

    What ``changes`` something needs the scope for it, and is ``counted`` per user and address.
    """

    door: str  # the work log's word for it

    def __init__(self, *, changes: bool = True, counted: bool = True) -> None:
        super().__init__()
        self.changes = changes
        self.counted = changes and counted

    async def __call__(self, request: HttpRequest) -> User | None:
        caller = await self.caller(request)
        if caller is None:
            return None
        worklog.door.set(self.door)
        if self.changes and request.method not in SAFE:
            caller.check_may_write()
            if self.counted:
                await limits.take_change(caller.user.pk, limits.address_of(request))
        return caller.user

    @abstractmethod
    async def caller(self, request: HttpRequest) -> Caller | None:
        """None where the request does not try this way. Raises Unauthenticated, Forbidden."""


class BearerToken(SignedIn):
    """``Authorization: Bearer TOKEN``; ``manage.py api_token`` makes one."""

    door = "api"
    openapi_type = "http"
    openapi_scheme = "bearer"
    openapi_description = (
        "`manage.py api_token USER` prints one. Its scope is `write`, or `read`: then everything "
        "that changes something is 403 `insufficient_scope`."
    )

    async def caller(self, request: HttpRequest) -> Caller | None:
        header = request.headers.get("Authorization")
        return await caller_of_header(header) if header is not None else None


class SessionCookie(SignedIn):
    """The cookie of somebody who has signed in; what changes something needs ``X-CSRFToken``."""

    door = "page"
    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = "sessionid"
    openapi_description = (
        "The cookie of a browser that is signed in. What changes something needs the cookie "
        "`csrftoken` back as the header `X-CSRFToken`."
    )

    async def caller(self, request: HttpRequest) -> Caller | None:
        # Not ``request.auser()``: it would keep a database connection for as long as a stream runs.
        found = await db(_session_user, request.session.session_key)
        if found is not None and check_csrf(request) is not None:
            raise Forbidden("forbidden", CSRF)
        return Caller(found) if found is not None else None


SIGNED_IN = [BearerToken(), SessionCookie()]
STOPPING = [BearerToken(counted=False), SessionCookie(counted=False)]
SEARCHING = [BearerToken(changes=False), SessionCookie(changes=False)]  # a POST that only reads


def user(request: HttpRequest) -> Any:
    """Who was let in."""
    return request.auth  # type: ignore[attr-defined]


def name(request: HttpRequest) -> str:
    """The same, as the records have it."""
    return str(user(request).get_username())


def language(request: HttpRequest) -> str:
    """What the agents shall speak with whoever asks."""
    return "zh-hans" if get_language_from_request(request).startswith("zh") else "en"


async def caller_of_header(header: str) -> Caller:
    """Who an ``Authorization`` header names. Raises Unauthenticated."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated
    found = await db(_token_caller, token.strip())
    if found is None:
        raise Unauthenticated
    return found


async def user_again(request: HttpRequest) -> User:
    """Who asks, looked up anew: a stream outlives a sign-out. Raises Unauthenticated."""
    caller = await _caller(request.headers.get("Authorization"), request.session.session_key)
    return caller.user


async def caller_of_scope(scope: Mapping[str, Any]) -> Caller:
    """Who opens a WebSocket, by its own header or its cookie. Raises Unauthenticated.

    A browser's cookie is safe here without CSRF: the origin of the handshake is checked.
    """
    headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
    session = scope.get("session")
    return await _caller(headers.get(b"authorization"), session.session_key if session else None)


async def _caller(header: str | None, session_key: str | None) -> Caller:
    if header is not None:
        return await caller_of_header(header)
    found = await db(_session_user, session_key)
    if found is None:
        raise Unauthenticated
    return Caller(found)


def _session_user(session_key: str | None) -> User | None:
    if not session_key:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    found = get_user(request)
    return found if isinstance(found, User) and found.is_active else None


def _token_caller(token: str) -> Caller | None:
    row = ApiToken.objects.filter(digest=digest(token)).select_related("user").first()
    if row is None or not row.is_valid or not row.user.is_active:
        return None
    now = timezone.now()
    if row.last_used_at is None or now - row.last_used_at > NOTE_USE_EVERY:
        ApiToken.objects.filter(pk=row.pk).update(last_used_at=now)
    return Caller(row.user, row.scope == ApiToken.Scope.WRITE)
