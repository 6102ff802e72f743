"""Counters of the server for ``/metrics``."""

from __future__ import annotations

from app.server.reply_task import Finish


class Metrics:
    """Counters since the start of the server, in Prometheus' format.

    Only the event loop uses them.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self.count_reply(Finish("stop"))

    def count_request(self, route: str, status: int) -> None:
        """Count an answered request.

        Args:
            route: Path of a route of the server.
            status: HTTP status.
        """
        self._add(f'requests_total{{route="{route}",status="{status}"}}', 1)

    def count_reply(self, finish: Finish) -> None:
        """Count a reply, complete or partial."""
        self._add("prompt_tokens_total", finish.prompt_tokens)
        self._add("prompt_tokens_cached_total", finish.cached_tokens)
        self._add("prompt_seconds_total", finish.prefill_s)
        self._add("generated_tokens_total", finish.tokens)
        self._add("generation_seconds_total", finish.decode_s)
        self._add("clients_gone_total", finish.reason == "cancelled" and finish.error is None)

    def _add(self, name: str, value: float) -> None:
        self._values[name] = self._values.get(name, 0) + value

    def text(self, **gauges: int) -> str:
        """Return all counters and some current values in Prometheus' text format."""
        values = {**self._values, **gauges}
        return "".join(f"jalopy_{name} {value:.15g}\n" for name, value in values.items())
