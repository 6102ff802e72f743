"""Good and bad clients of a server.

Run ``python -m tests.programs.server_soak [--requests 500 | --minutes 60 --models 4 --record FILE]``.

Whole answers, streams, forms, vectors and refusals, from several threads at once; requests in every
order and with any field (``odd_requests.py``), damaged ones; streams that are cut, clients that
leave, readers that take nothing. Requests of which half is sent, bodies that dribble, in tiny
chunks, of two million numbers or with two lengths, floods of connections. With several models they
come and go: each is closed when it was idle, and opened by the next request.

Memory, descriptors, threads and maps of the server's processes are measured at rest, before and
after, and about once a minute meanwhile. It ends with 1 where anything hangs, is answered wrongly,
or has grown. Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random, choice
from statistics import median
from typing import Any

import httpx
import psutil

from tests.app.server.odd_requests import damaged, odd, odd_response

ROOT = Path(__file__).resolve().parents[2]
STARTER = ROOT / "starter" / "starter.gguf"
OWN_FOLDERS = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_STATE_HOME": "state"}
"""Folders of the program that are not those of whoever runs it; compiled kernels are."""
PATIENCE_S = 120.0
CLIENTS = 6
MAX_GROWN_BYTES = 24 << 20
"""Limit on the growth of memory: what allocators keep after a storm."""
MAX_GROWN_MAPS = 64
"""Limit on the growth of maps.

Each thread that an allocator has once served may keep one or two.
"""
WARM_MINUTES = 10.0
"""Samples before that are not judged; in shorter runs, those of the first third."""
IDLE_MINUTES = 0.05
"""After which several models are closed: a model is closed and opened again within each minute."""
DRIVE_S = 45.0
"""How long clients send before each sample."""
N_NUMBERS = 2_000_000
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"enum": [{"city": "Rome"}]}}}


def raw(target: str, body: Any) -> bytes:
    """A request as its bytes."""
    sent = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
        target.encode(),
        len(sent),
        sent,
    )


class Bench:
    """The server, and what clients saw of it.

    Args:
        names: of the models that requests choose from; empty where the server has one.
    """

    def __init__(self, url: str, process: psutil.Process, names: Sequence[str] = ()) -> None:
        self.port = int(url.rpartition(":")[2])
        self.url = url
        self.process = process
        self.names = names
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S)
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest_health_s = 0.0

    def named(self, body: Any) -> Any:
        """Return a body that names one of the models, where there are several."""
        if self.names and isinstance(body, dict):
            return {**body, "model": choice(self.names)}
        return body

    def post(self, path: str, body: Any) -> httpx.Response:
        sent = body if isinstance(body, bytes) else json.dumps(self.named(body)).encode()
        return self.client.post(path, content=sent)

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def send(self, path: str, body: Any) -> bytes:
        """Return the bytes of a request."""
        return raw(path, self.named(body))

    def check_health(self) -> None:
        """Ask whether the server is well, whatever others do, and note how long that took."""
        began_s = time.monotonic()
        try:
            status = httpx.get(
                f"{self.url}/health", trust_env=False, timeout=PATIENCE_S
            ).status_code
        except httpx.TransportError as error:  # a flood of connections may cut this one, too
            status = 200 if "flood" in self.seen else 0
            self.faults += [] if status else [f"health: {type(error).__name__} {error}"]
        if status != 200:
            self.faults.append(f"health: answered with {status}")
        self.slowest_health_s = max(self.slowest_health_s, time.monotonic() - began_s)

    def size(self) -> dict[str, int]:
        """Return the resources of all processes together."""
        totals: Counter[str] = Counter()
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                totals["uss_bytes"] += process.memory_full_info().uss
                totals["anonymous_bytes"] += _anonymous_bytes(process.pid)
                totals["descriptors"] += process.num_fds()
                totals["threads"] += process.num_threads()
                totals["maps"] += len(Path(f"/proc/{process.pid}/maps").read_bytes().splitlines())
        return dict(totals)

    def is_idle(self) -> bool:
        text = self.client.get("/metrics").text
        is_idle = all(f"jalopy_requests_{name} 0" in text for name in ("running", "waiting"))
        return is_idle and not (self.names and self.client.get("/api/ps").json()["models"])


def _anonymous_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/smaps_rollup").read_text()
    match = re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def whole(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, **GREEDY})
    return answer.status_code == 503 or "Paris" in answer.json()["choices"][0]["message"]["content"]


def streamed(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, **GREEDY, "stream": True})
    return answer.status_code == 503 or answer.text.endswith("data: [DONE]\n\n")


def response(bench: Bench, random: Random) -> bool:
    answer = bench.post(
        "/v1/responses", {"input": QUESTION[0]["content"], "stream": True, "temperature": 0}
    )
    return answer.status_code == 503 or "event: response.completed" in answer.text


def formed(bench: Bench, random: Random) -> bool:
    answer = bench.post(CHAT, {"messages": QUESTION, "response_format": SCHEMA})
    return (
        answer.status_code == 503
        or answer.json()["choices"][0]["message"]["content"] == '{"city": "Rome"}'
    )


def refused(bench: Bench, random: Random) -> bool:
    wrong: list[Any] = [
        {"messages": []},
        {"messages": QUESTION, "n": 9},
        {"messages": QUESTION, "grammar": "("},
    ]
    return bench.post(CHAT, random.choice([b"{", b"[" * 5000, *wrong])).status_code in (400, 503)


def huge(bench: Bench, random: Random) -> bool:
    return bench.post(CHAT, b" " * (5 << 20)).status_code in (413, 503)


def cut(bench: Bench, random: Random) -> bool:
    """Leave in the midst of a long stream, or of the request."""
    sent = bench.send(
        "/v1/completions",
        {"prompt": "Once upon a time", "stream": True, "temperature": 5, "min_p": 0},
    )
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
        for byte in bench.send(
            "/v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 200}
        ):
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
    return answer.status_code in (200, 400, 404, 413, 503) and (
        answer.status_code == 200 or "error" in answer.json()
    )


def absolute(bench: Bench, random: Random) -> bool:
    """Name the whole address, as proxies' clients do."""
    target = f"http://localhost:{bench.port}{random.choice(('/v1', ''))}/chat/completions"
    with bench.raw() as connection:
        connection.sendall(bench.send(target, {"messages": QUESTION, "max_tokens": 2}))
        return connection.recv(20).split()[1] in (b"200", b"503")


def left(bench: Bench, random: Random) -> bool:
    """Leave while a long text is counted or read, or a whole answer is awaited."""
    text = random.choice(("ab" * 100_000, "word " * 40_000, "x1 y2\n" * 5_000))
    requests = {
        "/tokenize": {"content": text}, "/v1/responses": {"input": text},
        "/v1/completions": random.choice(({"prompt": text}, {"prompt": "Once", "temperature": 5,
                                                             "min_p": 0})),
        CHAT: {"messages": [{"role": "user", "content": text}]},
    }  # fmt: skip
    with bench.raw() as connection:
        connection.sendall(bench.send(*random.choice(list(requests.items()))))
        connection.settimeout(random.random() * 0.3)
        with suppress(TimeoutError):
            connection.recv(100)
    return True


def vectors(bench: Bench, random: Random) -> bool:
    path, body = random.choice(
        (
            ("/v1/embeddings", {"input": ["a cat", "the sea"]}),
            ("/api/embed", {"input": "word " * 2000}),
            ("/api/embeddings", {"prompt": "the sea"}),
        )
    )
    answer = bench.post(path, body)
    return answer.status_code == 503 or "embedding" in answer.text


def ollama(bench: Bench, random: Random) -> bool:
    body = {
        "messages": QUESTION,
        "options": {"temperature": 0, "num_predict": 24},
        "stream": random.random() < 0.5,
    }
    body["keep_alive"] = random.choice((0, "5m", None))
    answer = bench.post("/api/chat", body)
    return answer.status_code == 503 or json.loads(answer.text.splitlines()[-1])["done"] is True


def numbers(bench: Bench, random: Random) -> bool:
    """Send a list of two million numbers where a few things are expected."""
    places = {
        "/v1/completions": "prompt", "/v1/embeddings": "input", "/v1/rerank": "documents",
        "/detokenize": "tokens", "/v1/responses": "input", CHAT: "messages",
        "/api/chat": "messages", "/api/generate": "prompt", "/api/embed": "input",
        "/tokenize": "content",
    }  # fmt: skip
    path, field = random.choice(list(places.items()))
    model = f'"model": "{choice(bench.names)}", ' if bench.names else ""
    body = b'{%b"query": "a", "%b": [%b]}' % (
        model.encode(),
        field.encode(),
        b"1," * (N_NUMBERS - 1) + b"1",
    )
    return bench.post(path, body).status_code in (400, 503)


def halves(bench: Bench, random: Random) -> bool:
    """Send half of many requests, go on for a while with single bytes, and leave."""
    path = random.choice((CHAT, "/v1/embeddings", "/api/chat", "/tokenize", "/health", "/nowhere"))
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % path.encode()
    half = random.choice(
        (
            head,
            head[: random.randrange(1, len(head))],
            head + b"Content-Length: 5000\r\n\r\n{",
            head + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{",
        )
    )
    connections = []
    with suppress(OSError):
        for _ in range(70):
            connections.append(bench.raw())
            connections[-1].sendall(half)
    for _ in range(5):
        time.sleep(0.1)
        for connection in connections:
            with suppress(OSError):
                connection.sendall(b" ")
    for connection in connections:
        connection.close()
    return True


def unfinished(bench: Bench, random: Random) -> bool:
    """Send all but the end of a large body."""
    with bench.raw() as connection, suppress(OSError):
        connection.sendall(bench.send(CHAT, {"messages": QUESTION, "user": "x" * (3 << 20)})[:-1])
        time.sleep(0.3)
    return True


def ambiguous(bench: Bench, random: Random) -> bool:
    """Give the length of a body in two ways, and another request behind it.

    No one may hear of that request.
    """
    lengths = random.choice(
        (b"Transfer-Encoding: chunked", b"Content-Length: 9", b"Transfer-Encoding: gzip, chunked")
    )
    request = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n%b\r\n\r\n" % lengths
    )
    request += b"2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with bench.raw() as connection:
        connection.sendall(request)
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    return received.count(b"HTTP/1.1 ") == 1 and b" 200 " not in received


def tiny_chunks(bench: Bench, random: Random) -> bool:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with bench.raw() as connection, suppress(ConnectionError):
        connection.sendall(head + b"1\r\n \r\n" * 50_000)
        return connection.recv(12) in (b"HTTP/1.1 400", b"")
    return True


KINDS: dict[Callable[[Bench, Random], bool], int] = {
    whole: 25, streamed: 25, response: 12, formed: 12, refused: 10, cut: 10, slow: 3, huge: 2,
    flood: 1,
    odd_chat: 20, odd_items: 12, broken: 20, absolute: 5, left: 6, vectors: 6, ollama: 10,
    numbers: 3, halves: 1, unfinished: 3, ambiguous: 5, tiny_chunks: 3,
}  # fmt: skip


def drive(bench: Bench, n_requests: int, seed: int, until_s: float = math.inf) -> None:
    """Send from several threads at once, until a time of the monotonic clock at most."""

    def send(random: Random, n: int) -> None:
        for kind in random.choices(list(KINDS), list(KINDS.values()), k=n):
            if time.monotonic() >= until_s:
                return
            try:
                is_right = kind(bench, random)
            except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
                is_right = isinstance(
                    error, (ConnectionError, httpx.NetworkError, httpx.RemoteProtocolError)
                )
                bench.faults += (
                    [] if is_right else [f"{kind.__name__}: {type(error).__name__} {error}"]
                )
            bench.seen[kind.__name__] += 1
            if not is_right:
                bench.faults.append(f"{kind.__name__}: answered wrongly")

    clients = [
        threading.Thread(target=send, args=(Random(seed + n), n_requests // CLIENTS))
        for n in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        bench.check_health()
        time.sleep(0.5)
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
    n_descriptors = -1
    for _ in range(100):
        time.sleep(0.1)
        totals = bench.size()
        if totals["descriptors"] == n_descriptors:
            break
        n_descriptors = totals["descriptors"]
    return totals


@dataclass
class Sample:
    """Sample of what the server holds at rest."""

    minute: float
    n_requests: int
    held: dict[str, int]

    def row(self) -> str:
        """Return the sample as a row of the table."""
        memory = [
            f"{self.held[name] / (1 << 20):>10.1f}" for name in ("uss_bytes", "anonymous_bytes")
        ]
        counts = [f"{self.held[name]:>12}" for name in ("descriptors", "threads", "maps")]
        return "".join([f"{self.minute:>8.1f}{self.n_requests:>10}", *memory, *counts])


HEADING = "  minute  requests   uss MiB  anon. MiB descriptors     threads        maps"
LIMITS = {
    "anonymous_bytes": MAX_GROWN_BYTES,
    "descriptors": 1,
    "threads": 1,
    "maps": MAX_GROWN_MAPS,
}


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how much more there is of each in the last third of the samples.

    Its median is compared with that of the first third.
    """
    n = max(1, len(samples) // 3)
    return {
        name: median(sample.held[name] for sample in samples[-n:])
        - median(sample.held[name] for sample in samples[:n])
        for name in LIMITS
    }


def run(bench: Bench, n_requests: int, minutes: float, record: Path | None) -> bool:
    """Drive the server, compare, and print; whether all is well."""
    drive(bench, max(CLIENTS, n_requests // 5), 1000)  # what is made once is made now
    bench.seen.clear()
    started_s = time.monotonic()
    lines = [HEADING]
    samples: list[Sample] = []

    def sample() -> None:
        samples.append(
            Sample((time.monotonic() - started_s) / 60, bench.seen.total(), settled(bench))
        )
        lines.append(samples[-1].row())
        print(lines[-1], flush=True)
        if record is not None:
            record.write_text("\n".join(lines) + "\n")

    print(HEADING, flush=True)
    sample()
    seed = 0
    while True:
        drive(bench, n_requests, seed, time.monotonic() + DRIVE_S if minutes else math.inf)
        sample()
        seed += CLIENTS
        if time.monotonic() - started_s >= 60.0 * minutes:
            break
    warm_minutes = min(WARM_MINUTES, minutes / 3)
    judged = [sample for sample in samples if sample.minute >= warm_minutes]
    grown = growth(judged)
    kinds = ", ".join(f"{n} {name}" for name, n in bench.seen.most_common())
    lines.append(f"{bench.seen.total()} requests of {CLIENTS} clients: {kinds}")
    lines.append(f"the slowest answer of /health took {bench.slowest_health_s:.1f} s")
    for name, limit in LIMITS.items():
        divisor, unit = (1 << 20, " MiB") if name.endswith("_bytes") else (1, "")
        verdict = "" if grown[name] <= limit else ": HAS GROWN"
        label = name.removesuffix("_bytes")
        lines.append(
            f"{label:<12}{grown[name] / divisor:+.1f}{unit} "
            f"(at most {limit / divisor:.0f}{unit}){verdict}"
        )
    lines += bench.faults[:20]
    print("\n".join(lines[len(samples) + 1 :]))
    if record is not None:
        record.write_text("\n".join(lines) + "\n")
    return not bench.faults and all(grown[name] <= limit for name, limit in LIMITS.items())


def folder_of_models(folder: Path, source: Path, n_models: int) -> list[str]:
    """Write settings and copies of a model, each under a name of its own; return the names."""
    models = folder / "models"
    config = folder / "config" / "jalopy"
    models.mkdir()
    config.mkdir(parents=True)
    names = [f"soak-{number}" for number in range(n_models)]
    for name in names:
        shutil.copy(source, models / f"{name}.gguf")
    (config / "settings.toml").write_text(f"model_directories = [{json.dumps(str(models))}]\n")
    return names


def main(arguments: list[str]) -> int:
    """Serve the bundled model, or copies of it, and use it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.server_soak", description=__doc__
    )
    parser.add_argument(
        "--requests", type=int, default=500, help="how many, or how many at a time with --minutes"
    )
    parser.add_argument(
        "--model", default="", help="the file of another model, as one that has tools"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long")
    parser.add_argument(
        "--models", type=int, default=0, help="serve so many copies, which come and go"
    )
    parser.add_argument("--record", type=Path, help="write the table of samples there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        names: list[str] = []
        command = [sys.executable, "-m", "app", "serve", "--port", "0"]
        if options.models:
            source = Path(options.model) if options.model else STARTER
            names = folder_of_models(Path(folder), source, options.models)
            environment |= {
                name: f"{folder}/{subfolder}" for name, subfolder in OWN_FOLDERS.items()
            }
            command += ["--idle-minutes", str(IDLE_MINUTES)]
        else:
            command.append(options.model or "starter")
        log = Path(folder) / "serve.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=stderr, env=environment
            )
        try:
            signal_text = "each model is opened" if names else " ready "
            until(
                lambda: signal_text in log.read_text() or process.poll() is not None, 8 * PATIENCE_S
            )
            match = re.search(r"at (http://\S+)/v1", log.read_text())
            if match is None or process.poll() is not None:
                print(log.read_text())
                return 1
            bench = Bench(match[1], psutil.Process(process.pid), names)
            is_well = run(bench, options.requests, options.minutes, options.record)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
        lines = log.read_text().splitlines()
        strange = [
            line for line in lines if not line.startswith("jalopy serve: ") or "fault" in line
        ]
        print(
            "\n".join(strange[:10]) or "the log has nothing strange",
            f"(exit code {process.returncode})",
        )
        if names:
            n_closed = sum(": closed (" in line for line in lines)
            print(f"models were closed {n_closed} times")
            is_well = is_well and n_closed >= options.models
    return 0 if is_well and not strange else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
