"""Counters of the server, in the words of Prometheus. Used by the event loop alone."""

from __future__ import annotations

from collections import Counter

from app.server.job import Ended

_HELP = {
    "requests_total": "Requests by route and HTTP status.",
    "prompt_tokens_total": "Tokens of prompts.",
    "prompt_tokens_cached_total": "Those that the cache held already.",
    "prompt_seconds_total": "Time spent on reading prompts.",
    "generated_tokens_total": "Tokens written.",
    "generation_seconds_total": "Time spent on writing.",
    "clients_gone_total": "Requests whose client left before the end.",
    "requests_running": "Requests that are answered now.",
    "requests_waiting": "Requests that wait.",
    "context_tokens": "Size of the context.",
}


class Metrics:
    """Counters and totals since the start of the server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._totals: Counter[str] = Counter()
        self._seconds = {"prompt_seconds_total": 0.0, "generation_seconds_total": 0.0}

    def note_request(self, route: str, status: int) -> None:
        """A request was answered; ``route`` is one of the server's own."""
        self._requests[route, status] += 1

    def note_reply(self, ended: Ended) -> None:
        """A reply was written, whole or in part."""
        self._totals["prompt_tokens_total"] += ended.prompt_tokens
        self._totals["prompt_tokens_cached_total"] += ended.cached_tokens
        self._totals["generated_tokens_total"] += ended.tokens
        self._seconds["prompt_seconds_total"] += ended.read_s
        self._seconds["generation_seconds_total"] += ended.write_s
        if ended.reason == "cancelled" and ended.error is None:
            self._totals["clients_gone_total"] += 1

    def text(self, running: int, waiting: int, context_tokens: int) -> str:
        """Return all of them in Prometheus' text format."""
        values: dict[str, dict[str, float]] = {
            "requests_total": {
                f'{{route="{route}",status="{status}"}}': n for (route, status), n in sorted(self._requests.items())
            }
        }
        for name in _HELP:
            if name in self._seconds:
                values[name] = {"": round(self._seconds[name], 3)}
            elif name not in values:
                values[name] = {"": self._totals[name]}
        values["requests_running"] = {"": running}
        values["requests_waiting"] = {"": waiting}
        values["context_tokens"] = {"": context_tokens}
        lines = []
        for name, meaning in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP jalopy_{name} {meaning}", f"# TYPE jalopy_{name} {kind}"]
            lines += [f"jalopy_{name}{labels} {value}" for labels, value in values[name].items()]
        return "\n".join(lines) + "\n"
