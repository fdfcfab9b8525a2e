"""The pages: who sees what, what they carry, and that nothing in them can become script."""

import gzip
import json
import re
import uuid
from html.parser import HTMLParser
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User

from chat import actions, markdown
from chat.models import ChatSession, Message
from chat.strings import STRINGS
from chat.transports import pages
from coordination.models import Run
from tests.core import begin, send

MODULES = Path(__file__).parent.parent / "chat" / "static" / "chat"
SCRIPT = "<script>alert(1)</script>"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(client) -> User:
    user = User.objects.create_user("ann", password="secret")
    client.force_login(user)
    return user


def conversation(user: User, title: str = "") -> ChatSession:
    return async_to_sync(actions.create_session)(user, title=title)


def say(chat: ChatSession, text: str, role: str = "assistant", position: int = 1) -> Message:
    return Message.objects.create(
        session=chat,
        agent_id="assistant",
        run_id=uuid.uuid4(),
        role=role,
        content=text,
        parts=[{"type": "text", "text": text}],
        position=position,
    )


def without_token(answer) -> str:
    text = re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", answer.content.decode())
    return text.replace(answer.request["PATH_INFO"], "")


def state_of(page: str) -> dict:
    found = re.search(r'<script id="state" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("path", ["/", "/chat/new/", f"/chat/{uuid.UUID(int=1)}/"])
def test_a_page_asks_to_sign_in_first(client, path):
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"] == f"/accounts/login/?next={path}"


def test_the_start_page_is_the_newest_conversation_or_a_new_one(client, ann):
    assert client.get("/")["Location"] == "/chat/new/"
    conversation(ann)
    newest = conversation(ann)
    assert client.get("/")["Location"] == f"/chat/{newest.pk}/"


def test_a_page_that_only_looks_makes_no_conversation(client, ann):
    assert client.get("/chat/new/").status_code == 200
    assert not ChatSession.objects.exists()


def test_a_strangers_conversation_is_not_found_like_one_that_never_was(client, ann):
    theirs = conversation(User.objects.create_user("bob"))
    for path in ("", "state/", "agents/", "usage/"):
        strangers = client.get(f"/chat/{theirs.pk}/{path}")
        nobodys = client.get(f"/chat/{uuid.uuid4()}/{path}")
        assert strangers.status_code == nobodys.status_code == 404
        assert (
            strangers.content == nobodys.content or str(theirs.pk) not in nobodys.content.decode()
        )


def test_a_deleted_conversation_is_not_found(client, ann):
    chat = conversation(ann)
    async_to_sync(actions.delete_session)(chat, by="ann")
    assert client.get(f"/chat/{chat.pk}/").status_code == 404


def test_a_page_carries_its_state_for_the_first_paint(client, ann):
    chat = conversation(ann, "Heating")
    said = say(chat, "**bold**")
    page = client.get(f"/chat/{chat.pk}/").content.decode()
    state = state_of(page)
    assert state["snapshot"]["messages"][0]["content"] == "**bold**"
    assert state["html"] == {str(said.pk): "<p><strong>bold</strong></p>\n"}
    assert client.get(f"/chat/{chat.pk}/state/").json()["snapshot"] == state["snapshot"]


def test_markup_in_titles_and_messages_stays_text(client, ann):
    chat = conversation(ann, f"{SCRIPT}</title>")
    say(chat, SCRIPT, role="user")
    say(chat, SCRIPT, position=2)
    page = client.get(f"/chat/{chat.pk}/").content.decode()
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in "".join(state_of(page)["html"].values())


def test_the_modules_make_html_of_nothing_but_rendered_markdown():
    """And of its code, in colours; and of the admin's own dashboard. All else is text."""
    raw = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(")
    found = {path.name: len(raw.findall(path.read_text())) for path in MODULES.glob("*.js")}
    assert {name: count for name, count in found.items() if count} == {
        "dom.js": 1,
        "dashboard.js": 1,
    }
    users = [path.name for path in MODULES.glob("*.js") if "safeHtml(" in path.read_text()]
    assert sorted(users) == ["dom.js", "highlight.js", "markdown.js"]


def test_a_page_allows_no_script_but_the_sites_own_files(client, ann):
    answer = client.get("/chat/new/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    page = answer.content.decode()
    scripts = re.findall(r"<script[^>]*>", page)
    assert all("src=" in tag or 'type="application/json"' in tag for tag in scripts)
    assert " style=" not in page
    assert not re.search(r"\son\w+=", page)
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


def test_the_demo_says_so(client, ann, settings):
    settings.AGENT_MODEL = "demo"
    assert "The built-in demo model is answering" in client.get("/chat/new/").content.decode()
    settings.AGENT_MODEL = "openai-chat:gpt-5"
    assert "The built-in demo model is answering" not in client.get("/chat/new/").content.decode()


def test_a_page_speaks_the_readers_language(client, ann):
    page = client.get("/chat/new/", headers={"Accept-Language": "zh-CN,zh;q=0.9"}).content.decode()
    assert '<html lang="zh-hans">' in page
    assert "写一条消息" in page
    client.post("/i18n/setlang/", {"language": "zh-hans", "next": "/chat/new/"})
    assert "写一条消息" in client.get("/chat/new/").content.decode()


def test_older_conversations_are_offered(client, ann):
    for number in range(51):
        conversation(ann, f"Number {number}")
    page = client.get("/chat/new/").content.decode()
    assert "Number 50" in page
    assert "Number 0<" not in page
    older = re.search(r'data-older="([^"]+)"', page)[1]
    items = client.get(f"/api/chat?after={older}").json()["items"]
    assert [item["title"] for item in items] == ["Number 0"]


def test_tokens_are_counted_by_turn_with_its_sub_agents(client, ann):
    chat = conversation(ann)
    posted = async_to_sync(actions.post_message)(chat, "hi", by="ann")
    master = Run.objects.get(pk=posted.run_id)
    _, child = send(begin(master), "researcher")
    used = client.get(f"/chat/{chat.pk}/usage/").json()
    assert used == {"turns": {}, "total": {"input_tokens": 0, "output_tokens": 0}}
    for run in (master, child):
        Run.objects.filter(pk=run.pk).update(usage={"input_tokens": 5, "output_tokens": 2})
    used = client.get(f"/chat/{chat.pk}/usage/").json()
    both = {"input_tokens": 10, "output_tokens": 4}
    assert used == {"turns": {str(posted.message_id): both}, "total": both}


def found(client, words: str) -> list[str]:
    return [item["title"] for item in client.get("/chat/list/", {"q": words}).json()["items"]]


def test_conversations_are_found_by_title_and_by_what_was_said(client, ann):
    heating = conversation(ann, "Heating")
    say(heating, "A heat pump is quiet.")
    say(heating, "a tool's answer", role="tool", position=2)
    conversation(ann, "Chengdu")
    say(conversation(User.objects.create_user("bob"), "Bob's heating"), "pump")
    assert found(client, "") == ["Chengdu", "Heating"]
    assert found(client, " heat ") == found(client, "PUMP") == ["Heating"]
    assert found(client, "tool") == found(client, "100%") == []


def test_the_list_costs_the_same_however_long_it_is(client, ann, django_assert_max_num_queries):
    for number in range(30):
        conversation(ann, f"Number {number}")
    with django_assert_max_num_queries(6):
        assert len(client.get("/chat/list/").json()["items"]) == 30


# -- Markdown --------------------------------------------------------------------------------


def test_markdown_comes_back_rendered(client, ann):
    answer = client.post("/rendered/", {"texts": ["*a*", "b"]}, content_type="application/json")
    assert answer.json() == {"html": ["<p><em>a</em></p>\n", "<p>b</p>\n"]}


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"texts": [1]}', '{"texts": 1}', '"texts"'])
def test_what_is_no_list_of_texts_is_refused(client, ann, body):
    answer = client.post("/rendered/", body, content_type="application/json")
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid"


@pytest.mark.parametrize(
    "text",
    [
        SCRIPT,
        "<img src=x onerror=alert(1)>",
        "![x](https://example.org/?secret)",
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "<a href='javascript:alert(1)'>x</a>",
        "[x](https://e.org 'a\" onclick=\"alert(1)')",
        "`</code><script>alert(1)</script>`",
        "<svg/onload=alert(1)>",
        '```x" onmouseover="alert(1)\n<b>\n```',
    ],
)
def test_no_markdown_becomes_script_or_asks_another_host(text):
    for tag, attributes in tags_of(markdown.render(text)):
        assert tag in markdown.TAGS
        for name, value in attributes:
            assert name in {"href", "title", "class", "start", "target", "rel"}
            assert name != "href" or re.match(r"https?://|mailto:", value or "")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def tags_of(html: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
    parser = Tags()
    parser.feed(html)
    return parser.found


def test_links_leave_without_saying_where_they_come_from():
    html = markdown.render("[x](https://example.org)")
    assert 'rel="noopener noreferrer nofollow"' in html
    assert 'target="_blank"' in html


def test_tables_are_aligned_without_style_attributes():
    html = markdown.render("| a |\n| ---: |\n| 1 |")
    assert '<td class="right">1</td>' in html
    assert "style" not in html


# -- words -----------------------------------------------------------------------------------


def test_the_modules_have_no_words_of_their_own_and_ask_for_none_that_are_missing():
    asked = set()
    for module in MODULES.glob("*.js"):
        for call in re.findall(r"\bt\(([^()]*)", module.read_text()):
            asked |= set(re.findall(r'(?:^|\? |: )"(\w+)"', call.split(", {")[0]))
    assert len(asked) > 50
    assert asked - set(STRINGS) == set()


def test_every_word_is_asked_for():
    code = "".join(module.read_text() for module in MODULES.glob("*.js"))
    families = (
        "agent_",
        "status_",
        "reason_",
        "tool_",
        "log_",
        "letter_",
        "command_",
        "refused_",
    )  # put together from data
    unused = [name for name in STRINGS if f'"{name}"' not in code and not name.startswith(families)]
    assert unused == []


def test_the_pages_script_is_small():
    size = sum(len(gzip.compress(module.read_bytes())) for module in MODULES.rglob("*.js"))
    assert size < 150_000


def test_the_page_announces_the_modules_that_it_imports_and_no_others():
    imported, found = {"main.js"}, set()
    while imported - found:
        found |= imported
        codes = [(MODULES / name).read_text() for name in found]
        imported = {name for code in codes for name in re.findall(r'from "\./(.*?)"', code)}
    assert sorted(f"chat/{name}" for name in found) == pages.MODULES


def test_modules_load_only_the_sites_own_files():
    for module in MODULES.glob("*.js"):
        code = module.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org)", code), module
        assert code.startswith("/*"), f"{module.name} does not say what it is for"
        for imported in re.findall(r'from "(.*?)"', code):
            assert (MODULES / imported).exists()
