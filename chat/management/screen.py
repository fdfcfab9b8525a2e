"""What a conversation looks like on a terminal: the master's text as it comes, a line for the rest.

Events in, lines out. Nothing here decides anything: a screen that is wrong misleads nobody's rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils.translation import gettext as _

from chat import terminal
from chat.agents import MASTER
from chat.strings import STRINGS
from coordination.events import Logged

ARGS = 100  # columns of a tool call's arguments
LOUD = ("warning", "error")  # levels of the work log that belong into a conversation


class Screen:
    """The conversation's output. With ``as_json`` the events themselves, one a line."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, style: Any, *, as_json: bool):
        self.out, self.err, self.style, self.as_json = out, err, style, as_json
        self._in_line = False  # something stands on the last line: text under way, or a prompt
        self._names: dict[str, str] = {}  # a sub-agent's run → its name
        self._calls: dict[str, tuple[str, str, str]] = {}  # a call → agent, tool, arguments

    # -- lines ---------------------------------------------------------------------------

    def say(self, text: str, style: Callable[[str], str] | None = None) -> None:
        """A whole line of ours; with ``as_json`` it goes to stderr."""
        self._fresh_line()
        line = terminal.plain(text)
        out = self.err if self.as_json else self.out
        out.write(style(line) if style else line, lambda words: words)
        out.flush()

    def prompted(self) -> None:
        """A prompt stands on the last line."""
        self._in_line = True

    def entered(self) -> None:
        """The person has ended that line."""
        self._in_line = False

    def _stream(self, text: str) -> None:
        text = terminal.plain(text)
        if text:
            self.out.write(text, ending="")
            self.out.flush()
            self._in_line = not text.endswith("\n")

    def _fresh_line(self) -> None:
        if self._in_line:
            (self.err if self.as_json else self.out).write("\n", ending="")
            self._in_line = False

    # -- the state at the beginning ------------------------------------------------------

    def history(self, snapshot: dict[str, Any], last: int) -> None:
        """What was said so far; text under way stays open and goes on with its events."""
        self.know(snapshot["agents"])
        shown = [m for m in snapshot["messages"] if m["role"] in ("user", "assistant", "system")]
        for message in shown[-last:] if last else []:
            if not message["content"]:
                continue
            if message["role"] == "user":
                self.say(_("you> ") + message["content"], self.style.MIGRATE_LABEL)
            else:
                self._fresh_line()
                self._stream(message["content"])
                if message["status"] != "partial":
                    self._fresh_line()

    def know(self, agents: list[dict[str, Any]]) -> None:
        """Names for the runs that have begun before the events which are shown."""
        self._names |= {agent["run_id"]: agent["agent_id"] for agent in agents}

    # -- events --------------------------------------------------------------------------

    def show(self, logged: Logged, event: dict[str, Any]) -> None:
        """One event of the log."""
        if self.as_json:
            self.out.write(logged.data)
            self.out.flush()
            return
        show = getattr(self, f"_{event['type'].lower()}", None)
        if show is not None:
            show(event)

    def _text_message_content(self, event: dict[str, Any]) -> None:
        if "subagentRunId" not in event:
            self._stream(event["delta"])

    def _text_message_end(self, event: dict[str, Any]) -> None:
        if "subagentRunId" not in event:
            self._fresh_line()

    def _agent(self, event: dict[str, Any]) -> str:
        run_id = event.get("subagentRunId")
        return self._names.get(run_id, "?") if run_id else MASTER

    def _tool_call_start(self, event: dict[str, Any]) -> None:
        self._calls[event["toolCallId"]] = (self._agent(event), event["toolCallName"], "")

    def _tool_call_args(self, event: dict[str, Any]) -> None:
        if event["toolCallId"] in self._calls:
            agent, tool, args = self._calls[event["toolCallId"]]
            self._calls[event["toolCallId"]] = (agent, tool, args + event["delta"])

    def _tool_call_end(self, event: dict[str, Any]) -> None:
        agent, tool, args = self._calls.pop(event["toolCallId"], (None, "", ""))
        if agent is None or tool == "ask_user":  # the question itself is shown
            return
        self.say(f"· {agent}: {tool} {terminal.one_line(_arguments(args), ARGS)}", self._faint)

    def _subagent_started(self, event: dict[str, Any]) -> None:
        run_id, name = event["subagentRunId"], event["name"]
        goes_on = run_id in self._names
        self._names[run_id] = name
        words = _("%(agent)s goes on") if goes_on else _("%(agent)s has started")
        self.say("▸ " + words % {"agent": name}, self._faint)

    def _subagent_finished(self, event: dict[str, Any]) -> None:
        if event["outcome"]["type"] == "suspended" and event["outcome"]["interruptIds"]:
            waits = _("%(agent)s waits for you") % {"agent": self._agent(event)}
            self.say(f"‖ {waits}", self._faint)

    def _run_error(self, event: dict[str, Any]) -> None:
        self.say(str(STRINGS["run_failed"]) + f" {event['message']}", self.style.ERROR)

    def _run_finished(self, event: dict[str, Any]) -> None:
        match event:
            case {"outcome": {"type": "cancelled"}, "result": {"reason": reason, "text": text}}:
                if reason != "superseded":  # then what follows is the answer to it
                    self.say(str(text), self.style.WARNING)

    def _custom(self, event: dict[str, Any]) -> None:
        value = event["value"]
        match event["name"]:
            case "ax" if value["agentId"] != MASTER:
                self._exit(value)
            case "work_log" if value["level"] in LOUD and not value["kind"].startswith("run_"):
                self.say(f"! {value['kind']}: {terminal.one_line(value['text'], ARGS)}", self._loud)

    def _exit(self, value: dict[str, Any]) -> None:
        status, reason = value["status"], value["reason"]
        words = str(STRINGS.get(f"status_{status}", status))
        if reason not in ("completed", "interrupted"):
            words += f" ({STRINGS.get(f'reason_{reason}', reason)})"
        well = status == "completed"
        self.say(f"▪ {value['agentId']}: {words}", self.style.SUCCESS if well else self._loud)

    def _faint(self, line: str) -> str:
        return str(self.style.HTTP_NOT_MODIFIED(line))

    def _loud(self, line: str) -> str:
        return str(self.style.WARNING(line))


def _arguments(text: str) -> str:
    """A call's arguments, as short as they can be read; a call that was cut off shows none."""
    try:
        args = json.loads(text or "{}")
    except ValueError:
        return "(…)"
    if not isinstance(args, dict):
        return f"({text})"
    if {"to", "content"} <= set(args):
        return f"→ {args['to']}: {args['content']}"
    return "(" + ", ".join(f"{name}={_brief(value)}" for name, value in args.items()) + ")"


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
