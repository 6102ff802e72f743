"""The memory of models that attend in some layers and are recurrent in others: keys and values, and
states.

Going back in keys and values costs nothing as far as a sliding layer's ring reaches; a recurrent
state cannot be cut. What cannot go back to a position goes to a kept one or to the start, says
where it is, and the session computes the rest again.
"""

from collections.abc import Sequence

import numpy as np

from engine.cache.kv_cache import Copied, KVCache
from engine.cache.layer_cache import Bytes
from engine.cache.states import STATE_VERSION, RecurrentStates
from engine.errors import EngineError

STATE_MARK = np.frombuffer(b"stat", np.uint8)
"""Follows a state in a copy. Sizes of keys and values are multiples of eight: four bytes more tell
them apart."""


class HybridMemory:
    """Keys and values next to states, which go back and are saved together.

    Attributes:
        n_bytes: of both.
        fixed_bytes: of the states and their checkpoints.
        state_bytes: of the states that a token reads.
        layout_version: of both, checked when a saved state is restored.
        may_overrun: False: a state is that of all tokens of a walk.
    """

    def __init__(self, cache: KVCache, states: RecurrentStates) -> None:
        self.cache = cache
        self.states = states
        self.fixed_bytes = states.n_bytes
        self.n_bytes = cache.n_bytes + states.n_bytes
        self.state_bytes = states.size_bytes
        self.layout_version = cache.layout_version | STATE_VERSION << 16
        self.may_overrun = False
        self._saved_bytes = states.size_bytes + len(STATE_MARK)

    def extend(self, n: int) -> None:
        """Note that positions up to n are about to be written."""
        self.cache.extend(n)
        self.states.extend()

    def reach(self, n: int) -> None:
        """Note that positions up to n were computed."""
        self.cache.reach(n)
        self.states.reach(n)

    def mark(self) -> None:
        """Keep the present state."""
        self.states.mark()

    def kept_before(self, n: int) -> int:
        """Return the last position up to n that can be gone back to at any time."""
        return self.states.kept_before(n)

    def keep(self, n: int) -> None:
        """Make the present end n reachable."""
        self.cache.keep(n)
        self.states.keep(n)

    def release(self) -> None:
        """Keep no position any longer."""
        self.cache.release()
        self.states.release()

    def reachable(self, n: int) -> int:
        """Return the last position up to n that both can go back to."""
        while (there := self.cache.reachable(self.states.reachable(n))) != n:
            n = there
        return n

    def rewind(self, n: int) -> int:
        """Go back to where both can."""
        there = self.reachable(n)
        self.cache.rewind(there)
        return self.states.rewind(there)

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        """False: a state knows of all tokens before it."""
        return False

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Not possible. Raises EngineError: always."""
        raise EngineError(
            "this model's layers cannot forget tokens from the midst of a conversation"
        )

    def repeat(self, n: int, upto: int) -> None:
        """Repeat keys and values; states stay as they are, since using them takes as long in any
        context."""
        self.cache.repeat(n, upto)
        self.states.jump(upto)

    def resident_bytes(self) -> int | None:
        """Bytes that are in memory; None if the system does not tell."""
        found = self.cache.resident_bytes()
        if found is None:
            return None
        return found + self.states.held_bytes

    # ---- saved states

    def stop(self, after: int, upto: int) -> int:
        """Return the first position after ``after`` whose state is to be saved, at most
        ``upto``."""
        return self.states.stop(after, upto)

    def copied_bytes(self, first: int, last: int, is_end: bool = False) -> int:
        """Return the most bytes that ``copy_out`` writes for these positions."""
        has_state = is_end or self.states.is_saved(last)
        return self.cache.copied_bytes(first, last) + (self._saved_bytes if has_state else 0)

    def is_copy(self, first: int, last: int, n_bytes: int) -> bool:
        """Whether ``copy_out`` may have written this number of bytes for these positions."""
        return self.cache.is_copy(first, last, n_bytes) or self.has_state((first, last, n_bytes))

    def has_state(self, copied: Copied) -> bool:
        """Whether a copy of this size carries the state after its last position."""
        first, last, n_bytes = copied
        return self.cache.is_copy(first, last, n_bytes - self._saved_bytes)

    def copy_out(self, first: int, last: int, out: Bytes, is_end: bool = False) -> int:
        """Copy keys and values, and after them the state at ``last`` where it is kept, or the
        present one at the end.

        ``is_end``: nothing was computed after ``last`` yet, and the copy should be one that can be
        gone on from.
        """
        n = self.cache.copy_out(first, last, out)
        if len(out) < n + self._saved_bytes or not (is_end or self.states.is_saved(last)):
            return n
        mark = n + self.states.size_bytes
        if not self.states.copy_state(last, out[n:mark]):
            return n
        out[mark : mark + len(STATE_MARK)] = STATE_MARK
        return n + self._saved_bytes

    def resumes_at(self, n: int, copies: Sequence[Copied]) -> int:
        """Return the last position up to n that restored copies can be gone on from."""
        plain = [
            (a, b, size - self._saved_bytes if self.has_state((a, b, size)) else size)
            for a, b, size in copies
        ]
        ends = {
            last
            for first, last, size in copies
            if last <= n and self.has_state((first, last, size))
        }
        return next(
            (end for end in sorted(ends, reverse=True) if self.cache.resumes_at(end, plain) == end),
            0,
        )

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out``; a state beyond the context is skipped."""
        if not self.has_state((first, last, len(data))):
            self.cache.copy_in(first, last, data)
            return
        n = len(data) - self._saved_bytes
        self.cache.copy_in(first, last, data[:n])
        if last <= self.cache.max_seq_len:
            self.states.take_in(last, data[n : n + self.states.size_bytes])


LayerMemory = KVCache | HybridMemory
"""Memory of all layers of one session."""
