"""The page without eyes or mouse: an audit by axe, and commands by the keyboard."""

from playwright.sync_api import expect

from tests.browser.axe import faults
from tests.browser.test_main_job import CONVERSATION, agent, is_idle, message, send
from tests.browser.test_markdown import BEGINNING, hear

PHONE = {"width": 390, "height": 844}


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
    field.press_sequentially("/st")
    expect(options).to_have_text(["/stopStop what runs"])
    field.press("Enter")
    is_idle(page)
    expect(field).to_have_value("")

    field.press_sequentially("/")
    expect(page.locator("#announcer")).to_contain_text("Commands: 8")
    field.press("ArrowUp")
    expect(page.get_by_role("option", selected=True)).to_contain_text("/json")
    field.press("Escape")
    expect(options).to_have_count(0)
    field.fill("/stop")
    field.press("Enter")
    expect(page.locator("#trouble")).to_contain_text("nothing now for /stop")
    expect(message(page, "user").last).to_have_text("Write a long text")
    field.fill("/nothing")
    field.press("Enter")
    expect(message(page, "user").last).to_have_text("/nothing")


def test_the_whole_job_without_a_mouse(page):
    keys = page.keyboard
    field = page.get_by_role("textbox", name="Message")
    expect(field).to_be_focused()
    keys.type("How should we heat an old house?")
    keys.press("Enter")
    page.wait_for_url(CONVERSATION)
    expect(page.locator(".question")).to_be_visible(timeout=40_000)
    expect(field).to_be_focused()
    answer = page.get_by_role("button", name="Answer", exact=True)
    while not answer.evaluate("e => e === document.activeElement"):
        keys.press("Shift+Tab")
    keys.press("Shift+Tab")  # the text of "something else"
    keys.press("Shift+Tab")  # its button, the last of the group
    keys.press("ArrowDown")
    expect(page.get_by_role("radio").first).to_be_checked()
    keys.press("Enter")
    expect(page.locator(".question")).to_be_hidden()
    expect(field).to_be_focused()
    is_idle(page)

    keys.type("/agents")
    keys.press("Enter")
    expect(page.get_by_role("tab", name="Agents")).to_be_focused()
    task = agent(page, "researcher").get_by_role("button", name="Collect the facts")
    while not task.evaluate("e => e === document.activeElement"):
        keys.press("Tab")
    keys.press("Enter")
    expect(page.get_by_role("dialog", name="Replies")).to_be_visible()
    assert faults(page) == []
    keys.press("Escape")
    expect(task).to_be_focused()

    field.focus()
    keys.type("Write a long text")
    keys.press("Enter")
    expect(message(page).last).to_contain_text("2. A stopped")
    keys.press("Escape")
    expect(page.locator(".notice")).to_be_visible()
    expect(field).to_be_focused()
    keys.type("/new")
    keys.press("Enter")
    page.wait_for_url("**/chat/new/")
    expect(field).to_be_focused()
