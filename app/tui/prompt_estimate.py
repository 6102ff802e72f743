"""Tokens in the prompt and the time to read them: exact where the engine has counted, else estimated.

Everything is learnt from what was counted and measured in this session with this model. Nothing is said of time before
a prompt was measured.
"""

from __future__ import annotations

from collections import deque

from app.text import figures
from app.text.record import record

COMMON_BYTES_PER_TOKEN = 4.0
"""Of English text in most vocabularies, until this model's own figure is known."""
_TEMPLATE_TOKENS = 8
_LEAST_BYTES_TO_LEARN = 60
_LEAST_TOKENS_TO_LEARN = 16
"""Shorter prompts take a slower path, and mostly show what starting costs."""
_READS_REMEMBERED = 5


@record
class Estimate:
    """Cost of sending the prompt."""

    tokens: int
    """To be added to the conversation."""
    is_exact: bool
    """Whether the engine counted them."""
    ready_tokens: int
    """Those that are read already."""
    seconds: float | None
    """Until the rest is read; None while no rate was measured."""


class PromptEstimator:
    """Learns, and estimates from what it learnt."""

    def __init__(self) -> None:
        self._reads: deque[tuple[int, float]] = deque(maxlen=_READS_REMEMBERED)
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self._text: str | None = None
        self._tokens = self._ready_tokens = 0

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens read per second over the last few prompts."""
        seconds = sum(read_s for _, read_s in self._reads)
        return sum(tokens for tokens, _ in self._reads) / seconds if seconds > 0 else None

    def forget_model(self) -> None:
        """Another model has other tokens and another speed."""
        self._reads.clear()
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self.forget_text()

    def forget_text(self) -> None:
        """Forget the counted draft: it was sent or dropped."""
        self._text, self._tokens, self._ready_tokens = None, 0, 0

    def learn_read(self, tokens: int, seconds: float) -> None:
        """Record that reading ``tokens`` tokens of a prompt took ``seconds``."""
        if tokens >= _LEAST_TOKENS_TO_LEARN and seconds > 0:
            self._reads.append((tokens, seconds))

    def learn_count(self, text: str, tokens: int, ready_tokens: int) -> None:
        """The engine counted this text."""
        if self._text is not None:
            more_bytes, more_tokens = _n_bytes(text) - _n_bytes(self._text), tokens - self._tokens
            if abs(more_bytes) >= _LEAST_BYTES_TO_LEARN and more_bytes * more_tokens > 0:
                self.bytes_per_token = more_bytes / more_tokens
        self._text, self._tokens, self._ready_tokens = text, tokens, ready_tokens

    def estimate(self, text: str) -> Estimate:
        """Say what sending this text would cost."""
        if self._text is None:
            tokens = round(_n_bytes(text) / self.bytes_per_token) + _TEMPLATE_TOKENS
        else:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            tokens = max(1, self._tokens + round(more_bytes / self.bytes_per_token))
        ready = min(self._ready_tokens, tokens)
        rate = self.prefill_tps
        seconds = (tokens - ready) / rate if rate else None
        return Estimate(tokens, text == self._text, ready, seconds)


def estimate_line(estimate: Estimate) -> str:
    """Write it for the prompt's corner: "840 tokens, 768 read ahead, about 2 s"."""
    parts = [f"{'' if estimate.is_exact else 'about '}{figures.count(estimate.tokens)} tokens"]
    if estimate.ready_tokens:
        parts.append(f"{figures.count(estimate.ready_tokens)} read ahead")
    if estimate.seconds is not None:
        parts.append("under 1 s" if estimate.seconds < 1 else f"about {figures.whole_seconds(estimate.seconds)}")
    return ", ".join(parts)


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
