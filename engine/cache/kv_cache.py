"""The KV cache: keys and values of all layers that attend.

Allocated once for the chosen context. Positions below the session's length are valid, those above
it are unused, so dropping tokens only changes the length. Layers that see a window keep a ring
(``ring.py``): going back further than it reaches means starting again, unless the position was
kept.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.cache import context_shift
from engine.cache.kv_types import KV_TYPES, KVType
from engine.cache.layer_cache import POSITIONS, Bytes, CachePart, Floats, LayerCache, parts_of
from engine.cache.layer_memory import MemoryNeeds
from engine.cache.ring import RingReach, ring_slots
from engine.cache.rotation import Rotation
from engine.cache.states import CHECKPOINT_BYTES, state_bytes, states_bytes
from engine.config import Attention, ModelConfig, Rope
from engine.errors import MemoryPlanError
from engine.machine import residency
from engine.machine.memory import Memory

_GLANCE_PAGES = 16 << 10
LAYOUT_VERSION = 2
"""Version of the memory layout and its meaning; incremented with every change, checked when a state
is restored."""

Copied = tuple[int, int, int]
"""Positions first to last, and the number of bytes that ``copy_out`` wrote for them."""

AUTO = "auto"
AUTO_TYPES = "f16", "q8_0", "q8_0/q4_0"
"""What ``AUTO`` may become: the first with which a context has room; the last only for a context
that was asked for.

Keys of q4_0 are left out: with some models (Qwen2.5 0.5B) they make nonsense of a text, here and in
llama.cpp.
"""


def kv_type_of(name: str, config: ModelConfig) -> KVType:
    """Return the KV type of a name, checked against the model's heads.

    Raises:
        MemoryPlanError: the name is unknown, or a head's width is not a multiple of the type's
            group.
    """
    kv_type = KV_TYPES.get(name)
    if kv_type is None:
        raise MemoryPlanError(
            f"KV cache type '{name}' is unknown; supported: {', '.join(KV_TYPES)}"
        )
    for one in config.attentions.values():
        for element, width in ((kv_type.keys, one.key_dim), (kv_type.values, one.value_dim)):
            if element.group and width % element.group:
                raise MemoryPlanError(
                    f"KV cache type '{name}' needs heads of a multiple of {element.group} "
                    f"elements; "
                    f"this model's have {width} (use f16)"
                )
    return kv_type


def memory_needs(
    config: ModelConfig, kv_type: KVType, checkpoint_bytes: int = CHECKPOINT_BYTES
) -> MemoryNeeds:
    """Return the memory that all layers of a model need for what they remember, and what they make
    of their weights.

    An encoder's text is one block, whose tokens need memory at once.

    Args:
        config: the model's hyperparameters.
        kv_type: a value of ``KV_TYPES``.
        checkpoint_bytes: limit on the copies of recurrent states.
    """
    made_bytes = sum(one.latent.made_bytes(one) for one in config.attentions.values() if one.latent)
    states = MemoryNeeds(
        0, states_bytes(config, checkpoint_bytes) + made_bytes, state_bytes=state_bytes(config)
    )
    block = MemoryNeeds(4 * config.activation_floats if config.is_encoder else 0)
    return kv_needs(config, kv_type) + states + block


def kv_needs(config: ModelConfig, kv_type: KVType) -> MemoryNeeds:
    """Return the memory that the layers that attend need for their keys and values."""
    sizes: Counter[int | None] = Counter()
    for one in (one for one in config.attentions.values() if one.kv_of is None):
        sizes[None if one.kept_window is None else ring_slots(one.kept_window)] += _position_bytes(
            one, kv_type
        )
    whole = sizes.pop(None, 0)
    return MemoryNeeds(
        whole, rings=tuple(sorted((slots, n_bytes) for slots, n_bytes in sizes.items() if slots))
    )


def _position_bytes(attention: Attention, kv_type: KVType) -> int:
    keys = kv_type.keys.bytes_of(attention.key_dim)
    values = kv_type.values.bytes_of(attention.value_dim)
    return attention.n_kv_heads * (keys + values)


class KVCache:
    """Keys and values of all layers that attend: the memory of a session, or of a ``HybridMemory``.

    Args:
        max_seq_len: positions to hold, rounded up to a multiple of eight.
        rotations: of the ropes of the layers, for shifts.
        key_weights: number of a layer -> see ``LayerCache``.

    Attributes:
        layers: by the layer's number; layers that store nothing have the cache of the layer whose
            they read.
        n_bytes: of all of them.
        fixed_bytes, state_bytes: none.
        layout_version: see ``LAYOUT_VERSION``.
        may_overrun: True: positions beyond the length are unused.
    """

    def __init__(
        self,
        config: ModelConfig,
        kv_type: KVType,
        max_seq_len: int,
        rotations: Mapping[Rope, Rotation],
        key_weights: Mapping[int, Floats] | None = None,
    ) -> None:
        self.kv_type = kv_type
        self.layout_version = LAYOUT_VERSION
        self.may_overrun = True
        self.fixed_bytes = self.state_bytes = 0
        self.max_seq_len = _whole(max_seq_len)
        self._is_placed = bool(config.learned_positions)
        self.n_bytes = kv_needs(config, kv_type).bytes_for(self.max_seq_len)
        self._memory = Memory(self.n_bytes, fills_slowly=True)
        self.layers: dict[int, LayerCache] = {}
        at = 0
        for number, attention in config.attentions.items():
            if attention.kv_of is not None:
                self.layers[number] = self.layers[attention.kv_of]
                continue
            if attention.rope is None:
                rotation = None
            else:
                rotation = rotations[attention.rope]
            weight = (key_weights or {}).get(number)
            n_slots = self.max_seq_len
            if attention.kept_window is not None:
                n_slots = min(ring_slots(attention.kept_window), n_slots)
            self.layers[number] = LayerCache(
                attention, rotation, kv_type, n_slots, self._memory, at, weight
            )
            at += n_slots * _position_bytes(attention, kv_type)
        self._own = layers = list(dict.fromkeys(self.layers.values()))
        self._parts = parts_of(layers)
        self._whole_parts = parts_of([one for one in layers if one.window is None])
        self._ring_parts = parts_of([one for one in layers if one.window is not None])
        self._reach = RingReach(
            frozenset((one.window, one.n_slots) for one in layers if one.window is not None)
        )
        self._kept: _Savepoint | None = None

    def extend(self, n: int) -> None:
        """Note that positions up to n are about to be written, which rings have their oldest
        positions overwritten for.

        Raises:
            MemoryError: a kept position needs a copy of the rings, and there is no memory for it.
        """
        kept = self._kept
        if kept is not None and kept.rows is None and self._reach.reaches(kept.n):
            ahead = replace(self._reach, end=max(n, self._reach.end))
            if not ahead.reaches(kept.n):
                self._kept = _Savepoint(
                    kept.n, [part.rows.copy() for part in self._ring_parts], replace(self._reach)
                )
        self._reach.write(n)

    def reach(self, n: int) -> None:
        """Do nothing: written positions stay valid."""

    def mark(self) -> None:
        """Do nothing: positions stay reachable, or are not worth a copy of the rings."""

    def kept_before(self, n: int) -> int:
        """Return n."""
        return n

    def keep(self, n: int) -> None:
        """Make the present end n reachable by ``rewind`` until ``release``; a position before it,
        once gone back to.

        What the rings hold is copied once that is necessary.
        """
        if self._ring_parts:
            self._kept = _Savepoint(n)
        else:
            self._kept = None

    def release(self) -> None:
        """Keep no position any longer, and free the copy."""
        self._kept = None

    def reachable(self, n: int) -> int:
        """Return where ``rewind(n)`` would go back to."""
        if self._reach.reaches(n):
            return n
        kept = self._kept
        if kept is not None and kept.reach is not None:
            there = min(n, kept.n)
            if kept.reach.reaches(there):
                return there
            return 0
        return 0

    def rewind(self, n: int) -> int:
        """Go back to n; to a kept position or to the start where a ring does not reach back so
        far."""
        there = self.reachable(n)
        kept = self._kept
        if kept is not None and there <= kept.n:
            if there and kept.rows is not None and kept.reach is not None:
                for part, rows in zip(self._ring_parts, kept.rows, strict=True):
                    part.rows[...] = rows
                self._reach = kept.reach
            self._kept = _Savepoint(there)
        if not there:
            self._reach.clear()
        return there

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        """Whether the rings hold what the last position sees once the others have moved down.

        Where positions have vectors of their own, keys and values know theirs for good.
        """
        if self._is_placed:
            return False
        for window, n_slots in self._reach.rings:
            seen = max(0, length - n_drop - window + 1)
            if seen < n_keep and self._reach.first(n_slots) > seen:
                return False
        return True

    def shift(self, n_keep: int, n_drop: int, length: int) -> None:
        """Move the positions after the dropped ones down; keys are rotated by each layer's own
        rotation."""
        for layer in self._own:
            if layer.window is None:
                held = 0
            else:
                held = self._reach.first(layer.n_slots)
            first = max(n_keep + n_drop, held)
            context_shift.drop_positions(layer, first - n_drop, n_drop, length)
        self._reach.shift(n_keep, n_drop, length)
        self._kept = None

    def resident_bytes(self) -> int | None:
        """Estimate the bytes in memory from a sample of pages; None if the system does not tell."""
        return residency.resident_bytes(self._memory.bytes, _GLANCE_PAGES)

    def repeat(self, n: int, upto: int) -> None:
        """Copy the keys and values of the first n positions after them, again and again up to a
        position.

        The copies have no meaning, but reading them takes as long as reading a real context.

        Args:
            n, upto: multiples of eight, since K is in tiles of eight positions.
        """
        self.extend(upto)
        for part in self._parts:
            part.repeat(n, upto)

    def stop(self, after: int, upto: int) -> int:
        """Return ``upto``: every position can be gone on from."""
        return upto

    def copied_bytes(self, first: int, last: int, is_end: bool = False) -> int:
        """Return the most bytes that ``copy_out`` writes for these positions."""
        return _copied_bytes(self._parts, first, last)

    def is_copy(self, first: int, last: int, n_bytes: int) -> bool:
        """Whether ``copy_out`` may have written this number of bytes for these positions."""
        return n_bytes in (
            self.copied_bytes(first, last),
            _copied_bytes(self._whole_parts, first, last),
        )

    def has_state(self, copied: Copied) -> bool:
        """False: nothing here is recurrent."""
        return False

    def copy_out(self, first: int, last: int, out: Bytes, is_end: bool = False) -> int:
        """Copy the tiles of positions from first up to last: elements by layer and head, then
        scales likewise.

        Layers with a window are left out where their rings do not hold these positions any more.
        Releases the GIL; positions that a kernel writes meanwhile have undefined content.

        Args:
            first: a multiple of eight.
            out: (at least ``copied_bytes(first, last)``,) uint8.

        Returns:
            Bytes written to ``out``.
        """
        if self._reach.holds(first):
            n_bytes = _copy_out(self._parts, first, last, out)
            if self._reach.holds(
                first
            ):  # still: another thread may have computed further meanwhile
                return n_bytes
        return _copy_out(self._whole_parts, first, last, out)

    def resumes_at(self, n: int, copies: Sequence[Copied]) -> int:
        """Return n if what a window sees there is in the copies, else 0."""
        parts = [(first, last, size) for first, last, size in copies if first < n]
        lost = max(
            (last for first, last, size in parts if size < self.copied_bytes(first, last)),
            default=0,
        )
        if RingReach(self._reach.rings, lost=lost).reaches(n):
            return n
        return 0

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out`` for the same positions, in order from the first;
        beyond the cache none.

        Go back to the end by ``rewind`` then: it says whether enough was restored.
        """
        is_all = len(data) == self.copied_bytes(first, last)
        n = _whole(last) - first
        upto = min(_whole(last), self.max_seq_len)
        at = 0
        for part in self._parts if is_all else self._whole_parts:
            size = part.copied_bytes(n)
            if first < upto:
                part.copy_in(first, upto, data[at : at + size].reshape(len(part.rows), -1))
            at += size
        self._reach.write(min(last, self.max_seq_len))
        if not is_all:
            self._reach.lost = max(self._reach.lost, last)


@dataclass(frozen=True, eq=False)
class _Savepoint:
    """A position to go back to; with the rings' rows and reach once these are about to lose it."""

    n: int
    rows: list[Bytes] | None = None
    reach: RingReach | None = None


def _copied_bytes(parts: Sequence[CachePart], first: int, last: int) -> int:
    return sum(part.copied_bytes(_whole(last) - first) for part in parts)


def _copy_out(parts: Sequence[CachePart], first: int, last: int, out: Bytes) -> int:
    at = 0
    for part in parts:
        size = part.copied_bytes(_whole(last) - first)
        part.copy_out(first, _whole(last), out[at : at + size].reshape(len(part.rows), -1))
        at += size
    return at


def _whole(n: int) -> int:
    return (n + POSITIONS - 1) // POSITIONS * POSITIONS
