"""Stop at every position of a turn, over both provider wires: real HTTP, real runner, real rows.

A position is a script that comes to a halt somewhere, and a way to know that the turn has got
there. All positions of a wire run beside each other on one runner, each in a session of its own.
After each stop the conversation goes on over the same wire, and what is in memory is given to both:
they refuse what the real ones would refuse.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection
from pydantic_ai.messages import ModelRequest, UserPromptPart

from chat import actions, memory
from chat.llm import close_models, get_model
from chat.llm.protocol import estimate_tokens
from chat.memory import clean
from chat.models import ChatSession, Message
from chat.tools import TOOLS
from coordination import runs
from coordination.conf import conf
from coordination.db import db
from coordination.models import Question, Run
from tests.core import at_rest, ended, logged, new_chat, node, until
from tests.fakes import anthropic_server
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.provider import (
    Action,
    Exchange,
    FakeProvider,
    Refused,
    Said,
    Step,
    call,
    text,
)

AT_ONCE = 8
LOOK_AGAIN = 0.03  # seconds: so many look that looking is felt
WIRES: dict[str, type[FakeProvider]] = {"openai": FakeOpenAI, "anthropic": FakeAnthropic}

HANG: Action = {"hang": ""}
HALF_AN_ESCAPE = re.compile(r"\\u[0-9a-f]{0,3}$")  # OpenAI's client keeps it back until it is whole
FAMILY = "👨‍👩‍👧"


def think(words: str) -> Action:
    return {"reasoning": words}


def stuck(tool: str, args: dict[str, Any] | str, at: int) -> Action:
    return {**call(tool, args, fragments=5), "hang_at": at}


def ask_for(agent: str, **more: Any) -> Action:
    return call("send_message", {"to": agent, "content": "look: $PROGRAM", **more})


# -- the positions -----------------------------------------------------------------------------

Look = Callable[[ChatSession], Any]


@dataclass
class Position:
    """A turn that halts: what each agent's model does, and how it is known to be there."""

    assistant: list[Step]
    others: list[Step] = field(default_factory=list)
    status: str = "running"  # of the master's run
    here: Look | None = None  # what else must be true before the stop
    unclaimed: str = ""  # an agent whose runs nobody takes up

    @property
    def agents(self) -> dict[str, list[Step]]:
        return {"assistant": self.assistant, "*": self.others}


def streaming(*step: Action) -> Position:
    """In the first answer of the master."""
    return Position([[*step]])


def later(*step: Action) -> Position:
    """In the second answer, after a tool."""
    return Position([[text("first, "), call("check_inbox", {})], [*step]])


def waiting(*step: Action, **more: Any) -> Position:
    """The master waits for its sub-agent, which is in the midst of this."""
    return Position(
        [[text("I ask. "), ask_for("researcher", await_result=True)]],
        [[*step]],
        status="waiting_child",
        **more,
    )


def tail(*step: Action, **more: Any) -> Position:
    """The master has said everything; its sub-agent is in the midst of this."""
    return Position(
        [[ask_for("researcher")], [text("I have asked.")]],
        [[*step]],
        status="waiting_child",
        **more,
    )


def questioned(chat: ChatSession) -> Any:
    return Question.objects.filter(session_id=chat.pk, state="open").exists()


def at_work(chat: ChatSession) -> Any:
    """A tool of this session waits (see ``slow_tool``)."""
    return str(chat.pk) in IN_TOOL


IN_TOOL: set[str] = set()

QUESTION = call("ask_user", {"question": "哪一个？"})
SLOW = call("check_inbox", {})
TASK = json.dumps({"to": "researcher", "content": "找一个红苹果 🍎 please"}, ensure_ascii=False)
ESCAPED = json.dumps({"to": "researcher", "content": "苹果🍎"})  # \uXXXX
CHINESE = TASK.index("红") + 1
EMOJI = TASK.index("🍎")
ESCAPE = ESCAPED.index("\\u82f9") + 4
HALF_PAIR = ESCAPED.index("\\udf4e")

POSITIONS = {
    "no headers": streaming({"silent": True}),
    "headers only": streaming(HANG),
    "queued": Position([[text("never")]], status="queued", unclaimed="assistant"),
    # reasoning
    "reasoning": streaming(think("let me "), HANG),
    "reasoning, Chinese": streaming(think("让"), think("我想"), HANG),
    "reasoning, half an emoji": streaming(think("hm \ud83e"), HANG),
    "reasoning over, no word yet": streaming(think("hm"), text(" "), HANG),
    # text
    "one letter": streaming(text("S"), HANG),
    "a word": streaming(text("Su"), text("re"), HANG),
    "a space at the end": streaming(text("Sure, "), HANG),
    "only a space": streaming(text(" "), HANG),
    "only line ends": streaming(text("\n"), text("\n"), HANG),
    "one Chinese character": streaming(text("好"), HANG),
    "Chinese": streaming(text("好的，"), text("我来"), HANG),
    "a third of a Chinese character": streaming(text("好的"), {"torn": "，"}),
    "an emoji": streaming(text("ok "), text("👍"), HANG),
    "between an emoji and its skin": streaming(text("👍"), HANG, text("🏽")),
    "within a family": streaming(text(FAMILY[:2]), text(FAMILY[2:4]), HANG),
    "half a surrogate pair": streaming(text("ok \ud83d"), HANG),
    "a quarter of an emoji": streaming(text("ok "), {"torn": "👍"}),
    "text after reasoning": streaming(think("hm"), text("Well, 嗯"), HANG),
    "within a code block": streaming(text("```py\nprint("), HANG),
    "the whole text, no end": streaming(text("That is all."), HANG),
    # calls
    "the name of a tool": streaming(text("I send. "), stuck("send_message", TASK, 0)),
    "a name and no text": streaming(stuck("send_message", TASK, 0)),
    "arguments: a brace": streaming(stuck("send_message", TASK, 1)),
    "arguments: in a key": streaming(stuck("send_message", TASK, 4)),
    "arguments: after a colon": streaming(stuck("send_message", TASK, 6)),
    "arguments: in Chinese": streaming(stuck("send_message", TASK, CHINESE)),
    "arguments: before an emoji": streaming(stuck("send_message", TASK, EMOJI)),
    "arguments: in an escape": streaming(stuck("send_message", ESCAPED, ESCAPE)),
    "arguments: in half a pair": streaming(stuck("send_message", ESCAPED, HALF_PAIR)),
    "arguments: all but the brace": streaming(stuck("send_message", TASK, len(TASK) - 1)),
    "arguments: whole, no end": streaming(stuck("send_message", TASK, len(TASK))),
    "arguments: no object": streaming(stuck("send_message", "[1, 2", 5)),
    "two calls: the second's name": streaming(SLOW, stuck("send_message", TASK, 0)),
    "two calls: in the second": streaming(SLOW, stuck("send_message", TASK, CHINESE)),
    "two calls: both whole": streaming(call("send_message", TASK), call("ask_user", {}), HANG),
    "text after a call": streaming(text("a"), SLOW, text("b"), HANG),
    "reasoning after a call": streaming(SLOW, think("next"), HANG),
    # tools
    "in a tool": Position([[text("I look. "), SLOW]], here=at_work),
    "in a tool, without a word": Position([[SLOW]], here=at_work),
    "in one of two tools": Position([[SLOW, ask_for("reviewer")]], [[HANG]], here=at_work),
    "in a tool beside a question": Position([[QUESTION, SLOW]], here=at_work),
    # between steps
    "after a result": later({"silent": True}),
    "after a result, headers only": later(HANG),
    "text after a result": later(text("second 第二"), HANG),
    "reasoning after a result": later(think("so"), HANG),
    "arguments after a result": later(stuck("send_message", TASK, CHINESE)),
    # questions
    "a question": Position([[text("Hm. "), QUESTION]], status="waiting_user", here=questioned),
    "two questions": Position([[QUESTION, QUESTION]], status="waiting_user", here=questioned),
    # a rendezvous, and the sub-agent in any of these
    "rendezvous: queued": waiting(unclaimed="researcher"),
    "rendezvous: no headers": waiting({"silent": True}),
    "rendezvous: reasoning": waiting(think("嗯"), HANG),
    "rendezvous: text": waiting(text("我找到"), HANG),
    "rendezvous: only a space": waiting(text(" "), HANG),
    "rendezvous: arguments": waiting(stuck("ask_user", '{"question": "哪', 15)),
    "rendezvous: in a tool": waiting(SLOW, here=at_work),
    "rendezvous: a question": waiting(text("问："), QUESTION, here=questioned),
    "rendezvous of two": Position(
        [[ask_for(name, await_result=True) for name in ("researcher", "reviewer")]],
        [[text("half"), HANG]],
        status="waiting_child",
    ),
    "beside a rendezvous, in a tool": Position(
        [[ask_for("researcher", await_result=True), SLOW]], [[text("a"), HANG]], here=at_work
    ),
    # the tail
    "tail: queued": tail(unclaimed="researcher"),
    "tail: no headers": tail({"silent": True}),
    "tail: text": tail(text("半"), HANG),
    "tail: in a tool": tail(SLOW, here=at_work),
    "tail: a question": tail(QUESTION, here=questioned),
}


# -- the test ----------------------------------------------------------------------------------


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeProvider]]:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(wire()) for name, wire in WIRES.items()}
        for server in servers.values():
            server.define("answer", {"*": [[text("fine")]]})
            for name, value in server.env.items():
                monkeypatch.setenv(name, value)
        yield servers


@pytest.fixture
def slow_tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``check_inbox`` never returns in the first step of a turn whose position is in a tool."""
    real = TOOLS["check_inbox"]

    async def waits(context: Any) -> Any:
        chat = await db(ChatSession.objects.get, pk=context.run.session_id)
        if POSITIONS[chat.title].here is at_work:
            IN_TOOL.add(str(chat.pk))
            await asyncio.Event().wait()
        return await real.function(context)

    monkeypatch.setitem(TOOLS, "check_inbox", dataclasses.replace(real, function=waits))
    yield
    IN_TOOL.clear()


@pytest.fixture
def unclaimed(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, str]]:
    """Session and agent of runs that nobody takes up."""
    hidden: set[tuple[Any, str]] = set()
    real = runs.claimable

    def some(limit: int, *, idle: bool) -> list[runs.Claimable]:
        offered = real(limit + len(hidden), idle=idle)
        ids = [found.run_id for found in offered]
        agents = dict(Run.objects.filter(pk__in=ids).values_list("pk", "agent_id"))
        return [
            found for found in offered if (found.session_id, agents[found.run_id]) not in hidden
        ][:limit]

    monkeypatch.setattr(runs, "claimable", some)
    return hidden


@pytest.mark.timeout(300)  # many turns: a hang, not a busy machine
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("core", "hub", "slow_tool")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_stop_at_every_position(wire, providers, unclaimed, monkeypatch):
    monkeypatch.setattr(conf, "stop_ack", 60)  # so many stops at once are many for one machine
    assert len(POSITIONS) >= 40
    stopped = [Stopped(name, await db(_new_chat, name), unclaimed) for name in tried()]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(it: Stopped) -> None:
        async with room:
            await it.get_there_and_stop(providers[wire])
            await it.go_on(providers[wire])
            for provider in providers.values():
                await it.is_taken_by(provider)

    async with node(get_model(providers[wire].env["AGENT_MODEL"]), concurrency=4 * AT_ONCE):
        results = await asyncio.gather(*map(one, stopped), return_exceptions=True)
    await close_models()
    failed = {it.name: error for it, error in zip(stopped, results, strict=True) if error}
    for name, error in failed.items():
        error.add_note(f"at the position {name!r}")
    if failed:
        raise BaseExceptionGroup(f"{wire}: {', '.join(failed)}", list(failed.values()))


def tried() -> list[str]:
    """The wire is the same on every database: on the second one some positions are enough."""
    return list(POSITIONS)[:: 1 if connection.vendor == "sqlite" else 4]


def _new_chat(title: str) -> ChatSession:
    chat = new_chat()
    ChatSession.objects.filter(pk=chat.pk).update(title=title)
    return chat


def _agents_of(chat: ChatSession) -> list[str]:
    runs_ = Run.objects.filter(session_id=chat.pk)
    return sorted(set(runs_.values_list("agent_id", flat=True)))


@dataclass
class Stopped:
    """One session that is stopped at its position, and what goes on in it afterwards."""

    name: str
    chat: ChatSession
    unclaimed: set[tuple[Any, str]]

    def __post_init__(self) -> None:
        self.position = POSITIONS[self.name]
        self.marker = f"script:position-{list(POSITIONS).index(self.name):03}"
        self.seen: dict[FakeProvider, list[Exchange]] = {}
        self.looked: Counter[FakeProvider] = Counter()
        self.words = f"你好 please do {self.marker}"

    async def get_there_and_stop(self, provider: FakeProvider) -> None:
        provider.define(self.marker.removeprefix("script:"), self.position.agents)
        if self.position.unclaimed:
            self.unclaimed.add((self.chat.pk, self.position.unclaimed))
        posted = await actions.post_message(self.chat, self.words, by="alice")
        await until(lambda: self._is_there(provider), 60, LOOK_AGAIN)
        answer = await actions.stop(self.chat, by="alice")
        assert answer.status == "stopped"
        assert {state.status for state in answer.runs} == {"interrupted"}
        self.unclaimed.discard((self.chat.pk, self.position.unclaimed))
        await at_rest(self.chat)  # one end of each run, one terminal event
        await db(self._assert_kept)
        await db(self._assert_calls_closed)
        await until(lambda: all(e.ended for e in self._log(provider)), 60, LOOK_AGAIN)
        outcomes = [exchange.outcome for exchange in self._log(provider)]
        assert outcomes.count("closed") == sum(map(_halts, self._steps())), outcomes
        assert await db(lambda: Run.objects.get(pk=posted.run_id).reason) == "interrupted"
        await db(self._assert_counted)

    async def go_on(self, provider: FakeProvider) -> None:
        """The next message is taken, and the model reads what was said before the stop."""
        before = len(self._log(provider))
        posted = await actions.post_message(self.chat, "and now? script:answer", by="alice")
        run = await ended(await db(Run.objects.get, pk=posted.run_id), within=60)
        assert run.status == "completed", run.detail
        (exchange,) = self._log(provider)[before:]
        assert exchange.outcome == "completed"
        said = provider.said(exchange.request)
        assert self.words in [message.text.strip() for message in said if message.role == "user"]
        assert _has_partial(said, self.position.assistant)
        whole = [step for step in self._steps() if not _halts(step)]
        mine = [step for step in whole if step in self.position.assistant]
        assert _calls_sent(exchange.request) == sum(len(_calls(step)) for step in mine)

    async def is_taken_by(self, provider: FakeProvider) -> None:
        """Each agent's memory, the sub-agents' too, with one more message of its user."""
        for agent_id in await db(_agents_of, self.chat):
            rows = await db(memory.conversation, self.chat.pk, agent_id)
            following = ModelRequest([UserPromptPart("and now? script:answer")])
            step = get_model(provider.env["AGENT_MODEL"]).stream_step(
                [*memory.history(rows), following],
                instructions=f'You are the agent "{agent_id}".',
                tools=[tool.spec for tool in TOOLS.values()],
            )
            async with step:
                assert [event async for event in step], "a refusal raises"

    # -- where the turn is --------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        """The steps that have begun when the turn is there."""
        if self.position.unclaimed == "assistant":
            return []
        asked = [c for step in self.position.assistant for c in _calls(step) if _asks_another(c)]
        others = [] if self.position.unclaimed else self.position.others * len(asked)
        return [*self.position.assistant, *others]

    def _log(self, provider: FakeProvider) -> list[Exchange]:
        """The exchanges of this conversation so far; each is looked into once."""
        new = provider.exchanges[self.looked[provider] :]
        self.looked[provider] += len(new)
        log = self.seen.setdefault(provider, [])
        log += [exchange for exchange in new if self.marker in json.dumps(exchange.request)]
        return log

    def _is_there(self, provider: FakeProvider) -> bool:
        root = Run.objects.get(session_id=self.chat.pk, parent=None)
        if root.status != self.position.status:
            return False
        if len(self._log(provider)) < len(self._steps()):
            return False
        if self.position.here is not None and not self.position.here(self.chat):
            return False
        return _streamed(self.chat) == _expected(self._steps(), self.marker)

    # -- what must be true then ---------------------------------------------------------------

    def _assert_kept(self) -> None:
        rows = Message.objects.filter(session=self.chat.pk, position__isnull=False)
        assert rows.filter(role="user", agent_id="assistant").get().content == self.words
        said = rows.filter(role="assistant").values_list("content", "status")
        # Not in the query: to MySQL a text of spaces equals an empty one.
        assert sorted(pair for pair in said if pair[0]) == sorted(
            (_text(step), "interrupted" if _halts(step) else "complete")
            for step in self._steps()
            if _text(step)
        )

    def _assert_calls_closed(self) -> None:
        called = {e["toolCallId"] for e in logged(self.chat.pk, "TOOL_CALL_START")}
        results = logged(self.chat.pk, "TOOL_CALL_RESULT")
        assert {e["toolCallId"] for e in results} == called
        rows = Message.objects.filter(session=self.chat.pk)
        parts = [part for row in rows for part in row.parts if "tool_call_id" in part]
        kept = Counter(part["tool_call_id"] for part in parts)
        assert all(count == 2 for count in kept.values()), "a call and its result"
        interrupted = [e for e in results if "Interrupted by the user" in e["content"]]
        last = [self.position.assistant[-1:], self.position.others[-1:]]
        begun = [step for steps in last for step in steps if step in self._steps()]
        count = {id(step): sum(step is other for other in self._steps()) for step in begun}
        assert len(interrupted) == sum(len(_calls(step)) * count[id(step)] for step in begun)

    def _assert_counted(self) -> None:
        for run in Run.objects.filter(session_id=self.chat.pk).exclude(started_at=None):
            assert run.usage["input_tokens"] > 0, run.agent_id
            assert run.usage["total_tokens"] >= run.usage["input_tokens"]
        root = Run.objects.get(session_id=self.chat.pk, parent=None)
        if sum(estimate_tokens(_text(step)) for step in self.position.assistant) >= 1:
            assert root.started_at is None or root.usage["output_tokens"] > 0


# -- what a script says ------------------------------------------------------------------------


def _halts(step: Step) -> bool:
    return any(
        not action.keys().isdisjoint(("hang", "hang_at", "torn", "silent")) for action in step
    )


def _calls(step: Step) -> list[Action]:
    return [action for action in _until_hang(step) if "call" in action]


def _asks_another(made: Action) -> bool:
    return isinstance(made["args"], dict) and "to" in made["args"]


def _until_hang(step: Step) -> Iterator[Action]:
    for action in step:
        if "hang" in action:
            return
        yield action


def _text(step: Step) -> str:
    """What a reader has seen of it."""
    return clean("".join(action.get("text", "") for action in _until_hang(step)))


def _arguments(made: Action, marker: str) -> str:
    args = made["args"]
    words = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    words = words.replace("$PROGRAM", marker)[: made.get("hang_at", len(words) + len(marker))]
    return HALF_AN_ESCAPE.sub("", words)


def _expected(steps: list[Step], marker: str) -> dict[str, list[str]]:
    """What is in the log of a turn of which these steps have begun."""
    reasoning = [a.get("reasoning", "") for step in steps for a in _until_hang(step)]
    return {
        "text": sorted(filter(None, map(_text, steps))),
        "reasoning": sorted(clean("".join(reasoning))),
        "args": sorted(
            filter(None, (_arguments(made, marker) for step in steps for made in _calls(step)))
        ),
        "calls": sorted(made["call"] for step in steps for made in _calls(step)),
    }


def _streamed(chat: ChatSession) -> dict[str, list[str]]:
    found: dict[str, dict[str, str]] = {"text": {}, "reasoning": {}, "args": {}}
    names = {
        "TEXT_MESSAGE_CONTENT": ("text", "messageId"),
        "REASONING_MESSAGE_CONTENT": ("reasoning", "messageId"),
        "TOOL_CALL_ARGS": ("args", "toolCallId"),
    }
    for event in logged(chat.pk, *names):
        kind, key = names[event["type"]]
        found[kind][event[key]] = found[kind].get(event[key], "") + event["delta"]
    return {
        "text": sorted(found["text"].values()),
        "reasoning": sorted("".join(found["reasoning"].values())),
        "args": sorted(HALF_AN_ESCAPE.sub("", args) for args in found["args"].values()),
        "calls": sorted(e["toolCallName"] for e in logged(chat.pk, "TOOL_CALL_START")),
    }


def _has_partial(said: list[Said], steps: list[Step]) -> bool:
    spoken = "".join(message.text for message in said if message.role == "assistant")
    return all(_text(step).strip() in spoken for step in steps if _halts(step))


def _calls_sent(request: dict[str, Any]) -> int:
    messages = request["messages"]
    blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
    of_openai = sum(len(message.get("tool_calls") or ()) for message in messages)
    return of_openai + sum(block.get("type") == "tool_use" for block in blocks)


# -- what the real ones refuse -----------------------------------------------------------------


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def said(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str, arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": arguments or {}}


def result(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


HELLO = user(said("hi"))
TOOLS_OF_REQUEST = [{"name": "look", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([assistant(said("hi")), HELLO], "first message"),
        ([HELLO, assistant(said("hi "))], "trailing whitespace"),
        ([HELLO, assistant(said("hi"))], "prefill"),
        ([HELLO, assistant(said("")), HELLO], "non-empty"),
        ([HELLO, assistant(said(" \n")), HELLO], "non-whitespace"),
        ([HELLO, assistant(), HELLO], "non-empty content"),
        ([{"role": "system", "content": "x"}, HELLO], "role"),
        ([HELLO, assistant(use("a")), HELLO], "without `tool_result`"),
        ([HELLO, assistant(use("a")), user(said("so"), result("a"))], "without `tool_result`"),
        ([HELLO, assistant(use("a"), use("b")), user(result("a"))], "without `tool_result`"),
        ([HELLO, assistant(use("a")), user(result("a"), result("a"))], "single result"),
        ([HELLO, assistant(use("a")), HELLO, user(result("a"))], "without `tool_result`"),
        ([user(result("a"))], "unexpected `tool_use_id`"),
        ([HELLO, assistant(use("a"), use("a")), user(result("a"))], "unique"),
        ([HELLO, *[assistant(use("a")), user(result("a"))] * 2], "unique"),
        ([HELLO, assistant(use("a:0")), user(result("a:0"))], "pattern"),
        ([HELLO, assistant(use("a", "{")), user(result("a"))], "valid dictionary"),
        ([HELLO, assistant(use("a")), user(result("a", [said("")]))], "non-empty"),
        ([HELLO, assistant({"type": "thinking", "thinking": "x"}), HELLO], "signature"),
    ],
)
def test_what_anthropic_refuses(messages, words):
    with pytest.raises(Refused, match=words):
        anthropic_server.validate(_request(messages))


def test_what_anthropic_takes():
    thought = {"type": "thinking", "thinking": "x", "signature": anthropic_server.signature_of("x")}
    asked = assistant(thought, said("I look."), use("a", {"at": "it"}), use("b"))
    answered = user(result("b"), result("a", [said("seen")]), said("and"))
    anthropic_server.validate(_request([HELLO, HELLO, asked, answered, HELLO]))


@pytest.mark.parametrize(
    "missing", [{"max_tokens": 0}, {"tools": []}, {"tools": [{"name": "look"}]}, {"system": [{}]}]
)
def test_what_anthropic_wants_beside_the_messages(missing):
    messages = [HELLO, assistant(use("a")), user(result("a"))]
    anthropic_server.validate(_request(messages))
    with pytest.raises(Refused):
        anthropic_server.validate(_request(messages) | missing)


def _request(messages: list[Any]) -> dict[str, Any]:
    return {
        "model": "fake",
        "max_tokens": 100,
        "messages": messages,
        "tools": TOOLS_OF_REQUEST,
        "stream": True,
    }
