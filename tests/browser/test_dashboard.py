"""The admin's first page keeps itself up to date, and says when it cannot."""

from playwright.sync_api import expect


def test_the_dashboard_shows_what_is_now_or_says_that_it_is_not(page):
    page.goto("/admin/")
    board, stale = page.locator("#dashboard"), page.locator("#dashboard-stale")
    expect(board).to_contain_text("1 alive", timeout=10_000)
    link = board.locator("table a").first
    link.focus()
    before = link.element_handle()
    page.wait_for_function("link => !link.isConnected", arg=before)
    expect(link).to_be_focused()
    expect(stale).to_be_empty()

    page.route("**/admin/dashboard/", lambda route: route.abort())
    look_again(page)
    expect(stale).to_contain_text("does not answer")
    page.unroute("**/admin/dashboard/")
    look_again(page)
    expect(stale).to_be_empty()
    page.context.clear_cookies()
    look_again(page)
    expect(stale).to_have_text("You are signed out.")
    expect(board).to_contain_text("1 alive")


def look_again(page):
    """As when the tab is shown again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
