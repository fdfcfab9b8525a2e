"""A conversation at a terminal: post, follow the log, ask what is asked, stop.

Two tasks. One follows the event log and shows it; the other waits until nothing moves any more but
what waits for the person, and then reads a line: an answer, if a question is open, or a message.
Whether something moves is read from the rows, never guessed from the events, so a turn that another
window has started, stopped or answered is seen as it is.

Ctrl-C stops the turn; a second one leaves, and the end of the input leaves too. A reader that
leaves stops nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _

from chat import actions, snapshots
from chat.models import ChatSession
from chat.strings import STRINGS
from chat.terminal import INTERRUPTED
from coordination import events, panel, streams, vocabulary
from coordination.conf import conf
from coordination.db import RETRY_PAUSE, db, patiently
from coordination.errors import Conflict, Invalid, NotFound, Refused
from coordination.events import Logged
from coordination.models import Question

from . import forms
from .keyboard import Keyboard
from .screen import Screen

DONE, FAILED, UNANSWERED = 0, 1, 3  # exit codes; and of signals:
TERMINATED = 128 + signal.SIGTERM

HISTORY = 20  # earlier messages that an opened conversation shows
QUEUED_FOR = 3.0  # seconds in the queue after which somebody who waits is told why
STOP_RECORDED = 1.0  # seconds that a second Ctrl-C gives the first one to be recorded
DELTAS = ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS", "REASONING_MESSAGE_CONTENT")


@dataclass(frozen=True)
class State:
    """What the rows say; everything that led to it is in the log up to ``cursor``."""

    status: str
    run_id: uuid.UUID | None
    questions: list[dict[str, Any]]
    cursor: int


class Moved(Exception):
    """What a line was asked for is no longer so: look again."""


class EndOfInput(Exception):
    """Nobody will type anything more."""


class Dialogue:
    """One person at one conversation, until they leave."""

    def __init__(self, chat: ChatSession, user: User, screen: Screen, keyboard: Keyboard) -> None:
        self.chat, self.user, self.screen, self.keyboard = chat, user, screen, keyboard
        self.by = user.get_username()
        self.shown = 0  # the last event on the screen
        self._news = asyncio.Event()  # something was shown that may have changed the state
        self._moved = asyncio.Event()
        self._asking: str | None = None  # the question that a line is asked for
        self._posting = asyncio.Lock()  # a stop waits for a message that is being sent
        self._stopping: asyncio.Task[None] | None = None
        self._presses = 0  # of Ctrl-C, since the last line
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._outcome = DONE  # of the last turn
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._ctrl_c)
        loop.add_signal_handler(signal.SIGTERM, self._leave, TERMINATED)

    async def run(self) -> int:
        """Talk until the person leaves; the exit code."""
        await self._begin()
        tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._talk())]
        waiting: list[asyncio.Future[Any]] = [self._left, *tasks]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._stopping is not None:
                await asyncio.wait([self._stopping], timeout=STOP_RECORDED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.keyboard.close()
        return self._left.result()

    async def _begin(self) -> None:
        snapshot = await db(snapshots.snapshot, self.chat.pk)
        self.screen.history(snapshot, HISTORY if self.keyboard.interactive else 0)
        self.shown = snapshot["cursor"]

    def _leave(self, code: int) -> None:
        if not self._left.done():
            self._left.set_result(code)

    # -- following -----------------------------------------------------------------------

    async def _follow(self) -> None:
        """Show the log as it grows. Raises NotFound when the conversation is gone."""
        away = False
        while True:
            try:
                log = streams.follow(self.chat.pk, self.shown, silence=conf.stream_poll)
                async with aclosing(log) as batches:
                    async for batch in batches:
                        away = False
                        self._show(list(batch))
                raise NotFound("not_found", str(STRINGS["session_gone"]))
            except streams.Pruned:
                self.shown = (await patiently(look, self.chat.pk)).cursor
            except (OperationalError, InterfaceError):
                if not away:
                    self.screen.say(_("The database does not answer; trying again …"))
                away = True
                await asyncio.sleep(RETRY_PAUSE)

    def _show(self, batch: list[Logged]) -> None:
        for logged in batch:
            event = json.loads(logged.data)
            self.screen.show(logged, event)
            self.shown = logged.seq
            self._notice(event)
        if not batch or any(logged.type not in DELTAS for logged in batch):
            self._news.set()

    def _notice(self, event: dict[str, Any]) -> None:
        """Remember how turns end, and whether a line is still asked for."""
        match event:
            case {"type": "RUN_STARTED"} if self._asking is None:
                self._moved.set()
            case {"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}}:
                self._outcome = INTERRUPTED
            case {"type": "RUN_FINISHED"}:
                self._outcome = DONE
            case {"type": "RUN_ERROR"}:
                self._outcome = FAILED
            case {"type": "CUSTOM", "name": "question", "value": {"id": id_, "state": state}}:
                opened = state == Question.State.OPEN
                if (opened and self._asking is None) or (not opened and id_ == self._asking):
                    self._moved.set()

    # -- talking -------------------------------------------------------------------------

    async def _talk(self) -> None:
        """Read a line whenever one is wanted. Returns when the person has left."""
        state = None
        try:
            while True:
                state = await self._rest()
                self._moved.clear()
                try:
                    if state.questions:
                        await self._answer(state.questions[0])
                    else:
                        await self._message()
                except Moved:
                    continue
                except Refused as refusal:
                    self._refused(refusal)
                finally:
                    self._asking = None
        except EndOfInput:
            self._leave(self._code(asked=bool(state and state.questions)))

    def _code(self, *, asked: bool) -> int:
        if self.keyboard.interactive:
            return DONE
        if asked:
            self.screen.say(_("The question stays open; open the conversation again to answer it."))
            return UNANSWERED
        return self._outcome

    def _refused(self, refusal: Refused) -> None:
        self._outcome = FAILED
        self.screen.say(refusal.detail, self.screen.style.ERROR)

    async def _rest(self) -> State:
        """Wait until a line is wanted: nothing is under way, or a question is open."""
        now = asyncio.get_running_loop().time
        since, told = now(), False
        while True:
            self._news.clear()
            await actions.find_session(self.user, self.chat.pk)
            state = await patiently(look, self.chat.pk)
            if self.shown >= state.cursor and (state.run_id is None or state.questions):
                return state
            if state.status == "queued" and not told and now() - since > QUEUED_FOR:
                told = True
                self.screen.say(f"{STRINGS['waiting_for_worker']} (manage.py agent_worker)")
            await self._news.wait()

    async def _line(self, prompt: str) -> str:
        """A line, unless what it is for has moved on. Raises Moved, EndOfInput."""
        reading = self.keyboard.read(prompt if self.keyboard.interactive else "")
        if self.keyboard.interactive:
            self.screen.prompted()
        moved = asyncio.ensure_future(self._moved.wait())
        either: list[asyncio.Future[Any]] = [reading, moved]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        moved.cancel()
        if not reading.done():
            raise Moved
        line = reading.result()
        if line is None:
            raise EndOfInput
        self.screen.entered()
        self._presses = 0
        return line

    async def _message(self) -> None:
        line = await self._line(_("you> "))
        if not line.strip():
            return
        if line.strip() == forms.SKIP:  # meant for a question, and never for a model
            self.screen.say(str(STRINGS["question_closed"]))
            return
        async with self._posting:
            self._outcome = DONE
            posted = await self._post(line, key=str(uuid.uuid4()))
        if posted.status == "queued":
            self.screen.say(_("A turn is under way; your message waits for its end."))

    async def _post(self, line: str, key: str) -> actions.Posted:
        """Send it once, however often it takes: the key makes a repeated message the same one."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + conf.database_patience
        while True:
            try:
                return await actions.post_message(self.chat, line, key=key, by=self.by)
            except (OperationalError, InterfaceError):
                if loop.time() > give_up:
                    raise
                await asyncio.sleep(RETRY_PAUSE)

    async def _answer(self, question: dict[str, Any]) -> None:
        self._asking = question["id"]
        self.screen.say(
            _("%(agent)s asks: %(question)s")
            % {"agent": question["agent_id"], "question": question["question"]},
            self.screen.style.MIGRATE_HEADING,
        )
        answer: dict[str, Any]
        try:
            answer = {"payload": await forms.fill(question, self._line, self.screen.say)}
        except forms.Skipped:
            answer = {"status": "cancelled"}
        try:
            await actions.respond(self.chat, question["id"], **answer, by=self.by)
        except Conflict as conflict:
            answered = conflict.code == "already_answered"
            self.screen.say(str(STRINGS["question_answered" if answered else "question_closed"]))
        except Invalid as wrong:
            self.screen.say(wrong.detail, self.screen.style.ERROR)

    # -- stopping ------------------------------------------------------------------------

    def _ctrl_c(self) -> None:
        self._presses += 1
        if self._presses > 1:
            self._leave(INTERRUPTED)
        else:
            self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        try:
            async with self._posting:
                pass
            stopped = await actions.stop(self.chat, by=self.by)
        except (Refused, OperationalError, InterfaceError) as error:
            detail = getattr(error, "detail", error)
            self.screen.say(str(STRINGS["stop_failed"]).format(detail=detail))
            return
        if stopped.status == "accepted":
            self.screen.say(str(STRINGS["stop_accepted"]))
        elif stopped.status != "stopped":  # what was stopped says so itself, in the log
            self.screen.say(_("Nothing is running. Ctrl-C again leaves."))


def look(session_id: uuid.UUID) -> State:
    """Read the state. The cursor is read last, so whatever led to the state lies before it."""
    status, run_id = panel.session_status(session_id)
    rows = Question.objects.filter(session=session_id, state=Question.State.OPEN)
    questions = [vocabulary.question_json(row) for row in rows.order_by("opened_at")]
    cursor = events.bounds(session_id)[1]
    return State(status, run_id, questions, cursor)
