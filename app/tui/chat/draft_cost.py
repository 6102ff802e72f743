"""Estimates what sending the prompt would cost.

The estimate is exact where the engine has counted. Everything else in it is learnt from what was
counted and measured in this session with this model; nothing is said of time before a prompt was
measured.
"""

from __future__ import annotations

from collections import deque

from app.text import figures

COMMON_BYTES_PER_TOKEN = 4.0
"""Of English text in most vocabularies, until this model's own figure is known."""
_TEMPLATE_TOKENS = 8
_LEAST_BYTES_TO_LEARN = 60
_LEAST_TOKENS_TO_LEARN = 16
"""Shorter prompts take a slower path, and mostly show what starting costs."""
_READS_REMEMBERED = 5


class PromptEstimator:
    """Learns what sending the prompt costs, and estimates from what it learnt."""

    def __init__(self) -> None:
        self._reads: deque[tuple[int, float]] = deque(maxlen=_READS_REMEMBERED)
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self._text: str | None = None
        self._is_exact = False
        self._tokens = self._ready_tokens = 0

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens read per second over the last few prompts."""
        seconds = sum(read_s for _, read_s in self._reads)
        if seconds > 0:
            return sum(tokens for tokens, _ in self._reads) / seconds
        return None

    def forget_model(self) -> None:
        """Another model has other tokens and another speed."""
        self._reads.clear()
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self.forget_text()

    def forget_text(self) -> None:
        """Forget the counted draft: it was sent or dropped."""
        self._text = None
        self._tokens = 0
        self._ready_tokens = 0

    def learn_read(self, tokens: int, seconds: float) -> None:
        """Record that reading ``tokens`` tokens of a prompt took ``seconds``."""
        if tokens >= _LEAST_TOKENS_TO_LEARN and seconds > 0:
            self._reads.append((tokens, seconds))

    def suppose(self, text: str, tokens: int) -> None:
        """Take this for the tokens of a text until the engine has counted."""
        self._text = text
        self._tokens = tokens
        self._ready_tokens = 0
        self._is_exact = False

    def learn_count(self, text: str, tokens: int, ready_tokens: int) -> None:
        """The engine counted this text."""
        if self._text is not None and self._is_exact:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            more_tokens = tokens - self._tokens
            if abs(more_bytes) >= _LEAST_BYTES_TO_LEARN and more_bytes * more_tokens > 0:
                self.bytes_per_token = more_bytes / more_tokens
        self._text = text
        self._tokens = tokens
        self._ready_tokens = ready_tokens
        self._is_exact = True

    def line(self, text: str) -> str:
        """Say for the prompt's corner what sending this text would cost: "840 tokens, 768 read
        ahead, about 2 s"."""
        if self._text is None:
            tokens = round(_n_bytes(text) / self.bytes_per_token) + _TEMPLATE_TOKENS
        else:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            tokens = max(1, self._tokens + round(more_bytes / self.bytes_per_token))
        parts = [
            f"{'' if text == self._text and self._is_exact else 'about '}{figures.count(tokens)} "
            "tokens"
        ]
        if ready := min(self._ready_tokens, tokens):
            parts.append(f"{figures.count(ready)} read ahead")
        if rate := self.prefill_tps:
            seconds = (tokens - ready) / rate
            parts.append("under 1 s" if seconds < 1 else f"about {figures.whole_seconds(seconds)}")
        return ", ".join(parts)


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
