"""Tool server for tests. The argument selects its behaviour, correct or hostile."""

import json
import os
import subprocess
import sys
import time

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
DEEP: dict = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
TOOLS = [
    {"name": "echo", "description": "Says\x1b[31m it again.", "inputSchema": SCHEMA},
    {"name": "do", "inputSchema": SCHEMA},
    {"name": "\x1b[2J", "inputSchema": SCHEMA},
    {"name": "echo", "inputSchema": SCHEMA},
    {"name": "deep", "inputSchema": DEEP},
    {"name": "none", "inputSchema": []},
    {"name": "large", "inputSchema": {"type": "object", "description": "x" * 70000}},
    5,
]
LENIENT = [
    {
        "name": "ns/echo",
        "title": "Says it again",
        "description": None,
        "inputSchema": {"properties": {"text": {}}},
    },
    {"name": "n" * 128, "inputSchema": None},
    {"name": "n" * 129, "inputSchema": {}},
    {
        "name": "wide",
        "inputSchema": {"properties": {f"p{n}": {"description": "d" * 100} for n in range(270)}},
    },
    {"name": "maybe", "inputSchema": {"type": ["object", "null"], "properties": None}},
    {"name": "list", "inputSchema": {"type": "array"}},
    {
        "name": "odd",
        "inputSchema": {
            "properties": {"any": True, "none": [], "list": {"type": "object", "properties": []}},
            "required": None,
            "$defs": [],
            "items": [],
        },
    },
]
CONTENT = [
    {"type": "text", "text": "first"},
    {"type": "image", "data": "QUFB" * 400, "mimeType": "image/png"},
    {"type": "audio", "data": "QUFB", "mimeType": "audio/wav"},
    {
        "type": "resource_link",
        "uri": "file:///a.txt",
        "name": "a.txt",
        "description": "A \x1b[31mfile",
        "size": 3,
    },
    {
        "type": "resource",
        "resource": {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "words of b"},
    },
    {
        "type": "resource",
        "resource": {"uri": "file:///c.bin", "mimeType": "application/pdf", "blob": "QUFB" * 4},
    },
    {
        "type": "resource",
        "resource": {"uri": "file:///d.txt", "mimeType": "text/plain", "blob": "d29yZHMgb2YgZA=="},
    },
    {
        "type": "resource",
        "resource": {"uri": "file:///e.txt", "mimeType": "text/plain", "blob": "%%%%"},
    },
    {"type": "video"},
    7,
    "bare",
]
DEEP_LIST: list = []
for _ in range(200):
    DEEP_LIST = [DEEP_LIST]
RESULTS = {
    "nothing": [],
    "image": {"content": [{"type": "image", "data": "xx"}, {"type": "text", "text": "below"}, 7]},
    "content": {"content": CONTENT, "structuredContent": {"answer": 42}},
    "same": {"content": [{"type": "text", "text": '{"a": 1}'}], "structuredContent": {"a": 1}},
    "deep structure": {"structuredContent": DEEP_LIST},
    "old": {"toolResult": {"answer": 42}},
}


def say(value: object) -> None:
    sys.stdout.write((value if isinstance(value, str) else json.dumps(value)) + "\n")
    sys.stdout.flush()


def answer(number: object, result: object) -> None:
    say({"jsonrpc": "2.0", "id": number, "result": result})


def text(number: object, content: str, **fields: object) -> None:
    answer(number, {"content": [{"type": "text", "text": content}], **fields})


def behave(number: object, behaviour: str) -> None:
    if behaviour == "hang":
        time.sleep(600)
    elif behaviour == "die":
        os._exit(3)
    elif behaviour == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    elif behaviour == "many lines":
        while True:
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"x": "y" * 1000}})
    elif behaviour == "lie":
        say({"jsonrpc": "2.0", "id": 999, "result": {"content": []}})
        say({"jsonrpc": "2.0", "id": "x", "method": "sampling/createMessage"})
        say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        answers = [json.loads(sys.stdin.readline()) for _ in range(2)]
        text(number, json.dumps(answers))
    elif behaviour == "rubbish":
        say("\x1b]0;owned\x07 no json")
    elif behaviour == "deep":
        say("[" * 100_000)
    elif behaviour == "refuse":
        say(
            {
                "jsonrpc": "2.0",
                "id": number,
                "error": {"code": -32602, "message": "no \x1b[31mcity"},
            }
        )
    elif behaviour in RESULTS:
        answer(number, RESULTS[behaviour])
    elif behaviour == "noise":
        say(
            "Server started\n\n\x1b[31mlog\x1b[0m [info]\n!\n"
            + "[" * 100_000
            + '\n{"jsonrpc": "2.0", "method":'
        )
        sys.stdout.buffer.write(b"\xff\xfe no text\n")
        say(
            [
                {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}},
                {"id": str(number), "result": {}},
            ]
        )
    elif behaviour == "new tools":
        say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        text(number, "noted")
    elif behaviour == "log":
        sys.stderr.write("x" * 3_000_000)
        text(number, "logged")
    elif behaviour == "too long":
        text(number, "y" * 3_000_000)
    elif behaviour == "long":
        text(number, "y" * 500_000)
    elif behaviour == "controls":
        text(number, "a\x1b[31mb\x00c\u202ed", isError=True)
    elif behaviour == "environment":
        text(number, json.dumps(dict(os.environ)))
    elif behaviour in ("child", "own session"):
        command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, start_new_session=behaviour != "child")
        text(number, f"{os.getpid()} {child.pid}")
    elif behaviour == "orphan":  # in a separate session, and its parent has ended
        body = (
            "import os, time; os.setsid(); print(os.getpid(), flush=True) if os.fork() == 0 else "
            "os._exit(0)"
        )
        command = [sys.executable, "-I", "-S", "-c", f"{body}; time.sleep(600)"]
        orphan = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert orphan.stdout is not None
        text(number, f"{os.getpid()} {int(orphan.stdout.readline())}")


def page_of(cursor: str) -> dict:
    """Return a page of the tools with the position of the next page."""
    n = int(cursor or 0)
    if HOW == "many pages":
        return {
            "tools": [{"name": f"t{n}", "inputSchema": SCHEMA}],
            **({"nextCursor": str(n + 1)} if n < 29 else {}),
        }
    if HOW == "endless pages":
        return {
            "tools": [{"name": f"t{n}_{k}", "inputSchema": SCHEMA} for k in range(50)],
            "nextCursor": str(n + 1),
        }
    if HOW == "same page":
        return {"tools": TOOLS, "nextCursor": "1"}
    if HOW == "broken page":
        return {"tools": TOOLS[1:2], "nextCursor": "2"}
    if HOW == "pages":
        return {"tools": TOOLS[1:2]} if cursor else {"tools": TOOLS[:1], "nextCursor": "2"}
    return {"tools": LENIENT if HOW == "lenient" else TOOLS}


def main() -> None:
    n_lists = 0
    if HOW == "mute":
        time.sleep(600)
    if HOW == "dies at once":
        sys.exit("Error: KEY is not set")
    if HOW == "usage":
        sys.exit("usage: server --root DIR\nserver: error: --root is required")
    if HOW == "traceback":
        raise ValueError("no \x1b[31mroot")
    for line in sys.stdin:
        request = json.loads(line)
        number = request.get("id")
        method = request["method"]
        if method == "initialize":
            answer(
                number,
                {}
                if HOW == "other"
                else {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}},
            )
        elif method == "tools/list":
            cursor = request["params"].get("cursor", "")
            n_lists += 1
            if HOW == "no tools":
                say({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}})
            elif HOW == "broken page" and cursor:
                say(
                    {
                        "jsonrpc": "2.0",
                        "id": number,
                        "error": {"code": -32602, "message": "no such page"},
                    }
                )
            elif HOW == "late":
                if n_lists == 1:
                    say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                answer(number, {"tools": [] if n_lists == 1 else TOOLS[1:2]})
            else:
                answer(number, page_of(cursor))
        elif method == "tools/call":
            arguments = request["params"]["arguments"]
            if arguments["text"] == "token":
                text(number, str(request["params"]["_meta"] == {"progressToken": number}))
            elif request["params"]["name"] in ("echo", "ns/echo", "n" * 128):
                text(number, arguments["text"])
            else:
                behave(number, arguments["text"])


main()
