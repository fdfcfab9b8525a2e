"""What an MCP server answers, as text that the model reads: bounded, and nothing passed over."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from coordination.conf import conf

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

_NO_TEXT = re.compile("[\x00\ud800-\udfff]")  # what a database or a provider would choke on


def in_words(result: CallToolResult) -> str:
    """The result of a call. What is no text is named, so that the model knows of it."""
    said = "\n".join(map(_block, result.content))
    if not result.content and result.structured_content is not None:
        said = json.dumps(result.structured_content, ensure_ascii=False)
    return bounded(said)


def bounded(said: str, limit: int | None = None) -> str:
    """At most ``limit`` bytes of it (``AGENT_MCP_RESULT_BYTES``), and a word where that cuts."""
    limit = limit or conf.mcp_result_bytes
    said = _NO_TEXT.sub("\ufffd", said)
    data = said.encode()
    if len(data) <= limit:
        return said
    kept = data[:limit].decode(errors="ignore")
    return f"{kept}\n[cut off: these are the first {limit} of {len(data)} bytes]"


def _block(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            size = len(block.data) * 3 // 4
            return f"[{block.type}, {block.mime_type}, {size} bytes: it cannot be shown to you]"
        case "resource_link":
            return f"[link to a resource: {block.name}, {block.uri}]"
        case "resource":
            inside = block.resource
            if hasattr(inside, "text"):
                return f"[resource {inside.uri}]\n{inside.text}"
            return f"[resource {inside.uri}: not text, it cannot be shown to you]"
