"""A stdio MCP server that answers as none should: ``python tests/fakes/mcp_hostile.py HOW``.

Written without the library, which would not let it, and starts in no time for that. Its handshake
is of the older kind, and correct.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def hostile(how: str) -> None:
    """Read a request a line, and misbehave where it says so."""
    for line in sys.stdin:
        asked = json.loads(line)
        match asked.get("method"):
            case "initialize":
                tools = {"tools": {}}
                answer(
                    asked,
                    {
                        "protocolVersion": "2025-06-18",
                        "capabilities": tools,
                        "serverInfo": {"name": how, "version": "1"},
                    },
                )
            case "tools/list":
                listed(asked, how)
            case "tools/call":
                called(asked, how)
            case _ if "id" in asked:
                error = {"code": -32601, "message": "no such method"}
                say({"jsonrpc": "2.0", "id": asked["id"], "error": error})


def listed(asked: dict[str, Any], how: str) -> None:
    whatever: dict[str, Any] = {"type": "object"}
    tools = {
        "schemas": [
            tool("good", {"type": "object", "properties": {"a": {"type": "integer"}}}),
            tool("none", {"type": "object", "properties": {"a": {"type": 7}}}),
            tool("large", {"type": "object", "description": "x" * 100_000}),
            tool("x" * 100, whatever),
            tool("same.name", whatever),
            tool("same/name", whatever),
            tool("endless", knot()),
            tool("elsewhere", {"type": "object", "allOf": [{"$ref": "http://127.0.0.1:9/s"}]}),
            tool("itself", {"type": "object", "allOf": [{"$ref": "#"}]}),
            tool("slow", {"type": "object", "properties": {"a": {"pattern": "(a|aa)+$"}}}),
        ],
        "no schema": [tool("good", whatever), tool("text", {"type": "string"})],
        "crowd": [tool(f"t{n}", whatever) for n in range(1000)],
    }.get(how, [tool("it", whatever)])
    match how:
        case "silent":
            return
        case "endless":
            answer(asked, {"tools": [], "nextCursor": "again"})
        case "no list":
            answer(asked, {"tools": "many"})
        case _:
            answer(asked, {"tools": tools})


def called(asked: dict[str, Any], how: str) -> None:
    match how:
        case "megabytes":
            sys.stdout.write("z" * 20_000_000)
            sys.stdout.flush()
            time.sleep(600)
        case "rubbish":
            sys.stdout.write("Listening …\n{}\n[1]\n\n")
            answer(asked, {"content": [{"type": "text", "text": "found it"}]})
        case "no result":
            answer(asked, {"content": 7})
        case "refuses":
            error = {"code": -32602, "message": "not these"}
            say({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        case _:
            answer(asked, {"content": []})


def knot() -> dict[str, Any]:
    """Each definition asks the one below twice: 2 ** 40 steps to the bottom."""
    below = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(40)
    }
    return {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/d0"}],
        "$defs": {**below, "d40": {"type": "object"}},
    }


def tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": "It.", "inputSchema": schema}


def answer(asked: dict[str, Any], result: dict[str, Any]) -> None:
    say({"jsonrpc": "2.0", "id": asked["id"], "result": result})


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    hostile(sys.argv[1])
