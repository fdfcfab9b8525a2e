"""The pictures of the README, taken from the running product with its demo model.

    python scripts/screenshots.py          writes docs/images/*.png; needs Chromium

Nothing is staged: the same ``manage.py serve`` that a newcomer starts, in a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser import product as products  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDE: ViewportSize = {"width": 1360, "height": 850}
PHONE: ViewportSize = {"width": 390, "height": 780}


def main() -> int:
    """Take all of them."""
    if products.CHROMIUM is None:
        print("Chromium is not installed (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="agentsite-pictures-") as folder,
        products.running(Path(folder)) as product,
        products.chromium() as browser,
    ):
        take(product.sign_in_link, product.url, browser)
    return 0


def take(link: str, url: str, browser: Browser) -> None:
    """One conversation in English, one in Chinese, and what the admin knows of them."""
    context = browser.new_context(viewport=WIDE, base_url=url)
    page = context.new_page()
    page.goto(link)
    signed_in = context.storage_state()

    say(page, "Compare three ways to heat an old house.")
    page.locator('.agent[data-agent="strategist"] .agent-live').wait_for()
    page.locator('.call[data-tool="send_message"] summary').first.click()
    save(page, "chat")
    page.locator(".question").wait_for(timeout=60_000)
    page.locator(".question input").nth(1).check()
    save(page, "question")
    conversation = page.url

    dark = browser.new_context(viewport=WIDE, storage_state=signed_in, color_scheme="dark")
    look(dark.new_page(), conversation, "chat-dark")
    phone = browser.new_context(
        viewport=PHONE, storage_state=signed_in, device_scale_factor=2, is_mobile=True
    )
    look(phone.new_page(), conversation, "chat-phone")

    page.locator(".question .primary").click()
    page.locator("#stop").wait_for(state="hidden")
    chinese = browser.new_context(
        viewport=WIDE, storage_state=signed_in, locale="zh-CN", base_url=url
    )
    page = chinese.new_page()
    page.goto("/chat/new/")
    say(page, "给老房子供暖有哪些办法？")
    page.locator('.agent[data-agent="strategist"] .agent-live').wait_for()
    page.wait_for_timeout(900)
    page.locator("#stop").click()
    page.locator(".notice").wait_for()
    page.wait_for_timeout(500)
    save(page, "chat-zh")

    page = context.new_page()
    page.goto(f"{url}/admin/coordination/run/")
    page.locator("#result_list tbody th a").last.click()
    page.get_by_role("link", name="Timeline").first.click()
    save(page, "admin-timeline")
    page.goto(f"{url}/admin/")
    save(page, "admin-dashboard")


def say(page: Page, text: str) -> None:
    page.locator("#message").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_url("**/chat/*-*/")


def look(page: Page, url: str, name: str) -> None:
    page.goto(url)
    page.wait_for_timeout(700)
    save(page, name)


def save(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png")


if __name__ == "__main__":
    sys.exit(main())
