"""The model that needs no key and no network: it plays a multi-agent turn from a script.

It reads the conversation as any model does, so it works with every tool, on any node, after any
restart; it holds no state of its own. What it says next is the first line of ``MASTER`` or
``SUB_AGENT`` whose condition holds. Words that lead to each scene (English or Chinese):

    hello                       what to try
    any question                plan, two awaited sub-agents, synthesis, a question, a final answer
    ask text | select | multi | confirm | form | date | number
    ask the researcher to ask me
    long                        about 400 words, to be stopped in mid sentence
    postcard                    a tool call that the person approves, denies or edits
    background                  a task nobody waits for; its result is commented when it arrives
    revise                      a draft, sent back with remarks to the one who remembers it
    fail                        the provider fails in mid sentence

The same conversation gives the same answer, whatever an interruption has left in it.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .protocol import (
    ModelError,
    StepCompleted,
    StepEvent,
    StepStream,
    TextDelta,
    ToolCallArgs,
    ToolCallEnded,
    ToolCallStarted,
    ToolSpec,
    estimate_input_tokens,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart

DELAY = 0.03
"""Seconds between two words: about as fast as a person reads along."""


class DemoModel:
    """The scripted model. ``delay`` is the pause between words; with 0 it only yields the loop."""

    def __init__(self, name: str = "demo", *, delay: float | None = None) -> None:
        self._name = name
        self._delay = delay if delay is not None else (0.0 if name == "demo-fast" else DELAY)

    @property
    def name(self) -> str:
        return self._name

    def check(self) -> None:
        """Nothing can be missing."""

    def stream_step(
        self,
        history: Sequence[ModelMessage],
        *,
        instructions: str,
        tools: Sequence[ToolSpec],
        silence_timeout: float | None = None,  # noqa: ARG002  (it is never silent)
    ) -> StepStream:
        return DemoStream(self._name, history, instructions, tools, self._delay)


# What the model sees


@dataclass(frozen=True)
class Mail:
    """An inbox message as the executor words it: ``[inbox] result from researcher (…): text``."""

    kind: str
    sender: str
    text: str


@dataclass(frozen=True)
class Result:
    """What came back from a ``send_message``."""

    agent: str
    status: str
    text: str


@dataclass
class Scene:
    """The conversation, reduced to what the script asks about."""

    agent: str = "assistant"
    tools: frozenset[str] = frozenset()
    words: str = ""
    """What the person said last; for a sub-agent, its task."""
    new_words: bool = False
    """Nothing has been answered to ``words`` yet."""
    mail: list[Mail] = field(default_factory=list)
    """What arrived since the last step."""
    returned: list[str] = field(default_factory=list)
    """The tools that returned since the last step."""
    results: list[Result] = field(default_factory=list)
    """What the sub-agents answered since ``words``."""
    answer: str | None = None
    """What the person answered to ``ask_user`` since ``words``; "" if they declined."""
    postcard: dict[str, Any] = field(default_factory=dict)
    """What came back from ``send_postcard``."""

    @property
    def role(self) -> str:
        return re.sub(r"-\d+$", "", self.agent)

    @property
    def chinese(self) -> bool:
        return is_chinese(self.words or " ".join(mail.text for mail in self.mail))

    def say(self, english: str, chinese: str) -> str:
        return chinese if self.chinese else english

    @property
    def topic(self) -> str:
        """The words, short enough to be quoted."""
        text = " ".join(self.words.split())
        return text if len(text) <= 80 else text[:79] + "…"

    def has(self, pattern: str) -> bool:
        return re.search(pattern, self.words, re.IGNORECASE) is not None


def is_chinese(text: str) -> bool:
    return re.search(r"[\u4e00-\u9fff]", text) is not None


AGENT_LINE = re.compile(r'You are the agent "([^"]+)"')
MAIL = re.compile(
    r"^\[inbox\]\s*(?P<kind>\w+) from (?P<sender>[\w-]+)[^:\n]*:\s*(?P<text>.*?)(?=^\[inbox\]|\Z)",
    re.MULTILINE | re.DOTALL,
)


def read_scene(
    history: Sequence[ModelMessage], instructions: str, tools: Sequence[ToolSpec]
) -> Scene:
    who = AGENT_LINE.search(instructions)
    scene = Scene(
        agent=who.group(1) if who else "assistant",
        tools=frozenset(tool.name for tool in tools),
    )
    calls: dict[str, dict[str, Any]] = {}
    for message in history:
        if message.kind == "response":
            if message.state != "interrupted":  # what was cut off has answered nothing
                scene.mail, scene.returned, scene.new_words = [], [], False
            for part in message.parts:
                if part.part_kind == "tool-call":
                    calls[part.tool_call_id] = part.args_as_dict()
            continue
        for request_part in message.parts:
            if request_part.part_kind == "user-prompt":
                _read_prompt(scene, request_part.content)
            elif request_part.part_kind == "tool-return":
                _read_return(scene, request_part, calls.get(request_part.tool_call_id, {}))
    return scene


def _read_prompt(scene: Scene, content: object) -> None:
    text = content if isinstance(content, str) else " ".join(map(str, content or ()))  # type: ignore[call-overload]
    if not text.lstrip().startswith("[inbox]"):
        _begin(scene, text)
        return
    for found in MAIL.finditer(text):
        mail = Mail(found["kind"], found["sender"], found["text"].strip())
        if mail.kind in ("task", "revision"):
            _begin(scene, mail.text)
        else:
            scene.mail.append(mail)


def _begin(scene: Scene, words: str) -> None:
    """New words begin a new turn; what was asked and answered before is settled."""
    scene.words, scene.new_words = words, True
    scene.results, scene.answer, scene.returned = [], None, []


def _read_return(scene: Scene, part: ToolReturnPart, args: dict[str, Any]) -> None:
    scene.returned.append(part.tool_name)
    content = _structure(part.content)
    match part.tool_name:
        case "send_message":
            agent = str(args.get("to") or content.get("agent_id") or "?")
            text = content.get("content") or content.get("detail") or content.get("text") or ""
            status = str(content.get("status") or "failed")
            scene.results.append(Result(agent, status, str(text)))
        case "ask_user":
            scene.answer = _answer(content)
        case "send_postcard":
            scene.postcard = content


def _structure(content: object) -> dict[str, Any]:
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            return {"text": content}
    return content if isinstance(content, dict) else {"text": content}


def _answer(content: dict[str, Any]) -> str:
    if content.get("status") in ("cancelled", "expired", "superseded", "interrupted"):
        return ""
    for key in ("answer", "payload", "value", "text", "content"):
        if key in content:
            return _in_words(content[key])
    return _in_words(content)


def _in_words(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case dict() if set(value) == {"value"}:
            return _in_words(value["value"])
        case dict():
            return ", ".join(f"{key}: {_in_words(item)}" for key, item in value.items())
        case list():
            return ", ".join(map(_in_words, value))
    return str(value)


# What it does


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Call:
    tool: str
    args: dict[str, Any]


@dataclass(frozen=True)
class Fail:
    error: ModelError


Act = Say | Call | Fail
Play = Callable[[Scene], Iterator[Act]]


def hello(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "Hello! I am the built-in demo model: no network, no key, just a script. "
            "Ask me anything and I will send two sub-agents to work, or try one of these words: "
            "`ask form`, `ask select`, `postcard`, `long` (press Stop while it runs), "
            "`background`, `revise`, `fail`. "
            "Set AGENT_MODEL to talk to a real model.",
            "你好！我是内置的演示模型：不联网，不需要密钥，只照脚本演出。"
            "随便问我一个问题，我会派两个子 Agent 去工作；也可以试试这些词："
            "“问我 表单”、“问我 选择”、“明信片”、“长文”（生成时按停止）、“后台”、“修订”、“失败”。"
            "设置 AGENT_MODEL 就能换成真正的模型。",
        )
    )


def plan(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            f"(Demo model.) You asked: “{scene.topic}”\n\nMy plan:\n"
            "1. The researcher collects the facts.\n"
            "2. The strategist works out the options, at the same time.\n"
            "3. I put both together and ask you how to go on.\n",
            f"（演示模型）您说：“{scene.topic}”\n\n我的计划：\n"
            "1. 研究员收集事实。\n"
            "2. 策略师同时分析可选方案。\n"
            "3. 我把两份结果合在一起，再请您决定下一步。\n",
        )
    )
    facts, options = f"Collect the facts: {scene.topic}", f"Work out the options: {scene.topic}"
    if scene.chinese:
        facts, options = f"收集事实：{scene.topic}", f"分析方案：{scene.topic}"
    yield awaited_task("researcher", facts)
    yield awaited_task("strategist", options)


def awaited_task(agent: str, content: str) -> Call:
    return Call(
        "send_message",
        {"to": agent, "content": content, "type": "task", "await_result": True},
    )


def synthesis(scene: Scene) -> Iterator[Act]:
    lines = [quote(scene, result) for result in scene.results]
    yield Say(
        scene.say("Here is what came back:\n\n", "子 Agent 的结果：\n\n")
        + "\n\n".join(lines)
        + scene.say(
            "\n\nTaken together: the facts are clear enough to decide, and the options differ "
            "mainly in risk.",
            "\n\n综合来看：事实已经足够做决定，各方案的主要差别在于风险。",
        )
    )
    if "ask_user" in scene.tools:
        yield from ask_select(scene)


def quote(scene: Scene, result: Result) -> str:
    match result.status:
        case "result":
            return f"**{result.agent}**\n> " + result.text.replace("\n", "\n> ")
        case "timeout":
            fate = scene.say(
                "is not done yet; the result will follow.", "还没有完成，结果会稍后送到。"
            )
        case "sent":
            fate = scene.say("has been sent to work.", "已经开始工作。")
        case "lost":
            fate = scene.say("was lost.", "失联了。")
        case "interrupted":
            fate = scene.say("was stopped.", "已被停止。")
        case _:
            fate = scene.say("could not do it.", "没有完成任务。")
    return f"**{result.agent}** {fate} {result.text}".rstrip()


def final(scene: Scene) -> Iterator[Act]:
    if not scene.answer:
        yield Say(
            scene.say(
                "You did not choose, so I leave it as it is. Ask again whenever you like.",
                "您没有作出选择，我先停在这里。需要时请随时再问。",
            )
        )
        return
    yield Say(
        scene.say(
            f"Thank you. You answered: {scene.answer}. ", f"谢谢。您的回答是：{scene.answer}。"
        )
        + scene.say(
            "Then this is my advice: begin with the smallest step that can be undone, look at "
            "the result after a week, and decide again. (That was the demo's whole turn.)",
            "那么我的建议是：先走最小的、可以撤回的一步，一周后看结果，再做决定。"
            "（演示到此结束。）",
        )
    )


def long_text(scene: Scene) -> Iterator[Act]:
    sentences = [
        scene.say(
            f"{number}. A stopped sentence must still be kept as far as it was read. ",
            f"第{number}句：被打断的句子也要按读到的地方保存下来。",
        )
        for number in range(1, 31)
    ]
    yield Say(
        scene.say("A long text. Press Stop whenever you like.\n\n", "一段长文。请随时按停止。\n\n")
        + "".join(sentences)
    )


def postcard(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "I would like to send a postcard. You decide: approve it, deny it, or change it.\n",
            "我想寄一张明信片。由您决定：批准、拒绝或修改。\n",
        )
    )
    yield Call(
        "send_postcard",
        {
            "to": scene.say("The lighthouse keeper", "灯塔看守人"),
            "text": scene.say("Greetings from the demo!", "来自演示的问候！"),
        },
    )


def after_postcard(scene: Scene) -> Iterator[Act]:
    card = scene.postcard
    changed = "arguments_changed_by_user" in card
    sent = card["result"] if changed else card
    match sent:
        case {"status": "sent", "to": to, "text": text}:
            yield Say(
                scene.say(
                    f"Sent to {to}: “{text}”" + (" (as you changed it)" if changed else ""),
                    f"已寄给{to}：“{text}”" + ("（按您的修改）" if changed else ""),
                )
                + scene.say(
                    "\n\n(A demonstration: nothing has left this machine.)",
                    "\n\n（只是演示：什么都没有真正寄出。）",
                )
            )
        case {"status": "denied", "reason": str(reason)}:
            yield Say(scene.say(f"Not sent, because: {reason}", f"没有寄出。您的理由：{reason}"))
        case _:
            yield Say(scene.say("Then I do not send it.", "好的，那就不寄了。"))


def background(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "I hand this to the reviewer and do not wait for it.\n",
            "我把这件事交给评审员，不等它完成。\n",
        )
    )
    task = scene.say(f"Review quietly: {scene.topic}", f"评审：{scene.topic}")
    yield Call(
        "send_message",
        {"to": "reviewer", "content": task, "type": "task", "await_result": False},
    )


def sent(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "The task is on its way. I will tell you when the result arrives.",
            "任务已经发出。结果一到我就告诉您。",
        )
    )


def comment_mail(scene: Scene) -> Iterator[Act]:
    yield from show_mail(scene)
    yield Say(scene.say("I have taken note of it.", "我已经记下了。"))


def show_mail(scene: Scene) -> Iterator[Act]:
    for mail in scene.mail:
        head = scene.say(
            f"A {mail.kind} from {mail.sender} has arrived:",
            f"收到 {mail.sender} 的消息（{mail.kind}）：",
        )
        yield Say(f"{head}\n> " + mail.text.replace("\n", "\n> ") + "\n\n")


def draft(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "The strategist makes a draft, and then gets it back with a remark.\n",
            "策略师先写一份草稿，然后带着意见退回给它修订。\n",
        )
    )
    yield awaited_task("strategist", scene.say(f"Draft: {scene.topic}", f"草稿：{scene.topic}"))


def send_back(scene: Scene) -> Iterator[Act]:
    yield Say(scene.say("Good, but too cautious. Back with it.\n", "不错，但太谨慎，退回修订。\n"))
    remark = scene.say("Again, and bolder.", "请再写一次，大胆一些。")
    yield Call(
        "send_message",
        {"to": "strategist", "content": remark, "type": "revision", "await_result": True},
    )


def compare(scene: Scene) -> Iterator[Act]:
    drafts = "\n\n".join(quote(scene, result) for result in scene.results)
    yield Say(scene.say("The draft and its revision:\n\n", "草稿与修订稿：\n\n") + drafts)


def fail(scene: Scene) -> Iterator[Act]:
    yield Say(scene.say("Let me think about that and then ", "让我想一想，然后"))
    yield Fail(
        ModelError(
            "provider_unavailable",
            scene.say(
                "The demo model failed because you asked it to. Send another message to go on.",
                "演示模型按您的要求失败了。再发一条消息就可以继续。",
            ),
        )
    )


def delegate_a_question(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "The researcher will ask you something itself.\n", "研究员会自己来问您一个问题。\n"
        )
    )
    yield awaited_task(
        "researcher",
        scene.say("Please ask the person which market matters most.", "请问用户：最看重哪个市场？"),
    )


def report(scene: Scene) -> Iterator[Act]:
    """After tools that the script has no scene for."""
    tools = ", ".join(dict.fromkeys(scene.returned))
    yield Say(scene.say(f"Done ({tools}).", f"已完成（{tools}）。"))


def lost_the_thread(scene: Scene) -> Iterator[Act]:
    yield Say(
        scene.say(
            "I am the demo model and have lost the thread. Please say it again.",
            "我是演示模型，没有跟上。请再说一遍。",
        )
    )


# Questions to the person


def ask_text(scene: Scene) -> Iterator[Act]:
    question = scene.say("What is it called?", "它叫什么名字？")
    yield ask(question, "text", default_value=scene.say("Untitled", "未命名"))


def ask_select(scene: Scene) -> Iterator[Act]:
    yield ask(
        scene.say("How shall we go on?", "接下来怎么做？"),
        "select",
        options=list(
            scene.say(
                "Go deeper|Compare the options|Stop here", "继续深入|比较方案|到此为止"
            ).split("|")
        ),
        allow_other=True,
    )


def ask_multi(scene: Scene) -> Iterator[Act]:
    options = scene.say("Cost|Speed|Quality|Risk", "成本|速度|质量|风险").split("|")
    yield ask(
        scene.say("What matters to you?", "您看重哪些方面？"), "multi_select", options=options
    )


def ask_confirm(scene: Scene) -> Iterator[Act]:
    yield ask(scene.say("Shall I really do it?", "确定要执行吗？"), "confirm")


def ask_form(scene: Scene) -> Iterator[Act]:
    yield ask(
        scene.say("Please tell me about the project.", "请介绍一下项目。"),
        "form",
        fields=[
            {"name": "name", "label": scene.say("Name", "名称"), "type": "text", "required": True},
            {"name": "budget", "label": scene.say("Budget", "预算"), "type": "number"},
            {"name": "start", "label": scene.say("Start", "开始日期"), "type": "date"},
        ],
    )


def ask_date(scene: Scene) -> Iterator[Act]:
    yield ask(scene.say("When shall it begin?", "什么时候开始？"), "date")


def ask_number(scene: Scene) -> Iterator[Act]:
    yield ask(scene.say("How many are there?", "一共有多少？"), "number", default_value=3)


def ask(question: str, ui_type: str, **more: Any) -> Call:
    return Call("ask_user", {"question": question, "ui_type": ui_type, **more})


QUESTIONS: tuple[tuple[str, Play], ...] = (
    (r"\bmulti|多选", ask_multi),
    (r"\b(select|choose|choice)|选择|单选", ask_select),
    (r"\bconfirm|确认", ask_confirm),
    (r"\bform\b|表单", ask_form),
    (r"\bdate\b|日期", ask_date),
    (r"\b(number|how many)\b|数字|多少", ask_number),
    (r"", ask_text),
)


def ask_person(scene: Scene) -> Iterator[Act]:
    yield Say(scene.say("I have a question for you.\n", "我想请您回答一个问题。\n"))
    play = next(play for pattern, play in QUESTIONS if scene.has(pattern))
    yield from play(scene)


# The sub-agents

ANGLES = {
    "researcher": (
        ("Three independent sources agree on the main point.", "三个独立来源在要点上一致。"),
        ("The figures of the last two years point the same way.", "近两年的数据指向同一方向。"),
        ("One source disagrees; it is older than the others.", "有一个来源不同意，但它较旧。"),
        ("The numbers vary by about ten percent.", "各处数字相差约一成。"),
    ),
    "strategist": (
        (
            "Option A: small and now. Little risk, little gain.",
            "方案一：小步快走，风险小，收益小。",
        ),
        ("Option B: one pilot, measured for a month.", "方案二：先做一个试点，观察一个月。"),
        ("Option C: everything at once. Fast, hard to undo.", "方案三：一次到位，快，但难以撤回。"),
        ("Option D: wait for a quarter; it costs little.", "方案四：等一个季度，代价不大。"),
    ),
    "reviewer": (
        ("The reasoning holds; one assumption is not proved.", "推理成立，但有一个假设未经证实。"),
        ("The second step is missing a fallback.", "第二步缺少退路。"),
        ("Wording and numbers are consistent.", "措辞和数字前后一致。"),
        ("The conclusion is stronger than its evidence.", "结论比证据更强，需要收一收。"),
    ),
}


def work(scene: Scene) -> Iterator[Act]:
    """A result that depends on the task, the same for the same task."""
    angles = ANGLES.get(scene.role, ANGLES["researcher"])
    first = zlib.crc32(scene.words.encode()) % len(angles)
    points = [angles[(first + step) % len(angles)] for step in range(3)]
    head = scene.say(
        f"On “{scene.topic}” ({scene.agent}, demo):\n",
        f"关于“{scene.topic}”（{scene.agent}，演示）：\n",
    )
    lines = "".join(f"- {scene.say(english, chinese)}\n" for english, chinese in points)
    asked = ""
    if scene.answer is not None:
        told = scene.answer or scene.say("nothing", "没有回答")
        asked = scene.say(f"The person told me: {told}.\n", f"用户告诉我：{told}。\n")
    yield Say(head + asked + lines)


def ask_about_the_task(scene: Scene) -> Iterator[Act]:
    yield Say(scene.say("I need to know one thing first.\n", "我需要先了解一件事。\n"))
    yield ask(
        scene.say("Which market matters most?", "您最看重哪个市场？"),
        "select",
        options=scene.say("Home|Europe|Asia", "国内|欧洲|亚洲").split("|"),
        allow_other=True,
    )


# The script: the first line that holds is played


def said(pattern: str) -> Callable[[Scene], bool]:
    """The person has just said it, and nothing has been done about it yet."""
    return lambda scene: fresh(scene) and scene.has(pattern)


def fresh(scene: Scene) -> bool:
    return scene.new_words and bool(scene.words.strip())


def only_mail(scene: Scene) -> bool:
    return bool(scene.mail) and not (scene.returned or scene.new_words)


def returned(tool: str) -> Callable[[Scene], bool]:
    return lambda scene: tool in scene.returned


def only_sent(scene: Scene) -> bool:
    return returned("send_message")(scene) and all(r.status == "sent" for r in scene.results)


def drafts(number: int) -> Callable[[Scene], bool]:
    """The person wants a revision, and this many drafts have come back."""
    return lambda scene: (
        returned("send_message")(scene)
        and scene.has(REVISE)
        and [result.status for result in scene.results] == ["result"] * number
    )


def can(tool: str, condition: Callable[[Scene], bool]) -> Callable[[Scene], bool]:
    return lambda scene: tool in scene.tools and condition(scene)


HELLO = (
    r"^\W*(hi|hello|hey|good (morning|evening)|thanks?|thank you|help"
    r"|你好|您好|嗨|在吗|谢谢|帮助)\W*$"
)
LONG = r"(?<!how )(?<!as )\blong\b(?![ -]term)|(?<![增成家校延擅特])长(?![期远大处])"
BACKGROUND = r"\bbackground\b|后台"
REVISE = r"\brevis(e|ion)\b|修订"
FAIL = r"\bfail\b|失败"
POSTCARD = r"\b(postcard|approv\w+)\b|明信片|审批|批准"
ASK = r"\bask\b|问我|提问"
OTHERS_ASK = r"(researcher|sub-?agent).*\bask\b|(研究员|子智能体|子\s*agent).*问"
TASK_ASKS = r"\bask\b|问(?![题候世])"

Line = tuple[Callable[[Scene], bool], Play]

MASTER: tuple[Line, ...] = (
    (returned("ask_user"), final),
    (only_sent, sent),
    (drafts(1), send_back),
    (drafts(2), compare),
    (returned("send_message"), synthesis),
    (returned("send_postcard"), after_postcard),
    (lambda scene: bool(scene.returned), report),
    (only_mail, comment_mail),
    (said(HELLO), hello),
    (said(FAIL), fail),
    (can("send_message", said(OTHERS_ASK)), delegate_a_question),
    (can("ask_user", said(ASK)), ask_person),
    (can("send_postcard", said(POSTCARD)), postcard),
    (said(LONG), long_text),
    (can("send_message", said(BACKGROUND)), background),
    (can("send_message", said(REVISE)), draft),
    (can("send_message", fresh), plan),
    (fresh, work),
)

SUB_AGENT: tuple[Line, ...] = (
    (said(FAIL), fail),
    (said(LONG), long_text),
    (can("ask_user", said(TASK_ASKS)), ask_about_the_task),
    (lambda scene: bool(scene.words.strip()), work),
)


def act(scene: Scene) -> Iterator[Act]:
    script = SUB_AGENT if scene.role in ANGLES else MASTER
    play = next((play for holds, play in script if holds(scene)), lost_the_thread)
    if play is not comment_mail:
        yield from show_mail(scene)
    yield from play(scene)


# How it streams


class DemoStream(StepStream):
    def __init__(
        self,
        name: str,
        history: Sequence[ModelMessage],
        instructions: str,
        tools: Sequence[ToolSpec],
        delay: float,
    ) -> None:
        super().__init__(
            provider="demo", model=name, input_tokens=estimate_input_tokens(history, instructions)
        )
        self._scene = read_scene(history, instructions, tools)
        self._step = len(history)
        self._delay = delay

    async def _events(self) -> AsyncGenerator[StepEvent, None]:
        acts: list[Say | Call] = []
        for number, step in enumerate(act(self._scene)):
            if isinstance(step, Fail):
                raise step.error
            acts.append(step)
            for event in self._stream(number, step):
                yield event
                await asyncio.sleep(self._delay)
        yield StepCompleted(self._response(acts), self.usage_so_far())

    def _stream(self, number: int, step: Say | Call) -> Iterator[StepEvent]:
        if isinstance(step, Say):
            yield from map(TextDelta, pieces(step.text))
            return
        call_id = self._call_id(number)
        yield ToolCallStarted(call_id, step.tool)
        args = to_json(step.args)
        for start in range(0, len(args), 40):
            yield ToolCallArgs(call_id, args[start : start + 40])
        yield ToolCallEnded(call_id)

    def _response(self, acts: Sequence[Say | Call]) -> ModelResponse:
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.usage import RequestUsage

        usage = self.usage_so_far()
        return ModelResponse(
            parts=[
                TextPart(step.text)
                if isinstance(step, Say)
                else ToolCallPart(step.tool, to_json(step.args), self._call_id(number))
                for number, step in enumerate(acts)
            ],
            usage=RequestUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
            model_name=self._model,
            provider_name="demo",
            finish_reason="tool_call" if any(isinstance(a, Call) for a in acts) else "stop",
        )

    def _call_id(self, number: int) -> str:
        """Unique in a conversation, which only grows, and the same when a step is done again."""
        return f"demo_{self._step}_{number}"


def to_json(args: dict[str, Any]) -> str:
    return json.dumps(args, ensure_ascii=False)


def pieces(text: str) -> list[str]:
    """Words, and pairs of Chinese characters; together exactly the text."""
    return re.findall(r"\s*(?:[\u4e00-\u9fff]{1,2}|[^\s\u4e00-\u9fff]+)|\s+", text)
