"""A server of tools that does as it is told: soundly, or not. Run as a script; its argument is how it behaves."""

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
    {"name": "ns/echo", "title": "Says it again", "description": None, "inputSchema": {"properties": {"text": {}}}},
    {"name": "n" * 128, "inputSchema": None},
    {"name": "n" * 129, "inputSchema": {}},
    {"name": "wide", "inputSchema": {"properties": {f"p{n}": {"description": "d" * 100} for n in range(270)}}},
    {"name": "maybe", "inputSchema": {"type": ["object", "null"], "properties": None}},
    {"name": "list", "inputSchema": {"type": "array"}},
]
CONTENT = [
    {"type": "text", "text": "first"},
    {"type": "image", "data": "QUFB" * 400, "mimeType": "image/png"},
    {"type": "audio", "data": "QUFB", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt", "description": "A \x1b[31mfile", "size": 3},
    {"type": "resource", "resource": {"uri": "file:///b.txt", "mimeType": "text/plain", "text": "words of b"}},
    {"type": "resource", "resource": {"uri": "file:///c.bin", "mimeType": "application/pdf", "blob": "QUFB" * 4}},
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


def text(number: object, said: str, **more: object) -> None:
    answer(number, {"content": [{"type": "text", "text": said}], **more})


def do(number: object, what: str) -> None:
    if what == "hang":
        time.sleep(600)
    elif what == "die":
        os._exit(3)
    elif what == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    elif what == "many lines":
        while True:
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"x": "y" * 1000}})
    elif what == "lie":
        say({"jsonrpc": "2.0", "id": 999, "result": {"content": []}})
        say({"jsonrpc": "2.0", "id": "x", "method": "sampling/createMessage"})
        say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        answered = [json.loads(sys.stdin.readline()) for _ in range(2)]
        text(number, json.dumps(answered))
    elif what == "rubbish":
        say("\x1b]0;owned\x07 no json")
    elif what == "deep":
        say("[" * 100_000)
    elif what == "refuse":
        say({"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "no \x1b[31mcity"}})
    elif what in RESULTS:
        answer(number, RESULTS[what])
    elif what == "noise":
        say("Server started\n\n\x1b[31mlog\x1b[0m [info]\n!\n" + "[" * 100_000 + '\n{"jsonrpc": "2.0", "method":')
        sys.stdout.buffer.write(b"\xff\xfe no text\n")
        say([{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}, {"id": str(number), "result": {}}])
    elif what == "long":
        text(number, "y" * 500_000)
    elif what == "controls":
        text(number, "a\x1b[31mb\x00c\u202ed", isError=True)
    elif what == "environment":
        text(number, json.dumps(dict(os.environ)))
    elif what in ("child", "own session"):
        command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, start_new_session=what != "child")
        text(number, f"{os.getpid()} {child.pid}")
    elif what == "orphan":  # in a session of its own, and its parent has ended
        body = "import os, time; os.setsid(); print(os.getpid(), flush=True) if os.fork() == 0 else os._exit(0)"
        command = [sys.executable, "-I", "-S", "-c", f"{body}; time.sleep(600)"]
        orphan = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert orphan.stdout is not None
        text(number, f"{os.getpid()} {int(orphan.stdout.readline())}")


def main() -> None:
    if HOW == "mute":
        time.sleep(600)
    for line in sys.stdin:
        asked = json.loads(line)
        number, method = asked.get("id"), asked["method"]
        if method == "initialize":
            answer(number, {} if HOW == "other" else {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}})
        elif method == "tools/list":
            is_second = asked["params"].get("cursor") == "2"
            more = {} if HOW != "pages" or is_second else {"nextCursor": "2"}
            if HOW == "no tools":
                say({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}})
            else:
                all_tools = LENIENT if HOW == "lenient" else TOOLS
                answer(number, {"tools": TOOLS[1:2] if is_second else TOOLS[:1] if more else all_tools, **more})
        elif method == "tools/call":
            arguments = asked["params"]["arguments"]
            if asked["params"]["name"] in ("echo", "ns/echo", "n" * 128):
                text(number, arguments["text"])
            else:
                do(number, arguments["text"])


main()
