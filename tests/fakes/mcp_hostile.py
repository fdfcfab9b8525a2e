"""An MCP server that answers as none should.

    python tests/fakes/mcp_hostile.py HOW          over standard input and output
    python tests/fakes/mcp_hostile.py HOW PORT     over HTTP

Written without the library, which would not let it, and starts in no time for that. Its handshake
is of the older kind, and correct.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

said: list[str] = []


def hostile(how: str) -> None:
    """Read a request a line, and misbehave where it says so."""
    for line in sys.stdin:
        asked_for(json.loads(line), how)


def over_http(how: str, port: int) -> None:
    """Each answer is the one message that was said to the request, as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said.clear()
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked_for(asked, how)
            body = said[-1].encode() if said else b""
            self.send_response(200 if said else 202)
            if asked.get("method") == "tools/call" and how == "bomb":
                body = gzip.compress(body)
                self.send_header("content-encoding", "gzip")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def asked_for(asked: dict[str, Any], how: str) -> None:
    match asked.get("method"):
        case "initialize":
            server = {"name": how, "version": "1"}
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": server,
            }
            answer(asked, result)
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
            answer(asked, {"content": [{"type": "text", "text": "z" * 20_000_000}]})
        case "bomb":
            answer(asked, {"content": [{"type": "text", "text": "z" * 1_000_000}]})
        case "rubbish":
            sys.stdout.write("Listening …\n{}\n[1]\n\n")
            answer(asked, {"content": [{"type": "text", "text": "found it"}]})
        case "deaf":
            time.sleep(1000)
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
    said.append(json.dumps(message))
    if len(sys.argv) == 2:
        sys.stdout.write(f"{said[-1]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [how]:
            hostile(how)
        case [how, port]:
            over_http(how, int(port))
