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


def test_what_one_tab_renames_and_deletes_the_other_shows(page, context):
    send(page, "thank you")
    is_idle(page)
    other = context.new_page()
    other.goto(page.url)
    expect(other.locator("#connection")).to_have_attribute("data-state", "connected")
    page.get_by_role("textbox", name="Message").press_sequentially("/rename")
    page.keyboard.press("Enter")
    page.keyboard.type("Bigger birds")
    page.keyboard.press("Enter")
    expect(page).to_have_title("Bigger birds · agentsite")
    other.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # somebody looks
    expect(other).to_have_title("Bigger birds · agentsite")
    page.get_by_role("button", name="Delete “Bigger birds”").press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(other.locator("#connection")).to_have_text("This conversation no longer exists.")


def test_the_first_of_many_messages_is_found_by_scrolling(page, product):
    page.goto(product.long_conversation(450))
    expect(message(page).last).to_be_in_viewport()
    expect(page).to_have_title("long · agentsite")
    first = page.locator("#messages").get_by_text("Message 0", exact=True)
    for _ in range(3):
        before = page.locator("#messages > .message").first.element_handle()
        page.locator("#scroll").evaluate("e => e.scrollTo(0, 0)")
        if first.count() == 0:
            page.wait_for_function(
                "(e) => e !== document.querySelector('#messages > .message')", arg=before
            )
            assert before.bounding_box()["y"] > 0  # what was being read has stayed where it was
    expect(first).to_be_visible()
    expect(message(page, "user")).to_have_count(225)
    page.locator("#to-end").click()
    expect(message(page).last).to_be_in_viewport()
