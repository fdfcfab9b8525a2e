"""The main job in a real browser: sign in, talk, watch the agents, answer, stop, come back."""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from agentsite.processes import descendants
from tests.browser.axe import faults

PHONE = {"width": 390, "height": 844}
CONVERSATION = re.compile(r"/chat/[0-9a-f-]{36}/$")


@pytest.fixture
def on_phone(open_browser) -> Page:
    page = open_browser(viewport=PHONE, has_touch=True, is_mobile=True).new_page()
    page.goto("/chat/new/")
    return page


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name=re.compile("^(Message|消息)$")).fill(text)
    page.keyboard.press("Enter")
    page.wait_for_url(CONVERSATION)


def message(page: Page, role: str = "assistant"):
    return page.locator(f'#messages > .message[data-role="{role}"]:visible')


def agent(page: Page, name: str):
    return page.locator(f'.agent[data-agent="{name}"]')


def is_idle(page: Page) -> None:
    expect(page.locator("#stop")).to_be_hidden()


def test_a_conversation_from_the_first_message_to_the_last_word(page):
    send(page, "How should we heat an old house?")
    expect(message(page, "user")).to_have_text("How should we heat an old house?")
    expect(page.locator(".streaming.caret")).to_be_visible()
    expect(page.locator("#stop")).to_be_visible()
    expect(agent(page, "assistant")).to_have_attribute("data-status", "running")

    expect(agent(page, "researcher")).to_have_attribute("data-status", "running")
    expect(agent(page, "strategist")).to_have_attribute("data-status", "running")
    expect(agent(page, "researcher")).to_contain_text("Heartbeat")
    expect(page.locator("#activity")).to_have_text("Waiting for sub-agents")
    task = page.locator('.call[data-tool="send_message"]').first
    task.locator("summary").first.click()
    expect(task.locator(".fold-body .message")).to_contain_text("researcher, demo")
    expect(message(page).first).to_contain_text("My plan")
    expect(message(page).first.locator("> .prose")).not_to_contain_text("researcher, demo")

    question = page.locator(".question")
    expect(question).to_be_visible(timeout=40_000)
    for name in ("researcher", "strategist"):
        expect(agent(page, name)).to_have_attribute("data-reason", "completed")
    expect(agent(page, "assistant")).to_have_attribute("data-status", "waiting_user")
    question.get_by_role("radio").nth(1).check()
    question.get_by_role("button", name="Answer", exact=True).click()
    expect(question).to_be_hidden()
    expect(message(page).last).to_contain_text("That was the demo's whole turn")
    is_idle(page)
    expect(page.locator("#title")).to_have_text("How should we heat an old house?")
    page.get_by_role("tab", name="Work log").click()
    expect(page.locator('.log [data-kind="question_answered"]')).to_be_visible()


def test_markdown_is_rendered_when_a_message_is_complete(page):
    send(page, "hello")
    expect(message(page).last.locator("code").first).to_be_visible()
    is_idle(page)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_in_mid_sentence(page, how):
    send(page, "Write a long text")
    expect(message(page).last).to_contain_text("3. A stopped")
    if how == "button":
        page.locator("#stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.locator(".notice")).to_have_text(
        "Stopped. What can I help you with next?", timeout=3_000
    )
    is_idle(page)
    expect(agent(page, "assistant")).to_have_attribute("data-status", "interrupted")
    expect(message(page).last.locator("ol")).to_be_visible()  # rendered, as after the reload
    said = message(page).last.inner_text()
    page.wait_for_timeout(700)
    assert message(page).last.inner_text() == said
    page.reload()
    expect(page.locator(".notice")).to_have_text("Stopped. What can I help you with next?")
    assert message(page).last.inner_text() == said


def test_a_reload_in_mid_stream_loses_and_doubles_nothing(page):
    send(page, "Write a long text")
    for words in ("4. A stopped", "9. A stopped"):
        expect(message(page).last).to_contain_text(words)
        page.reload()
    expect(message(page).last).to_contain_text("12. A stopped")
    page.locator("#stop").click()
    expect(page.locator(".notice")).to_be_visible()
    shows_what_is_saved(page)


def shows_what_is_saved(page: Page) -> None:
    shown = page.evaluate(
        "[...agentsite.state.items.values()].flatMap((i) => i.role == 'assistant' ? [i.text] : [])"
    )
    session = page.url.rstrip("/").rpartition("/")[2]
    saved = page.request.get(f"/api/chat/{session}").json()["messages"]
    assert [m["content"] for m in saved if m["role"] == "assistant"] == shown


def test_the_connection_mends_itself_when_the_web_node_is_killed(page, product):
    send(page, "Write a long text")
    expect(message(page).last).to_contain_text("2. A stopped")
    for pid in descendants(product.child.pid):
        if "daphne" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    expect(page.locator("#connection")).to_have_attribute("data-state", "connected", timeout=60_000)
    expect(message(page).last).to_contain_text("20. A stopped", timeout=30_000)
    page.keyboard.press("Escape")
    is_idle(page)
    shows_what_is_saved(page)


def test_messages_wait_in_sight_and_are_answered_in_turn(page):
    send(page, "Write a long text")
    expect(message(page).last).to_contain_text("1. A stopped")
    send(page, "hello")
    expect(page.locator("#queue")).to_contain_text("hello")
    page.keyboard.press("Escape")
    expect(page.locator("#queue")).to_be_hidden()
    expect(message(page, "user").last).to_have_text("hello")
    expect(message(page).last).to_contain_text("built-in demo model")
    is_idle(page)
    expect(message(page, "user")).to_have_count(2)


ANSWERS = {
    "text": lambda card: card.locator("textarea").fill("By the river"),
    "select": lambda card: card.get_by_role("radio").first.check(),
    "multi": lambda card: [box.check() for box in card.get_by_role("checkbox").all()[:2]],
    "form": lambda card: [
        field.fill(
            {"text": "House", "number": "12", "date": "2025-06-01"}[field.get_attribute("type")]
        )
        for field in card.locator("input").all()
    ],
    "date": lambda card: card.locator("input").fill("2025-06-01"),
    "number": lambda card: card.locator("input").fill("42"),
}


@pytest.mark.parametrize("kind", [*ANSWERS, "confirm"])
def test_each_kind_of_question_on_a_phone(on_phone, kind):
    page = on_phone
    send(page, f"ask {kind}")
    card = page.locator(".question")
    expect(card).to_be_in_viewport(ratio=0.9)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert faults(page) == []
    if kind == "confirm":
        card.get_by_role("button", name="Yes").click()
    else:
        ANSWERS[kind](card)
        card.get_by_role("button", name="Answer", exact=True).click()
    expect(card).to_be_hidden()
    expect(message(page).last).to_contain_text("You answered")
    is_idle(page)


def test_an_answer_that_is_missing_is_asked_for_and_the_question_stays(page):
    send(page, "ask form")
    card = page.locator(".question")
    card.get_by_role("button", name="Answer", exact=True).click()
    expect(card.get_by_role("alert")).to_be_visible()
    expect(card).to_be_visible()


def test_declining_is_not_a_yes(page):
    send(page, "ask confirm")
    page.get_by_role("button", name="Do not answer").click()
    expect(page.locator(".question")).to_be_hidden()
    expect(message(page).last).to_contain_text("You did not choose")


def test_a_message_that_waits_is_edited_and_removed_with_the_keyboard(page, context):
    send(page, "Write a long text")
    expect(message(page).last).to_contain_text("1. A stopped")
    waiting = page.locator("#queue li")
    for words in ("ask later", "to be removed"):
        send(page, words)
        expect(waiting.last).to_have_text(words)
    other = context.new_page()
    other.goto(page.url)
    expect(waiting).to_have_text(["ask later", "to be removed"])
    page.get_by_role("button", name="Edit “ask later”").press("Enter")
    words = page.get_by_role("textbox", name="The message’s new words")
    expect(words).to_be_focused()
    words.fill("not this")
    words.press("Escape")
    expect(page.get_by_role("button", name="Edit “ask later”")).to_be_focused()
    page.keyboard.press("Enter")
    words.fill("hello")
    words.press("Enter")
    expect(page.get_by_role("button", name="Edit “hello”")).to_be_focused()
    page.get_by_role("button", name="Remove “to be removed”").press("Enter")
    for tab in (page, other):
        expect(tab.locator("#queue li")).to_have_text(["hello"])
        expect(message(tab, "user")).to_have_count(1)
    page.locator("#stop").click()
    for tab in (page, other):
        expect(tab.locator("#queue")).to_be_hidden()
        expect(message(tab, "user")).to_have_text(["Write a long text", "hello"])
        expect(message(tab).last).to_contain_text("demo model")


def test_a_tool_call_is_approved_denied_and_changed(page):
    for decide, told in [
        (lambda card: card.get_by_role("button", name="Approve").click(), "Sent to The lighthouse"),
        (deny, "because: wrong address"),
        (change, "Sent to Bob"),
    ]:
        send(page, "Send a postcard")
        card = page.locator(".question")
        expect(card.locator(".approval-tool")).to_have_text("send_postcard")
        expect(card.locator(".approval-arguments")).to_contain_text('"to": "The lighthouse keeper"')
        decide(card)
        expect(card).to_be_hidden()
        expect(message(page).last).to_contain_text(told, timeout=40_000)
        is_idle(page)


def deny(card):
    card.get_by_role("textbox", name="Why not").fill("wrong address")
    card.get_by_role("button", name="Deny").click()


def change(card):
    """What does not fit is said, and the card stays."""
    card.get_by_role("button", name="Change the arguments").click()
    arguments = card.get_by_role("textbox", name="Arguments")
    for wrong, said in [("{", "not valid JSON"), ('{"to": ""}', "to")]:
        arguments.fill(wrong)
        card.get_by_role("button", name="Approve").click()
        expect(card.get_by_role("alert")).to_contain_text(said)
    arguments.fill('{"to": "Bob", "text": "Hi"}')
    card.get_by_role("button", name="Approve").click()


def test_two_tabs_stay_in_step(page, context):
    send(page, "hello")
    expect(message(page).last).to_contain_text("demo model")
    other = context.new_page()
    other.goto(page.url)
    send(page, "ask confirm")
    expect(message(other, "user").last).to_have_text("ask confirm")
    expect(other.locator(".question")).to_be_visible()
    other.get_by_role("button", name="Yes").click()
    for tab in (page, other):
        expect(tab.locator(".question")).to_be_hidden()
        expect(message(tab).last).to_contain_text("You answered")
        expect(message(tab, "user")).to_have_count(2)


def test_a_sub_agents_work_is_there_after_a_reload(page):
    send(page, "How should we heat an old house?")
    expect(page.locator(".question")).to_be_visible(timeout=40_000)
    page.reload()
    task = page.locator('.call[data-tool="send_message"]').first
    expect(task).to_contain_text("completed")
    task.locator("summary").first.click()
    expect(task.locator(".fold-body .message").first).to_contain_text("researcher, demo")
    expect(agent(page, "researcher")).to_contain_text("Collect the facts")

    agent(page, "researcher").get_by_role("button", name="Collect the facts").click()
    replies = page.get_by_role("dialog", name="Replies")
    expect(replies.locator("#chain-tree > li > details")).to_contain_text("Assistant → Researcher")
    reply = replies.locator(".replies .replies > li")
    expect(reply).to_have_attribute("data-kind", "result")
    expect(reply).to_contain_text("finished its work")
    expect(reply).to_contain_text("read after")
    page.keyboard.press("Escape")
    expect(replies).to_be_hidden()
    page.get_by_role("tab", name="Agents").press("ArrowRight")
    expect(page.get_by_role("tab", name="Messages")).to_be_focused()
    expect(page.locator(".letters li")).to_have_count(4)
    page.get_by_role("button", name="Strategist → Assistant").click()
    expect(reply).to_have_attribute("aria-current", "true")


def test_one_agent_is_stopped_alone(page):
    send(page, "hello")
    is_idle(page)
    page.evaluate(  # at once, because the demo's sub-agents are done in two seconds
        """new MutationObserver((_, self) => {
            const button = document.querySelector('.agent[data-agent="strategist"] .icon-button');
            if (button) { self.disconnect(); button.click(); }
        }).observe(document.getElementById("agents"), {childList: true, subtree: true})"""
    )
    send(page, "How should we heat an old house?")
    expect(agent(page, "strategist")).to_have_attribute("data-status", "interrupted")
    expect(page.locator(".question")).to_be_visible(timeout=40_000)
    expect(agent(page, "researcher")).to_have_attribute("data-status", "completed")


def test_a_provider_that_fails_is_told(page):
    send(page, "fail")
    expect(page.locator('.notice[data-kind="error"]')).to_contain_text("without an answer")
    is_idle(page)


def test_the_page_in_chinese(open_browser):
    page = open_browser(locale="zh-CN").new_page()
    page.goto("/chat/new/")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    send(page, "老房子怎么供暖？")
    card = page.locator(".question")
    expect(card).to_contain_text("助手提问", timeout=40_000)
    expect(agent(page, "researcher")).to_contain_text("已完成")
    card.get_by_role("radio").first.check()
    card.get_by_role("button", name="回答", exact=True).click()
    expect(card).to_be_hidden()
    is_idle(page)
    send(page, "长文")
    expect(message(page).last).to_contain_text("第3句")
    page.get_by_role("button", name="停止").click()
    expect(page.locator(".notice").last).to_have_text(
        "已停止生成。请告诉我接下来有什么可以帮您的？"
    )
    expect(agent(page, "assistant")).to_contain_text("已停止")
    page.get_by_role("button", name="English").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")


def test_the_whole_job_on_a_phone(on_phone):
    page = on_phone
    send(page, "How should we heat an old house?")
    page.locator('[data-opens="panel"]').tap()
    expect(agent(page, "researcher")).to_have_attribute("data-status", "running")
    page.get_by_role("button", name="Close").last.tap()
    card = page.locator(".question")
    expect(card).to_be_in_viewport(ratio=0.9, timeout=40_000)
    card.get_by_text("Compare the options").tap()
    card.get_by_role("button", name="Answer", exact=True).tap()
    expect(message(page).last).to_contain_text("That was the demo's whole turn")
    is_idle(page)
    for drawer in ("sessions", "panel"):
        page.locator(f'[data-opens="{drawer}"]').click()
        expect(page.locator(f"#{drawer}")).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(page.locator(f"#{drawer}")).not_to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_a_conversation_is_deleted_after_a_question(page):
    send(page, "hello to be deleted")
    own = page.locator("#session-list li", has=page.locator('[aria-current="page"]'))
    gone = page.url
    own.hover()
    own.get_by_role("button", name=re.compile("^Delete")).click()
    page.get_by_role("button", name="Keep it").click()
    expect(own).to_be_visible()
    own.hover()
    own.get_by_role("button", name=re.compile("^Delete")).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(lambda url: url != gone)
    assert page.request.get(gone).status == 404


def test_markup_in_a_message_stays_text(page):
    send(page, "hello <img src=x onerror=alert(1)><script>alert(1)</script>")
    expect(message(page, "user")).to_contain_text("<script>alert(1)</script>")
    expect(page.locator("#messages img, #messages script")).to_have_count(0)
    page.reload()
    expect(page.locator("#title")).to_contain_text("<img src=x")
    expect(page.locator("#messages img, #session-list img")).to_have_count(0)


def test_the_admin_and_the_documentation_work_under_the_policy(page):
    """What the policy refuses is an error on the console, and fails the test."""
    page.goto("/admin/coordination/run/")
    page.goto("/admin/chat/signinlink/")
    page.locator("#result_list tbody th a").first.click()
    expect(page.locator("#content h1")).to_be_visible()
    page.goto("/admin/auth/user/add/")
    expect(page.locator("#id_username")).to_be_visible()
    page.goto("/api/docs")
    expect(page.locator(".opblock-post").first).to_be_visible()
    page.locator(".opblock-post .opblock-summary").first.click()
    expect(page.locator(".responses-wrapper").first).to_be_visible()


def test_shift_enter_begins_a_new_line_and_a_composing_enter_sends_nothing(page):
    field = page.get_by_role("textbox", name="Message")
    field.fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert field.input_value() == "one\ntwo"
    field.evaluate(
        "e => e.dispatchEvent(new KeyboardEvent("
        "'keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
    )
    assert field.input_value() == "one\ntwo"
    page.keyboard.press("Enter")
    page.wait_for_url(CONVERSATION)
    expect(message(page, "user")).to_have_text("one\ntwo")


def test_a_page_whose_session_ended_says_so(open_browser):
    context = open_browser()
    page = context.new_page()
    page.goto("/chat/new/")
    send(page, "hello")
    expect(message(page).last).to_contain_text("demo model")
    is_idle(page)
    context.clear_cookies(name="sessionid")
    page.evaluate("agentsite.stream.open(agentsite.stream.cursor)")
    expect(page.locator("#connection")).to_contain_text("You are signed out")
