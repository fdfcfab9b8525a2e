"""A program that uses the site by CONTRACT.md alone: HTTP, server-sent events, the WebSocket.

    chat = Api(web_1.url, token).new_session()
    with chat.events() as reader:               # collects beside the test, with arrival times
        chat.post("hello")
        reader.until(first("TEXT_MESSAGE_CONTENT"))
        chat.at(web_2.url).interrupt()          # the same session through another node
        reader.until(first("RUN_FINISHED"))

Nothing here knows Django, a table or a process. Every event that arrives is checked: valid AG-UI,
its id larger than the one before; and a stream from cursor 0 is one that a strict client takes.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx
from ag_ui.core import Event
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.verifier import verify

Json = dict[str, Any]
T = TypeVar("T")

PATIENCE = 60.0  # seconds: for what must come, however busy the machine is
LOOK_AGAIN = 0.02

TERMINAL = ("RUN_FINISHED", "RUN_ERROR")
AGUI_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


def eventually(look: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
    """What ``look`` returns, as soon as it is true."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what} (last: {found!r})")
        time.sleep(LOOK_AGAIN)
    return found


# -- HTTP -----------------------------------------------------------------------------------------


@cache
def _http(url: str, token: str | None) -> httpx.Client:
    """One client for each user and node: making one takes longer than a request."""
    headers = Api(url, token).headers
    return httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False, verify=False)


class Refused(Exception):
    """The site said no; ``code`` is what programs read."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        body = response.json()
        self.code: str = body["code"]
        super().__init__(f"{self.status} {self.code}: {body['detail']}")


@dataclass(frozen=True)
class Api:
    """One user at one node."""

    url: str
    token: str | None

    @property
    def http(self) -> httpx.Client:
        return _http(self.url, self.token)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON. Raises Refused for every status from 400 on."""
        response = self.http.request(method, f"/api{path}", json=body)
        if response.status_code >= 400:
            raise Refused(response)
        return response.json() if response.content else None

    def new_session(self, **body: Any) -> Chat:
        return Chat(self, self.call("POST", "/chat", body)["id"])


@dataclass
class Chat:
    """One session, seen through one node."""

    api: Api
    id: str

    def at(self, url: str) -> Chat:
        """The same session through another node."""
        return Chat(Api(url, self.api.token), self.id)

    def call(self, method: str, path: str = "", body: Any = None) -> Any:
        return self.api.call(method, f"/chat/{self.id}{path}", body)

    def post(self, content: str, **more: Any) -> Json:
        answer: Json = self.call("POST", "/messages", {"content": content, **more})
        return answer

    def interrupt(self, **which: Any) -> Json:
        answer: Json = self.call("POST", "/interrupt", which)
        return answer

    def respond(self, question_id: str, **answer: Any) -> Json:
        run: Json = self.call("POST", "/respond", {"question_id": question_id, **answer})
        return run

    def snapshot(self) -> Json:
        snapshot: Json = self.call("GET")
        return snapshot

    def agent(self, agent_id: str) -> Json | None:
        """An agent as the panel has it; None while it has never run."""
        return next((a for a in self.snapshot()["agents"] if a["agent_id"] == agent_id), None)

    def messages(self, agent_id: str = "assistant") -> list[Json]:
        items: list[Json] = self.call("GET", f"/messages?agent_id={agent_id}")["items"]
        return items

    def inbox(self) -> list[Json]:
        items: list[Json] = self.call("GET", "/inbox")["items"]
        return items

    def worklog(self) -> list[Json]:
        items: list[Json] = self.call("GET", "/worklog")["items"]
        return items

    def events(self, cursor: int | None = None, *, last_event_id: int | None = None) -> Reader:
        """A reader of the stream; without a cursor it begins with the state as it is."""
        return Reader(self.api, f"/api/chat/{self.id}/events", cursor, last_event_id)

    def log(self) -> list[Arrived]:
        """Everything the session has logged until now."""
        cursor = int(self.snapshot()["cursor"])
        with self.events(0) as reader:
            return reader.until(lambda all_: list(all_) if all_ and all_[-1].id >= cursor else None)

    def socket(self, **query: int) -> Socket:
        return Socket(self.api, self.id, query)

    def until_idle(self, timeout: float = PATIENCE) -> Json:
        """The snapshot, as soon as nothing runs and nothing waits."""

        def look() -> Json | None:
            snapshot = self.snapshot()
            return snapshot if snapshot["status"] == "idle" else None

        snapshot = eventually(look, f"session {self.id} idle", timeout)
        assert snapshot
        return snapshot


# -- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrived:
    """One event and when it was here (``time.time()``, which other processes share)."""

    id: int
    event: Json
    at: float

    @property
    def type(self) -> str:
        return str(self.event["type"])


Condition = Callable[[Sequence[Arrived]], T | None]


def first(kind: str, **fields: Any) -> Condition[Arrived]:
    """The first event of a type whose fields are these."""

    def look(events: Sequence[Arrived]) -> Arrived | None:
        return next((e for e in events if e.type == kind and _has(e.event, fields)), None)

    return look


def custom(name: str, **value: Any) -> Condition[Arrived]:
    """The first CUSTOM event of that name whose value holds these fields."""

    def look(events: Sequence[Arrived]) -> Arrived | None:
        return next(
            (e for e in events if _is_custom(e, name) and _has(e.event["value"], value)), None
        )

    return look


def finished(run_id: str | None = None) -> Condition[Arrived]:
    """The terminal event: of this run, or the first of all (a question's is none)."""

    def look(events: Sequence[Arrived]) -> Arrived | None:
        return next((e for e in events if _is_end(e, run_id)), None)

    return look


def _is_end(arrived: Arrived, run_id: str | None) -> bool:
    if arrived.type not in TERMINAL or is_question(arrived):
        return False
    return run_id is None or arrived.event.get("runId") in (run_id, None)


def is_question(arrived: Arrived) -> bool:
    return bool((arrived.event.get("outcome") or {}).get("type") == "interrupt")


def customs(events: Iterable[Arrived], name: str) -> list[Json]:
    """The values of all CUSTOM events of that name."""
    return [e.event["value"] for e in events if _is_custom(e, name)]


def _is_custom(arrived: Arrived, name: str) -> bool:
    return arrived.type == "CUSTOM" and arrived.event["name"] == name


def _has(event: Json, fields: Json) -> bool:
    return all(event.get(name) == value for name, value in fields.items())


def texts(events: Iterable[Arrived]) -> dict[str, str]:
    """Message id → text, put together from what was streamed."""
    found: dict[str, str] = {}
    for arrived in events:
        if arrived.type == "TEXT_MESSAGE_START":
            found[arrived.event["messageId"]] = ""
        elif arrived.type == "TEXT_MESSAGE_CONTENT":
            found[arrived.event["messageId"]] += arrived.event["delta"]
    return found


class Collected:
    """What a stream brought so far, filled by a thread and waited for by a test."""

    def __init__(self, cursor: int | None) -> None:
        self.from_the_beginning = cursor == 0
        self._changed = threading.Condition()
        self._events: list[Arrived] = []
        self._fault: str | None = None

    @property
    def events(self) -> list[Arrived]:
        with self._changed:
            return list(self._events)

    @property
    def cursor(self) -> int:
        """Where to go on after what has arrived."""
        return self.events[-1].id

    def until(self, condition: Condition[T], timeout: float = PATIENCE) -> T:
        """What the condition finds in the events, as soon as it finds it."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while (found := condition(self._events)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or self._fault:
                    why = self._fault or f"not within {timeout:g} s"
                    seen = "\n".join(str(e.event)[:300] for e in self._events[-30:])
                    raise AssertionError(f"{why}; the last events:\n{seen}")
                self._changed.wait(left)
        return found

    def until_over(self, timeout: float = PATIENCE) -> None:
        """Wait for the stream's end, from whichever side."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._fault, timeout), "the stream goes on"

    def check(self) -> None:
        """Everything that arrived was valid, and in order."""
        before = 0
        for arrived in self.events:
            AGUI_EVENT.validate_python(arrived.event)
            assert arrived.id > before or arrived.id == 0, f"{arrived.id} came after {before}"
            before = arrived.id
        if self.from_the_beginning:
            verify(arrived.event for arrived in self.events)

    def _arrived(self, arrived: Iterable[Arrived]) -> None:
        with self._changed:
            self._events += arrived
            self._changed.notify_all()

    def _over(self, why: str) -> None:
        with self._changed:
            self._fault = why
            self._changed.notify_all()


class Reader(Collected):
    """One SSE connection. It is open when the constructor returns."""

    def __init__(
        self, api: Api, path: str, cursor: int | None, last_event_id: int | None = None
    ) -> None:
        super().__init__(cursor if last_event_id is None else last_event_id)
        address = urlsplit(api.url)
        assert address.hostname
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        headers = dict(api.headers)
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        query = "" if cursor is None else "?" + urlencode({"cursor": cursor})
        self._connection.request("GET", path + query, headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200, (self._response.status, self._response.read())
        assert self._connection.sock
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self._read, name="sse", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.check()

    def close(self) -> None:
        """Leave, as a tab that is closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._connection.close()

    def _read(self) -> None:
        text = b""
        why = "the stream ended"
        try:
            while data := self._response.read1(65536):
                now = time.time()
                *blocks, text = (text + data).split(b"\n\n")
                self._arrived(filter(None, (_parse(block.decode(), now) for block in blocks)))
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = f"the stream broke: {error!r}"
        self._over(why)


def _parse(block: str, now: float) -> Arrived | None:
    """An event of the stream; None for a comment or ``retry``."""
    fields = dict(line.split(": ", 1) for line in block.split("\n") if line and line[0] != ":")
    if "data" not in fields:
        return None
    event = json.loads(fields["data"])
    if fields["event"] != event["type"]:
        raise ValueError(f"event {fields['event']} holds {event['type']}")
    return Arrived(int(fields["id"]), event, now)


# -- the WebSocket --------------------------------------------------------------------------------


class Socket(Collected):
    """One WebSocket: verbs that are answered by their ``ref``, and the events."""

    def __init__(self, api: Api, sid: str, query: dict[str, int]) -> None:
        super().__init__(query.get("cursor"))
        address = f"{api.url.replace('http', 'ws', 1)}/ws/chat/{sid}/?{urlencode(query)}"
        self._open = ExitStack()
        self._socket = self._open.enter_context(
            connect(
                address, additional_headers=api.headers, proxy=None, max_size=None, max_queue=None
            )
        )
        self._answers: dict[str, Json] = {}
        self._sent = 0
        self._thread = threading.Thread(target=self._read, name="websocket", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
        self._thread.join(5)
        if error is None:
            self.check()

    def send(self, kind: str, **frame: Any) -> str:
        """Send a frame and do not wait; its ``ref``."""
        self._sent += 1
        ref = f"{kind}-{self._sent}"
        self._socket.send(json.dumps({"type": kind, "ref": ref, **frame}))
        return ref

    def answer(self, ref: str, timeout: float = PATIENCE) -> Json:
        """The answer to a frame: what is ``ok``. Fails on an error."""
        answer = self.until(lambda _: self._answers.get(ref), timeout)
        assert "error" not in answer, answer
        ok: Json = answer["ok"]
        return ok

    def ask(self, kind: str, **frame: Any) -> Json:
        return self.answer(self.send(kind, **frame))

    def take_more(self) -> None:
        """Acknowledge what has arrived, and wait for what the window lets through then."""
        before = len(self.events)
        self.send("ack", id=self.cursor)
        self.until(lambda events: len(events) > before or None)

    def _read(self) -> None:
        why = "the socket was closed"
        try:
            for frame in self._socket:
                now = time.time()
                data = json.loads(frame)
                if "event" in data:
                    self._arrived([Arrived(data["id"], data["event"], now)])
                else:
                    self._answers[data["ref"]] = data
                    self._arrived([])
        except ConnectionClosed as error:
            why = f"the socket broke: {error!r}"
        self._over(why)
