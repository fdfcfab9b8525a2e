"""The operator's commands on rows that the product made, and ``chat`` as a process of its own."""

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from contextlib import contextmanager

import pytest
from django.core.management import CommandError, call_command
from redis.exceptions import ConnectionError as RedisAway

from agentsite.environment import BASE_DIR
from agentsite.nodes import WorkerNode, base_env
from chat import actions, terminal
from chat.management import forms
from coordination import endings, inbox, leases, panel
from coordination.conf import conf
from coordination.db import db
from coordination.models import InboxMessage, Lease, Run
from coordination.transactions import locked
from tests.clients import EVENT, Caller, claim, finish

MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]


# == on rows ======================================================================================


@pytest.fixture
def short_times(monkeypatch):
    monkeypatch.setattr(conf, "stop_ack", 0.2)


@pytest.fixture
async def alice(transactional_db):
    return (await Caller.named("alice")).user


@pytest.fixture
async def chat(alice, short_times):
    return await actions.create_session(alice, title="plans")


async def command(*argv):
    """What the command printed, and its exit code."""

    def call():
        out = io.StringIO()
        try:
            call_command(*argv, stdout=out)
        except SystemExit as leaving:
            return out.getvalue(), leaving.code
        return out.getvalue(), 0

    return await asyncio.to_thread(call)


async def posted(chat, text="hi"):
    return (await actions.post_message(chat, text, by="alice")).run_id


async def delegated(chat, content="collect the facts"):
    """A claimed master, its task, and the claimed sub-agent that works on it."""
    master = await claim(await posted(chat))

    def send():
        with locked(chat.pk) as session:
            return inbox.send_task(
                session, master, to="researcher", content=content, kind="task", tool_call_id="c1"
            )

    task = await db(send)
    child = await db(Run.objects.get, task=task)
    return master, task, await claim(child.pk)


def end_stopped(run):
    return db(endings.stopped, run, by="test-runner")


# -- interrupt ------------------------------------------------------------------------------------


async def test_a_queued_run_is_stopped_and_proved(chat):
    run_id = await posted(chat)
    out, code = await command("interrupt", str(chat.pk))
    assert code == 0
    assert out.startswith("stopped")
    assert str(run_id) in out
    assert "\x1b" not in out
    run = await db(Run.objects.get, pk=run_id)
    assert (run.status, run.reason) == ("interrupted", "interrupted")
    assert run.stop_requested_by.startswith("operator ")


async def test_a_stop_without_proof_is_only_accepted(chat):
    run = await claim(await posted(chat))
    out, code = await command("interrupt", str(chat.pk), "--json")
    assert (json.loads(out)["status"], code) == ("accepted", 2)
    assert json.loads(out)["runs"] == [
        {"run_id": str(run.pk), "agent_id": "assistant", "status": "running"}
    ]
    out, code = await command("interrupt", str(chat.pk))
    assert (out.split(":")[0], code) == ("accepted", 2)
    assert await end_stopped(run)
    out, code = await command("interrupt", str(chat.pk))
    assert (out.split(":")[0], code) == ("no active run", 0)


async def test_only_the_named_sub_agent_is_stopped(chat):
    master, _, child = await delegated(chat)
    _, code = await command("interrupt", str(chat.pk), "--agent", "researcher")
    assert code == 2
    assert (await db(Run.objects.get, pk=child.pk)).stop_requested_at
    assert not (await db(Run.objects.get, pk=master.pk)).stop_requested_at


async def test_an_unknown_agent_is_one_clear_line(chat):
    await posted(chat)
    with pytest.raises(CommandError, match="No agent nobody has run in this session"):
        await command("interrupt", str(chat.pk), "--agent", "nobody")


async def test_what_runs_in_a_deleted_session_can_still_be_stopped(chat):
    run = await claim(await posted(chat))
    await actions.delete_session(chat, by="alice")
    out, code = await command("interrupt", str(chat.pk))
    assert (out.split(":")[0], code) == ("accepted", 2)
    await end_stopped(run)


# -- finding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 8, 9, 13, 18, 36])
async def test_any_unique_start_of_an_id_will_do(chat, length):
    start = str(chat.pk)[:length]
    for text in (start, start.replace("-", ""), start.upper()):
        assert (await db(terminal.find_session, text)).pk == chat.pk


async def test_a_start_that_fits_several_names_them(alice):
    for digit in "12":
        await actions.create_session(alice, session_id=uuid.UUID(f"abc{digit}{'0' * 28}"))
    with pytest.raises(CommandError, match=r"abc fits several: abc[12]0000-.*, abc[12]0000-"):
        await command("agents", "abc")


@pytest.mark.parametrize("text", ["", "xyz", "0" * 40, "%", "'"])
async def test_what_is_no_id_says_so(chat, text):
    with pytest.raises(CommandError, match="is not the id of a session"):
        await command("interrupt", text)


async def test_an_unknown_id_says_where_to_look(chat):
    with pytest.raises(CommandError, match=r"There is no session .* `manage.py agents`"):
        await command("interrupt", str(uuid.uuid4()))


def test_a_database_without_tables_is_one_line(tmp_path):
    env = base_env(DATABASE_URL=f"sqlite:///{tmp_path / 'none.sqlite3'}", REDIS_URL="")
    refused = subprocess.run([*MANAGE, "agents"], env=env, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "migrate" in refused.stderr
    assert refused.stderr.count("\n") == 1


# -- agents ---------------------------------------------------------------------------------------


async def test_agents_shows_who_is_alive_and_who_is_not(chat):
    master, task, child = await delegated(chat)
    await finish(child, "timeout", "lease_expired")
    out, _ = await command("agents")
    head, _, first, second = out.splitlines()
    assert head.startswith(f"{chat.pk}  running  plans  (alice)")
    assert first.split()[:3] == ["assistant", "running", "-"]
    assert "test-runner" in first
    assert second.split()[:3] == ["researcher", "timeout", "lease_expired"]
    assert str(task.pk)[:8] in second

    out, _ = await command("agents", str(chat.pk)[:8], "--json")
    [about] = json.loads(out)
    assert about["agents"] == await db(panel.agents, chat.pk)
    assert about["run_id"] == str(master.pk)


async def test_agents_without_a_session_leaves_out_what_is_at_rest(chat):
    await actions.stop(chat, by="alice")
    out, _ = await command("agents")
    assert out == "Nothing is under way in any session.\n"
    assert json.loads((await command("agents", "--json"))[0]) == []
    out, _ = await command("agents", str(chat.pk))
    assert "No agent has worked here yet." in out


# -- chain ----------------------------------------------------------------------------------------


async def test_a_chain_is_shown_from_its_root_whichever_message_is_named(chat):
    _, task, child = await delegated(chat, "line one\x1b[31m\nline two")
    await finish(child, result="the answer")
    result = await db(InboxMessage.objects.get, in_reply_to=task)
    for message in (task, result):
        out, _ = await command("chain", str(message.pk))
        assert "\x1b" not in out
        _, root, text, reply, answer = out.splitlines()
        assert root.startswith(f"task assistant → researcher  [{str(task.pk)[:8]}, ")
        assert text == "│ line one[31m line two"
        assert reply.startswith(f"└─ result researcher → assistant  [{str(result.pk)[:8]}, ")
        assert "completed" in reply
        assert answer.strip() == "the answer"
    out, _ = await command("chain", str(result.pk), "--full")
    assert "│ line two" in out.splitlines()

    shown = json.loads((await command("chain", str(result.pk), "--json"))[0])
    assert (shown["message"], shown["root"]["id"]) == (str(result.pk), str(task.pk))
    assert [reply["content"] for reply in shown["root"]["replies"]] == ["the answer"]


# -- leases ---------------------------------------------------------------------------------------


async def test_leases_shows_the_row_and_what_the_mirror_says(chat, monkeypatch):
    run = await claim(await posted(chat))

    async def shown():
        [lease] = json.loads((await command("leases", "--json"))[0])
        assert (lease["run_id"], lease["node_id"]) == (str(run.pk), "test-node")
        assert lease["epoch"] == 1
        assert 0 <= lease["beat_age"] < 5
        assert conf.lease_ttl - 5 < lease["expires_in"] <= conf.lease_ttl
        return lease["mirror"]

    assert await shown() == "absent"
    assert "no beat yet" in (await command("leases"))[0]
    held = await db(leases.renew, ["test-runner"])
    assert await db(leases.mirror, held)
    assert await shown() == "alive"
    _, line = (await command("leases"))[0].splitlines()
    assert line.split()[:3] == [str(chat.pk)[:8], "assistant", "1"]
    assert "alive" in line

    def away():
        raise RedisAway

    monkeypatch.setattr(leases, "_redis", away)
    assert await shown() == "unknown"


async def test_a_lease_that_is_over_says_by_how_much(chat, monkeypatch):
    monkeypatch.setattr(conf, "lease_ttl", 0.01)
    await claim(await posted(chat))
    await asyncio.sleep(0.05)
    assert "over by 0." in (await command("leases"))[0]


async def test_the_audit_has_the_ended_leases_too(chat):
    run = await claim(await posted(chat))
    await finish(run)
    assert (await command("leases"))[0].startswith("There is no lease")
    out, _ = await command("leases", "--all", "--session", str(chat.pk)[:8])
    assert "released" in out
    [lease] = json.loads((await command("leases", "--all", "--json"))[0])
    assert (lease["end"], lease["mirror"]) == (Lease.End.RELEASED, None)


# -- questions as lines ---------------------------------------------------------------------------


def question(ui_type, **more):
    return {
        "ui_type": ui_type, "options": [], "fields": [], "default_value": None,
        "allow_other": False, "approval": None, **more,
    }  # fmt: skip


OPTIONS = ["red", {"value": "b", "label": "blue"}, "3"]
FIELDS = [
    {"name": "who", "label": "Name", "type": "text", "options": [], "required": True},
    {"name": "sum", "label": "", "type": "number", "options": [], "required": False},
    {"name": "way", "label": "Way", "type": "select", "options": ["sea", "air"], "required": True},
]


@pytest.mark.parametrize(
    ("asked", "lines", "answer"),
    [
        (question("text"), ["", "tea"], "tea"),
        (question("text", default_value="x"), [""], "x"),
        (question("select", options=OPTIONS), ["0", "4", "red wine", "2"], "b"),
        (question("select", options=OPTIONS), ["blue"], "b"),
        (question("select", options=OPTIONS), ["3"], "3"),
        (question("select", options=OPTIONS, allow_other=True), ["green"], "green"),
        (question("multi_select", options=OPTIONS), ["", "1,9", "2, 1, 2"], ["b", "red"]),
        (question("multi_select", options=OPTIONS), ["1 2"], ["red", "b"]),
        (question("multi_select", options=OPTIONS, allow_other=True), ["1, grün"], ["red", "grün"]),
        (question("multi_select", options=OPTIONS, default_value=["b"]), [""], ["b"]),
        (question("confirm"), ["", "maybe", "Y"], True),
        (question("confirm", default_value=False), [""], False),
        (question("confirm"), ["否"], False),
        (question("date"), ["tomorrow", "2026-02-30", "2026-02-28"], "2026-02-28"),
        (question("number"), ["", "nan", "1e999", "-7"], -7),
        (question("number", default_value=0), [""], 0),
        (question("number"), ["2.5"], 2.5),
        (question("form", fields=FIELDS), ["", "Ann", "", "2"], {"who": "Ann", "way": "air"}),
        (
            question("form", fields=FIELDS, default_value={"who": "Bo"}),
            ["", "x", "1", "sea"],
            {"who": "Bo", "sum": 1, "way": "sea"},
        ),
    ],
)
async def test_what_is_typed_becomes_an_answer_that_fits(asked, lines, answer):
    waiting = list(lines)

    async def read(prompt):
        return waiting.pop(0)

    assert await forms.fill(asked, read, lambda text: None) == answer
    assert not waiting


CARD = {"to": "Ada", "copies": 1}


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["", "perhaps", "[1]", "y"], {"decision": "approve"}),
        (["是"], {"decision": "approve"}),
        (["n"], {"decision": "deny", "reason": ""}),
        (["No wrong address"], {"decision": "deny", "reason": "wrong address"}),
        (['{"to": "Bob"}'], {"decision": "approve", "arguments": {"to": "Bob", "copies": 1}}),
    ],
)
async def test_a_tool_call_is_shown_and_decided_about_in_one_line(lines, answer):
    waiting, said = list(lines), []

    async def read(prompt):
        return waiting.pop(0)

    shown = {"tool": "send_postcard", "arguments": CARD, "digest": "d"}
    asked = question("form", fields=FIELDS, approval=shown)
    assert await forms.fill(asked, read, said.append) == {"digest": "d", **answer}
    assert not waiting
    assert "send_postcard" in said[0]
    assert '"to": "Ada"' in said[0]


@pytest.mark.parametrize(
    "ui_type", ["text", "select", "multi_select", "confirm", "date", "number", "form"]
)
async def test_each_question_can_be_declined(ui_type):
    async def read(prompt):
        return "/skip"

    asked = question(ui_type, options=OPTIONS, fields=FIELDS, default_value=None)
    with pytest.raises(forms.Skipped):
        await forms.fill(asked, read, lambda text: None)


def test_a_table_keeps_its_columns_under_wide_characters():
    first, second = terminal.table(("A", "B"), [("研究", "x")])
    assert (first, second) == ("A     B", "研究  x")
    assert terminal.one_line("研究员" * 5, 7) == "研究员…"


# == chat, as a process ===========================================================================


class Site:
    """A site of its own: a database file and one worker node."""

    def __init__(self, folder, model):
        self.env = base_env(
            AGENTSITE_VAR=str(folder / "var"),
            DATABASE_URL=f"sqlite:///{folder / 'db.sqlite3'}",
            AGENT_MODEL=model,
            LANG="C.UTF-8",
        )
        self.env.pop("DJANGO_SETTINGS_MODULE", None)
        self.manage("migrate", "-v", "0")
        self.python(
            "from django.contrib.auth.models import User as U; "
            "U.objects.create_superuser('root'); U.objects.create_user('bob')"
        )
        self.worker = WorkerNode("worker", self.env, folder)

    def manage(self, *argv, text=""):
        return subprocess.run(
            [*MANAGE, *argv],
            env=self.env,
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def python(self, code):
        done = self.manage("shell", "-v", "0", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start_chat(self, *argv):
        return Talk(self, *argv)


class Talk:
    """A chat under way over pipes."""

    def __init__(self, site, *argv):
        self.process = subprocess.Popen(
            [*MANAGE, "chat", *argv],
            env=site.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdin
        assert self.process.stdout
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while chunk := os.read(self._stdout.fileno(), 65536):
            self.said += chunk.decode()

    def type(self, text):
        self._stdin.write(text.encode())
        self._stdin.flush()

    def wait_for(self, text, count=1, timeout=30):
        deadline = time.monotonic() + timeout
        while self.said.count(text) < count:
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.01)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        self._stdin.close()
        return self.code()

    def code(self):
        code = self.process.wait(30)
        self._reader.join(5)
        return code

    @property
    def session_id(self):
        return self.said.split()[1].rstrip(",")


@contextmanager
def running(folder, model):
    site = Site(folder, model)
    site.worker.start()
    try:
        yield site
    finally:
        site.worker.terminate()


@pytest.fixture(scope="module")
def quick(tmp_path_factory, redis_server):
    with running(tmp_path_factory.mktemp("quick"), "demo-fast") as site:
        yield site


@pytest.fixture(scope="module")
def slow(tmp_path_factory, redis_server):
    """One whose model can be stopped in mid sentence."""
    with running(tmp_path_factory.mktemp("slow"), "demo") as site:
        yield site


def test_over_a_pipe_a_turn_with_sub_agents_and_a_question(quick):
    done = quick.manage("chat", text="What about tea?\n1\n")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = done.stdout.splitlines()
    for line in (
        "· assistant: send_message → researcher: Collect the facts: What about tea?",
        "▸ researcher has started",
        "▪ researcher: completed",
        "▪ strategist: completed",
        "assistant asks: How shall we go on?",
        "  1) Go deeper",
    ):
        assert lines.count(line) == 1, done.stdout
    assert "You answered: Go deeper." in lines[-1]
    assert "\x1b" not in done.stdout


def test_every_kind_of_question_over_a_pipe(quick):
    asked = [
        ("text", "tea\n", "tea"),
        ("select", "2\n", "Compare the options"),
        ("multi", "1 3\n", "Cost, Quality"),
        ("confirm", "y\n", "yes"),
        ("form", "Tea\n12\n\n", "name: Tea, budget: 12"),
        ("date", "2026-05-01\n", "2026-05-01"),
        ("number", "\n", "3"),
    ]
    text = "".join(f"ask {kind}\n{lines}" for kind, lines, _ in asked)
    done = quick.manage("chat", text=text)
    for _, _, told in asked:
        assert f"You answered: {told}. Then" in done.stdout, done.stdout
    assert done.returncode == 0


def test_a_sub_agents_question_is_asked_in_its_name(quick):
    done = quick.manage("chat", text="ask the researcher to ask me\n2\n/skip\n")
    assert "researcher asks: Which market matters most?" in done.stdout
    assert "The person told me: Europe." in done.stdout
    assert "You did not choose" in done.stdout
    assert done.returncode == 0


def test_an_unanswered_question_stays_open_for_the_next_time(quick):
    done = quick.manage("chat", text="ask confirm\n")
    assert done.returncode == 3
    session = done.stdout.split()[1].rstrip(",")
    again = quick.manage("chat", session[:13], text="maybe\ny\n")
    assert "assistant asks: Shall I really do it?" in again.stdout
    assert "Please type y or n." in again.stdout
    assert "You answered: yes." in again.stdout
    assert again.returncode == 0


def test_a_failed_turn_is_said_and_is_the_exit_code(quick):
    done = quick.manage("chat", text="fail\n")
    assert "The turn ended without an answer. provider_unavailable" in done.stdout
    assert done.returncode == 1


def test_for_programs_it_prints_the_events(quick):
    done = quick.manage("chat", "--json", text="hello\n")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        EVENT.validate_python(event)
    assert [e["type"] for e in events if e["type"].startswith("RUN_")] == [
        "RUN_STARTED",
        "RUN_FINISHED",
    ]
    assert "Session " in done.stderr


def test_what_another_window_does_is_seen(quick):
    with_window = quick.start_chat()
    with_window.wait_for("Session ")
    done = quick.manage("chat", with_window.session_id, text="ask confirm\n")
    assert done.returncode == 3
    with_window.wait_for("assistant asks: Shall I really do it?")
    assert quick.manage("chat", with_window.session_id, text="n\n").returncode == 0
    with_window.wait_for("You answered: no.")
    with_window.type("hello\n")  # its line is a message again, not the answer
    with_window.wait_for("Hello! I am the built-in demo model")
    assert with_window.end() == 0, with_window.said


def test_a_new_conversation_has_the_systems_language(quick):
    quick.env["LANG"] = "zh_CN.UTF-8"
    try:
        done = quick.manage("chat", text="问我 确认\n是\n")
    finally:
        quick.env["LANG"] = "C.UTF-8"
    assert "您的回答是：yes。" in done.stdout
    assert done.returncode == 0
    assert (
        quick.python(
            "from coordination.models import Session; "
            "print(Session.objects.order_by('created_at').last().language)"
        )
        == "zh-hans"
    )


def test_only_the_persons_own_sessions_open(quick):
    session = quick.manage("chat", text="").stdout.split()[1].rstrip(",")
    refused = quick.manage("chat", session, "--user", "bob")
    assert refused.stderr == "CommandError: That session is root's: --user root opens it.\n"
    assert refused.returncode == 1


@pytest.mark.django_db
def test_without_a_user_it_says_how_to_get_one():
    with pytest.raises(CommandError, match="There is no active user 'nobody'"):
        call_command("chat", "--user", "nobody")
    with pytest.raises(CommandError, match=r"--user, or make one with `manage.py createsuperuser`"):
        call_command("chat")


def test_ctrl_c_stops_the_turn_and_the_conversation_goes_on(slow):
    talk = slow.start_chat()
    talk.type("long\n")
    talk.wait_for("2. A stopped")
    talk.interrupt()
    talk.wait_for("Stopped. What can I help you with next?")
    assert "30. A stopped" not in talk.said
    talk.type("hello\n")
    talk.wait_for("Set AGENT_MODEL to talk to a real model.")
    assert talk.end() == 0


def test_a_second_ctrl_c_leaves_and_the_stop_holds(slow):
    talk = slow.start_chat()
    talk.type("long\n")
    talk.wait_for("2. A stopped")
    talk.interrupt()
    time.sleep(0.05)
    talk.interrupt()
    assert talk.code() == 130, talk.said
    assert "Traceback" not in talk.said
    time.sleep(1)
    [about] = json.loads(slow.manage("agents", talk.session_id, "--json").stdout)
    assert about["agents"][0]["status"] == "interrupted"


def test_ctrl_c_while_nothing_runs_says_so_and_twice_leaves(quick):
    talk = quick.start_chat()
    talk.wait_for("Session ")
    talk.interrupt()
    talk.wait_for("Nothing is running. Ctrl-C again leaves.")
    talk.interrupt()
    assert talk.code() == 130


def test_leaving_stops_nothing_and_an_operator_does(quick):
    talk = quick.start_chat()
    talk.type("ask confirm\n")
    talk.wait_for("assistant asks:")
    talk.process.terminate()
    assert talk.code() == 143
    stopped = quick.manage("interrupt", talk.session_id[:8])
    assert stopped.stdout.startswith("stopped"), stopped.stdout + stopped.stderr
    assert (stopped.returncode, stopped.stderr) == (0, "")


def test_ctrl_c_in_one_window_is_seen_in_the_other(slow):
    talk = slow.start_chat()
    talk.wait_for("Session ")
    other = slow.start_chat(talk.session_id)
    other.wait_for("Session ")
    talk.type("long\n")
    other.wait_for("2. A stopped")
    other.interrupt()
    for window in (talk, other):
        window.wait_for("Stopped. What can I help you with next?")
        assert window.end() == 130  # over a pipe: how its last turn ended


def test_at_a_terminal_it_prompts_edits_colours_and_leaves_it_as_it_was(slow):
    controller, tty = pty.openpty()
    before = termios.tcgetattr(tty)
    env = {**slow.env, "TERM": "xterm"}
    process = subprocess.Popen(
        [*MANAGE, "chat"],
        env=env,
        stdin=tty,
        stdout=tty,
        stderr=tty,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    said = ""

    def wait_for(text):
        nonlocal said
        deadline = time.monotonic() + 30
        while text not in said:
            assert time.monotonic() < deadline, said
            said += os.read(controller, 65536).decode(errors="replace")
        said = said.partition(text)[2]

    wait_for("you> ")
    os.write(controller, b"lomg\x7f\x7fng\r")
    wait_for("2. A stopped")
    os.write(controller, b"\x03")
    wait_for("Stopped. What can I help you with next?")
    wait_for("you> ")
    os.write(controller, b"ask confirm\r")
    wait_for("> ")
    os.write(controller, b"\x03")  # the question is withdrawn; the line is a message again
    wait_for("you> ")
    os.write(controller, "你好\r".encode())
    wait_for("你好！")
    wait_for("you> ")
    os.write(controller, b"\x04")
    wait_for("To go on: manage.py chat ")
    assert process.wait(20) == 0
    assert termios.tcgetattr(tty) == before
    os.close(controller)
    os.close(tty)


def _take_terminal():
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_reader_that_has_seen_enough_ends_it_quietly(quick):
    done = subprocess.run(
        ["sh", "-c", f"echo hello | {' '.join(MANAGE)} chat | head -c 5"],
        env=quick.env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "Sessi"
    assert "Traceback" not in done.stderr


def test_a_conversation_that_is_deleted_ends(quick):
    talk = quick.start_chat()
    talk.wait_for("Session ")
    quick.python(
        "import asyncio; from chat import actions, terminal; "
        f"chat = terminal.find_session('{talk.session_id}'); "
        "asyncio.run(actions.delete_session(chat, by='root'))"
    )
    talk.type("hello\n")
    assert talk.code() == 1
    assert "There is no such session." in talk.said
