"""``manage.py chat`` as a person and a pipe use it: a process of its own, beside a worker node.

The site is its own, too: on SQLite, whatever the suite runs on.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager

import pytest
from django.core.management import CommandError, call_command

from agentsite.environment import BASE_DIR
from agentsite.nodes import WorkerNode, base_env
from chat.management import look
from tests.clients import EVENT

MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]

pytestmark = pytest.mark.xdist_group("dialogue")  # one site for all of them


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


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, site, *argv):
        self._controller, self._tty = pty.openpty()
        self._before = termios.tcgetattr(self._tty)
        self.process = subprocess.Popen(
            [*MANAGE, *argv],
            env={**site.env, "TERM": "xterm"},
            stdin=self._tty,
            stdout=self._tty,
            stderr=self._tty,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._said = ""

    def wait_for(self, text):
        """What was said up to there; the next look begins after it."""
        deadline = time.monotonic() + 30
        while text not in self._said:
            assert time.monotonic() < deadline, self._said
            self._said += os.read(self._controller, 65536).decode(errors="replace")
        before, _, self._said = self._said.partition(text)
        return before

    def type(self, text):
        os.write(self._controller, text.encode())

    def end(self):
        """The exit code; the terminal must be as it was."""
        code = self.process.wait(20)
        assert termios.tcgetattr(self._tty) == self._before
        os.close(self._controller)
        os.close(self._tty)
        return code


def test_at_a_terminal_it_prompts_edits_colours_and_leaves_it_as_it_was(slow):
    talk = Terminal(slow, "chat")
    talk.wait_for("you> ")
    talk.type("lomg\x7f\x7fng\r")
    talk.wait_for("2. A stopped")
    talk.type("\x03")
    talk.wait_for("Stopped. What can I help you with next?")
    talk.wait_for("you> ")
    talk.type("ask confirm\r")
    talk.wait_for("> ")
    talk.type("\x03")  # the question is withdrawn; the line is a message again
    talk.wait_for("you> ")
    talk.type("你好\r")
    talk.wait_for("你好！")
    talk.wait_for("you> ")
    talk.type("\x04")
    talk.wait_for("To go on: manage.py chat ")
    assert talk.end() == 0


@pytest.mark.parametrize("leave", ["\x03", signal.SIGTERM])
def test_a_watch_has_a_screen_of_its_own_and_gives_the_other_back(quick, leave):
    watch = Terminal(quick, "leases", "--watch", "--every", "0.1")
    watch.wait_for(look.SECOND_SCREEN)
    for _look in range(2):
        watch.wait_for("There is no lease: nobody executes a run.")
    if leave == "\x03":
        watch.type(leave)
    else:
        watch.process.send_signal(leave)
    watch.wait_for(look.FIRST_SCREEN)
    assert watch.end() == (0 if leave == "\x03" else 128 + leave)


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
