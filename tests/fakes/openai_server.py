"""An OpenAI-compatible provider that does what a script says, and writes down what it saw.

It is strict as the real one: a history that OpenAI would refuse is refused with 400. It records
when each request began, when each chunk left, and when the client hung up, in ``time.time()``, so
that a test in another process can compare.

**Actions**, the words of a script; each is a dict, a step is a list of them:

    {"text": "hi"}  {"text": "hi", "delay": 0.005}      one chunk, after the delay
    {"tokens": 1000, "rate": 50}                        "w0 w1 …", 50 a second (no rate: at once)
    {"call": "send_message", "args": {…}}               a tool call; "fragments": 3, "id": "…"
    {"reasoning": "hm"}                                 a reasoning chunk
    {"wait": 0.5}                                       nothing for a while
    {"hang": "gate"}                                    nothing until release("gate"); "" for ever
    {"error": 429, "message": "…", "code": "…", "retry_after": 1}      first action only: HTTP error
    {"error": 500} later in the step                    an error object inside the stream
    {"silent": true}                                    first action: not even headers, for ever
    {"bad_json": true}                                  a chunk that is no JSON
    {"delta": {…}}                                      a chunk with just this delta
    {"break": true}                                     the connection is cut
    {"finish": "length"}  {"finish": null}              finish reason; null: the stream just ends
    {"usage": [10, 5]}                                  input and output tokens at the end

In a text or in arguments, ``$RESULTS`` stands for the contents of the tool results just given,
``$LAST`` for the last user message and ``$PROGRAM`` for the program of this conversation, so that
a master can hand it to its sub-agents.

**Which step?** In a test process, a function decides: ``server.script = lambda request: [...]``.
Otherwise the conversation names its program, in its last user message that holds one:

    script:NAME                                   one that was given to define() or POST /_script
    {"agents": {"assistant": [step, …], …}}       the program itself; "*" is for all other agents
    {"steps": [step, …]}                          for whichever agent reads it

The agent is read from the system prompt (``You are the agent "assistant".``); ``researcher-2`` uses
the steps of ``researcher`` if it has none of its own. The step is counted by the assistant messages
since that user message: no memory here, so a step that is asked again is answered again. Past the
end of the program, and without any, the answer is ``done``.

As a process: ``python -m tests.fakes.openai_server --port 0`` prints its base URL.
``GET /_log?agent=&containing=``, ``POST /_script {"name", "agents"}``,
``POST /_release {"gate"}``, ``POST /_reset``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Action = dict[str, Any]
Step = list[Action]
Script = Callable[[dict[str, Any]], Sequence[Action] | None]


def text(words: str, delay: float = 0) -> Action:
    return {"text": words, "delay": delay}


def call(tool: str, args: dict[str, Any] | str, fragments: int = 3, **more: Any) -> Action:
    return {"call": tool, "args": args, "fragments": fragments, **more}


@dataclass
class Exchange:
    """One request and what became of it."""

    id: int
    agent: str
    step: int
    started: float
    request: dict[str, Any]
    chunks: list[float] = field(default_factory=list)
    """When each chunk left. The first is the first token."""
    said: str = ""
    outcome: str = "open"
    """``open``, ``completed``, ``closed`` (the client hung up), ``refused``, ``error``."""
    ended: float | None = None
    """When the last byte left, or when the client was seen to hang up."""
    error: str = ""

    def end(self, outcome: str, error: str = "") -> None:
        if self.ended is None:
            self.outcome, self.error, self.ended = outcome, error, time.time()


class Refused(Exception):
    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = more.get("code")
        self.retry_after = more.get("retry_after")

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}


# What OpenAI refuses


def validate(request: dict[str, Any]) -> None:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "[] is too short - 'messages'")
    if not request.get("model"):
        raise Refused(400, "you must provide a model parameter")
    awaited: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            _validate_tool_message(index, message, awaited)
            continue
        _all_answered(awaited)
        awaited = _validate_message(index, message)
    _all_answered(awaited)
    for tool in request.get("tools") or []:
        _validate_tool(tool)


def _all_answered(awaited: dict[str, int]) -> None:
    if awaited:
        raise Refused(
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            f"to each 'tool_call_id'. These did not have response messages: {', '.join(awaited)}",
        )


def _validate_message(index: int, message: dict[str, Any]) -> dict[str, int]:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise Refused(400, f"Invalid value: {role!r}: 'messages[{index}].role'")
    calls = message.get("tool_calls")
    if calls is not None and (role != "assistant" or not calls):
        raise Refused(400, f"Invalid 'messages[{index}].tool_calls'")
    if not _has_content(content) and not calls:
        raise Refused(400, f"Invalid 'messages[{index}].content': empty {role} message")
    awaited: dict[str, int] = {}
    for tool_call in calls or []:
        function = tool_call.get("function") or {}
        if tool_call.get("type") != "function" or not function.get("name"):
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': no function")
        if not tool_call.get("id") or tool_call["id"] in awaited:
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': id missing or twice")
        try:
            arguments = json.loads(function.get("arguments", ""))
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise Refused(400, f"Invalid 'messages[{index}].tool_calls': arguments are no JSON")
        awaited[tool_call["id"]] = index
    return awaited


def _validate_tool_message(index: int, message: dict[str, Any], awaited: dict[str, int]) -> None:
    if awaited.pop(message.get("tool_call_id", ""), None) is None:
        raise Refused(
            400,
            f"Invalid 'messages[{index}]': messages with role 'tool' must be a response to a "
            "preceding message with 'tool_calls'",
        )
    if not isinstance(message.get("content"), str | list):
        raise Refused(400, f"Invalid 'messages[{index}].content'")


def _has_content(content: object) -> bool:
    if isinstance(content, list):
        return any(part.get("type") != "text" or part.get("text") for part in content)
    return isinstance(content, str) and bool(content)


def _validate_tool(tool: dict[str, Any]) -> None:
    function = tool.get("function") or {}
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function.get("name", "")):
        raise Refused(400, f"Invalid tool name: {function.get('name')!r}")
    if function.get("parameters", {}).get("type", "object") != "object":
        raise Refused(400, f"Invalid schema for function {function['name']!r}")


# Which step of which program


def content_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content)


def agent_of(request: dict[str, Any]) -> str:
    for message in request["messages"]:
        if message["role"] in ("system", "developer"):
            found = re.search(r'You are the agent "([^"]+)"', content_of(message))
            if found:
                return found.group(1)
    return ""


@dataclass
class Program:
    marker: str = ""
    agents: dict[str, list[Step]] = field(default_factory=dict)
    since: int = 0
    """How many assistant messages ago it was named."""

    def steps_of(self, agent: str) -> list[Step]:
        base = re.sub(r"-\d+$", "", agent)
        return self.agents.get(agent) or self.agents.get(base) or self.agents.get("*") or []


def program_of(request: dict[str, Any], defined: dict[str, dict[str, list[Step]]]) -> Program:
    since = 0
    for message in reversed(request["messages"]):
        if message["role"] == "assistant":
            since += 1
        elif message["role"] == "user":
            found = _find_program(content_of(message), defined)
            if found is not None:
                return Program(*found, since=since)
    default = defined.get("default")
    return Program("", default, since) if default else Program()


def _find_program(
    words: str, defined: dict[str, dict[str, list[Step]]]
) -> tuple[str, dict[str, list[Step]]] | None:
    named = re.search(r"script:([\w-]+)", words)
    if named and named.group(1) in defined:
        return named.group(0), defined[named.group(1)]
    for start in (found.start() for found in re.finditer(r"\{\s*\"(agents|steps)\"", words)):
        with contextlib.suppress(ValueError):
            program, end = json.JSONDecoder().raw_decode(words[start:])
            agents = program.get("agents") or {"*": program["steps"]}
            return words[start : start + end], agents
    return None


def fill_in(value: Any, request: dict[str, Any], marker: str) -> Any:
    """The placeholders of a text or of arguments."""
    if isinstance(value, dict):
        return {key: fill_in(item, request, marker) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, request, marker) for item in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    messages = request["messages"]
    last = next((content_of(m) for m in reversed(messages) if m["role"] == "user"), "")
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.insert(0, content_of(message))
    value = value.replace("$RESULTS", " | ".join(results)).replace("$LAST", last)
    return value.replace("$PROGRAM", marker)


# The server


class FakeOpenAI:
    """The server in a thread of the test process: ``with FakeOpenAI() as server: …``."""

    def __init__(self, script: Script | None = None, *, port: int = 0) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.programs: dict[str, dict[str, list[Step]]] = {}
        self._port = port
        self._gates: dict[str, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-openai", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """What OPENAI_BASE_URL is to be."""
        return f"{self.origin}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake provider did not start")

    def stop(self) -> None:
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(10)

    def define(self, name: str, agents: dict[str, list[Step]]) -> None:
        self.programs[name] = agents

    def release(self, gate: str) -> None:
        """Let everything go on that hangs at this gate, now or later."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._gate(gate).set)

    def reset(self) -> None:
        self.exchanges.clear()
        self.programs.clear()
        self._gates.clear()
        self.script = None

    def log(self, agent: str | None = None) -> list[Exchange]:
        return [e for e in list(self.exchanges) if agent is None or e.agent == agent]

    def wait_for(
        self, condition: Callable[[list[Exchange]], object], timeout: float = 5
    ) -> list[Exchange]:
        """The log, as soon as the condition holds of it."""
        until = time.monotonic() + timeout
        while not condition(self.log()):
            if time.monotonic() > until:
                raise TimeoutError(f"not seen within {timeout} s: {self.log()}")
            time.sleep(0.002)
        return self.log()

    def serve_forever(self, announce: Callable[[str], None]) -> None:
        """In the foreground, for a process of its own."""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(announce))

    def _run(self) -> None:
        asyncio.run(self._serve(lambda _: None))

    async def _serve(self, announce: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        announce(self.url)
        async with server:
            await self._stopped.wait()
            for connection in list(self._connections):
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            connection = Connection(self, reader, writer)
            while await connection.serve_one():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    def answer_admin(self, method: str, path: str, body: dict[str, Any]) -> Any:
        path, _, query = path.partition("?")
        match method, path:
            case "GET", "/_log":
                wanted = dict(urllib.parse.parse_qsl(query))
                return {"exchanges": self._entries(**wanted), "now": time.time()}
            case "POST", "/_script":
                self.define(body["name"], body["agents"])
            case "POST", "/_release":
                self._gate(body["gate"]).set()
            case "POST", "/_reset":
                self.reset()
            case "GET", "/v1/models":
                return {"object": "list", "data": [{"id": "fake", "object": "model"}]}
            case _:
                raise Refused(404, f"no {method} {path} here")
        return {"ok": True}

    def _entries(self, agent: str = "", containing: str = "") -> list[dict[str, Any]]:
        return [
            asdict(exchange)
            for exchange in self.exchanges
            if (not agent or exchange.agent == agent)
            and (not containing or containing in json.dumps(exchange.request, ensure_ascii=False))
        ]

    def begin(self, request: dict[str, Any]) -> tuple[Exchange, Program]:
        messages = request.get("messages") or []
        known = all(isinstance(m, dict) and "role" in m for m in messages)
        agent = agent_of(request) if known and messages else ""
        program = program_of(request, self.programs) if known and messages else Program()
        exchange = Exchange(len(self.exchanges), agent, program.since, time.time(), request)
        self.exchanges.append(exchange)
        return exchange, program

    def actions(self, request: dict[str, Any], program: Program, agent: str) -> list[Action]:
        if self.script is not None:
            scripted = self.script(request)
            if scripted is not None:
                return list(scripted)
        steps = program.steps_of(agent)
        step = steps[program.since] if program.since < len(steps) else [text("done")]
        return [
            {key: fill_in(value, request, program.marker) for key, value in action.items()}
            for action in step
        ]


class HungUp(Exception):
    """The client closed the connection."""


class Connection:
    """One kept-alive HTTP connection. Reads ahead while it answers, to see the client leave."""

    def __init__(
        self, server: FakeOpenAI, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._ahead = bytearray()

    async def serve_one(self) -> bool:
        head = await self._read_head()
        if head is None:
            return False
        method, path, headers = head
        body = await self._read(int(headers.get("content-length", 0)))
        try:
            if (method, path) == ("POST", "/v1/chat/completions"):
                return await self._complete(body, headers)
            answer = self._server.answer_admin(method, path, json.loads(body or b"{}"))
            await self._send_json(200, answer)
        except Refused as refused:
            await self._send_json(refused.status, refused.body(), refused.retry_after)
        return True

    async def _complete(self, body: bytes, headers: dict[str, str]) -> bool:
        request = json.loads(body)
        exchange, program = self._server.begin(request)
        try:
            if not headers.get("authorization", "").removeprefix("Bearer").strip():
                raise Refused(401, "You didn't provide an API key.", code="invalid_api_key")
            validate(request)
        except Refused as refused:
            exchange.end("refused", refused.message)
            raise
        actions = self._server.actions(request, program, exchange.agent)
        if actions and "error" in actions[0]:
            exchange.end("error", str(actions[0]))
            raise Refused(
                actions[0]["error"],
                actions[0].get("message", "scripted error"),
                code=actions[0].get("code"),
                retry_after=actions[0].get("retry_after"),
            )
        try:
            return await self._watching_the_client(Answer(self, exchange, actions).play())
        except (HungUp, ConnectionError):
            exchange.end("closed")
            return False
        except asyncio.CancelledError:
            exchange.end("error", "the server was stopped")
            raise

    async def _watching_the_client(self, answer: Any) -> bool:
        playing = asyncio.ensure_future(answer)
        watching = asyncio.ensure_future(self._until_hung_up())
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                return bool(playing.result())
            raise HungUp
        finally:
            for task in (playing, watching):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _until_hung_up(self) -> None:
        try:
            while data := await self._reader.read(65536):
                self._ahead += data
        except ConnectionError:
            pass

    async def _read_head(self) -> tuple[str, str, dict[str, str]] | None:
        while b"\r\n\r\n" not in self._ahead:
            data = await self._reader.read(65536)
            if not data:
                return None
            self._ahead += data
        head, _, rest = bytes(self._ahead).partition(b"\r\n\r\n")
        self._ahead = bytearray(rest)
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _version = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        return method, path, {name.lower(): value.strip() for name, _, value in pairs}

    async def _read(self, size: int) -> bytes:
        while len(self._ahead) < size:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionResetError
            self._ahead += data
        body, self._ahead = bytes(self._ahead[:size]), self._ahead[size:]
        return body

    async def _send_json(self, status: int, body: Any, retry_after: float | None = None) -> None:
        data = json.dumps(body, ensure_ascii=False).encode()
        extra = f"Retry-After: {retry_after:g}\r\n" if retry_after is not None else ""
        self._writer.write(
            f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\n{extra}"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await self._writer.drain()

    async def begin_stream(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        await self._writer.drain()

    async def send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self._writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def send_whole(self, body: Any) -> None:
        await self._send_json(200, body)

    def cut(self) -> None:
        self._writer.transport.abort()


class Cut(Exception):
    """The script says that the connection breaks here."""


class Answer:
    """One response: the actions, played into a stream (or collected, for ``stream: false``)."""

    def __init__(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> None:
        self._connection = connection
        self._exchange = exchange
        self._actions = actions
        self._calls = 0
        self._finish: str | None = "stop"
        self._usage: list[int] | None = None

    async def play(self) -> bool:
        request = self._exchange.request
        if not request.get("stream"):
            await self._play_whole()
            return True
        if self._actions and self._actions[0].get("silent"):
            await asyncio.Event().wait()
        await self._connection.begin_stream()
        try:
            for action in self._actions:
                async for delta in self._deltas(action):
                    await self._send(delta)
        except Cut:
            self._exchange.end("error", "cut by the script")
            self._connection.cut()
            return False
        except Refused as refused:
            self._exchange.end("error", refused.message)
            await self._connection.send_event(json.dumps(refused.body()))
            await self._connection.end_stream()
            return True
        await self._close(request)
        return True

    async def _close(self, request: dict[str, Any]) -> None:
        if self._finish is not None:
            await self._connection.send_event(self._chunk({}, self._finish))
            if (request.get("stream_options") or {}).get("include_usage"):
                await self._connection.send_event(self._usage_chunk())
            await self._connection.send_event("[DONE]")
        await self._connection.end_stream()
        self._exchange.end("completed")

    async def _send(self, delta: dict[str, Any] | str) -> None:
        data = delta if isinstance(delta, str) else self._chunk(delta)
        await self._connection.send_event(data)
        self._exchange.chunks.append(time.time())
        if isinstance(delta, dict):
            self._exchange.said += delta.get("content") or ""

    async def _deltas(self, action: Action) -> AsyncIterator[dict[str, Any] | str]:
        match action:
            case {"text": words}:
                await asyncio.sleep(action.get("delay", 0))
                yield {"content": words}
            case {"tokens": int(count)}:
                async for delta in self._tokens(count, action.get("rate")):
                    yield delta
            case {"reasoning": words}:
                yield {"reasoning_content": words}
            case {"call": tool}:
                for delta in self._call(tool, action):
                    yield delta
            case {"delta": delta}:
                yield delta
            case {"bad_json": _}:
                yield "{this is no json"
            case _:
                await self._effect(action)

    async def _effect(self, action: Action) -> None:
        match action:
            case {"wait": seconds}:
                await asyncio.sleep(seconds)
            case {"hang": gate}:
                server = self._connection._server
                await (server._gate(gate) if gate else asyncio.Event()).wait()
            case {"break": _}:
                raise Cut
            case {"error": status}:
                message = action.get("message", "scripted error")
                raise Refused(status, message, code=action.get("code", "server_error"))
            case {"finish": reason}:
                self._finish = reason
            case {"usage": numbers}:
                self._usage = list(numbers)
            case _:
                raise Refused(500, f"the script has no action {action}")

    async def _tokens(self, count: int, rate: float | None) -> AsyncIterator[dict[str, Any]]:
        begun = time.monotonic()
        for number in range(count):
            if rate:
                await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            yield {"content": f"w{number} "}

    def _call(self, tool: str, action: Action) -> Iterator[dict[str, Any]]:
        index, self._calls, self._finish = self._calls, self._calls + 1, "tool_calls"
        call_id = action.get("id", f"call_{self._exchange.id}_{index}_{int(time.time() * 1e6)}")
        head = {"index": index, "id": call_id, "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": tool, "arguments": ""}}]}
        args = action.get("args", {})
        data = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
        size = max(1, -(-len(data) // action.get("fragments", 3)))
        for start in range(0, len(data), size):
            part = {"index": index, "function": {"arguments": data[start : start + size]}}
            yield {"tool_calls": [part]}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return json.dumps(self._envelope("chat.completion.chunk", [choice]), ensure_ascii=False)

    def _usage_chunk(self) -> str:
        return json.dumps({**self._envelope("chat.completion.chunk", []), "usage": self._count()})

    def _count(self) -> dict[str, int]:
        given = self._usage or [
            len(json.dumps(self._exchange.request["messages"])) // 4,
            max(1, len(self._exchange.said) // 4),
        ]
        return {
            "prompt_tokens": given[0],
            "completion_tokens": given[1],
            "total_tokens": sum(given),
        }

    def _envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._exchange.id}",
            "object": kind,
            "created": int(self._exchange.started),
            "model": self._exchange.request["model"],
            "choices": choices,
        }

    async def _play_whole(self) -> None:
        calls: dict[int, dict[str, Any]] = {}
        for action in self._actions:
            async for delta in self._deltas(action):
                if not isinstance(delta, dict):
                    continue
                self._exchange.said += delta.get("content") or ""
                for piece in delta.get("tool_calls", []):
                    if "id" in piece:
                        calls[piece["index"]] = piece
                    else:
                        function = calls[piece["index"]]["function"]
                        function["arguments"] += piece["function"]["arguments"]
        message: dict[str, Any] = {"role": "assistant", "content": self._exchange.said or None}
        if calls:
            message["tool_calls"] = list(calls.values())
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        whole = {**self._envelope("chat.completion", [choice]), "usage": self._count()}
        self._exchange.end("completed")
        await self._connection.send_whole(whole)


# A process of its own, seen from a test


class FakeOpenAIProcess:
    """The server as a process: ``with FakeOpenAIProcess() as provider: …``, for cluster tests."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.openai_server", "--port", str(self._port)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("the fake provider did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def env(self) -> dict[str, str]:
        """What a worker needs to talk to it."""
        return {
            "AGENT_MODEL": "openai-chat:fake",
            "OPENAI_API_KEY": "sk-fake",
            "OPENAI_BASE_URL": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def define(self, name: str, agents: dict[str, list[Step]]) -> str:
        """Returns what a message must contain to run this program."""
        self._send("/_script", {"name": name, "agents": agents})
        return f"script:{name}"

    def release(self, gate: str) -> None:
        self._send("/_release", {"gate": gate})

    def reset(self) -> None:
        self._send("/_reset", {})

    def log(self, agent: str | None = None, containing: str = "") -> list[Exchange]:
        """What was asked, oldest first; ``containing`` picks one conversation."""
        query = urllib.parse.urlencode({"agent": agent or "", "containing": containing})
        return [Exchange(**entry) for entry in self._send(f"/_log?{query}")["exchanges"]]

    def wait_for(
        self, condition: Callable[[list[Exchange]], object], timeout: float = 10, **which: Any
    ) -> list[Exchange]:
        until = time.monotonic() + timeout
        while not condition(log := self.log(**which)):
            if time.monotonic() > until:
                raise TimeoutError(f"not seen within {timeout} s: {log}")
            time.sleep(0.01)
        return log

    def _send(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.url.removesuffix("/v1") + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description="an OpenAI-compatible provider from a script")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    FakeOpenAI(port=options.port).serve_forever(lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
