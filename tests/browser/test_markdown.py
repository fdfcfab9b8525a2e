"""Markdown on the page: rendered while it streams, coloured, copied."""

from playwright.sync_api import expect

from tests.browser.test_main_job import is_idle, message, send

BEGINNING = "# Plan\n\n```python\nprint(1)\n```\n\nThen **bo"


def hear(page, kind: str, **event) -> None:
    page.evaluate("(e) => agentsite.state.apply(e)", {"type": kind, "messageId": "m", **event})


def test_finished_blocks_are_markdown_while_the_rest_is_being_written(page, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    send(page, "hello")
    is_idle(page)
    hear(page, "TEXT_MESSAGE_START")
    hear(page, "TEXT_MESSAGE_CONTENT", delta=BEGINNING)
    said = message(page).last
    expect(said.locator("pre .hljs-built_in")).to_have_text("print")
    expect(said.locator(".caret")).to_have_text("Then **bo")
    heading = said.locator("h1").element_handle()
    hear(page, "TEXT_MESSAGE_CONTENT", delta="ld**.")
    hear(page, "TEXT_MESSAGE_END")
    expect(said.locator("strong")).to_have_text("bold")
    expect(said.locator(".caret")).to_have_count(0)
    assert heading.evaluate("e => e.isConnected")  # what was rendered is not drawn anew

    for _ in ("with the clipboard", "with the command"):
        said.locator(".copyable").hover()
        said.get_by_role("button", name="Copy").click()
        expect(said.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "print(1)\n"
        expect(said.get_by_role("button", name="Copy")).to_be_visible()
        page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject())")
