"""Memory of models with attention in some layers and recurrent mixers in others.

A KV cache goes back to any position as far as a sliding layer's ring reaches. A recurrent state
cannot be cut. Memory that cannot go back to a position goes back to a checkpoint or to the start
and returns that position; the session computes the remaining tokens again.
"""

from collections.abc import Sequence

import numpy as np

from engine.cache.kv_cache import Copied, KVCache
from engine.cache.layer_cache import Bytes
from engine.cache.moved_spans import MovedSpan
from engine.cache.states import STATE_VERSION, RecurrentStates
from engine.errors import EngineError

STATE_MARK = np.frombuffer(b"stat", np.uint8)
"""Bytes after a state in a copy. Sizes of keys and values are multiples of eight, so these four
bytes show that the copy has a state."""


class HybridMemory:
    """KV cache and recurrent states of one session.

    Attributes:
        n_bytes: bytes of both.
        fixed_bytes: bytes of the states and their checkpoints.
        state_bytes: bytes of the states that a token reads.
        layout_version: version of both layouts, checked when a saved state is restored.
        max_guesses: limit on the guesses of a trial.
        can_move_spans: False, since a state depends on all earlier tokens.
    """

    def __init__(self, cache: KVCache, states: RecurrentStates) -> None:
        self.cache = cache
        self.states = states
        self.fixed_bytes = states.n_bytes
        self.n_bytes = cache.n_bytes + states.n_bytes
        self.state_bytes = states.size_bytes
        self.layout_version = cache.layout_version | STATE_VERSION << 16
        self.max_guesses = states.max_guesses
        self.can_move_spans = False
        self._saved_bytes = states.size_bytes + len(STATE_MARK)

    def reserve(self, n: int) -> None:
        """Prepare for writing positions up to n."""
        self.cache.reserve(n)
        self.states.reserve()

    def reserve_trial(self, first: int, n: int) -> None:
        """Prepare for computing positions from ``first`` up to n, each of which may be dropped."""
        self.cache.reserve(n)
        self.states.reserve_trial(n - first)

    def can_drop_guesses(self, n: int) -> bool:
        """Whether tokens after the first n can be dropped again at no cost."""
        return self.cache.can_drop_guesses(n)

    def commit(self, n: int) -> None:
        """Record that positions up to n are computed."""
        self.cache.commit(n)
        self.states.commit(n)

    def make_checkpoint(self) -> None:
        """Copy the present state, to go back to."""
        self.states.make_checkpoint()

    def checkpoint_before(self, n: int) -> int:
        """Return the last position up to n that the memory can always go back to."""
        return self.states.checkpoint_before(n)

    def save_end(self, n: int) -> None:
        """Make the present end n reachable until ``drop_saved_end``."""
        self.cache.save_end(n)
        self.states.save_end(n)

    def drop_saved_end(self) -> None:
        """Drop the position of ``save_end``."""
        self.cache.drop_saved_end()
        self.states.drop_saved_end()

    def reachable(self, n: int) -> int:
        """Return the last position up to n that both memories can go back to."""
        while True:
            position = self.cache.reachable(self.states.reachable(n))
            if position == n:
                return n
            n = position

    def rewind(self, n: int) -> int:
        """Go back to the last reachable position up to n; returns that position."""
        position = self.reachable(n)
        self.cache.rewind(position)
        return self.states.rewind(position)

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        """Return False: a state depends on all earlier tokens."""
        return False

    def shift(self, n_keep: int, n_drop: int, length: int, n_turned: int | None = None) -> None:
        """Raise EngineError: a state cannot forget tokens."""
        raise EngineError(
            "this model's layers cannot forget tokens from the midst of a conversation"
        )

    def move_spans(self, spans: Sequence[MovedSpan]) -> None:
        """Raise EngineError: a state depends on all earlier tokens."""
        raise EngineError("this model's layers cannot move tokens")

    def repeat(self, n: int, upto: int) -> None:
        """Repeat keys and values. States stay the same, since their use takes as long in any
        context."""
        self.cache.repeat(n, upto)
        self.states.relabel(upto)

    def resident_bytes(self) -> int | None:
        """Return the bytes that are in memory; None if the system does not say."""
        cache_bytes = self.cache.resident_bytes()
        if cache_bytes is None:
            return None
        return cache_bytes + self.states.used_bytes

    # ---- saved states

    def segment_end(self, first: int, limit: int) -> int:
        """Return the first position after ``first`` whose state is to be saved, at most
        ``limit``."""
        return self.states.segment_end(first, limit)

    def copied_bytes(self, first: int, last: int, is_end: bool = False) -> int:
        """Return the largest number of bytes that ``copy_out`` writes for these positions."""
        n_bytes = self.cache.copied_bytes(first, last)
        if is_end or self.states.is_saved(last):
            n_bytes += self._saved_bytes
        return n_bytes

    def is_copy(self, first: int, last: int, n_bytes: int) -> bool:
        """Whether ``copy_out`` may have written this number of bytes for these positions."""
        return self.cache.is_copy(first, last, n_bytes) or self.has_state((first, last, n_bytes))

    def has_state(self, copied: Copied) -> bool:
        """Whether a copy of this size includes the state after its last position."""
        first, last, n_bytes = copied
        return self.cache.is_copy(first, last, n_bytes - self._saved_bytes)

    def copy_out(self, first: int, last: int, out: Bytes, is_end: bool = False) -> int:
        """Copy keys and values, and after them the state at ``last`` if there is one.

        Args:
            is_end: whether ``last`` is the end of the tokens, so that the present state belongs to
                it.

        Returns:
            Bytes written to ``out``.
        """
        n = self.cache.copy_out(first, last, out)
        if len(out) < n + self._saved_bytes or not (is_end or self.states.is_saved(last)):
            return n
        state_end = n + self.states.size_bytes
        if not self.states.copy_state(last, out[n:state_end]):
            return n
        out[state_end : state_end + len(STATE_MARK)] = STATE_MARK
        return n + self._saved_bytes

    def resumes_at(self, n: int, copies: Sequence[Copied]) -> int:
        """Return the last position up to n where computing can continue after copies are
        restored."""
        cache_copies = [
            (first, last, size - self._saved_bytes)
            if self.has_state((first, last, size))
            else (first, last, size)
            for first, last, size in copies
        ]
        ends = {last for first, last, size in copies if self.has_state((first, last, size))}
        for end in sorted(ends, reverse=True):
            if end <= n and self.cache.resumes_at(end, cache_copies) == end:
                return end
        return 0

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out``; a state beyond the context is skipped."""
        if not self.has_state((first, last, len(data))):
            self.cache.copy_in(first, last, data)
            return
        n = len(data) - self._saved_bytes
        self.cache.copy_in(first, last, data[:n])
        if last <= self.cache.max_seq_len:
            self.states.restore(last, data[n : n + self.states.size_bytes])


LayerMemory = KVCache | HybridMemory
"""Memory of all layers of one session."""
