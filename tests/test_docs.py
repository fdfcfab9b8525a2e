"""The pages that show how to add something are done as they say: every block, every command.

    ```python title="chat/agents/translator.py"    a file to write
    ```diff title="chat/agents/__init__.py"        lines to change in a file that is there
    ```sh                                          commands, which must succeed
    ```json                                        AGENT_MCP_SERVERS, which must be valid

They are done in a copy of the product, one page after the other, and then all their tests are run
together. A page's Chinese twin has the same blocks, to the letter.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentsite.environment import SiteEnvironment
from chat.mcp_servers import McpServer
from coordination.conf import Conf

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ["add-an-agent", "add-a-provider", "add-a-tool"]
PRODUCT = ["agentsite", "chat", "coordination", "locale", "templates", "tests"]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    kind: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@pytest.fixture
def copy(tmp_path):
    """The product as it is, to be changed."""
    for name in PRODUCT:
        ignored = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("manage.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def apply(block: Block, copy: Path) -> None:
    file = copy / block.title
    if block.kind == "python":
        assert not file.exists(), f"{block.title} is there already"
        file.write_text(block.text)
        return
    lines = block.text.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if not line.startswith("+"))
    new = "".join(line[1:] for line in lines if not line.startswith("-"))
    text = file.read_text()
    assert text.count(old) == 1, f"{block.title} has not, once:\n{old}"
    file.write_text(text.replace(old, new))


def run(commands: str, copy: Path) -> str:
    """As in a shell of that folder, on SQLite and without Redis, with a key of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    key = "only-for-tests-" + "0123456789" * 4
    env = {**kept, "DJANGO_SECRET_KEY": key, "AGENT_MCP_CONNECT": "100"}
    done = subprocess.run(
        ["sh", "-ec", commands], cwd=copy, env=env, capture_output=True, text=True, check=False
    )
    said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0 or only_the_database_is_missing(done.stdout), f"{commands}\n{said}"
    return done.stdout


def only_the_database_is_missing(said: str) -> bool:
    """What the doctor says of a clone in which ``make run`` has not run yet."""
    faults = [line for line in said.splitlines() if line.startswith("fault")]
    return len(faults) == 1 and "migrations are not applied" in faults[0]


@pytest.mark.timeout(300)  # a dozen processes are started
def test_who_does_what_the_pages_say_gets_what_they_promise(copy):
    tests, files = [], []
    for page in PAGES:
        found = blocks(DOCS / f"{page}.md")
        for block in found:
            if block.title:
                apply(block, copy)
                files.append(block.title)
        for commands in (block.text for block in found if block.kind == "sh"):
            tests += re.findall(r"-m pytest (\S+)", commands)
            run(re.sub(".*-m pytest.*\n", "", commands), copy)
        assert not [path for path in named_paths(page) if not (copy / path).exists()]
    run(f"{sys.executable} -m ruff check {' '.join(files)}", copy)
    assert len(tests) == len(PAGES)
    assert " passed" in run(f"{sys.executable} -m pytest -q {' '.join(tests)}", copy)


def named_paths(page: str) -> list[str]:
    return re.findall(r"`([\w./-]+/[\w.-]+\.\w+)`", prose(DOCS / f"{page}.md"))


@pytest.mark.parametrize("page", PAGES)
def test_the_chinese_page_has_the_same_blocks(page):
    assert blocks(DOCS / "zh" / f"{page}.md") == blocks(DOCS / f"{page}.md")


@pytest.mark.parametrize("folder", [DOCS, DOCS / "zh"])
@pytest.mark.parametrize("page", PAGES)
def test_links_and_variables_are_there(page, folder):
    text = (folder / f"{page}.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert "://" in target or (folder / target).exists(), target
    known = {f"AGENT_{name.upper()}" for name in Conf.model_fields}
    known |= {name.upper() for name in SiteEnvironment.model_fields}
    assert set(re.findall(r"\bAGENT_[A-Z_]+\b", text)) <= known


def test_the_servers_on_the_page_are_servers():
    (block,) = (block for block in blocks(DOCS / "add-a-tool.md") if block.kind == "json")
    for server in json.loads(block.text).values():
        McpServer.model_validate(server)
