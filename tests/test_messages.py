"""The translations: complete, compiled, and with every placeholder of the original."""

import gettext
import re
from io import BytesIO

import pytest
from django.utils import translation

from scripts import messages

CATALOGUES = sorted(messages.LOCALE.glob("*/LC_MESSAGES/*.po"))
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w+\}|</?\w+|manage\.py \w+|[A-Z]+_[A-Z_]+")


def test_there_are_translations():
    assert CATALOGUES


def test_the_compiled_catalogues_are_what_their_sources_say():
    assert messages.outdated() == []


@pytest.mark.parametrize("po", CATALOGUES, ids=str)
def test_nothing_is_left_untranslated_or_guessed(po):
    for entry, fuzzy in messages.entries(po.read_text(encoding="utf-8")):
        assert not fuzzy, entry
        assert all(value for name, value in entry.items() if name.startswith("msgstr")), entry


@pytest.mark.parametrize("po", CATALOGUES, ids=str)
def test_translations_keep_every_placeholder(po):
    for entry, _fuzzy in messages.entries(po.read_text(encoding="utf-8")):
        if entry["msgid"]:
            original = sorted(PLACEHOLDER.findall(entry.get("msgid_plural", entry["msgid"])))
            for name, value in entry.items():
                if name.startswith("msgstr"):
                    assert sorted(PLACEHOLDER.findall(value)) == original, entry


@pytest.mark.parametrize("po", CATALOGUES, ids=str)
def test_a_compiled_catalogue_is_one_to_gettext_itself(po):
    text = po.read_text(encoding="utf-8")
    catalogue = gettext.GNUTranslations(BytesIO(messages.compiled(text)))
    for key, value in messages.translated(text).items():
        if key and "\x00" not in key:
            context, _, word = key.rpartition("\x04")
            found = catalogue.pgettext(context, word) if context else catalogue.gettext(word)
            assert found == value


def test_a_guess_is_not_used():
    po = '#, fuzzy\nmsgid "a"\nmsgstr "b"\n\nmsgid "c"\nmsgstr ""\n\nmsgid "d"\nmsgstr ""\n"e"\n'
    assert messages.translated(po) == {"d": "e"}


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("[sub-agent lost] heartbeat timed out", "[子 Agent 失联] 心跳超时"),
        (
            "Stopped. What can I help you with next?",
            "已停止生成。请告诉我接下来有什么可以帮您的？",
        ),
    ],
)
def test_the_words_of_the_contract_are_those_words(english, chinese):
    with translation.override("zh-hans"):
        assert translation.gettext(english) == chinese
    with translation.override("en"):
        assert translation.gettext(english) == english
