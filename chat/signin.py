"""One-time sign-in links: how a newcomer gets into a fresh site without choosing a password.

``serve`` prints one. A link signs in by a plain GET, because it is clicked in a terminal; it works
once, for a short time, and only its hash is stored. HEAD is refused, so that a program that merely
looks whether the address exists does not use it up.
"""

from __future__ import annotations

import datetime as dt
import secrets

from django.contrib.auth import login
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from .models import SignInLink, digest

LINK_LIFE = dt.timedelta(hours=1)
"""Long enough to read the README first; short enough that an old terminal opens nothing."""

BACKEND = "django.contrib.auth.backends.ModelBackend"


@transaction.atomic
def one_time_link(username: str = "admin") -> str:
    """The path of a new link for this user, who is made a superuser if there is none yet."""
    user = User.objects.filter(username=username).first()
    if user is None:
        user = User.objects.create_superuser(username)  # without a password: it cannot be guessed
    token = secrets.token_urlsafe(32)
    expires_at = timezone.now() + LINK_LIFE
    SignInLink.objects.create(user=user, digest=digest(token), expires_at=expires_at)
    return reverse("one_time_signin", args=[token])


@never_cache
@require_GET
def one_time_signin(request: HttpRequest, token: str) -> HttpResponse:
    """Sign in by a link. A link that does not work says what to do instead."""
    link = SignInLink.objects.select_related("user").filter(digest=digest(token)).first()
    if link is None or not link.user.is_active or not link.use():
        return render(request, "chat/signin_failed.html", status=410)
    login(request, link.user, backend=BACKEND)
    return redirect("start")
