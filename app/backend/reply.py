"""One measured reply: read the prompt, generate, count. The only generation loop of the
application.

``LocalTurn`` and the benchmark use it, so their figures mean the same. It knows no engine by name:
a session is anything with ``prefill``, ``generate`` and ``cancel``.
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
from engine.errors import Cancelled
from engine.prompt.thought_markers import ThoughtMarker, opened_by
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
        """Those the cache held already; the rest was read."""
        self.read_tokens = 0
        self.guessed_tokens = 0
        """Tokens that were guessed and computed together with others."""
        self.prefill_s = 0.0
        self.finish_reason = ""
        """Any of "stop", "length", "context", "cancelled", "repeats", "error"; "" while it runs."""
        self.started_s = clock()
        self.token_times_s: list[float] = []

    def note_read(self, read_tokens: int) -> None:
        """So much of the prompt has been read by now."""
        self.prefill_s = self._clock() - self.started_s
        self.read_tokens = read_tokens

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_times_s)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the start to the first token."""
        if self.token_times_s:
            return self.token_times_s[0] - self.started_s
        return None

    @property
    def generating_s(self) -> float:
        """Seconds from the end of the prompt to the newest token; 0 before there is one."""
        if self.token_times_s:
            return self.token_times_s[-1] - self.started_s - self.prefill_s
        return 0.0

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens read per second; 0 where none had to be read."""
        if self.prefill_s > 0:
            return self.read_tokens / self.prefill_s
        return 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens per second from the first token to the last; 0 before there are two."""
        if self.tokens < 2:
            return 0.0
        elapsed_s = self.token_times_s[-1] - self.token_times_s[0]
        if elapsed_s > 0:
            return (self.tokens - 1) / elapsed_s
        return 0.0

    def window_tps(self, window_s: float) -> float:
        """Rate over the last seconds, falling by itself while no token comes; 0 before there are
        two tokens."""
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
            guessed_tokens=self.guessed_tokens,
        )


class ThoughtLimit:
    """Follows one reply, after what a continued one has ``earlier``, and says when its thought is
    to end."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        budget_tokens: int,
        opened: ThoughtMarker | None = None,
        spelled: Collection[int] = (),
        earlier: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._budget_tokens = budget_tokens
        self._stream = tokenizer.stream(spelled)
        self._splitter = ThinkingSplitter(opened)
        self._n_tokens = self.n_chars = 0
        self._was_ended = False
        for token_id in earlier:
            self.note(token_id)
        self.n_chars = 0

    def note(self, token_id: int) -> None:
        """The reply has another token; ``n_chars`` is how many characters those noted so far
        say."""
        text = self._stream.push(token_id)
        self.n_chars += len(text)
        self._splitter.push(text)
        self._n_tokens += 1

    @property
    def is_used_up(self) -> bool:
        """Whether the thought is to end here: it has had its tokens, and the last one ends no
        character's midst."""
        is_long = self._n_tokens >= self._budget_tokens and not self._was_ended
        return is_long and self._splitter.is_open and not self._stream.is_within_character

    def end(self) -> tuple[list[int], str] | None:
        """Return the tokens that end the thought and begin the answer, and their text, if it is to
        end here; once."""
        marker = self._splitter.marker
        if marker is None or not self.is_used_up:
            return None
        self._was_ended = True
        return self._tokenizer.encode(marker.end, bos=False, special=True), marker.end


def limit_of(
    chat: ChatPrompt | None,
    tokenizer: Tokenizer,
    spelled: Collection[int],
    begun: Iterable[int] = (),
) -> ThoughtLimit | None:
    """Return the limit that a conversation's next reply has, after what a continued one has of it;
    None for none."""
    if chat is not None:
        budget = chat.thought_budget_tokens
    else:
        budget = None
    if chat is None or budget is None:
        return None
    return ThoughtLimit(tokenizer, budget, opened_by(chat.opening), spelled, begun)


def guard_of(settings: Settings, tokenizer: Tokenizer, constraint: object) -> LoopGuard | None:
    """Return what ends a reply that repeats itself; None where that is off, or where it would break
    a form."""
    is_wanted = settings.loop_guard == "on" and constraint is None
    if is_wanted:
        return LoopGuard(tokenizer.spelled_bytes)
    return None


@dataclass(eq=False)
class Reply:
    """A reply in the making.

    Iterate over it in the engine's thread; cancel it and read its meter from any thread.
    """

    session: Any
    """The engine's session; its cache decides what of the prompt must be read."""
    prompt_ids: Sequence[int]
    """The whole prompt, with the beginning of the reply where one is continued."""
    sampling: Any
    """Handed to the session as it is."""
    max_tokens: int | None = None
    """None or 0 for no limit but the context."""
    stop: Sequence[str] = ()
    """Texts that end the reply."""
    after: Sequence[int] = ()
    """The beginning of a reply that is continued, as it is at the end of ``prompt_ids``."""
    spelled: Collection[int] = ()
    """Control tokens that are part of the text."""
    turns: Collection[int] = ()
    """Where in the prompt the conversation turns."""
    limit: ThoughtLimit | None = None
    """Ends the thought before the answer when it has used up its tokens."""
    guess: bool = False
    """Compute what repeats several tokens at a time; the reply is the same."""
    n_logprobs: int | None = None
    """Have the session give each token's log-probability and this many likeliest ones."""
    constraint: Any = None
    """A form that the reply must have."""
    guard: LoopGuard | None = None
    """Ends a reply that repeats itself; of what was repeated one copy stays in ``ids`` and
    ``text``."""
    on_token: Callable[[Any], object] | None = None
    """Called with each of the reply's tokens as the session gives it, before its text is
    yielded."""
    on_prompt_progress: Callable[[int, int], None] | None = None
    """Called with (tokens read, tokens to read) while the prompt is read."""
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        self.meter = ReplyMeter(len(self.prompt_ids), self.clock)
        self.ids: list[int] = []
        self._pieces: list[str] = []
        self._n_pieces_at: list[int] = []
        """Pieces of text with each of ``ids`` and before it."""
        self.n_cut_chars = 0
        """Characters that were yielded and are no longer part of the text."""
        self._cancelled = threading.Event()
        given = {"n_logprobs": self.n_logprobs, "constraint": self.constraint}
        self._options = {"guess": self.guess} | {
            name: one for name, one in given.items() if one is not None
        }

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Stop reading or generating; what is there stays."""
        self._cancelled.set()
        self.session.cancel()

    def __iter__(self) -> Iterator[str]:
        """Yield the text piece by piece.

        Raises what the session raises but its Cancelled; ids and text stay.
        """
        self.meter.finish_reason = ""
        try:
            self.meter.finish_reason = yield from self._read_and_generate()
        except Cancelled:
            self.meter.finish_reason = "cancelled"
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                self.meter.finish_reason = "cancelled"
            else:
                self.meter.finish_reason = "error"
            raise

    def _read_and_generate(self) -> Generator[str, None, str]:
        """Yield the text and return why the reply ended."""
        if not self._cancelled.is_set():
            how = {
                "on_progress": self._note_progress,
                "turns": self.turns,
                "n_replied": len(self.after),
            }
            prefilled = self.session.prefill(self.prompt_ids, **how)
            self.meter.reused_tokens = prefilled.reused
            self.meter.read_tokens = prefilled.fed
            self.meter.prefill_s = prefilled.seconds
        while not self._cancelled.is_set():
            yield from self._generate()
            if self.n_cut_chars:
                return REPEATS
            if self.limit is not None and not self.session.finish_reason:
                end = self.limit.end()
            else:
                end = None
            if end is None or self._cancelled.is_set():
                return self.session.finish_reason or "cancelled"
            ids, text = end
            held = [*self.prompt_ids, *self.ids, *ids]
            if len(held) >= self.session.n_ctx:
                return "context"
            self.ids += ids
            self._pieces.append(text)
            self._n_pieces_at += [len(self._pieces)] * len(ids)
            yield text
            self.session.prefill(held, n_replied=len(self.after) + len(self.ids))
        return "cancelled"

    def _generate(self) -> Iterator[str]:
        """Generate until the session says why the reply is over, or until a thought is to end."""
        if self.max_tokens:
            left = self.max_tokens - self.meter.tokens
        else:
            left = None
        how = self.sampling, left, self.stop, [*self.after, *self.ids], self.spelled
        before = self.meter.guessed_tokens
        with closing(self.session.generate(*how, **self._options)) as generating:
            for generated in generating:
                is_over = bool(self.session.finish_reason)
                if not is_over:
                    self.meter.token_times_s.append(self.clock())
                    self.ids.append(generated.token_id)
                    if self.on_token is not None:
                        self.on_token(generated)
                # Otherwise the reply is over, and this is text that was held back: it repeats its
                # token's id.
                self._pieces.append(generated.text)
                n_copied = 0
                if not is_over:
                    self._n_pieces_at.append(len(self._pieces))
                    if self.guard is not None:
                        n_copied = self.guard.append(generated.token_id)
                    else:
                        n_copied = 0
                self.meter.guessed_tokens = before + self.session.n_guessed
                if self._cancelled.is_set():
                    # The session forgets a cancel that came just before it began to generate.
                    self.session.cancel()
                if generated.text:
                    yield generated.text
                if n_copied:
                    self._cut(n_copied)
                    return
                if not is_over and self._ends_thought(generated.token_id):
                    return

    def _cut(self, n_tokens: int) -> None:
        """Leave out the last tokens."""
        n_before = len(self.text)
        del self.ids[-n_tokens:], self._n_pieces_at[-n_tokens:]
        del self._pieces[self._n_pieces_at[-1] :]
        self.n_cut_chars = n_before - len(self.text)

    def _ends_thought(self, token_id: int) -> bool:
        """Whether the limit ends the thought after this token; never while text of it is held
        back."""
        if self.limit is None:
            return False
        self.limit.note(token_id)
        return self.limit.is_used_up and self.limit.n_chars == sum(map(len, self._pieces))

    def _note_progress(self, done: int, total: int) -> None:
        self.meter.note_read(done)
        if self._cancelled.is_set():
            self.session.cancel()
        if self.on_prompt_progress:
            self.on_prompt_progress(done, total)
