"""The product as a newcomer starts it, and a browser to look at it with.

``scripts/screenshots.py`` uses the same, so that what the pictures show is what the tests see.
"""

from __future__ import annotations

import os
import re
import shutil
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
