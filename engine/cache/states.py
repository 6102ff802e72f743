"""States of recurrent layers, and copies of them to go back to.

A layer's state summarises all tokens so far. It has a fixed size and cannot be cut. Each run reads
the state from one of two slots and writes the other one. So a run that fails or is cancelled, or
guesses that are rejected, cost nothing: the previous slot is still there.

To go back further, there are *checkpoints*: copies of the state. The session asks for them where
messages begin and end, and one is made every ``SPACING`` tokens, within a budget. When the budget
is used up, checkpoints inside messages are dropped first, and of these the ones whose loss costs
least for their age, so that old ones are sparse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.machine.memory import Memory

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHECKPOINT_BYTES = 256_000_000
"""Default budget of a session's checkpoints."""
MAX_CHECKPOINTS = 64
SPACING = 1024
"""Number of tokens after which a checkpoint is made inside a message."""
MAX_SAVED = 3
"""Number of checkpoints in a saved state: the first one and the newest."""
STATE_VERSION = 1
"""Version of the layout of states. Every change increments it; it is checked when a state is
restored."""
_ALIGNMENT = 64


def state_bytes(config: ModelConfig) -> int:
    """Return the bytes of the states of all layers."""
    return sum(_aligned(4 * mixer.state_floats) for mixer in config.recurrents.values())


def n_checkpoints(config: ModelConfig, budget_bytes: int) -> int:
    """Return the number of checkpoints that a budget allows."""
    return min(MAX_CHECKPOINTS, budget_bytes // max(1, state_bytes(config)))


def states_bytes(config: ModelConfig, budget_bytes: int) -> int:
    """Return the bytes of both slots and of as many checkpoints as the budget allows."""
    return (2 + n_checkpoints(config, budget_bytes)) * state_bytes(config)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Copy of the state after the first n tokens.

    Attributes:
        is_turn: whether a message begins or ends there.
    """

    n: int
    data: Bytes
    is_turn: bool = True


@dataclass(frozen=True, eq=False)
class _StateSlots:
    """Content of the two slots.

    Attributes:
        slot: slot of the state in use.
        end: number of tokens of that state.
        previous: number of tokens of the state in the other slot; None if it is not valid.
    """

    slot: int = 0
    end: int = 0
    previous: int | None = None


class RecurrentStates:
    """States of all recurrent layers of one session.

    One thread changes them; another may copy them (``copy_state``).

    Args:
        budget_bytes: limit on the checkpoints.

    Attributes:
        n_bytes: bytes of both slots and of all checkpoints that the budget allows.
        size_bytes: bytes of one state of all layers.
    """

    def __init__(self, config: ModelConfig, budget_bytes: int = CHECKPOINT_BYTES) -> None:
        self.size_bytes = state_bytes(config)
        self.n_bytes = states_bytes(config, budget_bytes)
        self._max_checkpoints = n_checkpoints(config, budget_bytes)
        self._memory = Memory(2 * self.size_bytes)
        self._slots = [
            self._memory.array(np.uint8, (self.size_bytes,), slot * self.size_bytes)
            for slot in (0, 1)
        ]
        self._offsets: dict[int, int] = {}
        offset = 0
        for number, mixer in config.recurrents.items():
            self._offsets[number] = offset
            offset += _aligned(4 * mixer.state_floats)
        self._current = _StateSlots()
        self._n_runs = 0
        self._is_running = False
        self._checkpoints: tuple[Checkpoint, ...] = ()
        self._saved_end: Checkpoint | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes of both slots and of the present checkpoints."""
        n_copies = len(self._checkpoints) + (self._saved_end is not None)
        return (2 + n_copies) * self.size_bytes

    @property
    def slot(self) -> int:
        """Slot that the next run reads, 0 or 1."""
        return self._current.slot

    def address(self, layer: int) -> int:
        """Return the address of a layer's state in the first slot. The second slot is
        ``size_bytes`` after it."""
        return self._memory.address + self._offsets[layer]

    def reserve(self) -> None:
        """Prepare for a run that writes the other slot."""
        self._n_runs += 1
        self._is_running = True
        if self._current.previous is not None:
            self._current = _StateSlots(self._current.slot, self._current.end)

    def commit(self, n: int) -> None:
        """Switch to the slot that the run has written: the state after n tokens."""
        if self._is_running:
            self._is_running = False
            self._current = _StateSlots(1 - self._current.slot, n, self._current.end)
            if n - self.checkpoint_before(n) >= SPACING:
                self._add_checkpoint(is_turn=False)

    def make_checkpoint(self) -> None:
        """Copy the present state, where a message begins or ends."""
        self._add_checkpoint(is_turn=True)

    def checkpoint_before(self, n: int) -> int:
        """Return the position of the last checkpoint up to n; 0 if there is none."""
        positions = (checkpoint.n for checkpoint in self._checkpoints if checkpoint.n <= n)
        return max(positions, default=0)

    def save_end(self, n: int) -> None:
        """Make the present end n reachable until ``drop_saved_end``."""
        self._saved_end = Checkpoint(n, self._slots[self._current.slot].copy())

    def drop_saved_end(self) -> None:
        """Drop the copy of ``save_end``."""
        self._saved_end = None

    def reachable(self, n: int) -> int:
        """Return the position that ``rewind(n)`` would go back to."""
        positions = [0, self._current.end, self.checkpoint_before(n)]
        if self._current.previous is not None:
            positions.append(self._current.previous)
        if self._saved_end is not None:
            positions.append(self._saved_end.n)
        return max(position for position in positions if position <= n)

    def rewind(self, n: int) -> int:
        """Go back to n tokens or to the nearest state before; returns the new number of tokens."""
        self._is_running = False
        position = self.reachable(n)
        current = self._current
        if position == current.end:
            pass
        elif position == current.previous:
            self._current = _StateSlots(1 - current.slot, position)
        else:
            self._load(position)
        self._checkpoints = tuple(
            checkpoint for checkpoint in self._checkpoints if checkpoint.n <= position
        )
        if self._saved_end is not None and position < self._saved_end.n:
            self.save_end(position)
        return position

    def _load(self, n: int) -> None:
        """Copy the checkpoint at n, or zeros for no tokens, into the slot in use."""
        checkpoint = self._checkpoint_at(n)
        if checkpoint is None and self._saved_end is not None and self._saved_end.n == n:
            checkpoint = self._saved_end
        slot = self._current.slot
        self._current = _StateSlots(slot, -1)  # ``copy_state`` in another thread notices the change
        if checkpoint is not None and n:
            self._slots[slot][:] = checkpoint.data
        else:
            self._slots[slot][:] = 0
        self._current = _StateSlots(slot, n)

    def relabel(self, n: int) -> None:
        """Treat the present state as that of n tokens, for measurements."""
        self._current = _StateSlots(self._current.slot, n)

    def _checkpoint_at(self, n: int) -> Checkpoint | None:
        return next((checkpoint for checkpoint in self._checkpoints if checkpoint.n == n), None)

    def _add_checkpoint(self, is_turn: bool) -> None:
        end = self._current.end
        if not end or not self._max_checkpoints:
            return
        present = self._checkpoint_at(end)
        if present is None:
            self._insert(Checkpoint(end, self._slots[self._current.slot].copy(), is_turn))
        else:
            self._insert(Checkpoint(end, present.data, is_turn or present.is_turn))

    def _insert(self, added: Checkpoint) -> None:
        checkpoints = [checkpoint for checkpoint in self._checkpoints if checkpoint.n != added.n]
        checkpoints.append(added)
        checkpoints.sort(key=lambda checkpoint: checkpoint.n)
        while len(checkpoints) > self._max_checkpoints:
            del checkpoints[_least_useful(checkpoints)]
        self._checkpoints = tuple(checkpoints)

    # ---- saved states

    def _saved_checkpoints(self) -> list[Checkpoint]:
        turns = [checkpoint for checkpoint in self._checkpoints if checkpoint.is_turn]
        if len(turns) <= MAX_SAVED:
            return turns
        return [turns[0], *turns[1 - MAX_SAVED :]]

    def segment_end(self, first: int, limit: int) -> int:
        """Return the first position after ``first`` whose state is to be saved, at most
        ``limit``."""
        positions = (checkpoint.n for checkpoint in self._saved_checkpoints())
        return min((n for n in positions if first < n < limit), default=limit)

    def is_saved(self, n: int) -> bool:
        """Whether the state after n tokens is to be saved."""
        return any(checkpoint.n == n for checkpoint in self._saved_checkpoints())

    def copy_state(self, n: int, out: Bytes) -> bool:
        """Copy the state after n tokens. Any thread may call it.

        Returns:
            False if there is no such state, or if it was overwritten meanwhile.
        """
        checkpoint = self._checkpoint_at(n)
        if checkpoint is not None:
            out[:] = checkpoint.data
            return True
        current = self._current
        n_runs = self._n_runs
        if current.end != n:
            return False
        out[:] = self._slots[current.slot]
        return self._current is current and self._n_runs == n_runs

    def restore(self, n: int, data: Bytes) -> None:
        """Add a restored state; ``rewind`` then goes there."""
        if self._max_checkpoints:
            self._insert(Checkpoint(n, data.copy()))
        elif n:
            self._saved_end = Checkpoint(n, data.copy())


def _least_useful(checkpoints: Sequence[Checkpoint]) -> int:
    """Return the index of the checkpoint to drop. The newest stays, and those inside messages go
    first."""
    if len(checkpoints) <= 1:
        return 0
    end = checkpoints[-1].n
    starts = [0, *(checkpoint.n for checkpoint in checkpoints)]

    def usefulness(index: int) -> tuple[bool, float]:
        gap = checkpoints[index + 1].n - starts[index]
        return checkpoints[index].is_turn, gap / (end - checkpoints[index].n)

    return min(range(len(checkpoints) - 1), key=usefulness)


def _aligned(n_bytes: int) -> int:
    return (n_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
