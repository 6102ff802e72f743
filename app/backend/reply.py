"""A measured reply: prefill the prompt, generate, count. The only generation loop of the program.

``LocalTurn`` and the benchmark use it, so their figures are comparable. A session is anything with
``prefill``, ``generate`` and ``cancel``.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.conversations.conversation import Ending, ReplyFigures
from app.program.settings import Settings
from app.reply.thinking import ThinkingSplitter
from app.text.guesses import GuessFigures, joined
from engine.errors import Cancelled
from engine.prompt.thinking import ThoughtMarker, opened_by
from engine.sampling.loops import LoopGuard

if TYPE_CHECKING:
    from engine.prompt.chat_prompt import ChatPrompt
    from engine.tokenizer import Tokenizer

Clock = Callable[[], float]

REPEATS = "repeats"
_ENDINGS = {
    "stop": Ending.COMPLETE,
    "length": Ending.LENGTH,
    "context": Ending.CONTEXT,
    "cancelled": Ending.STOPPED,
    REPEATS: Ending.REPEATED,
}


class ReplyMeter:
    """Measurements of one reply. All times are monotonic seconds; rates are tokens per second."""

    def __init__(self, prompt_tokens: int, clock: Clock) -> None:
        self._clock = clock
        self.prompt_tokens = prompt_tokens
        self.reused_tokens = 0
        """Tokens of the prompt that were in the cache."""
        self.read_tokens = 0
        self.guessed_tokens = 0
        """Tokens that were guessed and verified together with others."""
        self.guesses: tuple[GuessFigures, ...] = ()
        """Guesses by kind, when the reply has ended."""
        self.guess_saved_s: float | None = None
        """Seconds that guesses saved, negative if they cost time; None if that is unknown."""
        self.prefill_s = 0.0
        self.encode_s = 0.0
        """Seconds of these in which the encoder read pictures."""
        self.finish_reason = ""
        """Reason: "stop", "length", "context", "cancelled", "repeats", "error"; empty while the
        reply is written."""
        self.started_s = clock()
        self.token_times_s: list[float] = []

    def update_prefill(self, read_tokens: int) -> None:
        """Set how many tokens of the prompt have been read."""
        self.prefill_s = self._clock() - self.started_s
        self.read_tokens = read_tokens

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_times_s)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first token; None before it."""
        if self.token_times_s:
            return self.token_times_s[0] - self.started_s
        return None

    @property
    def generating_s(self) -> float:
        """Seconds from the end of the prompt to the newest token; 0 before the first."""
        if self.token_times_s:
            return self.token_times_s[-1] - self.started_s - self.prefill_s
        return 0.0

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens read per second, without the encoder's time; 0 if none were read."""
        reading_s = self.reading_s
        if reading_s > 0:
            return self.read_tokens / reading_s
        return 0.0

    @property
    def reading_s(self) -> float:
        """Seconds of reading the prompt, without the encoder's time."""
        return max(0.0, self.prefill_s - self.encode_s)

    @property
    def decode_tps(self) -> float:
        """Tokens per second from the first token to the last; 0 for fewer than two."""
        if self.tokens < 2:
            return 0.0
        elapsed_s = self.token_times_s[-1] - self.token_times_s[0]
        if elapsed_s > 0:
            return (self.tokens - 1) / elapsed_s
        return 0.0

    def window_tps(self, window_s: float) -> float:
        """Return the rate over the last seconds; 0 for fewer than two tokens.

        The rate falls while no token is generated.
        """
        now_s = self._clock()
        # The token before the window begins the first interval inside it.
        first = max(0, bisect_right(self.token_times_s, now_s - window_s) - 1)
        counted = self.tokens - 1 - first
        if counted > 0:
            elapsed_s = now_s - self.token_times_s[first]
        else:
            elapsed_s = 0.0
        if elapsed_s > 0:
            return counted / elapsed_s
        return 0.0

    @property
    def ending(self) -> Ending:
        """Ending of the reply, by its finish reason."""
        return _ENDINGS.get(self.finish_reason, Ending.FAILED)

    def figures(self) -> ReplyFigures:
        """Return the figures for the transcript."""
        return ReplyFigures(
            tokens=self.tokens,
            first_token_s=self.first_token_s,
            decode_tps=self.decode_tps if self.tokens > 1 else None,
            prompt_tokens=self.read_tokens,
            reused_tokens=self.reused_tokens,
            guessed_tokens=self.guessed_tokens,
            guesses=self.guesses,
            guess_saved_s=self.guess_saved_s,
        )


class ThoughtLimit:
    """Limit on the tokens of a reply's thought.

    Args:
        opened: marker of a thought that the prompt opens; None if it opens none.
        visible_control_ids: control tokens that are part of the text.
        prefix_ids: tokens of the reply that are in the prompt.

    Attributes:
        n_chars: characters of the reply's text so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        budget_tokens: int,
        opened: ThoughtMarker | None = None,
        visible_control_ids: Collection[int] = (),
        prefix_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._budget_tokens = budget_tokens
        self._stream = tokenizer.stream(visible_control_ids)
        self._splitter = ThinkingSplitter(opened)
        self._n_tokens = self.n_chars = 0
        self._was_ended = False
        for token_id in prefix_ids:
            self.add(token_id)
        self.n_chars = 0

    def add(self, token_id: int) -> None:
        """Count the next token of the reply."""
        text = self._stream.push(token_id)
        self.n_chars += len(text)
        self._splitter.push(text)
        self._n_tokens += 1

    @property
    def is_used_up(self) -> bool:
        """Whether the thought should end here: after its budget, and not within a character."""
        is_long = self._n_tokens >= self._budget_tokens and not self._was_ended
        return is_long and self._splitter.is_open and not self._stream.is_within_character

    def end(self) -> tuple[list[int], str] | None:
        """Return the tokens that end the thought, and their text; None if it should not end here.

        Returns them only once.
        """
        marker = self._splitter.marker
        if marker is None or not self.is_used_up:
            return None
        self._was_ended = True
        return self._tokenizer.encode(marker.end, bos=False, special=True), marker.end


def limit_of(
    chat: ChatPrompt | None,
    tokenizer: Tokenizer,
    visible_control_ids: Collection[int],
    prefix_ids: Iterable[int] = (),
) -> ThoughtLimit | None:
    """Return the limit on the thought of a conversation's next reply; None if there is none."""
    if chat is None or chat.thought_budget_tokens is None:
        return None
    opened = opened_by(chat.opening)
    return ThoughtLimit(
        tokenizer, chat.thought_budget_tokens, opened, visible_control_ids, prefix_ids
    )


def guard_of(settings: Settings, tokenizer: Tokenizer, constraint: object) -> LoopGuard | None:
    """Return the guard that ends a reply that repeats itself.

    None if the guard is off, or if the reply has a form, which a cut would break.
    """
    if settings.loop_guard != "on" or constraint is not None:
        return None
    return LoopGuard(tokenizer.spelled_bytes)


@dataclass(eq=False)
class Reply:
    """A reply that is being written.

    Iterate over it in the engine thread; any thread may cancel it and read its meter.

    Attributes:
        n_cut_chars: characters that were yielded and then removed from the text.
    """

    session: Any
    """Session of the engine; its cache decides how much of the prompt is read."""
    prompt_ids: Sequence[int]
    """Whole prompt, with the beginning of a reply that continues."""
    sampling: Any
    """Sampling for the session."""
    max_tokens: int | None = None
    """Limit on the tokens of the reply; None or 0 if only the context limits it."""
    stop: Sequence[str] = ()
    """Texts that end the reply."""
    prefix_ids: Sequence[int] = ()
    """Beginning of a reply that continues; it is also at the end of ``prompt_ids``."""
    visible_control_ids: Collection[int] = ()
    """Control tokens that are part of the text."""
    checkpoint_positions: Collection[int] = ()
    """Positions in the prompt where the speaker changes."""
    limit: ThoughtLimit | None = None
    """Limit on the thought before the answer; None if there is none."""
    guess: bool = False
    """Whether to compute guessed tokens together; the reply is the same."""
    n_logprobs: int | None = None
    """Number of most likely tokens to report with their log-probabilities; None reports
    nothing."""
    constraint: Any = None
    """Form that the reply must have; None for any."""
    guard: LoopGuard | None = None
    """Guard that ends a reply that repeats itself; one copy of the repeated text stays."""
    on_token: Callable[[Any], object] | None = None
    """Called with each token of the session before its text is yielded."""
    on_prompt_progress: Callable[[int, int], None] | None = None
    """Called with (tokens read, tokens to read) during prefill."""
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self.meter = ReplyMeter(len(self.prompt_ids), self.clock)
        self.ids: list[int] = []
        self._pieces: list[str] = []
        self._n_pieces_at: list[int] = []
        """Number of pieces up to and including each token of ``ids``."""
        self.n_cut_chars = 0
        self._cancelled = threading.Event()
        self._options: dict[str, Any] = {"guess": self.guess}
        if self.n_logprobs is not None:
            self._options["n_logprobs"] = self.n_logprobs
        if self.constraint is not None:
            self._options["constraint"] = self.constraint

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Stop prefill or decode; the text so far stays."""
        self._cancelled.set()
        self.session.cancel()

    def __iter__(self) -> Generator[str, None, None]:
        """Yield the text piece by piece.

        Raises every exception of the session but ``Cancelled``; ids and text stay.
        """
        self.meter.finish_reason = ""
        try:
            self.meter.finish_reason = yield from self._prefill_and_generate()
        except (Cancelled, GeneratorExit) as error:
            self.meter.finish_reason = "cancelled"
            if isinstance(error, GeneratorExit):
                raise
        except BaseException:
            self.meter.finish_reason = "error"
            raise

    def _prefill_and_generate(self) -> Generator[str, None, str]:
        """Yield the text and return why the reply ended."""
        if not self._cancelled.is_set():
            self._prefill()
        while not self._cancelled.is_set():
            try:
                yield from self._generate()
            finally:
                self._add_guesses()
            if self.n_cut_chars:
                return REPEATS
            thought_end = None
            if self.limit is not None and not self.session.finish_reason:
                thought_end = self.limit.end()
            if thought_end is None or self._cancelled.is_set():
                return self.session.finish_reason or "cancelled"

            # End the thought, and let the model write the answer after it.
            ids, text = thought_end
            all_ids = [*self.prompt_ids, *self.ids, *ids]
            if len(all_ids) >= self.session.n_ctx:
                return "context"
            self.ids += ids
            self._pieces.append(text)
            self._n_pieces_at += [len(self._pieces)] * len(ids)
            yield text
            self.session.prefill(all_ids, n_replied=len(self.prefix_ids) + len(self.ids))
        return "cancelled"

    def _prefill(self) -> None:
        result = self.session.prefill(
            self.prompt_ids,
            on_progress=self._update_prefill,
            checkpoint_positions=self.checkpoint_positions,
            n_replied=len(self.prefix_ids),
        )
        self.meter.reused_tokens = result.reused
        self.meter.read_tokens = result.fed
        self.meter.prefill_s = result.seconds

    def _generate(self) -> Iterator[str]:
        """Generate until the session ends the reply, or until a thought should end."""
        limit = None
        if self.max_tokens:
            limit = self.max_tokens - self.meter.tokens
        replied_ids = [*self.prefix_ids, *self.ids]
        earlier_guessed = self.meter.guessed_tokens
        generating = self.session.generate(
            self.sampling, limit, self.stop, replied_ids, self.visible_control_ids, **self._options
        )
        with closing(generating):
            for generated in generating:
                # A piece after the end is text that was held back: it repeats its token's id.
                is_token = not self.session.finish_reason
                n_repeated = 0
                if is_token:
                    self.meter.token_times_s.append(self.clock())
                    self.ids.append(generated.token_id)
                    if self.on_token is not None:
                        self.on_token(generated)
                self._pieces.append(generated.text)
                if is_token:
                    self._n_pieces_at.append(len(self._pieces))
                    if self.guard is not None:
                        n_repeated = self.guard.append(generated.token_id)
                self.meter.guessed_tokens = earlier_guessed + self.session.n_guessed
                if self._cancelled.is_set():
                    # The session forgets a cancel that comes just before it begins to generate.
                    self.session.cancel()
                if generated.text:
                    yield generated.text
                if n_repeated:
                    self._cut(n_repeated)
                    return
                if is_token and self._ends_thought(generated.token_id):
                    return

    def _add_guesses(self) -> None:
        """Add the guesses of the session's last ``generate``."""
        tally = self.session.guess_tally
        guesses = [
            GuessFigures(kind.value, n_tried, tally.n_right[kind])
            for kind, n_tried in tally.n_tried.items()
            if n_tried
        ]
        if guesses:
            self.meter.guesses = joined(self.meter.guesses, guesses)
            if tally.saved_s is not None:
                self.meter.guess_saved_s = (self.meter.guess_saved_s or 0.0) + tally.saved_s

    def _cut(self, n_tokens: int) -> None:
        """Remove the last tokens."""
        n_chars = len(self.text)
        del self.ids[-n_tokens:]
        del self._n_pieces_at[-n_tokens:]
        del self._pieces[self._n_pieces_at[-1] :]
        self.n_cut_chars = n_chars - len(self.text)

    def _ends_thought(self, token_id: int) -> bool:
        """Return whether the limit ends the thought after this token.

        A thought never ends while some of its text is held back.
        """
        if self.limit is None:
            return False
        self.limit.add(token_id)
        return self.limit.is_used_up and self.limit.n_chars == sum(map(len, self._pieces))

    def _update_prefill(self, done: int, total: int) -> None:
        self.meter.update_prefill(done)
        if self._cancelled.is_set():
            self.session.cancel()
        if self.on_prompt_progress:
            self.on_prompt_progress(done, total)
