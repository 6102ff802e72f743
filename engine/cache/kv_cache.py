"""The KV cache: keys and values of all attention layers.

It is allocated once for the chosen context. Positions below the session's length are valid, those
above it are unused, so dropping tokens only changes the length. Sliding layers store a ring
(``ring.py``). To go back further than a ring reaches, everything is computed again, unless that
position was saved.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.cache import context_shift
from engine.cache.kv_types import KV_TYPES, KVType
from engine.cache.layer_cache import POSITIONS, Bytes, CacheRegion, Floats, LayerCache, regions_of
from engine.cache.layer_memory import MemoryNeeds
from engine.cache.moved_spans import MovedSpan, move_spans
from engine.cache.ring import RingReach, ring_slots
from engine.cache.rotation import Rotation
from engine.cache.states import CHECKPOINT_BYTES, MAX_GUESSES, state_bytes, states_bytes
from engine.config import Attention, ModelConfig, Rope
from engine.errors import MemoryPlanError
from engine.machine import residency
from engine.machine.memory import Memory

_GLANCE_PAGES = 16 << 10
LAYOUT_VERSION = 2
"""Version of the memory layout. Every change increments it; it is checked when a state is
restored."""

Copied = tuple[int, int, int]
"""First position, position after the last, and the number of bytes that ``copy_out`` wrote."""

AUTO = "auto"
AUTO_TYPES: tuple[str, ...] = "f16", "q8_0", "q8_0/q4_0"
"""Types that ``AUTO`` chooses from: the first with which the context fits. The last one is only for
a context that the user requested.

Keys of q4_0 are left out: some models (Qwen2.5 0.5B) write nonsense with them, here and in
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
    for attention in config.attentions.values():
        for element, width in (
            (kv_type.keys, attention.key_dim),
            (kv_type.values, attention.value_dim),
        ):
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
    """Return the memory that all layers of a model need for past tokens and derived weights.

    An encoder takes a text as one block, so all its tokens need activations at once.

    Args:
        config: hyperparameters of the model.
        kv_type: a value of ``KV_TYPES``.
        checkpoint_bytes: limit on the copies of recurrent states.
    """
    derived_bytes = sum(
        attention.latent.derived_bytes(attention)
        for attention in config.attentions.values()
        if attention.latent
    )
    states = MemoryNeeds(
        0, states_bytes(config, checkpoint_bytes) + derived_bytes, state_bytes=state_bytes(config)
    )
    needs = kv_needs(config, kv_type) + states
    if config.is_encoder:
        needs += MemoryNeeds(4 * config.activation_floats)
    return needs


def kv_needs(config: ModelConfig, kv_type: KVType) -> MemoryNeeds:
    """Return the memory that the attention layers need for their keys and values."""
    position_bytes = 0
    ring_bytes: Counter[int] = Counter()
    for attention in config.attentions.values():
        if attention.kv_of is not None:
            continue
        n_bytes = _position_bytes(attention, kv_type)
        if attention.cache_window is None:
            position_bytes += n_bytes
        else:
            ring_bytes[ring_slots(attention.cache_window, config.picture_rows)] += n_bytes
    return MemoryNeeds(position_bytes, rings=tuple(sorted(ring_bytes.items())))


def _position_bytes(attention: Attention, kv_type: KVType) -> int:
    keys = kv_type.keys.bytes_of(attention.key_dim)
    values = kv_type.values.bytes_of(attention.value_dim)
    return attention.n_kv_heads * (keys + values)


@dataclass(frozen=True)
class BorrowedCache:
    """Layers of a KV cache, for layers of another model that store nothing.

    Attributes:
        layers: cache of a layer, by the number of the layer that reads it.
    """

    kv_type: KVType
    max_seq_len: int
    layers: Mapping[int, LayerCache]


class KVCache:
    """Keys and values of all attention layers of a session.

    Args:
        max_seq_len: number of positions, rounded up to a multiple of eight.
        rotations: rotation of each rope, for shifts.
        key_weights: weights of the keys by the layer's number; see ``LayerCache``.

    Attributes:
        layers: cache of each layer, by its number. Layers that store nothing share the cache of the
            layer that they read.
        n_bytes: bytes of all layers.
        fixed_bytes: 0.
        state_bytes: 0.
        layout_version: see ``LAYOUT_VERSION``.
        max_guesses: limit on the guesses of a trial.
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
        self.max_guesses = MAX_GUESSES
        self.fixed_bytes = 0
        self.state_bytes = 0
        self.max_seq_len = _rounded_up(max_seq_len)
        self._has_learned_positions = bool(config.learned_positions)
        self.n_bytes = kv_needs(config, kv_type).bytes_for(self.max_seq_len)
        self._memory = Memory(self.n_bytes, fills_slowly=True)
        self.layers: dict[int, LayerCache] = {}
        offset = 0
        for number, attention in config.attentions.items():
            if attention.kv_of is not None:
                self.layers[number] = self.layers[attention.kv_of]
                continue
            rotation = None if attention.rope is None else rotations[attention.rope]
            weight = (key_weights or {}).get(number)
            n_slots = self.max_seq_len
            if attention.cache_window is not None:
                n_ring = ring_slots(attention.cache_window, config.picture_rows)
                n_slots = min(n_ring, n_slots)
            self.layers[number] = LayerCache(
                attention, rotation, kv_type, n_slots, self._memory, offset, weight
            )
            offset += n_slots * _position_bytes(attention, kv_type)
        layers = list(dict.fromkeys(self.layers.values()))
        self._layers = layers
        self._regions = regions_of(layers)
        self._full_regions = regions_of([layer for layer in layers if layer.window is None])
        self._ring_regions = regions_of([layer for layer in layers if layer.window is not None])
        self._reach = RingReach(
            frozenset((layer.window, layer.n_slots) for layer in layers if layer.window is not None)
        )
        self._saved_end: _SavedEnd | None = None

    def lend(self, config: ModelConfig) -> BorrowedCache:
        """Return the layers that the layers of another model name (``Attention.kv_of``)."""
        numbers = {n: attention.kv_of for n, attention in config.attentions.items()}
        layers = {n: self.layers[kv_of] for n, kv_of in numbers.items() if kv_of is not None}
        return BorrowedCache(self.kv_type, self.max_seq_len, layers)

    def reserve(self, n: int) -> None:
        """Prepare for writing positions up to n, which overwrites the oldest positions of rings.

        Raises:
            MemoryError: there is no memory to copy the rings for a saved position.
        """
        saved = self._saved_end
        if saved is not None and saved.rows is None and self._reach.reaches(saved.n):
            next_reach = replace(self._reach, end=max(n, self._reach.end))
            if not next_reach.reaches(saved.n):
                rows = [region.rows.copy() for region in self._ring_regions]
                self._saved_end = _SavedEnd(saved.n, rows, replace(self._reach))
        self._reach.write(n)

    def reserve_trial(self, first: int, n: int) -> None:
        """Prepare for computing positions from ``first`` up to n, each of which may be dropped."""
        self.reserve(n)

    def can_drop_guesses(self, n: int) -> bool:
        """Whether tokens after the first n can be dropped again at no cost."""
        return self.reachable(n - 1) == n - 1

    def commit(self, n: int) -> None:
        """Do nothing: written positions stay valid."""

    def make_checkpoint(self) -> None:
        """Do nothing: most positions stay reachable, and others are not worth a copy of the
        rings."""

    def checkpoint_before(self, n: int) -> int:
        """Return n."""
        return n

    def save_end(self, n: int) -> None:
        """Make the present end n reachable by ``rewind`` until ``drop_saved_end``. After a rewind
        to an earlier position, that one is saved instead.

        The rings are copied only when they are about to lose the position.
        """
        self._saved_end = _SavedEnd(n) if self._ring_regions else None

    def drop_saved_end(self) -> None:
        """Drop the position of ``save_end`` and free the copy of the rings."""
        self._saved_end = None

    def reachable(self, n: int) -> int:
        """Return the position that ``rewind(n)`` would go back to."""
        if self._reach.reaches(n):
            return n
        saved = self._saved_end
        if saved is None or saved.reach is None:
            return 0
        position = min(n, saved.n)
        if saved.reach.reaches(position):
            return position
        return 0

    def rewind(self, n: int) -> int:
        """Go back to n, or to a saved position or the start if a ring does not reach so far.

        Returns:
            New number of positions.
        """
        position = self.reachable(n)
        saved = self._saved_end
        if saved is not None and position <= saved.n:
            if position and saved.rows is not None and saved.reach is not None:
                for region, rows in zip(self._ring_regions, saved.rows, strict=True):
                    region.rows[...] = rows
                self._reach = saved.reach
            self._saved_end = _SavedEnd(position)
        if not position:
            self._reach.clear()
        return position

    def can_shift(self, n_keep: int, n_drop: int, length: int) -> bool:
        """Whether the rings will hold all positions that the last one sees after the shift.

        It is False for learned positions: keys and values cannot be moved to others.
        """
        if self._has_learned_positions:
            return False
        for window, n_slots in self._reach.rings:
            first_seen = max(0, length - n_drop - window + 1)
            if first_seen < n_keep and self._reach.first(n_slots) > first_seen:
                return False
        return True

    def shift(self, n_keep: int, n_drop: int, length: int, n_turned: int | None = None) -> None:
        """Move the positions after the dropped ones down and rotate their keys.

        Args:
            n_turned: number of positions that the keys move down by; None for ``n_drop``.
        """
        for layer in self._layers:
            first = n_keep + n_drop
            if layer.window is not None:
                first = max(first, self._reach.first(layer.n_slots))
            context_shift.drop_positions(layer, first - n_drop, n_drop, length, n_turned)
        self._reach.shift(n_keep, n_drop, length)
        self._saved_end = None

    @property
    def can_move_spans(self) -> bool:
        """Whether spans of positions can be moved: without learned positions and rings."""
        return not self._has_learned_positions and not self._ring_regions

    def move_spans(self, spans: Sequence[MovedSpan]) -> None:
        """Move spans to other positions and rotate their keys. They may be moved beyond the end."""
        for layer in self._layers:
            move_spans(layer, spans)

    def resident_bytes(self) -> int | None:
        """Estimate the bytes in memory from a sample of pages; None if the system does not say."""
        return residency.resident_bytes(self._memory.bytes, _GLANCE_PAGES)

    def repeat(self, n: int, upto: int) -> None:
        """Fill the cache up to a position with copies of the keys and values of the first n.

        The copies have no meaning, but reading them takes as long as reading a real context.

        Args:
            n: number of positions to copy, a multiple of eight.
            upto: position after the last copy, a multiple of eight.
        """
        self.reserve(upto)
        for region in self._regions:
            region.repeat(n, upto)

    def segment_end(self, first: int, limit: int) -> int:
        """Return ``limit``: computing can continue at every position."""
        return limit

    def copied_bytes(self, first: int, last: int, is_end: bool = False) -> int:
        """Return the largest number of bytes that ``copy_out`` writes for these positions."""
        return _copied_bytes(self._regions, first, last)

    def is_copy(self, first: int, last: int, n_bytes: int) -> bool:
        """Whether ``copy_out`` may have written this number of bytes for these positions."""
        return n_bytes in (
            self.copied_bytes(first, last),
            _copied_bytes(self._full_regions, first, last),
        )

    def has_state(self, copied: Copied) -> bool:
        """Return False: there are no recurrent layers."""
        return False

    def copy_out(self, first: int, last: int, out: Bytes, is_end: bool = False) -> int:
        """Copy the tiles of positions from first up to last: all elements by layer and head, then
        all scales.

        Sliding layers are left out if their rings no longer hold these positions. The GIL is
        released; positions that a kernel writes meanwhile have undefined content.

        Args:
            first: a multiple of eight.
            out: (at least ``copied_bytes(first, last)``,) uint8.

        Returns:
            Bytes written to ``out``.
        """
        if self._reach.holds(first):
            n_bytes = _copy_out(self._regions, first, last, out)
            # Another thread may have overwritten positions of the rings meanwhile.
            if self._reach.holds(first):
                return n_bytes
        return _copy_out(self._full_regions, first, last, out)

    def resumes_at(self, n: int, copies: Sequence[Copied]) -> int:
        """Return n if the copies have all positions that a window sees there, else 0."""
        lost = 0  # end of the last copy without the sliding layers
        for first, last, size in copies:
            if first < n and size < self.copied_bytes(first, last):
                lost = max(lost, last)
        if RingReach(self._reach.rings, lost=lost).reaches(n):
            return n
        return 0

    def copy_in(self, first: int, last: int, data: Bytes) -> None:
        """Restore the result of ``copy_out`` for the same positions, in ascending order. Positions
        beyond the cache are skipped.

        Call ``rewind`` afterwards: it finds out whether enough was restored.
        """
        is_all = len(data) == self.copied_bytes(first, last)
        n = _rounded_up(last) - first
        upto = min(_rounded_up(last), self.max_seq_len)
        offset = 0
        for region in self._regions if is_all else self._full_regions:
            size = region.copied_bytes(n)
            if first < upto:
                rows = data[offset : offset + size].reshape(len(region.rows), -1)
                region.copy_in(first, upto, rows)
            offset += size
        self._reach.write(min(last, self.max_seq_len))
        if not is_all:
            self._reach.lost = max(self._reach.lost, last)


@dataclass(frozen=True, eq=False)
class _SavedEnd:
    """Position to go back to.

    Attributes:
        rows: copy of the rings' rows; None while the rings still hold the position.
        reach: reach of the copied rings.
    """

    n: int
    rows: list[Bytes] | None = None
    reach: RingReach | None = None


def _copied_bytes(regions: Sequence[CacheRegion], first: int, last: int) -> int:
    return sum(region.copied_bytes(_rounded_up(last) - first) for region in regions)


def _copy_out(regions: Sequence[CacheRegion], first: int, last: int, out: Bytes) -> int:
    offset = 0
    for region in regions:
        size = region.copied_bytes(_rounded_up(last) - first)
        rows = out[offset : offset + size].reshape(len(region.rows), -1)
        region.copy_out(first, _rounded_up(last), rows)
        offset += size
    return offset


def _rounded_up(n: int) -> int:
    """Return the next multiple of the positions of a tile."""
    return (n + POSITIONS - 1) // POSITIONS * POSITIONS
