"""States of recurrent layers, of a fixed size and not to be cut, and copies of them to go back to.

A layer's state is what it made of all tokens so far. Each walk reads it from one of two slots and
writes the other, so that a walk that fails or is cancelled, or guesses that are rejected, cost
nothing: the slot from before is still there. Further back only copies lead, *checkpoints*: the
session asks for them where a conversation turns, and one is made every ``SPACING`` tokens, within a
budget. When it is used up, those go first that are not where a conversation turns, and of these the
ones whose loss lengthens the way least, for their age: what is old is kept sparsely.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.machine.memory import Memory

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHECKPOINT_BYTES = 256_000_000
"""Usual budget of a session's checkpoints."""
MOST_CHECKPOINTS = 64
SPACING = 1024
"""Tokens after which a checkpoint is made where the conversation does not turn."""
MOST_SAVED = 3
"""Checkpoints that a saved state carries next to its end: the first one and the newest."""
STATE_VERSION = 1
"""Version of the layout and meaning of states; incremented with every change, checked when a state
is restored."""
_ALIGNMENT = 64


def state_bytes(config: ModelConfig) -> int:
    """Return the bytes of all layers' states."""
    return sum(_aligned(4 * one.state_floats) for one in config.recurrents.values())


def n_checkpoints(config: ModelConfig, budget_bytes: int) -> int:
    """Return the number of checkpoints that a budget allows."""
    return min(MOST_CHECKPOINTS, budget_bytes // max(1, state_bytes(config)))


def states_bytes(config: ModelConfig, budget_bytes: int) -> int:
    """Return the bytes of both slots and as many checkpoints as the budget allows."""
    return (2 + n_checkpoints(config, budget_bytes)) * state_bytes(config)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after the first n tokens; ``is_turn``: whether the conversation turns there."""

    n: int
    data: Bytes
    is_turn: bool = True


@dataclass(frozen=True, eq=False)
class _StateSlots:
    """Which slot holds the state after ``end`` tokens; the other one holds that after ``before``,
    if any."""

    slot: int = 0
    end: int = 0
    before: int | None = None


class RecurrentStates:
    """States of all recurrent layers of one session.

    One thread changes them; another may copy what is kept (``copy_state``).

    Args:
        budget_bytes: limit on the checkpoints.

    Attributes:
        n_bytes: of both slots and all checkpoints that the budget allows.
        size_bytes: of one state.
    """

    def __init__(self, config: ModelConfig, budget_bytes: int = CHECKPOINT_BYTES) -> None:
        self.size_bytes = state_bytes(config)
        self.n_bytes = states_bytes(config, budget_bytes)
        self._most = n_checkpoints(config, budget_bytes)
        self._memory = Memory(2 * self.size_bytes)
        self._slots = [
            self._memory.array(np.uint8, (self.size_bytes,), slot * self.size_bytes)
            for slot in (0, 1)
        ]
        self._offsets: dict[int, int] = {}
        at = 0
        for number, one in config.recurrents.items():
            self._offsets[number] = at
            at += _aligned(4 * one.state_floats)
        self._at = _StateSlots()
        self._walks = 0
        self._is_walking = False
        self._kept: tuple[Checkpoint, ...] = ()
        self._pin: Checkpoint | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of both slots and of the checkpoints that are kept now."""
        return (2 + len(self._kept) + (self._pin is not None)) * self.size_bytes

    @property
    def slot(self) -> int:
        """The slot that the next walk reads, 0 or 1."""
        return self._at.slot

    def address(self, layer: int) -> int:
        """Return where a layer's state begins in the first slot; the second is ``size_bytes`` after
        it."""
        return self._memory.address + self._offsets[layer]

    def extend(self) -> None:
        """Note that a walk is about to write the other slot."""
        self._walks += 1
        self._is_walking = True
        if self._at.before is not None:
            self._at = _StateSlots(self._at.slot, self._at.end)

    def reach(self, n: int) -> None:
        """Note that the walk is done: its slot counts now."""
        if self._is_walking:
            self._is_walking = False
            self._at = _StateSlots(1 - self._at.slot, n, self._at.end)
            if n - self.kept_before(n) >= SPACING:
                self._checkpoint(is_turn=False)

    def mark(self) -> None:
        """Keep the present state: the conversation turns here."""
        self._checkpoint(is_turn=True)

    def kept_before(self, n: int) -> int:
        """Return the last position up to n that can be gone back to at any time."""
        return max((one.n for one in self._kept if one.n <= n), default=0)

    def keep(self, n: int) -> None:
        """Make the present end reachable until ``release``."""
        self._pin = Checkpoint(n, self._slots[self._at.slot].copy())

    def release(self) -> None:
        """Drop what ``keep`` kept."""
        self._pin = None

    def reachable(self, n: int) -> int:
        """Return where ``rewind(n)`` would go back to."""
        found = [0, self._at.end, self.kept_before(n)]
        if self._at.before is not None:
            found += [self._at.before]
        else:
            found += []
        if self._pin is not None:
            found += [self._pin.n]
        else:
            found += []
        return max(one for one in found if one <= n)

    def rewind(self, n: int) -> int:
        """Go back to n tokens, or to the nearest state before that; returns where."""
        self._is_walking = False
        there = self.reachable(n)
        at = self._at
        if there != at.end:
            if there == at.before:
                self._at = _StateSlots(1 - at.slot, there)
            else:
                self._put(there)
        self._kept = tuple(one for one in self._kept if one.n <= there)
        if self._pin is not None and there < self._pin.n:
            self._pin = Checkpoint(there, self._slots[self._at.slot].copy())
        return there

    def _put(self, n: int) -> None:
        """Copy a kept state, or that of no tokens, into the slot in use."""
        slot = self._at.slot
        found = next(
            (one for one in (*self._kept, *([self._pin] if self._pin else [])) if one.n == n), None
        )
        self._at = _StateSlots(slot, -1)  # a copy made in the meantime finds the slot changed
        if found is not None and n:
            self._slots[slot][:] = found.data
        else:
            self._slots[slot][:] = 0
        self._at = _StateSlots(slot, n)

    def jump(self, n: int) -> None:
        """Call the present state that of n tokens, for measurements."""
        self._at = _StateSlots(self._at.slot, n)

    def _checkpoint(self, is_turn: bool) -> None:
        end = self._at.end
        if end and self._most:
            known = next((one for one in self._kept if one.n == end), None)
            if known is not None:
                data = known.data
            else:
                data = self._slots[self._at.slot].copy()
            self._insert(Checkpoint(end, data, is_turn or (known is not None and known.is_turn)))

    def _insert(self, new: Checkpoint) -> None:
        kept = sorted([*(one for one in self._kept if one.n != new.n), new], key=lambda one: one.n)
        while len(kept) > self._most:
            del kept[_least_missed(kept)]
        self._kept = tuple(kept)

    # ---- saved states

    def _saved(self) -> list[Checkpoint]:
        turns = [one for one in self._kept if one.is_turn]
        if len(turns) <= MOST_SAVED:
            return turns
        return [turns[0], *turns[1 - MOST_SAVED :]]

    def stop(self, after: int, upto: int) -> int:
        """Return the first position after ``after`` whose state shall be saved, at most
        ``upto``."""
        return min((one.n for one in self._saved() if after < one.n < upto), default=upto)

    def is_saved(self, n: int) -> bool:
        """Whether the state after n tokens belongs into a file."""
        return any(one.n == n for one in self._saved())

    def copy_state(self, n: int, out: Bytes) -> bool:
        """Copy the state after n tokens; False if it is not there, or was overwritten meanwhile.

        Any thread.
        """
        found = next((one for one in self._kept if one.n == n), None)
        if found is not None:
            out[:] = found.data
            return True
        at = self._at
        walks = self._walks
        if at.end != n:
            return False
        out[:] = self._slots[at.slot]
        return self._at is at and self._walks == walks

    def take_in(self, n: int, data: Bytes) -> None:
        """Keep a restored state; ``rewind`` then goes there."""
        if self._most:
            self._insert(Checkpoint(n, data.copy()))
        elif n:
            self._pin = Checkpoint(n, data.copy())


def _least_missed(kept: Sequence[Checkpoint]) -> int:
    """The checkpoint to drop: the newest stays, and those not at a turn go first."""
    end = kept[-1].n
    starts = [0, *(one.n for one in kept)]

    def cost(i: int) -> tuple[bool, float]:
        return kept[i].is_turn, (kept[i + 1].n - starts[i]) / (end - kept[i].n)

    if len(kept) > 1:
        return min(range(len(kept) - 1), key=cost)
    return 0


def _aligned(n_bytes: int) -> int:
    return (n_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
