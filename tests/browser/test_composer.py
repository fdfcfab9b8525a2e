"""The message field: whatever happens on the way, nothing that was typed is lost or sent twice."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_main_job import is_idle, message, send

LATE = "**/api/chat/*/messages"


@pytest.fixture
def field(page):
    send(page, "hello")
    is_idle(page)
    return page.get_by_role("textbox", name="Message")


def test_what_is_sent_while_another_is_on_its_way_follows_it(page, field):
    held = []
    page.route(LATE, lambda route: held.append(route), times=1)
    for words in ("good morning", "thanks"):
        field.press_sequentially(words)
        field.press("Enter")
    field.press_sequentially("and a half")
    expect(page.locator("#outbox .message")).to_have_text(
        ["good morningSending …", "thanksSending …"]
    )
    assert len(held) == 1
    held[0].continue_()
    expect(message(page, "user")).to_have_text(["hello", "good morning", "thanks"])
    expect(page.locator("#outbox .message")).to_have_count(0)
    expect(field).to_have_value("and a half")
    is_idle(page)
    expect(message(page)).to_have_count(3)


@pytest.mark.parametrize(
    ("status", "words"), [(0, "does not answer"), (429, "again in 7 s"), (503, "cannot save")]
)
def test_what_is_refused_comes_back_and_says_what_to_do(page, field, status, words):
    keys = []

    def refuse(route):
        keys.append(route.request.post_data_json["id"])
        if status:
            route.fulfill(
                status=status, headers={"Retry-After": "7"}, json={"code": "", "detail": ""}
            )
        else:
            route.fetch()  # it arrives, and the answer is lost
            route.abort()

    page.route(LATE, refuse, times=1 if status else 3)  # what is not answered is sent thrice
    field.press_sequentially("thank you")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(words)
    expect(field).to_have_value("thank you")
    expect(field).to_be_focused()
    with page.expect_request(LATE) as request:
        field.press("Enter")
    assert {request.value.post_data_json["id"]} == set(keys)
    expect(message(page, "user")).to_have_text(["hello", "thank you"])
    expect(page.get_by_role("alert")).to_be_hidden()
    is_idle(page)
    expect(message(page)).to_have_count(2)
    field.press_sequentially("thank you")  # the same words once more are another message
    field.press("Enter")
    expect(message(page, "user")).to_have_text(["hello", "thank you", "thank you"])


def test_a_lost_answer_makes_one_message_of_what_follows_it(page, field):
    def lose(route):
        route.fetch()
        route.abort()

    page.route(LATE, lose, times=1)
    for words in ("good morning", "thanks"):
        field.press_sequentially(words)
        field.press("Enter")
    expect(message(page, "user")).to_have_text(["hello", "good morning", "thanks"])
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(field).to_have_value("")


def test_a_reload_keeps_what_was_on_its_way_and_what_was_being_typed(page, field):
    page.route(LATE, lambda route: None, times=1)
    field.press_sequentially("thank you")
    field.press("Enter")
    field.press_sequentially("and a ha")
    page.reload()
    expect(message(page, "user")).to_have_text(["hello", "thank you"])
    expect(field).to_have_value("and a ha")
    is_idle(page)


def test_who_signs_in_after_another_finds_nothing_of_theirs(page):
    field = page.get_by_role("textbox", name="Message")
    field.press_sequentially("my secret")
    page.reload()
    expect(field).to_have_value("my secret")
    page.route("**/chat/new/", as_read_by_another)
    page.reload()
    expect(field).to_have_value("")


def as_read_by_another(route):
    answer = route.fetch()
    route.fulfill(
        response=answer, body=re.sub(r'data-reader="\d+"', 'data-reader="0"', answer.text())
    )


def test_a_book_is_pasted_at_once(page, field, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("navigator.clipboard.writeText('fail, in many words\\n'.repeat(45000))")
    field.press("Control+v")
    assert field.evaluate("e => e.value.length") == 900_000
    field.press("Enter")
    expect(message(page, "user")).to_have_count(2)
    page.get_by_role("button", name="Show all of it").wait_for()
