"""The events of one run as the parts of a LangGraph stream, in the modes that were asked for.

A pure fold: the same events give the same parts, so a reader that comes back is served by folding
the run again from its beginning and leaving out what it has had. A part is named by its mode; that
of a sub-agent has its namespace behind a bar (``messages|researcher:RUN``), and is told only with
``stream_subgraphs``. LangGraph's "node" is an agent here, or ``tools`` for what tools return.

``values`` is the thread's state, which no event holds: such a part has ``None`` for its messages,
and whoever writes it to the wire looks them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chat.agents import MASTER

from .langgraph_messages import Json, ai_message, chunk, interrupt, tool_message

MODES = ("values", "updates", "messages", "messages-tuple", "custom", "lifecycle")
STATE: Json = {"messages": None}
INTERRUPT = "__interrupt__"

Part = tuple[str, Any]

END_STATUS = {"success": "success", "cancelled": "interrupted", "interrupt": "interrupted"}


@dataclass(frozen=True)
class _Agent:
    """Who speaks: the run's own agent, whose namespace is empty, or a sub-agent."""

    name: str
    namespace: str = ""


@dataclass
class _Said:
    """A message under way; its calls are parts as ours are."""

    id: str
    agent: _Agent
    content: str = ""
    calls: list[Json] = field(default_factory=list)

    def whole(self) -> Json:
        return ai_message(self.id, self.agent.name, self.content, self.calls)


class Translator:
    """Parts out of one run's events, which must come from its beginning."""

    def __init__(
        self,
        thread_id: str,
        run_id: str,
        modes: frozenset[str],
        *,
        subgraphs: bool = False,
    ) -> None:
        self._run = {"run_id": run_id, "thread_id": thread_id}
        self._modes = modes
        self._subgraphs = subgraphs
        self._agents: dict[str | None, _Agent] = {None: _Agent(MASTER)}  # by their runs
        self._said: dict[str, _Said] = {}  # not yet complete
        self._calls: dict[str, tuple[_Said, int]] = {}  # and which of its message's calls it is
        self._parts: list[Part] = []

    def parts(self, event: Json) -> list[Part]:
        """What the event is to a reader, in order."""
        self._parts = []
        match event["type"]:
            case "RUN_STARTED":
                self._parts.append(("metadata", {**self._run, "attempt": 1}))
                self._tell("values", STATE)
            case "RUN_FINISHED" | "RUN_ERROR":
                self._ended(event)
            case "CUSTOM":
                self._tell("custom", {"name": event["name"], "value": event["value"]})
            case "SUBAGENT_STARTED" | "SUBAGENT_FINISHED" | "SUBAGENT_ERROR":
                self._lifecycle(event)
            case _ if event.get("subagentRunId") is None or self._subgraphs:
                self._message_event(event)
        return self._parts

    def _tell(self, mode: str, data: Any, agent: _Agent | None = None, *, name: str = "") -> None:
        if mode in self._modes:
            name = name or mode
            namespace = agent.namespace if agent else ""
            self._parts.append((f"{name}|{namespace}" if namespace else name, data))

    # -- messages ----------------------------------------------------------------------------

    def _message_event(self, event: Json) -> None:
        agent = self._agents[event.get("subagentRunId")]
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT":
                said = self._open(event["messageId"], agent)
                said.content += event["delta"]
                self._piece(said, event["delta"])
            case "TEXT_MESSAGE_END":
                self._complete(event["messageId"])
            case "TOOL_CALL_START":
                call_id, name = event["toolCallId"], event["toolCallName"]
                said = self._open(event["parentMessageId"], agent)
                self._calls[call_id] = said, len(said.calls)
                said.calls.append({"tool_call_id": call_id, "name": name, "args": ""})
                self._piece_of_call(call_id, id=call_id, name=name, args="")
            case "TOOL_CALL_ARGS":
                said, number = self._calls[event["toolCallId"]]
                said.calls[number]["args"] += event["delta"]
                self._piece_of_call(event["toolCallId"], id=None, name=None, args=event["delta"])
            case "TOOL_CALL_RESULT":
                self._result(event, agent)

    def _open(self, message_id: str, agent: _Agent) -> _Said:
        if message_id not in self._said:
            self._said[message_id] = _Said(message_id, agent)
            self._introduce(message_id, agent)
        return self._said[message_id]

    def _introduce(self, message_id: str, agent: _Agent) -> None:
        told = {message_id: {"metadata": self._about(agent)}}
        self._tell("messages", told, agent, name="messages/metadata")

    def _about(self, agent: _Agent, node: str = "") -> Json:
        return {
            **self._run,
            "assistant_id": MASTER,
            "langgraph_node": node or agent.name,
            "langgraph_checkpoint_ns": agent.namespace,
            "tags": [],
        }

    def _piece(self, said: _Said, content: str, *calls: Json) -> None:
        if "messages" in self._modes:
            self._tell("messages", [said.whole()], said.agent, name="messages/partial")
        if "messages-tuple" in self._modes:
            piece = chunk(said.id, said.agent.name, content, calls)
            about = self._about(said.agent)
            self._tell("messages-tuple", [piece, about], said.agent, name="messages")

    def _piece_of_call(self, call_id: str, **call: Any) -> None:
        said, number = self._calls[call_id]
        self._piece(said, "", {**call, "index": number})

    def _complete(self, message_id: str) -> None:
        said = self._said.pop(message_id, None)
        if said is not None:
            whole = said.whole()
            self._tell("messages", [whole], said.agent, name="messages/complete")
            self._tell("updates", {said.agent.name: {"messages": [whole]}}, said.agent)
            self._state_of(said.agent)

    def _result(self, event: Json, agent: _Agent) -> None:
        call_id = event["toolCallId"]
        said, number = self._calls.pop(call_id, (None, 0))  # of the stretch before, perhaps
        name = said.calls[number]["name"] if said else None
        if said:  # a message without a text has no end of its own
            self._complete(said.id)
        whole = tool_message(event["messageId"], call_id, name, event["content"])
        self._introduce(event["messageId"], agent)
        self._tell("messages", [whole], agent, name="messages/complete")
        self._tell("messages-tuple", [whole, self._about(agent, "tools")], agent, name="messages")
        self._tell("updates", {"tools": {"messages": [whole]}}, agent)
        self._state_of(agent)

    def _state_of(self, agent: _Agent) -> None:
        if not agent.namespace:  # a sub-agent's conversation is not the thread's
            self._tell("values", STATE)

    # -- the ends ----------------------------------------------------------------------------

    def _ended(self, event: Json) -> None:
        for message_id in list(self._said):
            self._complete(message_id)
        if event["type"] == "RUN_ERROR":
            self._parts.append(("error", {"error": event["code"], "message": event["message"]}))
            return
        outcome = event["outcome"]
        asked = {}
        if outcome["type"] == "interrupt":
            asked = {INTERRUPT: [interrupt(one["metadata"]) for one in outcome["interrupts"]]}
            self._tell("updates", asked)
        self._tell("values", {**STATE, **asked})
        end = {"run_id": self._run["run_id"], "status": END_STATUS[outcome["type"]]}
        self._parts.append(("end", end))

    def _lifecycle(self, event: Json) -> None:
        run_id = event["subagentRunId"]
        told: Json = {}
        match event["type"]:
            case "SUBAGENT_STARTED":
                above = self._agents[event.get("parentSubagentRunId")].namespace
                own = f"{event['name']}:{run_id}"
                namespace = f"{above}|{own}" if above else own
                self._agents[run_id] = _Agent(event["name"], namespace)
                told = {"event": "started"}
                if "parentToolCallId" in event:
                    told["tool_call_id"] = event["parentToolCallId"]
            case "SUBAGENT_FINISHED":
                completed = event["outcome"]["type"] == "success"
                told = {"event": "completed" if completed else "interrupted"}
            case "SUBAGENT_ERROR":
                error = {"error": event["code"], "message": event["message"]}
                told = {"event": "failed", "error": error}
        agent = self._agents[run_id]
        self._tell("lifecycle", {**told, "namespace": agent.namespace.split("|")}, agent)
