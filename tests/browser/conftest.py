"""A running product, and a signed-in page for each test. A fault on a page fails its test."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import product as products
from tests.browser.product import Product

expect.set_options(timeout=20_000)


def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def product(tmp_path_factory) -> Iterator[Product]:
    if products.CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with products.running(tmp_path_factory.mktemp("product")) as product:
        yield product


@pytest.fixture(scope="session")
def browser(product) -> Iterator[Browser]:
    with products.chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def cookies(product, browser) -> dict:
    """Signed in by the link that ``serve`` prints, as a newcomer is."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(product.sign_in_link)
    assert page.url == f"{product.url}/chat/new/"
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def open_browser(browser, product, cookies):
    """Makes contexts (languages, sizes), and sees to it that no page had a fault."""
    opened: list[BrowserContext] = []
    faults: list[str] = []

    def make(**options) -> BrowserContext:
        context = browser.new_context(
            base_url=product.url, storage_state=json.loads(json.dumps(cookies)), **options
        )
        context.on("weberror", lambda error: faults.append(str(error.error)))
        context.on(
            "console",
            lambda message: faults.append(message.text) if is_fault(message) else None,
        )
        opened.append(context)
        return context

    yield make
    for context in opened:
        context.close()
    assert faults == []


def is_fault(message) -> bool:
    """The browser reports refused and broken connections itself, whatever the page does then."""
    return message.type == "error" and "Failed to load resource" not in message.text


@pytest.fixture
def context(open_browser) -> BrowserContext:
    return open_browser(viewport={"width": 1400, "height": 900})


@pytest.fixture
def page(context) -> Page:
    page = context.new_page()
    page.goto("/chat/new/")
    return page
