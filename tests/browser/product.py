"""The product as a newcomer starts it, and a browser to look at it with.

``scripts/screenshots.py`` uses the same, so that what the pictures show is what the tests see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from playwright.sync_api import Browser, sync_playwright

from agentsite.environment import BASE_DIR
from agentsite.processes import Child, free_port, spawn, until

UNSET = {"DATABASE_URL", "REDIS_URL", "DJANGO_SECRET_KEY", "DJANGO_SETTINGS_MODULE", "AGENT_MODEL"}
CHROMIUM: str | None = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


# The rows of an old and long conversation: a question and an answer, again and again.
FILL = """
import datetime as dt, uuid
from django.contrib.auth import get_user_model
from django.utils import timezone
from chat.models import ChatSession, Message
from coordination.models import Run, Session, WorkLogEntry
begin = timezone.now() - dt.timedelta(days=1)
session = Session.objects.create(last_position=2 * {count})
owner = get_user_model().objects.get()
chat = ChatSession.objects.create(session=session, owner=owner, title="long")
answer = "some **words**.\\n\\n- one\\n- two\\n\\n```python\\nprint(1)\\n```"
runs, messages, lines = [], [], []
for n in range(0, {count}, 2):
    run = Run(session=session, agent_id="assistant", position=n, status="completed",
              reason="completed", usage=dict(input_tokens=100, output_tokens=50), ended_at=begin)
    run.root_id = run.pk
    runs.append(run)
    about = dict(session=session, agent_id="assistant", run_id=run.pk)
    lines += [WorkLogEntry(**about, kind="run_completed", text="done") for _ in range(3)]
    about |= dict(session=chat, created_at=begin + dt.timedelta(seconds=n))
    messages += [
        Message(**about, position=n + 1, role="user", content=f"Message {{n}}"),
        Message(**about, position=n + 2, role="assistant", content=f"Answer {{n}}: {{answer}}"),
    ]
for rows in (runs, messages, lines):
    type(rows[0]).objects.bulk_create(rows, batch_size=500)
print(session.pk)
"""


class Product:
    """A running ``manage.py serve`` in a folder of its own."""

    def __init__(self, folder: Path, env: Mapping[str, str] = MappingProxyType({})) -> None:
        around = {name: value for name, value in os.environ.items() if name not in UNSET}
        own = {"AGENTSITE_VAR": str(folder / "var"), "PYTHONUNBUFFERED": "1"}
        self.env = {**around, **own, **env}
        self.log = folder / "serve.log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        argv = [sys.executable, "manage.py", "serve", "--port", str(port)]
        self.child: Child = spawn(argv, name="serve", log=self.log, env=self.env, cwd=BASE_DIR)

    def wait_until_up(self) -> None:
        """Until it has said where it is."""
        until(
            lambda: "Ctrl-C stops everything" in self.said,
            child=self.child, what="serve", timeout=60,
        )  # fmt: skip

    @property
    def said(self) -> str:
        """Its output so far."""
        return self.child.last_words(lines=1000)

    @property
    def sign_in_link(self) -> str:
        """The link it has printed; works once."""
        found = re.search(r"http://\S+/signin/\S+", self.said)
        assert found
        return found[0]

    def long_conversation(self, count: int) -> str:
        """The address of one with so many messages, written straight into the database."""
        argv = [sys.executable, "manage.py", "shell", "-v", "0", "-c", FILL.format(count=count)]
        env = {**self.env, "DJANGO_SECRET_KEY": "of no use here" * 4}
        done = subprocess.run(
            argv, env=env, cwd=BASE_DIR, capture_output=True, text=True, check=True
        )
        return f"{self.url}/chat/{done.stdout.split()[-1]}/"


@contextmanager
def running(folder: Path, env: Mapping[str, str] = MappingProxyType({})) -> Iterator[Product]:
    """The product, until the block is left."""
    product = Product(folder, env)
    try:
        product.wait_until_up()
        yield product
    finally:
        product.child.stop(timeout=40)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's own Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
