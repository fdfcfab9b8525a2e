"""The page without eyes or mouse: an audit by axe, and commands by the keyboard."""

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.test_main_job import is_idle, message, send
from tests.browser.test_markdown import BEGINNING, hear

AXE = Path(__file__).parent.parent / "js" / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}


def faults(page: Page) -> list[str]:
    """What axe holds to be serious or worse, with the elements."""
    assert AXE.exists(), f"npm ci --prefix {AXE.parents[2]}"
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {node['html']}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def test_axe_finds_nothing_serious_in_any_light_at_any_width(page):
    assert faults(page) == []
    send(page, "ask select")
    card = page.locator(".question")
    expect(card).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("/")
    assert faults(page) == []
    page.keyboard.press("Escape")
    card.get_by_role("radio").first.check()
    card.get_by_role("button", name="Answer", exact=True).click()
    is_idle(page)
    hear(page, "TEXT_MESSAGE_START")
    hear(page, "TEXT_MESSAGE_CONTENT", delta=BEGINNING)
    expect(message(page).last.locator("pre .hljs-built_in")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert faults(page) == []
    page.set_viewport_size(PHONE)
    page.locator('[data-opens="panel"]').click()
    expect(page.locator("#panel")).to_be_in_viewport(ratio=1)
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_axe_finds_nothing_serious_on_the_admin_s_first_page(page):
    page.goto("/admin/")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page) == []
    page.set_viewport_size(PHONE)
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_commands_are_given_with_the_keyboard(page):
    send(page, "Write a long text")
    expect(message(page).last).to_contain_text("1. A stopped")
    field = page.get_by_role("textbox", name="Message")
    options = page.get_by_role("listbox", name="Commands").get_by_role("option")
    field.press_sequentially("/s")
    expect(options).to_have_text(["/stopStop what runs"])
    field.press("Enter")
    is_idle(page)
    expect(field).to_have_value("")

    field.press_sequentially("/")
    expect(page.locator("#announcer")).to_contain_text("Commands: 6")
    field.press("ArrowUp")
    expect(page.get_by_role("option", selected=True)).to_contain_text("/json")
    field.press("Escape")
    expect(options).to_have_count(0)
    field.press_sequentially("nothing")
    field.press("Enter")
    expect(message(page, "user").last).to_have_text("/nothing")
