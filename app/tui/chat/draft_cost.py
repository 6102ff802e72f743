"""The cost of sending the draft: estimated while the user types, counted by the engine in pauses.

Numbers of tokens are exact where the engine has counted. Everything else is learned from prompts of
this chat_session. Times are shown only after one prompt was measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from textual.timer import Timer

from app.backend.local.read_ahead import MAX_CHARS
from app.session.events import DraftCounted
from app.text import figures
from app.tui.chat.core import ChatCore
from app.tui.chat_options import may_read_ahead
from app.tui.textual_hacks import call_once

TICK_S = 0.5
"""Seconds between two updates of the estimate."""
QUIET_TICKS = 3
"""Ticks without a change after which the engine may read ahead."""
COMMON_BYTES_PER_TOKEN = 4.0
"""Bytes per token of English text in most vocabularies."""
_TEMPLATE_TOKENS = 8
_MIN_BYTES_TO_LEARN = 60
_MIN_TOKENS_TO_LEARN = 16
"""Shorter prompts mostly measure the cost of starting."""
_N_READS = 5
"""Number of prompts whose speeds are averaged."""


class PromptEstimator:
    """Estimate of what sending the prompt costs, learned from counts and measured times."""

    def __init__(self) -> None:
        self._reads: deque[tuple[int, float]] = deque(maxlen=_N_READS)
        """Tokens and seconds of the last prompts."""
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self._text: str | None = None
        self._is_exact = False
        self._tokens = 0
        self._ready_tokens = 0

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens per second of the last prompts; None before the first."""
        seconds = sum(read_s for _, read_s in self._reads)
        if seconds > 0:
            return sum(tokens for tokens, _ in self._reads) / seconds
        return None

    def forget_model(self) -> None:
        """Start anew: another model has other tokens and another speed."""
        self._reads.clear()
        self.bytes_per_token = COMMON_BYTES_PER_TOKEN
        self.forget_text()

    def forget_text(self) -> None:
        """Forget the counted draft, which was sent or deleted."""
        self._text = None
        self._tokens = 0
        self._ready_tokens = 0

    def learn_read(self, tokens: int, seconds: float) -> None:
        """Learn that reading ``tokens`` tokens of a prompt took ``seconds``."""
        if tokens >= _MIN_TOKENS_TO_LEARN and seconds > 0:
            self._reads.append((tokens, seconds))

    def suppose(self, text: str, tokens: int) -> None:
        """Assume that a text has so many tokens until the engine has counted them."""
        self._text = text
        self._tokens = tokens
        self._ready_tokens = 0
        self._is_exact = False

    def learn_count(self, text: str, tokens: int, ready_tokens: int) -> None:
        """Learn how many tokens the engine counted in a text, and how many it has read."""
        if self._text is not None and self._is_exact:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            more_tokens = tokens - self._tokens
            if abs(more_bytes) >= _MIN_BYTES_TO_LEARN and more_bytes * more_tokens > 0:
                self.bytes_per_token = more_bytes / more_tokens
        self._text = text
        self._tokens = tokens
        self._ready_tokens = ready_tokens
        self._is_exact = True

    def line(self, text: str, encode_s: float = 0.0) -> str:
        """Return the cost of sending a text, such as "840 tokens, 768 read ahead, about 2 s".

        Args:
            encode_s: seconds in which the encoder reads the pictures of the text.
        """
        if self._text is None:
            tokens = round(_n_bytes(text) / self.bytes_per_token) + _TEMPLATE_TOKENS
        else:
            more_bytes = _n_bytes(text) - _n_bytes(self._text)
            tokens = max(1, self._tokens + round(more_bytes / self.bytes_per_token))

        is_exact = text == self._text and self._is_exact
        parts = [f"{'' if is_exact else 'about '}{figures.count(tokens)} tokens"]
        ready_tokens = min(self._ready_tokens, tokens)
        if ready_tokens:
            parts.append(f"{figures.count(ready_tokens)} read ahead")
        tps = self.prefill_tps
        if tps:
            seconds = (tokens - ready_tokens) / tps
            if not ready_tokens:
                seconds += encode_s
            parts.append("under 1 s" if seconds < 1 else f"about {figures.whole_seconds(seconds)}")
        return ", ".join(parts)


class DraftCost:
    """Cost of the draft at the prompt's edge; the engine reads ahead while the user thinks.

    Args:
        encode_s: returns the seconds in which the encoder reads the draft's pictures.
        next_text: returns the next message as it would be sent now; "" if the prompt is empty or
            has a command or an edit of an earlier message.
    """

    def __init__(
        self,
        core: ChatCore,
        estimator: PromptEstimator,
        next_text: Callable[[], str],
        encode_s: Callable[[], float],
    ) -> None:
        self._core = core
        self._estimator = estimator
        self._next_text = next_text
        self._encode_s = encode_s
        self._timer: Timer | None = None
        self._quiet_ticks = 0
        """Ticks since the draft last changed."""
        self._seen_text = ""
        self._counted_text = ""
        self._prepared_text = ""
        """Text that the engine was asked to read ahead."""

    # ---- changes

    def follow_draft(self) -> None:
        """Take note that the draft has changed: what was read ahead may be useless now."""
        if self._prepared_text and not self._next_text().startswith(self._prepared_text):
            self._core.engine_thread.inbox.idle_work.drop()
        self._wake()

    def take_count(self, event: DraftCounted) -> None:
        """Show the number of tokens that the engine has counted."""
        self._counted_text = event.text
        self._estimator.learn_count(event.text, event.tokens, event.ready_tokens)
        self._estimator.learn_read(event.read_tokens, event.read_s)
        self._show(self._next_text())

    def end_turn(self) -> None:
        """Learn from a turn how fast its prompt was read."""
        self._forget_count()
        self._estimator.forget_text()
        meter = self._core.engine_thread.status.meter
        if meter is not None:
            self._estimator.learn_read(meter.read_tokens, meter.reading_s)

    def change_model(self) -> None:
        """Forget the model before."""
        self._forget_count()
        self._estimator.forget_model()

    def _forget_count(self) -> None:
        self._counted_text = ""
        self._prepared_text = ""
        self._wake()

    # ---- the ticks while the draft changes

    def _wake(self) -> None:
        self._quiet_ticks = 0
        if self._timer is None:
            self._timer = call_once(self._core.screen, TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        text = self._next_text()
        if text == self._seen_text:
            self._quiet_ticks += 1
        else:
            self._quiet_ticks = 0
        self._seen_text = text

        self._show(text)
        is_done = self._ask_engine(text)
        if text and (self._quiet_ticks < QUIET_TICKS or not is_done):
            self._timer = call_once(self._core.screen, TICK_S, self._tick)

    def _ask_engine(self, text: str) -> bool:
        """Let the engine count the draft or read it ahead; False if it must be asked again."""
        chat_session = self._core.chat_session
        if chat_session.is_busy or chat_session.model is None:
            return True

        may_read = may_read_ahead(self._core.settings)
        documents = self._core.prompt.draft.documents if text else ""
        if documents and may_read and not self._prepared_text.startswith(documents):
            is_sent = chat_session.read_ahead(documents, is_read=True, is_settled=True)
            if is_sent:
                self._prepared_text = documents
            return is_sent and len(text) > MAX_CHARS
        if len(text) > MAX_CHARS:
            return True

        is_quiet = self._quiet_ticks >= QUIET_TICKS
        if text != self._prepared_text and (not text or (is_quiet and may_read)):
            is_sent = chat_session.read_ahead(text, is_read=bool(text))
            if is_sent:
                self._prepared_text = text
            return is_sent
        if not text or text == self._counted_text:
            return True
        return chat_session.read_ahead(text, is_read=False)

    def _show(self, text: str) -> None:
        line = ""
        if text and self._core.chat_session.model is not None:
            encode_s = 0.0
            if self._core.prompt.draft.may_have_pictures:
                encode_s = self._encode_s()
            line = self._estimator.line(text, encode_s)
        self._core.prompt.show_estimate(line)


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
