"""What the two scripted providers share: scripts, the log of exchanges, HTTP, thread and process.

A scripted provider does what a script says, and writes down what it saw. It is strict as the real
one: a history that the real one would refuse is refused with 400. It records when each request
began, when each chunk left, and when the client hung up, in ``time.time()``, so that a test in
another process can compare. What differs between wires stands in ``openai_server`` and
``anthropic_server``: what is refused, how errors look, how an answer is streamed. Both only stream.

**Actions**, the words of a script; each is a dict, a step is a list of them:

    {"text": "hi"}  {"text": "hi", "delay": 0.005}      one chunk, after the delay
    {"tokens": 1000, "rate": 50}                        "w0 w1 …", 50 a second (no rate: at once)
    {"call": "send_message", "args": {…}}               a tool call; "fragments": 3, "id": "…"
    {"call": …, "hang_at": 7}                           its arguments stay at 7 characters, for ever
    {"reasoning": "hm"}                                 a reasoning chunk
    {"wait": 0.5}                                       nothing for a while
    {"hang": "gate"}                                    nothing until release("gate"); "" for ever
    {"torn": "好"}                                      half the bytes of this text, then nothing
    {"error": 429, "message": "…", "code": "…", "retry_after": 1}      first action only: HTTP error
    {"error": 500} later in the step                    an error object inside the stream
    {"silent": true}                                    first action: not even headers, for ever
    {"bad_json": true}                                  a chunk that is no JSON
    {"delta": {…}}                                      a chunk with just this delta (OpenAI's wire)
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

As a process: ``python -m tests.fakes.openai_server --port 0`` prints where it is, as JSON.
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
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

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

    @cached_property  # a log of thousands is searched again and again
    def words(self) -> str:
        """The request as one text."""
        return json.dumps(self.request, ensure_ascii=False)

    def as_json(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def end(self, outcome: str, error: str = "") -> None:
        if self.ended is None:
            self.outcome, self.error, self.ended = outcome, error, time.time()


class Refused(Exception):
    """What the provider says no to, with the HTTP status that goes with it."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = more.get("code")
        self.retry_after = more.get("retry_after")


# Which step of which program


@dataclass(frozen=True)
class Said:
    """One message of a request, whatever the wire: ``role`` is OpenAI's word for it."""

    role: str
    text: str


def content_of(content: Any) -> str:
    """The text of a message's content, be it a string or a list of blocks."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content or "")


def agent_of(said: Sequence[Said]) -> str:
    for message in said:
        if message.role in ("system", "developer"):
            found = re.search(r'You are the agent "([^"]+)"', message.text)
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


def program_of(said: Sequence[Said], defined: dict[str, dict[str, list[Step]]]) -> Program:
    since = 0
    for message in reversed(said):
        if message.role == "assistant":
            since += 1
        elif message.role == "user":
            found = _find_program(message.text, defined)
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


def fill_in(value: Any, said: Sequence[Said], marker: str) -> Any:
    """The placeholders of a text or of arguments."""
    if isinstance(value, dict):
        return {key: fill_in(item, said, marker) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, said, marker) for item in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    last = next((message.text for message in reversed(said) if message.role == "user"), "")
    results: list[str] = []
    for message in reversed(said):
        if message.role != "tool":
            break
        results.insert(0, message.text)
    value = value.replace("$RESULTS", " | ".join(results)).replace("$LAST", last)
    return value.replace("$PROGRAM", marker)


# The server


class FakeProvider(ABC):
    """The server in a thread of the test process: ``with FakeOpenAI() as server: …``."""

    path: ClassVar[str]
    """Where requests are posted."""

    def __init__(self, script: Script | None = None, *, port: int = 0) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.programs: dict[str, dict[str, list[Step]]] = {}
        self._port = port
        self._gates: dict[str, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-provider", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    # -- the wire ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def env(self) -> dict[str, str]:
        """What a client needs to talk to it."""

    @abstractmethod
    def check(self, request: dict[str, Any], headers: dict[str, str]) -> None:
        """Raise Refused for what the real provider would not take."""

    @abstractmethod
    def said(self, request: dict[str, Any]) -> list[Said]:
        """The conversation that a request holds."""

    @abstractmethod
    def error_body(self, refused: Refused) -> dict[str, Any]:
        """An error as this provider writes it."""

    @abstractmethod
    def answer(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> Answer:
        """What streams the actions."""

    # -- for tests --------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

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
            self._loop.call_soon_threadsafe(self.gate(gate).set)

    def reset(self) -> None:
        self.exchanges.clear()
        self.programs.clear()
        self._gates.clear()
        self.script = None

    def log(self, agent: str | None = None, containing: str = "") -> list[Exchange]:
        """What was asked, oldest first; ``containing`` picks one conversation."""
        return [
            exchange
            for exchange in list(self.exchanges)
            if (not agent or exchange.agent == agent)
            and (not containing or containing in exchange.words)
        ]

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

    # -- serving ----------------------------------------------------------------------------

    def serve_forever(self) -> None:
        """In the foreground, for a process of its own; says at once where."""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(self._announce))

    def _announce(self) -> None:
        print(json.dumps({"origin": self.origin, "env": self.env}), flush=True)

    def _run(self) -> None:
        asyncio.run(self._serve(lambda: None))

    async def _serve(self, announce: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        announce()
        async with server:
            await self._stopped.wait()
            for connection in list(self._connections):
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def gate(self, name: str) -> asyncio.Event:
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
                return {"exchanges": [exchange.as_json() for exchange in self.log(**wanted)]}
            case "POST", "/_script":
                self.define(body["name"], body["agents"])
            case "POST", "/_release":
                self.gate(body["gate"]).set()
            case "POST", "/_reset":
                self.reset()
            case "GET", "/v1/models":
                return {"object": "list", "data": [{"id": "fake", "object": "model"}]}
            case _:
                raise Refused(404, f"no {method} {path} here")
        return {"ok": True}

    def begin(self, request: dict[str, Any]) -> tuple[Exchange, list[Action]]:
        """Write the request down, and find what is to be played."""
        said: list[Said] = []
        with contextlib.suppress(KeyError, TypeError, AttributeError):  # it will be refused
            said = self.said(request)
        agent, program = agent_of(said), program_of(said, self.programs)
        exchange = Exchange(len(self.exchanges), agent, program.since, time.time(), request)
        self.exchanges.append(exchange)
        if self.script is not None:
            scripted = self.script(request)
            if scripted is not None:
                return exchange, list(scripted)
        steps = program.steps_of(agent)
        step = steps[program.since] if program.since < len(steps) else [text("done")]
        return exchange, [
            {key: fill_in(value, said, program.marker) for key, value in action.items()}
            for action in step
        ]


def check_text(body: bytes) -> dict[str, Any]:
    """The request. Raises Refused for what is not JSON of valid text, such as half a surrogate."""
    try:
        request = json.loads(body)
        json.dumps(request, ensure_ascii=False).encode()
    except ValueError as error:
        raise Refused(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise Refused(400, "The request body is no object")
    return request


class HungUp(Exception):
    """The client closed the connection."""


class Connection:
    """One kept-alive HTTP connection. Reads ahead while it answers, to see the client leave."""

    def __init__(
        self, server: FakeProvider, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
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
            if (method, path.partition("?")[0]) == ("POST", self.server.path):
                return await self._answer(body, headers)
            answer = self.server.answer_admin(method, path, json.loads(body or b"{}"))
            await self._send_json(200, answer)
        except Refused as refused:
            answer = self.server.error_body(refused)
            await self._send_json(refused.status, answer, refused.retry_after)
        return True

    async def _answer(self, body: bytes, headers: dict[str, str]) -> bool:
        request = check_text(body)
        exchange, actions = self.server.begin(request)
        try:
            self.server.check(request, headers)
            if not request.get("stream"):
                raise Refused(400, "this provider only streams")
        except Refused as refused:
            exchange.end("refused", refused.message)
            raise
        if actions and "error" in actions[0]:
            exchange.end("error", str(actions[0]))
            raise _scripted_error(actions[0])
        try:
            answer = self.server.answer(self, exchange, actions)
            return await self._watching_the_client(answer.play())
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

    async def send(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def cut(self) -> None:
        self._writer.transport.abort()


def _scripted_error(action: Action) -> Refused:
    message = action.get("message", "scripted error")
    more = {"code": action.get("code"), "retry_after": action.get("retry_after")}
    return Refused(action["error"], message, **more)


# The answer


class Cut(Exception):
    """The script says that the connection breaks here."""


def sse(data: Any, event: str = "") -> bytes:
    """One server-sent event. A half of a surrogate pair can only travel escaped."""
    words = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {event}\n" if event else ""
    try:
        return f"{head}data: {words}\n\n".encode()
    except UnicodeEncodeError:
        return f"{head}data: {json.dumps(data)}\n\n".encode()


class Answer(ABC):
    """One response: the actions, played into a stream. How a piece looks is the wire's."""

    def __init__(self, connection: Connection, exchange: Exchange, actions: list[Action]) -> None:
        self.exchange = exchange
        self.finish: str | None = "stop"
        self.usage: list[int] | None = None
        self._connection = connection
        self._actions = actions
        self._calls = 0

    # -- the wire ---------------------------------------------------------------------------

    def head(self) -> bytes:
        """What comes before the first piece; it is not counted as a chunk."""
        return b""

    @abstractmethod
    def tail(self) -> bytes:
        """How a stream ends whose ``finish`` is not None."""

    @abstractmethod
    def text(self, words: str) -> bytes: ...

    @abstractmethod
    def reasoning(self, words: str) -> bytes: ...

    @abstractmethod
    def call_begins(self, index: int, call_id: str, tool: str) -> bytes: ...

    @abstractmethod
    def call_arguments(self, index: int, piece: str) -> bytes: ...

    def raw(self, delta: dict[str, Any]) -> bytes:
        """A chunk with just this delta, on a wire that has such."""
        raise Refused(500, f"this wire has no chunk for {delta}")

    # -- playing ----------------------------------------------------------------------------

    async def play(self) -> bool:
        """True if the connection can be used again."""
        if self._actions and self._actions[0].get("silent"):
            await asyncio.Event().wait()
        await self._connection.begin_stream()
        try:
            if head := self.head():
                await self._connection.send(head)
            for action in self._actions:
                async for piece in self._pieces(action):
                    await self._connection.send(piece)
                    self.exchange.chunks.append(time.time())
        except Cut:
            self.exchange.end("error", "cut by the script")
            self._connection.cut()
            return False
        except Refused as refused:
            self.exchange.end("error", refused.message)
            await self._connection.send(sse(self._connection.server.error_body(refused), "error"))
            await self._connection.end_stream()
            return True
        if self.finish is not None:
            await self._connection.send(self.tail())
        await self._connection.end_stream()
        self.exchange.end("completed")
        return True

    async def _pieces(self, action: Action) -> AsyncIterator[bytes]:
        match action:
            case {"text": words}:
                await asyncio.sleep(action.get("delay", 0))
                yield self._said(words)
            case {"tokens": int(count)}:
                async for piece in self._tokens(count, action.get("rate")):
                    yield piece
            case {"reasoning": words}:
                yield self.reasoning(words)
            case {"call": _}:
                async for piece in self._call(action):
                    yield piece
            case {"delta": delta}:
                yield self.raw(delta)
            case {"bad_json": _}:
                yield sse("{this is no json")
            case _:
                await self._effect(action)

    async def _effect(self, action: Action) -> None:
        match action:
            case {"wait": seconds}:
                await asyncio.sleep(seconds)
            case {"torn": words}:
                piece = self.text(words)
                await self._connection.send(piece[: piece.index(words.encode()) + 1])
                await asyncio.Event().wait()
            case {"hang": gate}:
                event = self._connection.server.gate(gate) if gate else asyncio.Event()
                await event.wait()
            case {"break": _}:
                raise Cut
            case {"error": _}:
                raise _scripted_error({"code": "server_error", **action})
            case {"finish": reason}:
                self.finish = reason
            case {"usage": numbers}:
                self.usage = list(numbers)
            case _:
                raise Refused(500, f"the script has no action {action}")

    def _said(self, words: str) -> bytes:
        self.exchange.said += words
        return self.text(words)

    async def _tokens(self, count: int, rate: float | None) -> AsyncIterator[bytes]:
        begun = time.monotonic()
        for number in range(count):
            if rate:
                await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            yield self._said(f"w{number} ")

    async def _call(self, action: Action) -> AsyncIterator[bytes]:
        index, self._calls, self.finish = self._calls, self._calls + 1, "tool_calls"
        call_id = action.get("id", f"call_{self.exchange.id}_{index}_{int(time.time() * 1e6)}")
        yield self.call_begins(index, call_id, action["call"])
        args = action.get("args", {})
        data = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
        data = data[: action.get("hang_at", len(data))]
        size = max(1, -(-len(data) // action.get("fragments", 3)))
        for start in range(0, len(data), size):
            yield self.call_arguments(index, data[start : start + size])
        if "hang_at" in action:
            await asyncio.Event().wait()

    def count(self) -> tuple[int, int]:
        """Input and output tokens: what the script says, else a guess."""
        if self.usage is not None:
            return self.usage[0], self.usage[1]
        sent = len(json.dumps(self.exchange.request["messages"])) // 4
        return sent, max(1, len(self.exchange.said) // 4)


# A process of its own, seen from a test


class FakeProcess:
    """A scripted provider as a process, for cluster tests; ``wire`` is the name of its module."""

    def __init__(self, wire: str = "openai_server") -> None:
        self._wire = wire
        self.env: dict[str, str] = {}
        """What a worker needs to talk to it."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.fakes.{self._wire}"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        announced = self._process.stdout.readline()
        if not announced:
            raise RuntimeError("the fake provider did not start")
        self.env, self._origin = (json.loads(announced)[name] for name in ("env", "origin"))
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
            self._origin + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            return json.load(answer)


def serve(provider: type[FakeProvider]) -> None:
    """``main`` of a wire's module."""
    parser = argparse.ArgumentParser(description="a provider that does what a script says")
    parser.add_argument("--port", type=int, default=0)
    provider(port=parser.parse_args().port).serve_forever()
