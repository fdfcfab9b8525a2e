"""The description of the API is complete, and Schemathesis finds nothing that contradicts it.

What runs is ``manage.py serve``, as a newcomer has it, with its workers: streams end, queues move.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chat.transports import openapi
from chat.transports.api import api
from tests.test_serve import UNSET, Serve, manage

CONFIG = Path(__file__).with_name("schemathesis.toml")
FOLLOWED = ("/events", "/stream", "/wait", "/join")  # the configuration leaves streams out
PHASES = "examples,fuzzing,stateful"
IN_FULL = bool(os.environ.get("TRIALS_IN_FULL"))  # a minute more: every boundary of every field


@pytest.fixture
def serve(tmp_path):
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    env |= {"AGENTSITE_VAR": str(tmp_path / "var"), "AGENT_MODEL": "demo-fast"}
    running = Serve(env | {"PYTHONUNBUFFERED": "1"}, tmp_path / "serve.log")
    try:
        running.wait_for("Ctrl-C stops everything")
        yield running
    finally:
        running.child.stop(timeout=60)


def token(serve: Serve) -> str:
    key = (Path(serve.env["AGENTSITE_VAR"]) / "secret_key").read_text().strip()
    env = serve.env | {"DJANGO_SECRET_KEY": key}
    return manage(env, "api_token", "fuzz", "--create").stdout.strip()


@pytest.mark.timeout(600)
def test_nothing_that_schemathesis_sends_is_answered_otherwise_than_described(serve, tmp_path):
    phases = f"coverage,{PHASES}" if IN_FULL else PHASES
    argv = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
    argv += [f"http://127.0.0.1:{serve.port}/api/openapi.json"]
    argv += ["--phases", phases, "--max-examples", "4", "--workers", "2", "--continue-on-failure"]
    argv += ["--no-color", "--warnings", "off"]
    argv += [] if IN_FULL else ["--generation-deterministic"]
    env = serve.env | {"TOKEN": token(serve)}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    selected, total = re.search(r"(\d+) selected / (\d+) total", done.stdout).groups()
    left_out = sum(path.endswith(FOLLOWED) for path in DESCRIPTION["paths"])
    assert int(selected) == int(total) - left_out


NAMED_IN_THE_BODY = {"/api/agui", "/api/lg/threads"}  # what may be somebody else's
UNCOUNTED = {"interrupt", "cancel_run", "search_threads", "search_assistants", "get_history"}
DESCRIPTION = api.get_openapi_schema(path_prefix="/api/")
OPERATIONS = [
    pytest.param(verb, path, call, id=f"{verb} {path}")
    for path, verbs in DESCRIPTION["paths"].items()
    for verb, call in verbs.items()
]


@pytest.mark.parametrize(("verb", "path", "call"), OPERATIONS)
def test_every_call_says_what_it_answers(verb, path, call):
    expected = {401, 503}
    expected |= {404} if "{" in path or path in NAMED_IN_THE_BODY else set()
    expected |= {400, 413, 422} if "requestBody" in call else set()
    expected |= {403} if verb != "get" else set()
    expected |= {429} if verb != "get" and call["operationId"] not in UNCOUNTED else set()
    assert expected <= set(call["responses"])
    assert call["summary"]
    assert call["description"]
    assert call["tags"]
    assert {"BearerToken"} <= {name for way in call["security"] for name in way}


@pytest.mark.parametrize(("verb", "path", "call"), OPERATIONS)
def test_every_call_shows_examples(verb, path, call):
    schemas = DESCRIPTION["components"]["schemas"]

    def has_example(content):
        (kind,) = content.values()
        if "example" in kind or "examples" in kind:
            return True
        schema = kind["schema"].get("items", kind["schema"])
        name = schema.get("$ref", str(schema.get("allOf"))).split("/")[-1]
        return schemas[name.rstrip("'}]")]["examples"]

    bodies = [call["requestBody"]] if "requestBody" in call else []
    good = [answer for status, answer in call["responses"].items() if status < 300]
    assert all(has_example(answer["content"]) for answer in bodies + good if "content" in answer)


def test_every_refusal_is_told_once_with_its_codes():
    responses = DESCRIPTION["components"]["responses"]
    assert set(responses) == {str(status) for status in openapi.REFUSALS}
    assert "Retry-After" in responses["429"]["headers"]


def test_streams_are_told_as_streams():
    paths = DESCRIPTION["paths"]
    for path, verb in (("/api/chat/{sid}/events", "get"), ("/api/agui", "post")):
        assert list(paths[path][verb]["responses"][200]["content"]) == ["text/event-stream"]
