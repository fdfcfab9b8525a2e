"""The operator's commands, on rows that the product made."""

import asyncio
import io
import json
import subprocess
import sys
import uuid
from contextlib import nullcontext

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from redis.exceptions import ConnectionError as RedisAway

from agentsite.environment import BASE_DIR
from agentsite.nodes import base_env
from chat import actions, terminal
from chat.management import forms, look
from chat.management.completing import candidates
from coordination import endings, inbox, leases, panel
from coordination.conf import conf
from coordination.db import db
from coordination.models import InboxMessage, Lease, Run
from coordination.transactions import locked
from tests.clients import Caller, claim, finish

MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]


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


# -- looking again and again ----------------------------------------------------------------------


async def test_a_watch_into_a_pipe_writes_look_after_look(chat, monkeypatch):
    leave_after(monkeypatch, looks=2)
    await posted(chat)
    out, code = await command("agents", "--watch", "--json")
    first, second = map(json.loads, out.splitlines())
    assert (code, first, first[0]["session"]) == (0, second, str(chat.pk))


def leave_after(monkeypatch, looks):
    """Ctrl-C while the watch rests after so many; signals are for a process's first thread."""
    left = look.Left()
    rests = iter([False] * (looks - 1) + [True])
    monkeypatch.setattr(left, "wait", lambda _pause: next(rests))
    monkeypatch.setattr(look, "leaving", lambda: nullcontext(left))


async def test_a_watch_outlives_the_database_and_says_so(chat, monkeypatch):
    there = iter([True, False, True])  # the second is the first look that is shown
    leave_after(monkeypatch, looks=2)
    busy_sessions = terminal.busy_sessions

    def asked():
        if next(there):
            return busy_sessions()
        raise OperationalError("gone away")

    monkeypatch.setattr(terminal, "busy_sessions", asked)
    await posted(chat)
    out, code = await command("agents", "--watch")
    assert code == 0
    assert "The database does not answer: gone away" in out.splitlines()[0]
    assert str(chat.pk) in out


async def test_what_is_asked_wrongly_is_said_before_a_watch_begins(chat):
    with pytest.raises(CommandError, match="There is no session"):
        await command("agents", "ffffffff", "--watch")
    with pytest.raises(CommandError, match=r"from 0\.1 to 3600"):
        await command("agents", "--watch", "--every", "0")


# -- Tab ------------------------------------------------------------------------------------------


async def test_tab_offers_commands_options_and_ids(chat, alice):
    def offered(words):
        return db(candidates, words)

    assert await offered(["interr"]) == ["interrupt"]
    assert "--json" in await offered(["leases", "--"])
    assert await offered(["no_such_command", ""]) == []
    start = str(chat.pk)[:4]
    for words in (["agents", start], ["interrupt", start], ["leases", "--all", "--session", start]):
        assert await offered(words) == [str(chat.pk)]
    assert await offered(["agents", str(chat.pk), ""]) == []
    assert await offered(["interrupt", start, "--agent", "res"]) == ["researcher"]
    assert await offered(["api_token", "al"]) == ["alice"]
    assert await offered(["agents", "not an id"]) == []
    _, task, _ = await delegated(chat)
    assert await offered(["chain", ""]) == [str(task.pk)]
    other = await actions.create_session(alice)
    assert await offered(["agents", ""]) == [str(chat.pk)]  # at rest, unless it is asked for
    assert await offered(["agents", str(other.pk)[:6]]) == [str(other.pk)]


@pytest.mark.parametrize("typed", [["./manage.py"], ["some/python3", "some/manage.py"]])
def test_tab_completes_in_bash(tmp_path, typed):
    env = base_env(DJANGO_SECRET_KEY="k" * 50, AGENTSITE_VAR=str(tmp_path))
    words = [*typed, "leases", "--al"]
    script = (
        f"source <({' '.join(MANAGE)} completion); COMP_WORDS=({' '.join(words)}); "
        f'COMP_CWORD={len(words) - 1}; _agentsite_complete; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "--all\n"


# -- timeline -------------------------------------------------------------------------------------


async def test_a_timeline_is_told_in_order_and_narrowed(chat):
    _, task, child = await delegated(chat, "collect\x1b[31m the facts")
    await finish(child, result="the answer")
    told = json.loads((await command("timeline", str(chat.pk)[:8], "--json"))[0])
    entries = told["entries"]
    assert [e["at"] for e in entries] == sorted(e["at"] for e in entries)
    assert {e["kind"] for e in entries} >= {"message", "inbox", "run", "lease", "log"}
    answer = next(e for e in entries if e["kind"] == "inbox" and e["text"] == "the answer")
    assert answer["took"] > 0
    assert str(task.pk) in {e["row"] for e in entries}

    out, _ = await command("timeline", str(chat.pk), "--kind", "inbox", "--agent-id", "assistant")
    assert "\x1b" not in out
    assert "collect[31m the facts" in out
    assert "lease:" not in out
    with pytest.raises(CommandError, match="invalid choice"):
        await command("timeline", str(chat.pk), "--kind", "no such")
