"""Speed of ``jalopy serve`` with 1, 2 and 4 clients at once: python -m
tests.programs.engine.clients_together MODEL [-n TOKENS] [-r ROUNDS].

Each client asks for a greedy reply of fixed length, after a short prompt of its own. Rounds measure
the numbers of clients in random order, and a figure is all clients' tokens a second, from the first
token of the last client that begins to the last token of the first that ends. Nothing else may run
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.programs.peers.server import PeerServer

SUBJECTS = (
    "the sea",
    "old machines",
    "a garden",
    "the night",
    "a long road",
    "bread",
    "snow",
    "maps",
)
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120.0


def token_times_s(url: str, model: str, subject: str, n_tokens: int) -> list[float]:
    """Return the time at which each part of a reply came."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Write a long story about {subject}."}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    times_s = []
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        for line in answer:
            if line.startswith(b"data: {") and b'"content"' in line:
                times_s.append(time.perf_counter())
    return times_s


def together(times_s: list[list[float]], n_tokens: int) -> float:
    """Return the tokens a second of all clients while all of them write.

    A part of a stream may hold several tokens, so parts are counted, each as its share of the
    reply.
    """
    first_s = max(times[0] for times in times_s)
    last_s = min(times[-1] for times in times_s)
    n = 0.0
    for times in times_s:
        n += n_tokens * sum(first_s < token_s <= last_s for token_s in times) / len(times)
    return n / (last_s - first_s)


def measured(url: str, model: str, n_clients: int, n_tokens: int) -> float:
    """Return the tokens a second of some clients together."""
    times_s: list[list[float]] = [[] for _ in range(n_clients)]

    def ask(client: int, subject: str) -> None:
        times_s[client] = token_times_s(url, model, subject, n_tokens)

    threads = [
        threading.Thread(target=ask, args=(client, subject))
        for client, subject in enumerate(random.sample(SUBJECTS, n_clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return together(times_s, n_tokens)


def name_of_model(url: str) -> str:
    """Return the name under which the server has its model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=PATIENCE_S) as answer:
        return str(json.load(answer)["data"][0]["id"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("-n", type=int, default=64, help="tokens of each reply")
    parser.add_argument("-r", type=int, default=5, help="rounds")
    parser.add_argument("-c", default="1,2,4", help="numbers of clients")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    clients = [int(n) for n in options.c.split(",")]
    speeds: dict[int, list[float]] = {n: [] for n in clients}
    with tempfile.TemporaryDirectory() as root:
        server = PeerServer("jalopy", sys.executable, options.model, Path(root), PATIENCE_S)
        server.start()
        try:
            name = name_of_model(server.url)
            measured(server.url, name, max(clients), 8)
            for _ in range(options.r):
                for n in random.sample(clients, len(clients)):
                    speeds[n].append(measured(server.url, name, n, options.n))
        finally:
            server.kill()
    alone = statistics.median(speeds[clients[0]])
    print(f"| clients | tokens a second, together | to {clients[0]} |\n|---:|---:|---:|")
    for n in clients:
        speed = statistics.median(speeds[n])
        lowest, highest = min(speeds[n]), max(speeds[n])
        print(f"| {n} | {speed:.1f} ({lowest:.1f} to {highest:.1f}) | {speed / alone:.2f} |")


if __name__ == "__main__":
    main()
