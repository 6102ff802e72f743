"""One measured reply: read the prompt, generate, count. The only generation loop of the application.

``EngineTurn`` and the benchmark use it, so their figures mean the same. It knows no engine by name:
a session is anything with ``prefill``, ``generate`` and ``cancel``.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

from app.chat.thought_limit import ThoughtLimit
from app.conversations.conversation import Ending, ReplyFigures
from app.program import exit_codes
from app.program.refusals import exit_code_of

Clock = Callable[[], float]
PromptProgress = Callable[[int, int], None]

RANGE_WINDOW_S = 1.0
RANGE_TOKENS = 4
"""Over fewer tokens a rate says more about the clock than about the machine."""

_ENDINGS = {"stop": Ending.COMPLETE, "length": Ending.LENGTH, "context": Ending.CONTEXT, "cancelled": Ending.STOPPED}


class ReplyMeter:
    """Measurements of one reply. All times are monotonic seconds; rates are tokens per second.

    Attributes:
        prompt_tokens: tokens of the whole prompt.
        reused_tokens: those the cache held already; the rest was read.
        read_tokens: prompt tokens read so far.
        tokens: tokens generated so far.
        guessed_tokens: those of them that were guessed and computed together with others.
        first_token_s: from the start to the first token; None before it.
        finish_reason: "stop", "length", "context", "cancelled", "error"; "" while it runs.
    """

    def __init__(self, prompt_tokens: int, clock: Clock) -> None:
        self._clock = clock
        self.prompt_tokens = prompt_tokens
        self.reused_tokens = 0
        self.read_tokens = 0
        self.guessed_tokens = 0
        self.prefill_s = 0.0
        self.finish_reason = ""
        self.started_s = clock()
        self.token_times_s: list[float] = []

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_times_s)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first token."""
        return self.token_times_s[0] - self.started_s if self.token_times_s else None

    @property
    def generating_s(self) -> float:
        """Seconds from the end of the prompt to the newest token; 0 before there is one."""
        return self.token_times_s[-1] - self.started_s - self.prefill_s if self.token_times_s else 0.0

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens read per second; 0 where none had to be read."""
        return self.read_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens per second from the first token to the last; 0 before there are two."""
        if self.tokens < 2:
            return 0.0
        elapsed_s = self.token_times_s[-1] - self.token_times_s[0]
        return (self.tokens - 1) / elapsed_s if elapsed_s > 0 else 0.0

    def window_tps(self, window_s: float) -> float:
        """Rate over the last seconds, falling by itself while no token comes; 0 before there are two tokens."""
        now_s = self._clock()
        # The token before the window begins the first interval inside it.
        first = max(0, bisect_right(self.token_times_s, now_s - window_s) - 1)
        counted = self.tokens - 1 - first
        elapsed_s = now_s - self.token_times_s[first] if counted > 0 else 0.0
        return counted / elapsed_s if elapsed_s > 0 else 0.0

    def range_tps(self) -> tuple[float, float] | None:
        """Return the lowest and highest rate over windows of ``RANGE_WINDOW_S`` and some tokens; None if too short."""
        times_s = self.token_times_s
        rates = []
        for last, end_s in enumerate(times_s):
            first = min(last - RANGE_TOKENS, bisect_right(times_s, end_s - RANGE_WINDOW_S) - 1)
            if first >= 0 and end_s > times_s[first]:
                rates.append((last - first) / (end_s - times_s[first]))
        return (min(rates), max(rates)) if rates else None

    @property
    def ending(self) -> Ending:
        """The finish reason in the conversation's words."""
        return _ENDINGS.get(self.finish_reason, Ending.FAILED)

    def figures(self) -> ReplyFigures:
        """Return what stays in the transcript."""
        return ReplyFigures(
            tokens=self.tokens,
            first_token_s=self.first_token_s,
            decode_tps=self.decode_tps if self.tokens > 1 else None,
            prompt_tokens=self.read_tokens,
            reused_tokens=self.reused_tokens,
            range_tps=self.range_tps(),
            guessed_tokens=self.guessed_tokens,
        )


class Reply:
    """A reply in the making. Iterate over it in the engine's thread; cancel it and read its meter from any thread.

    Args:
        session: the engine's session; its cache decides what of the prompt must be read.
        prompt_ids: the whole prompt, with the beginning of the reply where one is continued.
        sampling: handed to the session as it is.
        max_tokens: None or 0 for no limit but the context.
        stop: texts that end the reply.
        after: the beginning of a reply that is continued, as it stands at the end of ``prompt_ids``.
        spelled: control tokens that are part of the text.
        turns: where in the prompt the conversation turns.
        guess: compute what repeats several tokens at a time; the reply is the same.
        n_logprobs: have the session give each token's log-probability and this many likeliest ones; None for none.
        constraint: a form that the reply must have; None for none.
        on_token: called with each of the reply's tokens as the session gives it, before its text is yielded.
        limit: ends the thought before the answer when it has used up its tokens; None for no limit.
        on_prompt_progress: called with (tokens read, tokens to read) while the prompt is read.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        session: Any,
        prompt_ids: Sequence[int],
        sampling: Any,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        after: Sequence[int] = (),
        spelled: Collection[int] = (),
        turns: Collection[int] = (),
        limit: ThoughtLimit | None = None,
        guess: bool = False,
        n_logprobs: int | None = None,
        constraint: Any = None,
        on_token: Callable[[Any], object] | None = None,
        on_prompt_progress: PromptProgress | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._session = session
        self._prompt_ids = prompt_ids
        self._sampling = sampling
        self._max_tokens = max_tokens or None
        self._stop, self._after, self._spelled = stop, after, spelled
        self._turns, self._limit = turns, limit
        self._options: dict[str, Any] = {"guess": guess}
        if n_logprobs is not None:
            self._options["n_logprobs"] = n_logprobs
        if constraint is not None:
            self._options["constraint"] = constraint
        self._on_token = on_token
        self._on_prompt_progress = on_prompt_progress
        self._clock = clock
        self._cancelled = threading.Event()
        self.meter = ReplyMeter(len(prompt_ids), clock)
        self.ids: list[int] = []
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Stop reading or generating; what is there stays."""
        self._cancelled.set()
        self._session.cancel()

    def __iter__(self) -> Iterator[str]:
        """Yield the text piece by piece; afterwards ``meter.finish_reason`` says why it ended.

        Raises:
            Exception: whatever the session raises but its Cancelled; ids and text then hold what had come.
        """
        self.meter.finish_reason = ""
        try:
            yield from self._read_and_generate()
        except GeneratorExit:
            self.meter.finish_reason = "cancelled"
            raise
        except Exception as error:
            if exit_code_of(error) != exit_codes.INTERRUPTED:
                self.meter.finish_reason = "error"
                raise
            self.meter.finish_reason = "cancelled"

    def _read_and_generate(self) -> Iterator[str]:
        if self._cancelled.is_set():
            self.meter.finish_reason = "cancelled"
            return
        self._read_prompt()
        if self._cancelled.is_set():
            self.meter.finish_reason = "cancelled"
            return
        while True:
            yield from self._generate()
            end = self._limit.end() if self._limit is not None and not self._session.finish_reason else None
            if end is None or self._cancelled.is_set():
                break
            held = [*self._prompt_ids, *self.ids, *end.ids]
            if len(held) >= self._session.n_ctx:
                self.meter.finish_reason = "context"
                return
            self.ids += end.ids
            self._pieces.append(end.text)
            yield end.text
            self._session.prefill(held)
            if self._cancelled.is_set():
                self.meter.finish_reason = "cancelled"
                return
        self.meter.finish_reason = self._session.finish_reason or "cancelled"

    def _generate(self) -> Iterator[str]:
        """Generate until the session says why the reply is over, or until a thought is to end."""
        left = self._max_tokens - self.meter.tokens if self._max_tokens else None
        how = self._sampling, left, self._stop, [*self._after, *self.ids], self._spelled
        before = self.meter.guessed_tokens
        with closing(self._session.generate(*how, **self._options)) as generating:
            for generated in generating:
                is_over = bool(self._session.finish_reason)
                if not is_over:
                    self.meter.token_times_s.append(self._clock())
                    self.ids.append(generated.token_id)
                    if self._on_token is not None:
                        self._on_token(generated)
                # Otherwise the reply is over, and this is text that was held back: it repeats its token's id.
                self._pieces.append(generated.text)
                self.meter.guessed_tokens = before + self._session.n_guessed
                if self._cancelled.is_set():
                    # The session forgets a cancel that came just before it began to generate.
                    self._session.cancel()
                if generated.text:
                    yield generated.text
                if not is_over and self._ends_thought(generated.token_id):
                    return

    def _ends_thought(self, token_id: int) -> bool:
        """Whether the limit ends the thought behind this token; never while text of it is held back."""
        if self._limit is None:
            return False
        self._limit.note(token_id)
        return self._limit.is_used_up and self._limit.n_chars == sum(map(len, self._pieces))

    def _read_prompt(self) -> None:
        prefilled = self._session.prefill(self._prompt_ids, on_progress=self._note_progress, turns=self._turns)
        self.meter.reused_tokens = prefilled.reused
        self.meter.read_tokens = prefilled.fed
        self.meter.prefill_s = prefilled.seconds

    def _note_progress(self, done: int, total: int) -> None:
        self.meter.read_tokens = done
        self.meter.prefill_s = self._clock() - self.meter.started_s
        if self._cancelled.is_set():
            self._session.cancel()
        if self._on_prompt_progress:
            self._on_prompt_progress(done, total)
