"""``python -m tests.app.server.soak [--requests 500 | --minutes 30]``: a server, used by clients good and bad.

Whole answers, streams, forms and refusals, from several threads at once; requests in every order and with any field
(``odd_requests.py``), damaged ones; streams that are cut, clients that leave, readers that take nothing, bodies that
dribble, floods of connections. Before and after: memory, descriptors and threads of the server's
processes. It ends with 1 where anything hangs, is answered wrongly, or has grown.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil

from tests.app.server.odd_requests import damaged, odd, odd_response

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120.0
CLIENTS = 6
MOST_GROWN_BYTES = 24 << 20
"""Of memory: what allocators keep after a storm."""
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"enum": [{"city": "Rome"}]}}}


def raw(target: str, body: Any) -> bytes:
    """A request as its bytes."""
    sent = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (target.encode(), len(sent), sent)


class Bench:
    """The server, and what clients saw of it."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.url, self.process, self.port = url, process, int(url.rpartition(":")[2])
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S)
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def size(self) -> dict[str, int]:
        """What the processes hold together."""
        held: Counter[str] = Counter()
        for one in (self.process, *self.process.children(recursive=True)):
            held["memory_bytes"] += one.memory_full_info().uss
            held["descriptors"] += one.num_fds()
            held["threads"] += one.num_threads()
        return dict(held)

    def is_idle(self) -> bool:
        text = self.client.get("/metrics").text
        return all(f"jalopy_requests_{name} 0" in text for name in ("running", "waiting"))


def whole(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, **GREEDY})
    return answer.status_code == 503 or "Paris" in answer.json()["choices"][0]["message"]["content"]


def streamed(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, **GREEDY, "stream": True})
    return answer.status_code == 503 or answer.text.endswith("data: [DONE]\n\n")


def response(bench: Bench, random: Random) -> bool:
    answer = bench.post("/v1/responses", {"input": QUESTION[0]["content"], "stream": True, "temperature": 0})
    return answer.status_code == 503 or "event: response.completed" in answer.text


def formed(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, "response_format": SCHEMA})
    return answer.status_code == 503 or answer.json()["choices"][0]["message"]["content"] == '{"city": "Rome"}'


def refused(bench: Bench, random: Random) -> bool:
    wrong: list[Any] = [{"messages": []}, {"messages": QUESTION, "n": 9}, {"messages": QUESTION, "grammar": "("}]
    return bench.post(CHAT, random.choice([b"{", b"[" * 5000, *wrong])).status_code in (400, 503)


def huge(bench: Bench, random: Random) -> bool:
    return bench.post(CHAT, b" " * (5 << 20)).status_code in (413, 503)


def cut(bench: Bench, random: Random) -> bool:
    """Leave in the midst of a long stream, or of the request."""
    sent = raw("/v1/completions", {"prompt": "Once upon a time", "stream": True, "temperature": 5, "min_p": 0})
    with bench.raw() as connection:
        connection.sendall(sent[: random.choice((len(sent), random.randrange(len(sent))))])
        connection.settimeout(0.2)
        with suppress(TimeoutError):
            connection.recv(2000)
    return True


def slow(bench: Bench, random: Random) -> bool:
    """Take a little, wait, and leave."""
    with bench.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for byte in raw("/v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 200}):
            connection.sendall(bytes([byte]))
        connection.recv(20)
        time.sleep(0.3)
    return True


def flood(bench: Bench, random: Random) -> bool:
    connections = []
    with suppress(OSError):
        connections += [bench.raw() for _ in range(100)]
    for connection in connections:
        connection.close()
    return True


def _is_answered(answer: httpx.Response) -> bool:
    """Whether a request that is odd, and no more, had its answer."""
    text = answer.text
    if answer.status_code == 400 and answer.json()["error"]["param"] == "tools":
        return True  # the model's template has none
    is_whole = "completed" in text or "incomplete" in text or "finish_reason" in text
    return answer.status_code == 503 or (answer.status_code == 200 and is_whole)


def odd_chat(bench: Bench, random: Random) -> bool:
    return _is_answered(bench.post(*odd(random)))


def odd_items(bench: Bench, random: Random) -> bool:
    return _is_answered(bench.post(*odd_response(random)))


def broken(bench: Bench, random: Random) -> bool:
    answer = bench.post(*damaged(random))
    return answer.status_code in (200, 400, 404, 413, 503) and (answer.status_code == 200 or "error" in answer.json())


def absolute(bench: Bench, random: Random) -> bool:
    """Name the whole address, as proxies' clients do."""
    target = f"http://localhost:{bench.port}{random.choice(('/v1', ''))}/chat/completions"
    with bench.raw() as connection:
        connection.sendall(raw(target, {"messages": QUESTION, "max_tokens": 2}))
        return connection.recv(20).split()[1] in (b"200", b"503")


def left(bench: Bench, random: Random) -> bool:
    """Leave while a long text is counted or read, or a whole answer is awaited."""
    text = random.choice(("ab" * 100_000, "word " * 40_000, "x1 y2\n" * 5_000))
    asked = {
        "/tokenize": {"content": text}, "/v1/responses": {"input": text},
        "/v1/completions": random.choice(({"prompt": text}, {"prompt": "Once", "temperature": 5, "min_p": 0})),
        CHAT: {"messages": [{"role": "user", "content": text}]},
    }  # fmt: skip
    with bench.raw() as connection:
        connection.sendall(raw(*random.choice(list(asked.items()))))
        connection.settimeout(random.random() * 0.3)
        with suppress(TimeoutError):
            connection.recv(100)
    return True


KINDS: dict[Callable[[Bench, Random], bool], int] = {
    whole: 25, streamed: 25, response: 12, formed: 12, refused: 10, cut: 10, slow: 3, huge: 2, flood: 1,
    odd_chat: 20, odd_items: 12, broken: 20, absolute: 5, left: 6,
}  # fmt: skip


def drive(bench: Bench, n_requests: int, seed: int) -> None:
    """Send from several threads at once."""

    def send(random: Random, n: int) -> None:
        for kind in random.choices(list(KINDS), list(KINDS.values()), k=n):
            try:
                is_right = kind(bench, random)
            except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
                is_right = isinstance(error, ConnectionError)
                bench.faults += [] if is_right else [f"{kind.__name__}: {type(error).__name__} {error}"]
            bench.seen[kind.__name__] += 1
            if not is_right:
                bench.faults.append(f"{kind.__name__}: answered wrongly")

    clients = [threading.Thread(target=send, args=(Random(seed + n), n_requests // CLIENTS)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    until(bench.is_idle)


def until(holds: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for what must become true."""
    deadline_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the server does not come to rest")
        time.sleep(0.05)


def settled(bench: Bench) -> dict[str, int]:
    """Wait until connections that were left are closed, and measure."""
    bench.client.close()
    bench.client = httpx.Client(base_url=bench.url, trust_env=False, timeout=PATIENCE_S)
    before = -1
    for _ in range(100):
        time.sleep(0.1)
        held = bench.size()
        if held["descriptors"] == before:
            break
        before = held["descriptors"]
    return held


def run(bench: Bench, n_requests: int, minutes: float) -> bool:
    """Drive the server, compare, and print; whether all is well."""
    drive(bench, max(CLIENTS, n_requests // 5), 1000)  # what is made once is made now
    before = settled(bench)
    bench.seen.clear()
    started_s = time.monotonic()
    drive(bench, n_requests, 0)
    seed = 0
    while time.monotonic() - started_s < 60.0 * minutes:
        seed += CLIENTS
        drive(bench, n_requests, seed)
    taken_s, after = time.monotonic() - started_s, settled(bench)
    kinds = ", ".join(f"{n} {name}" for name, n in bench.seen.most_common())
    print(f"{bench.seen.total()} requests of {CLIENTS} clients in {taken_s:.0f} s: {kinds}")
    for name in before:
        divisor, unit = (1 << 20, " MiB") if name == "memory_bytes" else (1, "")
        figures = f"before {before[name] / divisor:.0f}{unit}, after {after[name] / divisor:.0f}{unit}"
        print(f"{name.removesuffix('_bytes'):<12}{figures}")
    for fault in bench.faults[:20]:
        print(fault)
    has_grown = after["memory_bytes"] - before["memory_bytes"] > MOST_GROWN_BYTES or any(
        after[name] > before[name] + 1 for name in ("descriptors", "threads")
    )
    return not bench.faults and not has_grown


def main(arguments: list[str]) -> int:
    """Serve the bundled model and use it."""
    parser = argparse.ArgumentParser(prog="python -m tests.app.server.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="how many, or how many at a time with --minutes")
    parser.add_argument("--model", default="starter", help="another model, as one that has tools")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long")
    options = parser.parse_args(arguments)
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        command = [sys.executable, "-m", "app", "serve", options.model, "--port", "0"]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=log)
        try:
            until(lambda: " ready " in Path(log.name).read_text() or process.poll() is not None, 8 * PATIENCE_S)
            found = re.search(r"at (http://\S+)/v1", Path(log.name).read_text())
            if found is None or process.poll() is not None:
                print(Path(log.name).read_text())
                return 1
            is_well = run(Bench(found[1], psutil.Process(process.pid)), options.requests, options.minutes)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
        lines = Path(log.name).read_text().splitlines()
        strange = [line for line in lines if not line.startswith("jalopy serve: ") or "fault" in line]
        print("\n".join(strange[:10]) or "the log has nothing strange", f"(exit code {process.returncode})")
    return 0 if is_well and not strange else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
