"""What a reader sees before it follows the stream: the state as it is, exact at its cursor.

A snapshot is taken with the session's row locked, as every writer of the session holds it: so text
under way is neither missing from it nor repeated after its cursor.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections import Counter, defaultdict
from typing import Any

from django.db.models import Exists, OuterRef, Q

from chat.agents import MASTER
from chat.models import ChatSession, Message
from chat.turns import queue
from coordination import events, inbox, panel, vocabulary
from coordination.errors import Invalid, NotFound
from coordination.models import InboxMessage, Question, Run, Session, WorkLogEntry
from coordination.transactions import locked, unit_of_work

TOKENS = ("input_tokens", "output_tokens")
PAGE = 200  # messages in a snapshot; CONTRACT.md section 3
HOPS = 100  # up and down a reply chain; JSON that nests 250 deep is refused by our own schema

# What `next` looks like, so that the API's description can tell and nothing else is looked up.
CURSOR = re.compile(r"[0-9]{1,18}")  # a number that every database holds
SESSIONS_CURSOR = re.compile(r"([0-9]{1,16})-([0-9a-f]{32})")  # microseconds, id
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@unit_of_work
def snapshot(session_id: uuid.UUID) -> dict[str, Any]:
    """The snapshot of CONTRACT.md section 3. Raises NotFound."""
    with locked(session_id) as session:
        chat = ChatSession.objects.get(pk=session_id)
        status, run_id = panel.session_status(session_id)
        return {
            "id": str(session_id),
            "title": chat.title,
            "status": status,
            "created_at": chat.created_at.isoformat(),
            "run_id": str(run_id) if run_id else None,
            "messages": _newest(session_id, MASTER) + _partials(session_id),
            "agents": panel.agents(session_id),
            "questions": [vocabulary.question_json(q) for q in _open_questions(session)],
            "queue": queue(session_id),
            "cursor": session.last_seq,
        }


def _open_questions(session: Session) -> list[Question]:
    rows = Question.objects.filter(session=session, state=Question.State.OPEN)
    return list(rows.order_by("opened_at"))


def _newest(session_id: uuid.UUID, agent_id: str) -> list[dict[str, Any]]:
    rows = _conversation(session_id, agent_id).order_by("-position")[:PAGE]
    return [message_json(row) for row in reversed(rows)]


def _conversation(session_id: uuid.UUID, agent_id: str) -> Any:
    return Message.objects.filter(session_id=session_id, agent_id=agent_id, position__isnull=False)


def message_json(row: Message) -> dict[str, Any]:
    """The message of CONTRACT.md section 3."""
    return {
        "id": str(row.pk),
        "role": row.role,
        "agent_id": row.agent_id,
        "content": row.content,
        "parts": row.parts,
        "status": row.status,
        "created_at": row.created_at.isoformat(),
    }


def _partials(session_id: uuid.UUID) -> list[dict[str, Any]]:
    """The master's text under way, folded from the log."""
    current = Run.objects.filter(session_id=session_id, parent=None, status__in=Run.OWNED).first()
    if current is None:
        return []
    items = events.unsaved(current)
    calls: dict[str, list[dict[str, Any]]] = {}
    for call_id, call in {**items.ended_calls, **items.calls}.items():
        part = {"type": "tool_call", "tool_call_id": call_id, "name": call["name"]}
        calls.setdefault(call["message_id"], []).append({**part, "args": call["args"]})
    texts = {**items.ended_texts, **items.texts}
    started = current.last_progress_at or current.queued_at
    return [
        {
            "id": message_id,
            "role": Message.Role.ASSISTANT.value,
            "agent_id": MASTER,
            "content": texts.get(message_id, ""),
            "parts": [
                *([{"type": "text", "text": texts[message_id]}] if message_id in texts else []),
                *calls.get(message_id, []),
            ],
            "status": Message.Status.PARTIAL.value,
            "created_at": started.isoformat(),
        }
        for message_id in dict.fromkeys([*texts, *calls])
    ]


# -- pages -----------------------------------------------------------------------------------


def _number(cursor: str | None, name: str) -> int | None:
    """A page cursor. Raises Invalid where it is none of ours."""
    if cursor in (None, ""):
        return None
    if not CURSOR.fullmatch(str(cursor)):
        raise Invalid("invalid_cursor", f"{name} must be the next of an earlier page.")
    return int(str(cursor))


def messages_page(
    session_id: uuid.UUID, *, agent_id: str | None = None, before: str | None = None
) -> dict[str, Any]:
    """Earlier messages, oldest first; ``next`` goes further back."""
    rows = _conversation(session_id, agent_id or MASTER)
    limit = _number(before, "before")
    if limit is not None:
        rows = rows.filter(position__lt=limit)
    page = list(rows.order_by("-position")[: PAGE + 1])
    more = len(page) > PAGE
    page = page[:PAGE]
    return {
        "items": [message_json(row) for row in reversed(page)],
        "next": str(page[-1].position) if more else None,
    }


def inbox_page(session_id: uuid.UUID, *, after: str | None = None) -> dict[str, Any]:
    """Messages between agents, oldest first."""
    rows = InboxMessage.objects.filter(
        session_id=session_id, position__gt=_number(after, "after") or 0
    )
    page = list(rows.order_by("position")[: PAGE + 1])
    more = len(page) > PAGE
    page = page[:PAGE]
    return {
        "items": [inbox_json(row) for row in page],
        "next": str(page[-1].position) if more else None,
    }


def inbox_json(row: InboxMessage) -> dict[str, Any]:
    """The inbox item of CONTRACT.md section 3, and its ``reason``."""
    return {
        "id": str(row.pk),
        "sender": row.sender,
        "recipient": row.recipient,
        "type": row.kind,
        "content": row.content,
        "in_reply_to": str(row.in_reply_to_id) if row.in_reply_to_id else None,
        "status": row.state,
        "reason": row.reason or None,
        "created_at": row.created_at.isoformat(),
        "delivered_at": row.delivered_at.isoformat() if row.delivered_at else None,
        "acked_at": row.acked_at.isoformat() if row.acked_at else None,
        "late": row.late,
    }


def reply_chain(session_id: uuid.UUID, message_id: uuid.UUID) -> dict[str, Any]:
    """The reply tree that holds the message: the root with ``replies``, each with its own.

    Revisions make it as long as a conversation, so it is told from at most ``HOPS`` above the
    message to as many below it. Raises NotFound.
    """
    message = InboxMessage.objects.filter(session_id=session_id, pk=message_id).first()
    if message is None:
        raise NotFound("not_found", "There is no such message.")
    root, *replies = inbox.chain(message, hops=HOPS)  # a reply comes after what it answers
    tree = {**inbox_json(root), "replies": []}
    nodes = {root.pk: tree}
    for reply in replies:
        assert reply.in_reply_to_id is not None
        nodes[reply.pk] = {**inbox_json(reply), "replies": []}
        nodes[reply.in_reply_to_id]["replies"].append(nodes[reply.pk])
    return tree


def worklog_page(session_id: uuid.UUID, *, after: str | None = None) -> dict[str, Any]:
    """The session's work log, oldest first."""
    rows = WorkLogEntry.objects.filter(session_id=session_id, pk__gt=_number(after, "after") or 0)
    page = list(rows.order_by("pk")[: PAGE + 1])
    more = len(page) > PAGE
    page = page[:PAGE]
    return {
        "items": [worklog_json(row) for row in page],
        "next": str(page[-1].pk) if more else None,
    }


def newest_worklog(session_id: uuid.UUID) -> list[dict[str, Any]]:
    """The last ``PAGE`` lines of the session's work log, oldest first."""
    rows = WorkLogEntry.objects.filter(session_id=session_id).order_by("-pk")[:PAGE]
    return [worklog_json(row) for row in reversed(rows)]


def worklog_json(row: WorkLogEntry) -> dict[str, Any]:
    """The work log's line of CONTRACT.md section 3."""
    return {
        "at": row.at.isoformat(),
        "level": row.level,
        "kind": row.kind,
        "agent_id": row.agent_id or None,
        "run_id": str(row.run_id) if row.run_id else None,
        "text": row.text,
    }


def usage(session_id: uuid.UUID) -> dict[str, Any]:
    """Tokens: of each turn with its sub-agents, by the message it answers, and of all runs."""
    total = Counter(dict.fromkeys(TOKENS, 0))
    turns: defaultdict[uuid.UUID, Counter[str]] = defaultdict(Counter)
    for root_id, used in Run.objects.filter(session_id=session_id).values_list("root_id", "usage"):
        for counter in (total, turns[root_id]):
            counter.update({name: used.get(name, 0) for name in TOKENS})
    asked = _conversation(session_id, MASTER).filter(role=Message.Role.USER)
    return {
        "turns": {
            str(message_id): turns[run_id]
            for message_id, run_id in asked.values_list("pk", "run_id")
            if turns[run_id].total()
        },
        "total": total,
    }


def sessions_page(
    owner_id: Any, *, after: str | None = None, limit: int = 50, words: str = ""
) -> dict[str, Any]:
    """The owner's sessions, newest first; ``next`` goes on to older ones.

    ``words``: only those with them in the title, or in what was said with the master.
    """
    rows = ChatSession.objects.filter(owner=owner_id, deleted_at=None).select_related("session")
    if words:
        rows = _with_words(rows, words)
    if after:
        rows = _older_than(rows, after)
    page = list(rows.order_by("-created_at", "-pk")[: limit + 1])
    more = len(page) > limit
    page = page[:limit]
    status = panel.session_statuses([row.pk for row in page])
    return {
        "items": [session_json(row, status[row.pk][0]) for row in page],
        "next": _cursor_of(page[-1]) if more else None,
    }


def _with_words(rows: Any, words: str) -> Any:
    said = Message.objects.filter(
        session=OuterRef("pk"),
        agent_id=MASTER,
        role__in=[Message.Role.USER, Message.Role.ASSISTANT],
        content__icontains=words,
    )
    return rows.filter(Q(title__icontains=words) | Exists(said))


def _older_than(rows: Any, cursor: str) -> Any:
    """A cursor is the last one's time and id: it still says where once that session is gone."""
    found = SESSIONS_CURSOR.fullmatch(cursor)
    if found is None:
        raise Invalid("invalid_cursor", "after must be the next of an earlier page.")
    at = EPOCH + dt.timedelta(microseconds=int(found[1]))
    return rows.filter(Q(created_at__lt=at) | Q(created_at=at, pk__lt=uuid.UUID(found[2])))


def _cursor_of(row: ChatSession) -> str:
    return f"{(row.created_at - EPOCH) // dt.timedelta(microseconds=1)}-{row.pk.hex}"


def session_json(row: ChatSession, status: str) -> dict[str, Any]:
    """One session of the list; ``cursor`` grows with whatever happens in it."""
    return {
        "id": str(row.pk),
        "title": row.title,
        "status": status,
        "created_at": row.created_at.isoformat(),
        "cursor": row.session.last_seq,
    }
