"""States of recurrent layers, and copies of them to go back to.

A layer's state summarises all tokens so far. It has a fixed size and cannot be cut. Each run reads
the state from one slot and writes another one. So a run that fails or is cancelled costs nothing:
the previous slot is still there. A *trial* computes a few tokens that may be dropped again: it
writes the state after each of them to a slot of its own, and keeping or dropping a token only
chooses another slot.

To go back further, there are *checkpoints*: copies of the state. The session asks for them where
messages begin and end, and one is made every ``SPACING`` tokens, within a budget. When the budget
is used up, checkpoints inside messages are dropped first, and of these the ones whose loss costs
least for their age, so that old ones are sparse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.machine.memory import Memory

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHECKPOINT_BYTES = 256_000_000
"""Default budget of a session's copies: checkpoints and the states after guesses."""
MAX_GUESSES = 3
"""Limit on the guesses of a trial, which follow a token that is kept."""
GUESS_SHARE = 4
"""Number of copies of which one is for guesses, up to ``MAX_GUESSES``; others are checkpoints."""
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


def n_copies(config: ModelConfig, budget_bytes: int) -> int:
    """Return the number of copies that a budget allows."""
    return min(MAX_GUESSES + MAX_CHECKPOINTS, budget_bytes // max(1, state_bytes(config)))


def n_guesses(config: ModelConfig, budget_bytes: int) -> int:
    """Return the number of guesses that a trial may have within a budget."""
    return min(MAX_GUESSES, n_copies(config, budget_bytes) // GUESS_SHARE)


def states_bytes(config: ModelConfig, budget_bytes: int) -> int:
    """Return the bytes of two slots and of as many copies as the budget allows."""
    return (2 + n_copies(config, budget_bytes)) * state_bytes(config)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Copy of the state after the first n tokens.

    Attributes:
        is_turn: whether a message begins or ends there.
    """

    n: int
    data: Bytes
    is_turn: bool = True


@dataclass(frozen=True)
class SlotPair:
    """Two slots of all layers: a run reads the state from one and writes the other.

    Attributes:
        address: address of the first slot.
        offsets: bytes from the start of a slot to the state of each layer, by the layer's number.
        slot_bytes: bytes from the first slot to the second; negative if that lies before.
    """

    address: int
    offsets: Mapping[int, int]
    slot_bytes: int

    def address_of(self, layer: int) -> int:
        """Return the address of a layer's state in the first slot."""
        return self.address + self.offsets[layer]


@dataclass(frozen=True, eq=False)
class _StateSlots:
    """Content of the slots.

    Attributes:
        end: number of tokens of the state in use.
        slots: slot of each valid state, by its number of tokens. Those of more than ``end`` tokens
            are states after guesses that are not kept yet.
    """

    end: int
    slots: Mapping[int, int]

    @property
    def slot(self) -> int:
        """Slot of the state in use."""
        return self.slots[self.end]


class RecurrentStates:
    """States of all recurrent layers of one session.

    One thread changes them; another may copy them (``copy_state``).

    Args:
        budget_bytes: limit on the checkpoints and the states after guesses.

    Attributes:
        n_bytes: bytes of all slots and of all checkpoints that the budget allows.
        size_bytes: bytes of one state of all layers.
        max_guesses: limit on the guesses of a trial; 0 if the budget is small.
    """

    def __init__(self, config: ModelConfig, budget_bytes: int = CHECKPOINT_BYTES) -> None:
        self.size_bytes = state_bytes(config)
        self.n_bytes = states_bytes(config, budget_bytes)
        self.max_guesses = n_guesses(config, budget_bytes)
        self._max_checkpoints = n_copies(config, budget_bytes) - self.max_guesses
        n_slots = 2 + self.max_guesses
        self._memory = Memory(n_slots * self.size_bytes)
        self._slots = [
            self._memory.array(np.uint8, (self.size_bytes,), slot * self.size_bytes)
            for slot in range(n_slots)
        ]
        self._n_used_slots = 2
        """Number of slots that were written; the others take no memory yet."""
        self._offsets: dict[int, int] = {}
        offset = 0
        for number, mixer in config.recurrents.items():
            self._offsets[number] = offset
            offset += _aligned(4 * mixer.state_floats)
        self._current = _StateSlots(0, {0: 0})
        self._n_runs = 0
        self._is_running = False
        self._trial_slots: tuple[int, ...] = ()
        self._checkpoints: tuple[Checkpoint, ...] = ()
        self._saved_end: Checkpoint | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use and of the present checkpoints."""
        n_states = self._n_used_slots + len(self._checkpoints)
        if self._saved_end is not None:
            n_states += 1
        return n_states * self.size_bytes

    @property
    def slot(self) -> int:
        """Slot that the next run reads, 0 or 1."""
        return self._current.slot

    @property
    def pair(self) -> SlotPair:
        """The two slots of runs that are no trials."""
        return self._pair(0, 1)

    @property
    def trial_pairs(self) -> list[SlotPair]:
        """Slots that each token of the trial in preparation reads and writes; empty if the next
        run is no trial."""
        return [self._pair(*slots) for slots in pairwise(self._trial_slots)]

    def _pair(self, first: int, second: int) -> SlotPair:
        address = self._memory.address + first * self.size_bytes
        return SlotPair(address, self._offsets, (second - first) * self.size_bytes)

    def reserve(self) -> None:
        """Prepare for a run that writes the other slot of the first two."""
        self._n_runs += 1
        self._is_running = True
        self._trial_slots = ()
        self._drop_other_slots()

    def reserve_trial(self, n_tokens: int) -> None:
        """Prepare for a run that keeps the state after each of its tokens."""
        if n_tokens > 1 + self.max_guesses:
            self.reserve()
            return
        self._n_runs += 1
        self._is_running = True
        self._drop_other_slots()
        slot = self._current.slot
        self._trial_slots = (slot, 1 - slot, *range(2, n_tokens + 1))
        self._n_used_slots = max(self._n_used_slots, n_tokens + 1)

    def _drop_other_slots(self) -> None:
        """Keep the state in use alone, in one of the first two slots."""
        current = self._current
        if current.slot > 1:
            self._slots[0][:] = self._slots[current.slot]
            self._current = _StateSlots(current.end, {current.end: 0})
        elif len(current.slots) > 1:
            self._current = _StateSlots(current.end, {current.end: current.slot})

    def commit(self, n: int) -> None:
        """Switch to the state after n tokens, which the last run has written."""
        current = self._current
        if self._is_running:
            self._is_running = False
            written = {n: 1 - current.slot}
            if self._trial_slots:
                written = dict(enumerate(self._trial_slots, current.end))
            current = _StateSlots(current.end, {current.end: current.slot} | written)
            self._trial_slots = ()
        if n in current.slots and n != self._current.end:
            self._current = _StateSlots(n, current.slots)
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
        end = self._current.end
        positions = [0, self.checkpoint_before(n)]
        positions += [position for position in self._current.slots if position <= end]
        if self._saved_end is not None:
            positions.append(self._saved_end.n)
        return max(position for position in positions if position <= n)

    def rewind(self, n: int) -> int:
        """Go back to n tokens or to the nearest state before; returns the new number of tokens."""
        self._is_running = False
        self._trial_slots = ()
        position = self.reachable(n)
        current = self._current
        if position in current.slots:
            slots = {end: slot for end, slot in current.slots.items() if end <= position}
            self._current = _StateSlots(position, slots)
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
        self._current = _StateSlots(-1, {-1: 0})  # ``copy_state`` in another thread notices that
        if checkpoint is not None and n:
            self._slots[0][:] = checkpoint.data
        else:
            self._slots[0][:] = 0
        self._current = _StateSlots(n, {n: 0})

    def relabel(self, n: int) -> None:
        """Treat the present state as that of n tokens, for measurements."""
        self._current = _StateSlots(n, {n: self._current.slot})

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
