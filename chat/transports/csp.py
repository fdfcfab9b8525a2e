"""What a page may load: the site's own files, and no script or style that stands in the page.

Sent with everything that is HTML, the admin and the API's documentation included. So text that got
past escaping, against all care, is still no program: not in a message, a title or a tool's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


@sync_and_async_middleware
def content_security_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[..., Any]:
    """Middleware: the policy on each page."""
    if not iscoroutinefunction(get_response):
        return lambda request: _with_policy(get_response(request))

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        return _with_policy(await get_response(request))

    return middleware


def _with_policy(response: HttpResponseBase) -> HttpResponseBase:
    if response.headers.get("Content-Type", "").startswith("text/html"):
        response.headers["Content-Security-Policy"] = POLICY
    return response
