"""One shape for everything that is refused: ``{"code": …, "detail": …}``, always JSON.

``code`` is for programs and does not change; ``detail`` says what to do next. The table below is
the only place where a refusal of ``coordination`` becomes an HTTP status; the WebSocket uses the
same codes in its frames. What the framework itself refuses (wrong method, unknown path, too large,
malformed) passes through here too, or a client would need a second parser for the bad days.
"""

from __future__ import annotations

import logging
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views import defaults
from ninja.errors import AuthenticationError, HttpError, ValidationError

from coordination.conf import conf
from coordination.errors import Conflict, Invalid, NotFound, Refused

log = logging.getLogger(__name__)

NOT_FOUND = "There is no such thing, or it is not yours. Look at the address and at who you are."
UNAUTHENTICATED = (
    "Sign in, or send the header 'Authorization: Bearer TOKEN'. `manage.py api_token` makes one."
)
MALFORMED = "The body is no JSON. Send one JSON object in UTF-8."
UNAVAILABLE = "The database does not answer. Nothing was changed; try again in a moment."
BROKEN = "Something went wrong here. It is in the log of this node; trying again may help."
CODES = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}


class Unauthenticated(Refused):
    """No user stands behind this request."""

    def __init__(self) -> None:
        super().__init__("unauthenticated", UNAUTHENTICATED)


class Forbidden(Refused):
    """Whoever asks is known, and may not do this."""


class RateLimited(Refused):
    """Too much in too short a time; ``retry_after`` is in whole seconds."""

    def __init__(self, retry_after: int, limit: str) -> None:
        super().__init__("rate_limited", f"{limit} Try again in {retry_after} s; nothing was done.")
        self.retry_after = retry_after


def too_large(limit: int) -> Invalid:
    """The refusal of something over ``limit`` bytes."""
    return Invalid("too_large", f"The limit is {limit} bytes. Send less, or send it in parts.")


def told(error: BaseException) -> tuple[int, str, str]:
    """HTTP status, code and detail of whatever was raised."""
    match error:
        case Refused():
            return _status(error), error.code, error.detail
        case ValidationError():
            return 422, "invalid", "; ".join(_line(fault) for fault in error.errors)
        case AuthenticationError():
            return 401, "unauthenticated", UNAUTHENTICATED
        case HttpError(status_code=400):
            return 400, "malformed", MALFORMED
        case HttpError():
            code = CODES.get(error.status_code, "refused")
            return error.status_code, code, str(error)
        case Http404():
            return 404, "not_found", NOT_FOUND
        case RequestDataTooBig():
            return told(too_large(conf.message_bytes))
        case OperationalError() | InterfaceError():
            return 503, "unavailable", UNAVAILABLE
        case _:
            return 500, "error", BROKEN


def _status(error: Refused) -> int:
    match error:
        case NotFound():
            return 404
        case Invalid():
            return 413 if error.code == "too_large" else 422
        case Unauthenticated():
            return 401
        case Forbidden():
            return 403
        case RateLimited():
            return 429
        case Conflict():
            return 409
    return 400


def _line(fault: dict[str, Any]) -> str:
    where = ".".join(str(step) for step in fault["loc"][1:] if step != "body") or "body"
    return f"{where}: {fault['msg'].removeprefix('Value error, ')}"


def response(status: int, code: str, detail: str) -> HttpResponse:
    """The one shape."""
    return JsonResponse({"code": code, "detail": detail}, status=status)


def answer(request: HttpRequest, error: BaseException) -> HttpResponse:
    """The response to whatever was raised. What is our own fault is logged."""
    status, code, detail = told(error)
    if status >= 500:
        log.error("request_failed", extra={"path": request.path}, exc_info=error)
    refusal = response(status, code, detail)
    if status == 401:
        refusal["WWW-Authenticate"] = "Bearer"  # a scheme that makes no browser ask
    if isinstance(error, RateLimited):
        refusal["Retry-After"] = str(error.retry_after)
    return refusal


def in_json(refusal: HttpResponseBase) -> HttpResponseBase:
    """A refusal that some part of the framework has phrased in its own way."""
    if refusal.status_code == 405:
        allowed = ", ".join(sorted(refusal.headers.get("Allow", "").split(", ")))
        ours = response(405, "method_not_allowed", f"This address answers to: {allowed}.")
        ours["Allow"] = allowed
        return ours
    return refusal


# -- for agentsite/urls.py: what is refused before any view is found ------------------------------


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A request that Django itself distrusts: host, encoding, size."""
    if _is_api(request):
        return response(400, "malformed", "The request is malformed. Look at host and headers.")
    return defaults.bad_request(request, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """No such address."""
    if _is_api(request):
        return response(404, "not_found", NOT_FOUND)
    return defaults.page_not_found(request, exception)


def handler500(request: HttpRequest) -> HttpResponse:
    """Our fault; Django has logged it."""
    if _is_api(request):
        return response(500, "error", BROKEN)
    return defaults.server_error(request)


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")
