"""The pages: sign-in, the start page, a conversation. What moves on them is in static modules.

A conversation's page carries its state (the API's snapshot, the work log, its Markdown as HTML), so
the first paint is complete; from the snapshot's cursor on, the page follows the event stream.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.shortcuts import render as render_template
from django.urls import include, path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from chat import actions, markdown, snapshots
from chat.signin import one_time_signin
from chat.strings import page_strings
from coordination import panel
from coordination.db import db
from coordination.errors import NotFound

from . import schemas

SESSIONS_SHOWN = 50
"""Conversations listed at first; the page asks the API for older ones."""

ADMINS = {"dashboard.js"}  # the admin's first page has it; it stands beside this page's own
MODULES = sorted(
    f"chat/{file.name}"
    for file in (Path(__file__).parents[1] / "static" / "chat").glob("*.js")
    if file.name not in ADMINS
)
"""All that the page imports: announced in its head, they come at once and not import by import."""


@never_cache
@login_required
@require_GET
async def start(request: HttpRequest) -> HttpResponse:
    """The newest conversation, or an invitation to begin the first."""
    user = await request.auser()
    newest = (await db(snapshots.sessions_page, user.pk, limit=1))["items"]
    return redirect("conversation", newest[0]["id"]) if newest else redirect("new_conversation")


@never_cache
@login_required
@require_GET
async def new_conversation(request: HttpRequest) -> HttpResponse:
    """A conversation that is not made before its first message, so that none stays empty."""
    return await _page(request, state=None)


@never_cache
@login_required
@require_GET
async def conversation(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """One conversation. A stranger's is not found, like one that never was."""
    return await _page(request, state=await _state(request, session_id))


@never_cache
@login_required
@require_GET
async def conversation_state(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """The same state once more, for a page that has lost the thread."""
    return JsonResponse(await _state(request, session_id))


@never_cache
@login_required
@require_GET
async def conversation_agents(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """The agents' panel as it is now: heartbeats are no events, so the page asks for them."""
    await _find(request, session_id)
    return JsonResponse({"agents": await db(panel.agents, session_id)})


@never_cache
@login_required
@require_GET
async def conversation_usage(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """What the conversation has used so far, in tokens."""
    await _find(request, session_id)
    return JsonResponse(await db(snapshots.usage, session_id))


@never_cache
@login_required
@require_GET
async def conversation_list(request: HttpRequest) -> HttpResponse:
    """The list of conversations as it is now, or of those that hold the words ``q``."""
    user = await request.auser()
    words = request.GET.get("q", "").strip()
    return JsonResponse(
        await db(snapshots.sessions_page, user.pk, limit=SESSIONS_SHOWN, words=words)
    )


@login_required
@require_POST
async def rendered(request: HttpRequest) -> HttpResponse:
    """Markdown as HTML: texts in, the same number of texts out."""
    try:
        texts = schemas.clean(json.loads(request.body))["texts"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        return JsonResponse(
            {"code": "invalid", "detail": '{"texts": [...]} is expected'}, status=422
        )
    return JsonResponse({"html": await asyncio.to_thread(_render_all, texts)})


def _render_all(texts: list[str]) -> list[str]:
    return [markdown.render(text) for text in texts]


async def _find(request: HttpRequest, session_id: uuid.UUID) -> None:
    """Raises Http404 for a conversation that is not the person's own."""
    try:
        await actions.find_session(await request.auser(), session_id)
    except NotFound as error:
        raise Http404 from error


async def _state(request: HttpRequest, session_id: uuid.UUID) -> dict[str, Any]:
    try:
        await actions.find_session(await request.auser(), session_id)
        snapshot = await db(snapshots.snapshot, session_id)
    except NotFound as error:
        raise Http404 from error
    # The log is read after the snapshot: what is in both is told apart by the page, and nothing
    # can be missing between them.
    worklog = await db(snapshots.newest_worklog, session_id)
    # What is still being said is shown as plain text, like everything that streams.
    said = [
        message
        for message in snapshot["messages"]
        if message["role"] == "assistant" and message["status"] != "partial" and message["content"]
    ]
    html = await asyncio.to_thread(_render_all, [m["content"] for m in said])
    return {
        "snapshot": snapshot,
        "worklog": worklog,
        "html": {message["id"]: text for message, text in zip(said, html, strict=True)},
        "usage": await db(snapshots.usage, session_id),
        "now": timezone.now().isoformat(),
    }


async def _page(request: HttpRequest, *, state: dict[str, Any] | None) -> HttpResponse:
    user = await request.auser()
    sessions = await db(snapshots.sessions_page, user.pk, limit=SESSIONS_SHOWN)
    context = {
        "reader": user,
        "sessions": sessions["items"],
        "older": sessions["next"],
        "current": state["snapshot"]["id"] if state else None,
        "title": state["snapshot"]["title"] if state else "",
        "state": state,
        "strings": page_strings(),
        "modules": MODULES,
        "is_demo": settings.AGENT_MODEL.startswith("demo"),
    }
    return render_template(request, "chat/page.html", context)


urlpatterns = [
    path("", start, name="start"),
    path("chat/list/", conversation_list, name="conversation_list"),
    path("chat/new/", new_conversation, name="new_conversation"),
    path("chat/<uuid:session_id>/", conversation, name="conversation"),
    path("chat/<uuid:session_id>/state/", conversation_state, name="conversation_state"),
    path("chat/<uuid:session_id>/agents/", conversation_agents, name="conversation_agents"),
    path("chat/<uuid:session_id>/usage/", conversation_usage, name="conversation_usage"),
    path("rendered/", rendered, name="rendered"),
    path("signin/<str:token>/", one_time_signin, name="one_time_signin"),
    path("i18n/", include("django.conf.urls.i18n")),
]
