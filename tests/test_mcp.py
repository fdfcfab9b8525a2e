"""Tools of MCP servers are tools like ours, and a server is never more than its tools' trouble."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from django.core.checks import run_checks

from agentsite import doctor
from agentsite.processes import free_port, port_is_free
from agentsite.processes import until as until_now
from chat import actions
from chat.agents import AGENTS, MASTER
from chat.mcp_servers import McpServer
from chat.tools import TOOLS, mcp, tools_of
from chat.tools.base import ToolContext, ToolError
from chat.tools.schemas import DoesNotFit, JsonSchema
from coordination.conf import conf
from coordination.db import db
from coordination.errors import Invalid
from coordination.models import Question, Run
from tests.core import at_rest, ended, new_chat, node
from tests.core import until as core_until
from tests.fakes.step_model import ScriptedModel, call

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine takes long to start a server."""
    monkeypatch.setattr(conf, "mcp_connect", 100)


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """What the fake servers have noticed."""
    return tmp_path_factory.mktemp("mcp") / "notes"


@pytest.fixture(autouse=True)
def nothing_noted(notes):
    notes.write_text("")


@pytest.fixture
def named(settings):
    """Names servers in the settings, as AGENT_MCP_SERVERS would."""

    def name(**servers):
        settings.AGENT_MCP_SERVERS = {
            name: McpServer.model_validate(given) for name, given in servers.items()
        }

    return name


def command(*args, **env):
    return {"command": sys.executable, "args": [str(FAKES / args[0]), *args[1:]], "env": env}


def stdio(notes):
    return command("mcp_server.py", "stdio", MCP_NOTES=str(notes))


def hostile(how):
    return command("mcp_hostile.py", how)


class HttpServer:
    """A server of its own process, which may be killed and started again."""

    def __init__(self, notes, *argv):
        self.notes = notes
        self.port = free_port()
        self.argv = [sys.executable, FAKES / argv[0], *argv[1:], str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process = None

    def start(self):
        env = {**os.environ, "MCP_NOTES": str(self.notes)}
        self.process = subprocess.Popen(self.argv, env=env, start_new_session=True)
        until_now(lambda: not port_is_free(self.port), what="the MCP server")

    def kill(self):
        """With what its tools have started; harmless where it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def serve(notes):
    """Starts servers over HTTP; ends them after the test."""
    started = []

    def start(*argv):
        started.append(HttpServer(notes, *argv))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def http(notes):
    """One for all tests: it starts slower than they take."""
    server = HttpServer(notes, "mcp_server.py", "http")
    server.start()
    yield server
    server.kill()


async def make(tool, call_id="c1", **arguments):
    offer = await tools_of(["mcp:it"])
    made = await offer.tools[f"it_{tool}"](ToolContext(Run(), call_id), json.dumps(arguments))
    return made.content


async def refusal(tool, **arguments):
    with pytest.raises(ToolError) as refused:
        await make(tool, **arguments)
    return str(refused.value)


async def until(condition, within=60):
    """As ``core.until``, without a database."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is outside has no event
            await asyncio.sleep(0.01)


@pytest.fixture
def over_http(named, http):
    named(it={"url": http.url})


@pytest.fixture(params=["stdio", "http"])
def it(request, named, notes):
    """The same server, by its command and by its URL."""
    if request.param == "stdio":
        named(it=stdio(notes))
    else:
        request.getfixturevalue("over_http")


async def test_its_tools_are_offered_and_called(it, notes):
    offer = await tools_of(["check_inbox", "mcp:it"])
    assert offer.missing == []
    add = offer.tools["it_add"]
    assert add.description == "Add two numbers."
    assert add.spec.parameters["required"] == ["a"]
    assert (add.repeatable, offer.tools["it_effect"].repeatable) == (True, False)
    assert "check_inbox" in offer.tools
    assert await make("add", a=1, b=2) == "3"
    assert "a" in await refusal("add", b=2)
    assert "integer" in await refusal("add", a="many")
    assert "no such shelf" in await refusal("fail")
    assert notes.read_text() == ""


async def test_only_the_tools_that_an_agent_names_are_its_own(over_http):
    offer = await tools_of(["mcp:it/add", "mcp:it/subtract"])
    assert list(offer.tools) == ["it_add"]
    (missing,) = offer.missing
    assert "it_subtract" in missing


async def test_a_stopped_call_is_cancelled_at_the_server(it, notes):
    call = asyncio.ensure_future(make("wait"))
    await until(lambda: "waiting" in notes.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: "cancelled" in notes.read_text())
    assert await make("add", a=1) == "2"  # and the session goes on


async def test_what_has_changed_is_read_again(it):
    assert "it_learned" not in (await tools_of(["mcp:it"])).tools
    await make("learn")
    await until_changed(lambda offer: "it_learned" in offer.tools)
    assert await make("learned") == "I know"


async def until_changed(is_so):
    async with asyncio.timeout(60):
        while not is_so(await tools_of(["mcp:it"])):  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.01)


async def test_what_is_no_text_is_told_in_words(over_http, monkeypatch):
    assert await make("show", kind="image", size=300) == (
        "[image, image/png, 300 bytes: it cannot be shown to you]"
    )
    assert await make("show", kind="nothing") == ""
    assert await make("show", kind="nul") == "a\ufffdb"
    monkeypatch.setattr(conf, "mcp_result_bytes", 1000)
    cut = await make("show", kind="text", size=5000)
    assert cut.startswith("y" * 1000 + "\n[cut off")
    assert "5000" in cut


async def test_a_server_gets_its_own_variables_and_none_of_ours(named, notes):
    named(it=stdio(notes))
    names = await make("environment")
    assert "MCP_NOTES" in names
    assert "PATH" in names
    assert "DJANGO" not in names


async def test_one_that_dies_in_a_call_is_told_of_and_started_again(named, notes):
    named(it=stdio(notes))
    said = await refusal("die")
    assert "not available" in said
    assert "exited with 3" in said
    assert await make("add", a=1) == "2"


async def test_over_http_a_restart_is_found_at_the_next_call(named, serve):
    http = serve("mcp_server.py", "http")
    named(it={"url": http.url})
    assert await make("add", a=1) == "2"
    waiting = asyncio.ensure_future(refusal("wait"))
    await until(lambda: "waiting" in http.notes.read_text())
    http.kill()
    assert "not available" in await waiting
    assert "not available" in await refusal("add", a=1)  # its tools are known, and it is away
    http.start()
    assert await make("add", a=1) == "2"


UNREACHABLE = {
    "no program": ({"command": "no-such-program"}, "exited with 127"),
    "no server": ({"url": "http://127.0.0.1:9/mcp?key=hidden"}, "could not be reached"),
    "no protocol": ({"command": "sleep", "args": ["600"]}, "did not answer within"),
    "ended": ({"command": "sh", "args": ["-c", "read line; exit 1"]}, "exited with 1"),
    "silent": (hostile("silent"), "took over"),
    "endless": (hostile("endless"), "took over"),
    "no list": (hostile("no list"), "an answer that is none: tools"),
    "no schema": (hostile("no schema"), "an answer that is none: tools.1.inputSchema"),
}


@pytest.mark.parametrize("how", UNREACHABLE)
async def test_one_that_cannot_be_asked_takes_only_its_tools_from_the_turn(named, monkeypatch, how):
    given, why = UNREACHABLE[how]
    named(it=given)
    if how in ("no protocol", "silent", "endless"):  # time ends them, and nothing else
        monkeypatch.setattr(conf, "mcp_connect", 3)
    offer = await tools_of(["check_inbox", "mcp:it"])
    assert list(offer.tools) == ["check_inbox"]
    (missing,) = offer.missing
    assert why in missing
    assert "hidden" not in missing
    monkeypatch.setattr(conf, "mcp_connect", 600)  # for a while it is not asked again
    assert (await tools_of(["mcp:it"])).missing == [missing]


async def test_a_server_that_reads_nothing_delays_no_stop_and_is_started_again(named, monkeypatch):
    named(it=hostile("deaf"))
    await tools_of(["mcp:it"])
    deaf = mcp.server("it")._connection
    first = asyncio.ensure_future(make("it"))  # from here on it reads nothing
    await until(lambda: deaf._asking)
    monkeypatch.setattr(conf, "tool_timeout", 4)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await make("it", a="x" * 600_000)  # more than its pipe holds
    assert asyncio.get_running_loop().time() - began < 3
    with pytest.raises(mcp.Unavailable, match="does not read"):
        await first
    await until(lambda: not deaf.is_open)
    assert (await tools_of(["mcp:it"])).missing == []


async def test_a_strangers_tool_never_stands_for_one_of_ours(named, monkeypatch):
    named(it=hostile("refuses"))
    monkeypatch.setitem(TOOLS, "it_it", TOOLS["check_inbox"])
    offer = await tools_of(["it_it", "mcp:it"])
    assert offer.tools["it_it"] is TOOLS["check_inbox"]


async def test_a_server_that_no_setting_names_is_told_of():
    assert "names no server weather" in (await tools_of(["mcp:weather"])).missing[0]


async def test_a_tool_that_nobody_could_use_is_left_out_with_its_reason(named):
    named(it=hostile("schemas"))
    tools = await mcp.server("it").tools()
    assert set(tools.offered) == {
        f"it_{name}" for name in ("good", "same_name", "endless", "elsewhere", "itself", "slow")
    }
    refused = "\n".join(tools.refused)
    for name, why in [
        ("none", "its schema is none"),
        ("large", "bytes"),
        ("xxx", "too long"),
        ("same/name", "it_same_name already"),
    ]:
        assert any(name in line and why in line for line in tools.refused), refused


@pytest.mark.parametrize("name", ["endless", "elsewhere", "itself"])
async def test_a_schema_without_end_is_given_up(named, name):
    named(it=hostile("schemas"))
    assert "cannot be followed" in await refusal(name)


def test_a_number_that_no_schema_can_divide_is_no_crash():
    schema = JsonSchema({"type": "object", "properties": {"a": {"multipleOf": 0.1}}})
    with pytest.raises(DoesNotFit):
        schema.values({"a": 10**400})


async def test_a_strangers_regular_expression_is_not_run(named):
    named(it=hostile("schemas"))
    assert await make("slow", a="a" * 60 + "b") == ""


async def test_a_crowd_of_tools_is_cut_off(named):
    named(it=hostile("crowd"))
    tools = await mcp.server("it").tools()
    assert len(tools.offered) == conf.mcp_tools
    assert "too many" in tools.refused[-1]


HOSTILE = {
    "megabytes": f"more than {conf.mcp_message_bytes} bytes",
    "no result": "an answer that is none",
    "refuses": "refused: not these",
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_an_answer_that_is_none_is_an_error_to_the_model(named, how):
    named(it=hostile(how))
    assert HOSTILE[how] in await refusal("it")


@pytest.mark.parametrize(
    ("how", "says"),
    [("megabytes", f"more than {conf.mcp_message_bytes} bytes"), ("bomb", "compressed")],
)
async def test_over_http_too_an_answer_has_its_greatest_size(named, serve, how, says):
    named(it={"url": serve("mcp_hostile.py", how).url})
    assert says in await refusal("it")


async def test_what_a_server_prints_by_mistake_is_passed_over(named):
    named(it=hostile("rubbish"))
    assert await make("it") == "found it"


async def test_a_server_ends_with_the_process_that_speaks_to_it(notes, tmp_path):
    """At kill -9 too, and with everything that it has started."""
    speaker = subprocess.Popen(  # noqa: ASYNC220 - it is killed below
        [sys.executable, "-c", SPEAKER],
        env={
            **os.environ,
            "AGENT_MCP_SERVERS": json.dumps({"it": stdio(notes)}),
            "AGENTSITE_VAR": str(tmp_path),
            "AGENT_MCP_CONNECT": "100",
        },
    )
    try:
        await until(lambda: notes.read_text().endswith("\n"), within=60)
        pids = notes.read_text().split()[1:]
    finally:
        speaker.send_signal(signal.SIGKILL)
        speaker.wait()
    await until(lambda: not any(map(is_at_work, pids)))


SPEAKER = """
import asyncio, django
django.setup()
from chat.tools import tools_of
from chat.tools.base import ToolContext
from coordination.models import Run

async def main():
    offer = await tools_of(["mcp:it"])
    await offer.tools["it_wait"](ToolContext(Run(), "c1"), "{}")

asyncio.run(main())
"""


def is_at_work(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


# In a turn


@pytest.fixture
def master(monkeypatch):
    """Gives the master the tools of the server."""
    agent = AGENTS[MASTER]
    more = dataclasses.replace(agent, tools=(*agent.tools, "mcp:it"))
    monkeypatch.setitem(AGENTS, MASTER, more)


@pytest.fixture
async def chat(transactional_db, hub, core, master):
    return await db(new_chat)


async def say(chat):
    posted = await actions.post_message(chat, "hello", by="alice")
    return await db(Run.objects.get, pk=posted.run_id)


async def test_a_turn_calls_it_and_goes_on(chat, over_http):
    model = ScriptedModel(assistant=[[call("it_add", a=2, b=3), call("it_fail")], ["done"]])
    async with node(model):
        run = await ended(await say(chat), within=60)
    assert run.status == "completed"
    assert "it_add" in model.requests[0].tools
    assert '"5"' in model.requests[-1].said
    assert "no such shelf" in model.requests[-1].said
    await at_rest(chat)


async def test_a_call_that_does_not_end_is_given_up_and_the_server_told(
    chat, over_http, notes, monkeypatch
):
    await tools_of(["mcp:it"])  # the first connection is not to count
    monkeypatch.setattr(conf, "tool_timeout", 0.5)
    model = ScriptedModel(assistant=[[call("it_wait")], ["done"]])
    async with node(model):
        run = await ended(await say(chat))
    assert run.status == "completed"
    assert "did not end within 0.5 seconds" in model.requests[-1].said
    await until(lambda: "cancelled" in notes.read_text())


async def test_a_server_that_is_away_leaves_the_turn_its_other_tools(chat, named):
    named(it={"command": "no-such-program"})
    model = ScriptedModel(assistant=[[call("it_add", a=1)], ["done"]])
    async with node(model):
        run = await ended(await say(chat), within=60)
    assert run.status == "completed"
    first, last = model.requests
    assert "ask_user" in first.tools
    assert "You do not have the tools of it now" in first.instructions
    assert "You do not have the tools of it now" in last.said


async def test_a_person_approves_a_call_and_may_change_it(chat, named, http, notes):
    """Where the answer comes in nobody knows the server: the question carries its schema."""
    named(it={"url": http.url, "approval": ["effect"]})
    model = ScriptedModel(assistant=[[call("it_effect", amount=7)], ["done"]])
    async with node(model):
        run = await say(chat)
        question = await core_until(Question.objects.filter(state="open").first, within=60)
        yes = {"decision": "approve", "digest": question.approval["digest"]}
        assert question.approval["arguments"] == {"amount": 7}
        wrong = {**yes, "arguments": {"amount": "many"}}
        with pytest.raises(Invalid, match="amount"):
            await actions.respond(chat, str(question.pk), payload=wrong, by="alice")
        edited = {**yes, "arguments": {"amount": 8}}
        await actions.respond(chat, str(question.pk), payload=edited, by="alice")
        assert (await ended(run)).status == "completed"
    assert notes.read_text() == "effect 8\n"
    assert "done 8" in model.requests[-1].said


# What is said of a server in the settings


def test_checks_name_what_is_wrong(settings, master):
    settings.AGENT_MCP_SERVERS = {"send": McpServer(command="no-such-program")}
    found = {problem.id: problem.msg for problem in run_checks()}
    assert "'it'" in found["chat.E002"]
    assert "send_message" in found["chat.E003"]
    assert "no-such-program" in found["chat.W001"]


def test_a_tool_that_is_not_in_the_table_is_named(monkeypatch):
    agent = dataclasses.replace(AGENTS[MASTER], tools=("send_letter",))
    monkeypatch.setitem(AGENTS, MASTER, agent)
    assert any("send_letter" in problem.msg for problem in run_checks())


def test_the_doctor_asks_each_server(settings):
    def found(**servers):
        settings.AGENT_MCP_SERVERS = {
            name: McpServer.model_validate(given) for name, given in servers.items()
        }
        return doctor.mcp_servers()

    assert found(it=hostile("rubbish")) == "it: 1 tools"
    with pytest.raises(doctor.Notice, match="its schema is none"):
        found(it=hostile("schemas"), other=hostile("rubbish"))
    with pytest.raises(doctor.Fault, match="it is not available"):
        found(it={"command": "no-such-program"}, other=hostile("rubbish"))


def test_a_server_tells_no_secret():
    server = McpServer(url="https://u:hidden@host/mcp?key=hidden", headers={"X-Key": "hidden"})
    assert "hidden" not in repr(server)
    assert "hidden" not in repr(McpServer(command="x", args=["hidden"], env={"KEY": "hidden"}))
