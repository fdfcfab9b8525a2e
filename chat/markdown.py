"""Markdown to HTML that is safe to insert: rendered by one library, cleaned by another.

Models repeat what web pages and documents told them, so their text is untrusted. Two layers, each
enough alone: the renderer lets no HTML through, and the cleaner keeps only the tags listed here.
There are no images: the address of one, fetched by a reader's browser, could carry the
conversation to a stranger.
"""

from __future__ import annotations

import functools

import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

REMEMBERED = 1024
"""Rendered texts kept in memory: a page has 200 messages, and most readers return to the same."""

TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ALIGNMENTS = {"text-align:left": "left", "text-align:center": "center", "text-align:right": "right"}


def _align_by_class(state: StateCore) -> None:
    """Table cells are aligned by a class: the page's security policy forbids style attributes."""
    for token in state.tokens:
        style = token.attrs.pop("style", None)
        if style in ALIGNMENTS:
            token.attrSet("class", ALIGNMENTS[str(style)])


def _renderer() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True})
    markdown.enable(["table", "strikethrough"]).disable("image")
    markdown.core.ruler.push("align_by_class", _align_by_class)
    return markdown


_markdown = _renderer()
_cleaner = nh3.Cleaner(
    tags=TAGS,
    attributes={"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}},
    tag_attribute_values={tag: {"class": set(ALIGNMENTS.values())} for tag in ("th", "td")},
    set_tag_attribute_values={"a": {"target": "_blank"}},
    url_schemes={"http", "https", "mailto"},
    link_rel="noopener noreferrer nofollow",
)


@functools.lru_cache(maxsize=REMEMBERED)
def render(text: str) -> str:
    """The text as HTML that may be inserted into a page."""
    return _cleaner.clean(_markdown.render(text))
