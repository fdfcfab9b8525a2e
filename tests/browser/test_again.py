"""The last message once more, the conversation as a file, and what it has used."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.test_main_job import is_idle, message, send


def test_the_last_message_is_sent_again_or_edited(page):
    send(page, "hello")
    is_idle(page)
    tokens = page.locator(".turn-usage")
    expect(tokens).to_have_text([re.compile(r"[1-9]\d* tokens in, [1-9]\d* out")])
    page.get_by_role("button", name="Send again").click()
    expect(message(page, "user")).to_have_text(["hello", "hello"])
    expect(message(page)).to_have_count(2)
    is_idle(page)
    expect(tokens).to_have_count(2)
    field = page.get_by_role("textbox", name="Message")
    page.get_by_role("button", name="Edit and send anew").click()
    expect(field).to_be_focused()
    expect(field).to_have_value("hello")
    field.fill("")
    field.press("ArrowUp")
    expect(field).to_have_value("hello")
    page.reload()
    expect(tokens).to_have_count(2)
    expect(page.locator("#usage")).to_contain_text("Conversation:")


def exported(page, how: str) -> tuple[str, str]:
    page.get_by_role("button", name="This conversation").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Export as {how}").click()
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def test_a_conversation_is_exported(page):
    send(page, "hello")
    is_idle(page)
    name, text = exported(page, "Markdown")
    assert name == "hello.md"
    assert re.match(r"# hello\n\n## You · .+\n\nhello\n\n## Assistant · .+\n\n", text)
    name, text = exported(page, "JSON")
    assert name == "hello.json"
    everything = json.loads(text)
    assert [m["role"] for m in everything["messages"]] == ["user", "assistant"]
    assert everything["usage"]["output_tokens"] > 0
    assert everything["inbox"] == []
