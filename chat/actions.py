"""What people do: talk, stop, answer. The only door for transports (page, API, socket, terminal).

Every action is one unit of work that has happened when it is answered: a message whose send was
answered is in the database, and sent again under its key it is the same message.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Literal

from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from chat import approvals
from chat.agents import MASTER
from chat.models import ChatSession, Message, digest
from chat.tools import TOOLS
from chat.turns import publish_queue, queue, queue_item, waiting
from coordination import interrupts, runs, suspensions
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Conflict, Invalid, NotFound
from coordination.interrupts import Stopped, StoppedRun
from coordination.models import Question, Run, Session
from coordination.transactions import locked, unit_of_work

__all__ = ["Posted", "Stopped", "StoppedRun"]

OnBusy = Literal["enqueue", "reject", "interrupt"]
TITLE_CHARS = 60  # of the first message, where nobody gave the conversation a title


@dataclass(frozen=True)
class Posted:
    """The message is kept, and a run will answer it: now (``started``) or in turn (``queued``)."""

    message_id: uuid.UUID
    run_id: uuid.UUID
    status: str


def as_uuid(text: str | uuid.UUID) -> uuid.UUID | None:
    """An id from outside; None where it is none."""
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return None


def check_text(text: str, *, limit: int | None = None) -> str:
    """Text that every column, log and provider takes. Raises Invalid and says what is wrong."""
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise Invalid("invalid_text", "The text has NUL or surrogate characters. Remove them.")
    size = len(text.encode())
    limit = conf.message_bytes if limit is None else limit
    if size > limit:
        raise Invalid("too_large", f"The text has {size} bytes; at most {limit} are taken.")
    return text


# -- sessions --------------------------------------------------------------------------------


async def create_session(
    user: User,
    *,
    title: str = "",
    language: str = "en",
    session_id: uuid.UUID | None = None,
) -> ChatSession:
    """A new conversation of this user's. ``session_id``: where the client chose it."""
    check_text(title, limit=800)
    return await db(_create_session, user, title[:200], language, session_id)


@unit_of_work
def _create_session(
    user: User, title: str, language: str, session_id: uuid.UUID | None
) -> ChatSession:
    with transaction.atomic():
        session = Session.objects.create(id=session_id or uuid.uuid4(), language=language)
        return ChatSession.objects.create(session=session, owner=user, title=title)


async def find_session(user: User | AnonymousUser, session_id: str | uuid.UUID) -> ChatSession:
    """The user's own session. Raises NotFound, the same for unknown, foreign and deleted ones."""
    pk = as_uuid(session_id)
    found = await db(_own_sessions(user).filter(pk=pk or uuid.UUID(int=0)).first)
    if found is None:
        raise NotFound("not_found", "There is no such session.")
    return found


def _own_sessions(user: User | AnonymousUser) -> QuerySet[ChatSession]:
    return ChatSession.objects.filter(owner=user.pk, deleted_at=None)


async def rename_session(chat: ChatSession, title: str) -> None:
    """Give the conversation another title."""
    check_text(title, limit=800)
    await db(ChatSession.objects.filter(pk=chat.pk).update, title=title[:200])


async def delete_session(chat: ChatSession, *, by: str) -> None:
    """Stop what runs and hide the conversation; its rows stay for the audit."""
    await db(_delete, chat.pk, by)


@unit_of_work
def _delete(session_id: uuid.UUID, by: str) -> None:
    with locked(session_id) as session:
        for run in (
            Run.objects.filter(session=session, parent=None)
            .unfinished()
            .order_by(
                "-position"  # the queued first, or the next would start as the current one ends
            )
        ):
            interrupts.mark(session, by=by, run_id=run.pk)
        interrupts.mark(session, by=by)
        ChatSession.objects.filter(pk=session_id).update(deleted_at=timezone.now())


# -- talking ---------------------------------------------------------------------------------


async def post_message(
    chat: ChatSession,
    content: str,
    *,
    key: str | None = None,
    on_busy: OnBusy = "enqueue",
    by: str,
) -> Posted:
    """Keep the user's message and queue the run that answers it, in one transaction.

    ``key`` is the caller's: the same key again is the same message. Raises Invalid; Conflict
    ``busy`` (``on_busy="reject"``) or ``id_conflict`` (the key has another content).
    """
    _check_message(content)
    if key is not None:
        check_text(key, limit=128)
    return await db(_post, chat.pk, content, digest(key) if key else None, on_busy, by)


def _check_message(content: str) -> None:
    check_text(content)
    if not content.strip():
        raise Invalid("empty", "The message is empty. Write something.")


@unit_of_work
def _post(session_id: uuid.UUID, content: str, key: str | None, on_busy: OnBusy, by: str) -> Posted:
    with locked(session_id) as session:
        if not ChatSession.objects.filter(pk=session_id, deleted_at=None).exists():
            raise NotFound("not_found", "There is no such session.")  # deleted a moment ago
        posted = _posted_before(session, content, key)
        if posted is not None:
            return posted
        current, askers = _under_way(session)
        if on_busy == "reject" and (current or askers):
            raise Conflict("busy", "A turn is under way. Wait for its end, stop it, or enqueue.")
        message, run = _start(session, content, key)
        if on_busy == "interrupt" and not run.lane:
            runs.put_first(session, run)
        _make_way(session, current, askers, on_busy, by)
        run.refresh_from_db(fields=["lane"])
        if not run.lane:
            Message.objects.filter(pk=message.pk).update(has_queued=True)
            publish_queue(session)
        _give_title(session_id, content)
        return Posted(message.pk, run.pk, "started" if run.lane else "queued")


def _posted_before(session: Session, content: str, key: str | None) -> Posted | None:
    if key is None:
        return None
    message = Message.objects.filter(session_id=session.pk, client_key=key).first()
    if message is None:
        return None
    if (message.sent_digest or digest(message.content)) != digest(content):
        raise Conflict("id_conflict", "This id was used for another message. Use a new one.")
    return Posted(message.pk, message.run_id, "queued" if message.has_queued else "started")


def _under_way(session: Session) -> tuple[Run | None, list[uuid.UUID]]:
    """The current turn, and the runs that ask a person something."""
    current = Run.objects.filter(session=session, parent=None, lane__isnull=False).first()
    asked = Question.objects.filter(session=session, state=Question.State.OPEN)
    return current, list(asked.values_list("run_id", flat=True))


def _make_way(
    session: Session, current: Run | None, askers: list[uuid.UUID], on_busy: OnBusy, by: str
) -> None:
    """An open question is superseded; a running turn is queued behind or stopped."""
    if askers:
        for run_id in [current.pk] if current else askers:
            interrupts.mark(session, by=by, run_id=run_id, reason=Run.Reason.SUPERSEDED)
    elif current and on_busy == "interrupt":
        interrupts.mark(session, by=by, run_id=current.pk)


def _start(session: Session, content: str, key: str | None) -> tuple[Message, Run]:
    message = Message.objects.create(
        session_id=session.pk,
        agent_id=MASTER,
        run_id=uuid.uuid4(),
        role=Message.Role.USER,
        content=content,
        parts=[{"type": "text", "text": content}],
        client_key=key,
    )
    return message, runs.start(session, MASTER, run_id=message.run_id)


def _give_title(session_id: uuid.UUID, content: str) -> None:
    first_line = content.strip().splitlines()[0][:TITLE_CHARS]
    ChatSession.objects.filter(pk=session_id, title="").update(title=first_line)


# -- the queue -------------------------------------------------------------------------------


async def waiting_messages(chat: ChatSession) -> list[dict[str, str]]:
    """The messages that wait, in the order in which their turns will come."""
    return await db(queue, chat.pk)


async def edit_waiting(chat: ChatSession, message_id: str, content: str) -> dict[str, str]:
    """Give a message that waits other words; the item of the queue as it now is.

    Raises Invalid; NotFound; Conflict ``already_started`` or ``already_removed`` once the message
    has left the queue.
    """
    _check_message(content)
    return await db(_edit_waiting, chat.pk, message_id, content)


@unit_of_work
def _edit_waiting(session_id: uuid.UUID, message_id: str, content: str) -> dict[str, str]:
    with locked(session_id) as session:
        message = _users_message(session, message_id)
        _change_waiting(
            message,
            content=content,
            parts=[{"type": "text", "text": content}],
            sent_digest=message.sent_digest or digest(message.content),
        )
        publish_queue(session)
        return queue_item(message)


async def remove_waiting(chat: ChatSession, message_id: str, *, by: str) -> None:
    """Take a message out of the queue: it will never run. Raises as ``edit_waiting``."""
    await db(_remove_waiting, chat.pk, message_id, by)


@unit_of_work
def _remove_waiting(session_id: uuid.UUID, message_id: str, by: str) -> None:
    with locked(session_id) as session:
        message = _users_message(session, message_id)
        _change_waiting(message, status=Message.Status.REMOVED)
        publish_queue(session, removed=str(message.pk))
        interrupts.mark(session, by=by, run_id=message.run_id)


def _users_message(session: Session, message_id: str) -> Message:
    said = Message.objects.filter(session_id=session.pk, agent_id=MASTER, role=Message.Role.USER)
    message = said.filter(pk=as_uuid(message_id) or uuid.UUID(int=0)).first()
    if message is None:
        raise NotFound("not_found", "There is no such message in this session.")
    return message


def _change_waiting(message: Message, **values: Any) -> None:
    """One UPDATE decides against the turn that takes the message up; the object follows."""
    if waiting(message.session_id).filter(pk=message.pk).update(**values) != 1:
        if message.status == Message.Status.REMOVED:
            raise Conflict("already_removed", "This message was removed from the queue before.")
        raise Conflict("already_started", "This message is out of the queue: its turn has come.")
    for name, value in values.items():
        setattr(message, name, value)


# -- stopping and answering ------------------------------------------------------------------


async def stop(
    chat: ChatSession, *, run_id: str | None = None, agent_id: str | None = None, by: str
) -> Stopped:
    """Stop the current turn, one run, or one sub-agent; see ``interrupts.stop``."""
    pk = as_uuid(run_id) if run_id is not None else None
    if run_id is not None and pk is None:
        raise NotFound("not_found", "There is no such run in this session.")
    return await interrupts.stop(chat.pk, by=by, run_id=pk, agent_id=agent_id)


async def respond(
    chat: ChatSession, question_id: str, *, status: str = "resolved", payload: Any = None, by: str
) -> uuid.UUID:
    """Answer a question, or decline it (``cancelled``); see ``suspensions.respond``.

    About a tool call, ``approvals.check`` has its say before.
    """
    pk = as_uuid(question_id)
    if pk is None:
        raise NotFound("not_found", "There is no such question.")
    if status not in ("resolved", "cancelled"):
        raise Invalid("invalid_status", "The status is resolved or cancelled.")
    _check_payload(payload)
    return await db(_respond, chat.pk, pk, status == "resolved", payload, by)


@unit_of_work
def _respond(
    session_id: uuid.UUID, question_id: uuid.UUID, resolved: bool, payload: Any, by: str
) -> uuid.UUID:
    asked = Question.objects.filter(
        pk=question_id, session=session_id, state=Question.State.OPEN, approval__isnull=False
    ).first()
    if asked is not None and resolved:
        payload = approvals.check(asked, TOOLS, payload)
    return suspensions.respond(session_id, question_id, resolved=resolved, payload=payload, by=by)


def _check_payload(payload: Any) -> None:
    match payload:
        case str():
            check_text(payload)
        case list():
            for item in payload:
                _check_payload(item)
        case dict():
            for name, item in payload.items():
                check_text(str(name))
                _check_payload(item)
