"""The list of conversations: found, renamed, and marked where something is unread."""

from playwright.sync_api import expect

from tests.browser.test_main_job import is_idle, message, send


def test_conversations_are_searched_renamed_and_marked_unread(page, context):
    send(page, "ask text about pelicans")
    asked = page.locator(f'#session-list li[data-id="{page.url.split("/")[-2]}"]')
    expect(page.locator(".question")).to_be_visible()
    other = context.new_page()
    other.goto("/chat/new/")
    expect(asked).not_to_have_attribute("data-unread", "")
    page.locator(".question textarea").fill("By the river")
    page.evaluate("agentsite.stream.close()")  # this page will not show the answer
    with page.expect_response("**/respond"):  # or closing the page might take it back
        page.get_by_role("button", name="Answer", exact=True).click()

    theirs = other.locator(f'#session-list li[data-id="{page.url.split("/")[-2]}"]')
    page.close()
    expect(theirs).to_have_attribute("data-unread", "")
    expect(theirs.get_by_role("link")).to_have_accessible_name("ask text about pelicans unread")

    other.get_by_role("searchbox", name="Search the conversations").fill("PELICAN")
    expect(other.locator("#session-list li")).to_have_count(1)
    theirs.hover()
    theirs.get_by_role("button", name="Rename").click()
    title = other.get_by_role("textbox", name="Rename")
    expect(title).to_be_focused()
    title.fill("Not this")
    title.press("Escape")
    theirs.get_by_role("button", name="Rename").press("Enter")
    title.fill("Big birds")
    title.press("Enter")
    expect(theirs.get_by_role("link")).to_be_focused()
    other.keyboard.press("Enter")
    expect(other.locator("#title")).to_have_text("Big birds")
    expect(message(other).last).to_contain_text("You answered")
    is_idle(other)
    expect(theirs).not_to_have_attribute("data-unread", "")
