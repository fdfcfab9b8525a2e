"""What the description of the API says beyond the views' own types: refusals, streams, links.

Each call is told with every status that it can answer. Which ones follows from what the call is:
whoever asks may be unknown, what has a path may be somebody else's, what has a body may be broken,
what changes something may be forbidden or one too many. Only a conflict is a call's own (``says``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from chat import snapshots

from . import auth, errors, schemas

JSON = "application/json"
REFUSALS: dict[int, tuple[str, dict[str, str]]] = {
    400: ("The body is no JSON.", {"malformed": errors.MALFORMED}),
    401: ("Nobody is signed in.", {"unauthenticated": errors.UNAUTHENTICATED}),
    403: (
        "Whoever asks may not do this.",
        {"insufficient_scope": auth.INSUFFICIENT_SCOPE, "forbidden": auth.CSRF},
    ),
    404: ("There is no such thing, or it is not yours.", {"not_found": errors.NOT_FOUND}),
    413: (
        "Something is too large.",
        {"too_large": "The text has 1048577 bytes; at most 1048576 are taken."},
    ),
    422: (
        "The request cannot be meant.",
        {
            "invalid": "content: Field required",
            "invalid_cursor": "after must be the next of an earlier page.",
            "empty": "The message is empty. Write something.",
        },
    ),
    429: (
        "Too much in too short a time.",
        {"rate_limited": "Too many changes by you, or from your address, in a minute. …"},
    ),
    503: ("The database is away.", {"unavailable": errors.UNAVAILABLE}),
}
CLOSED = (
    "already_answered",
    "superseded",
    "cancelled",
    "expired",
    "digest_mismatch",
    "unknown_tool",
)
CONFLICTS = {
    "exists": "You have a thread of this id. Say if_exists: do_nothing.",
    "no_open_question": "Nothing is asked in this thread: nothing resumes.",
    "ambiguous_resume": "Several questions are open. Resume with an object of answers by …",
    "busy": "A turn is under way. Wait for its end, stop it, or enqueue.",
    "id_conflict": "This id was used for another message. Use a new one.",
    "already_started": "This message is out of the queue: its turn has come.",
    "already_removed": "This message was removed from the queue before.",
    "already_answered": "This question is closed (answered); nothing was changed.",
    "superseded": "This question is closed (superseded); nothing was changed.",
    "cancelled": "This question is closed (cancelled); nothing was changed.",
    "expired": "This question is closed (expired); nothing was changed.",
    "digest_mismatch": "This answer is about other arguments than those that are asked about. …",
    "unknown_tool": "This tool is no longer offered. Deny the call.",
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "seconds",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}
STREAM: dict[str, Any] = {
    "description": "A stream of AG-UI 1.0 events; a comment line at least every 15 seconds.",
    "headers": {"Cache-Control": {"schema": {"type": "string"}}},
    "content": {
        "text/event-stream": {
            "schema": {  # of each event
                "type": "object",
                "required": ["id", "event", "data"],
                "properties": {
                    "id": {"type": "string", "description": "the cursor"},
                    "event": {"type": "string", "description": "the AG-UI type"},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                },
            },
            "example": 'id: 7\nevent: TEXT_MESSAGE_CONTENT\ndata: {"type":"TEXT_MESSAGE_CONTENT",'
            '"messageId":"8d7c","delta":"Hello"}\n\n',
        }
    },
}
LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "as `cursor`, and before it: browsers send it when they connect again",
    "schema": schemas.told(snapshots.CURSOR),
}


class Description(OpenAPISchema):
    """The description, complete."""

    def operation_details(self, operation: Operation) -> dict[str, Any]:
        """The first sentence of a view's docstring is the summary of its call."""
        details: dict[str, Any] = super().operation_details(operation)
        first = re.split(r"[.:;](?:\s|$)", details["description"])[0]
        details["summary"] = first.replace("``", "")
        details["responses"] = dict(sorted(details["responses"].items()))
        return details

    def responses(self, operation: Operation) -> dict[int, Any]:
        """Those of the view, and the refusals."""
        refused = {
            status: {"$ref": f"#/components/responses/{status}"} for status in _refusals(operation)
        }
        return {**super().responses(operation), **refused}

    def get_components(self) -> dict[str, Any]:
        """The refusals stand here once."""
        components: dict[str, Any] = super().get_components()
        components["schemas"]["Error"] = schemas.Error.model_json_schema()
        components["responses"] = {
            str(status): refusal(what, codes) for status, (what, codes) in REFUSALS.items()
        }
        components["responses"]["429"]["headers"] = RETRY_AFTER
        return components


def _refusals(operation: Operation) -> Iterator[int]:
    sources = {model.__ninja_param_source__ for model in operation.models}
    yield from (401, 503)
    if "path" in sources:
        yield 404
    if sources & {"body", "query"}:
        yield 422
    if "body" in sources:
        yield from (400, 413)
    if not set(operation.methods) & set(auth.SAFE):
        yield 403
        if any(getattr(way, "counted", False) for way in operation.auth_callbacks):
            yield 429


def refusal(what: str, codes: dict[str, str]) -> dict[str, Any]:
    """A response in the one shape, with an example for each code."""
    examples = {code: {"value": {"code": code, "detail": told}} for code, told in codes.items()}
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": what, "content": {JSON: {"schema": schema, "examples": examples}}}


def says(
    *,
    conflicts: Sequence[str] = (),
    answer: dict[str, Any] | None = None,
    strangers: bool = False,
    links: dict[int, dict[str, Any]] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """``openapi_extra`` of a call: what is not in its types.

    ``conflicts`` are the codes of its 409; ``answer`` is a 200 that is no schema; with
    ``strangers`` its body names something that may be somebody else's; ``links`` say by status what
    an answer leads to.
    """
    responses: dict[int, Any] = {status: {"links": to} for status, to in (links or {}).items()}
    if conflicts:
        codes = {code: CONFLICTS[code] for code in conflicts}
        responses[409] = refusal("It exists, but its state does not allow this.", codes)
    if strangers:
        responses[404] = {"$ref": "#/components/responses/404"}
    if answer:
        responses[200] = answer
    return {"responses": responses, "parameters": parameters or []}


def leads_to(*operations: str, **parameters: str) -> dict[str, Any]:
    """Links from an answer to these calls, with what they need from it."""
    return {
        operation: {"operationId": operation, "parameters": parameters} for operation in operations
    }
