"""Dropping tokens from the middle of a cache: what lies behind moves down, its keys turned to their new positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cached_tokens import common_prefix
from engine.kv_cache import POSITIONS

if TYPE_CHECKING:
    from engine.kv_cache import KVCache
    from engine.models.decoder import Rotation

Floats = np.ndarray[Any, np.dtype[np.float32]]
_ITEMS = {"f16": np.float16, "f32": np.float32, "q8_0": np.int8}


def drop_positions(cache: KVCache, rotation: Rotation, n_keep: int, n_drop: int, length: int) -> None:
    """Move keys and values of [n_keep + n_drop, length) to n_keep, one layer after the other.

    Rotations of a plane add up, so a key of position p that is turned by -n_drop is one of position p - n_drop. What
    the keys and values say of the dropped tokens, which they were computed behind, stays in them.
    """
    n_kv_heads = cache.elements.shape[1] // 2
    for layer in range(len(cache.elements)):
        for heads in (cache.elements, cache.scales):
            _move(heads[layer, n_kv_heads:], cache.max_seq_len, n_keep, n_drop, length)
        keys = _keys(cache, layer, n_keep + n_drop, length)
        _turn(keys, rotation, -n_drop)
        _put_keys(cache, layer, n_keep, keys)


def find_gap(cached: Sequence[int], wanted: Sequence[int], fewest: int) -> tuple[int, int] | None:
    """Find out whether a cache holds what is wanted but for a run of tokens in its midst.

    Args:
        fewest: tokens behind the gap, at least, for it to count.

    Returns:
        Where the gap begins and how long it is, if all that lies behind it is wanted next; the shortest such gap.
    """
    n_keep = common_prefix(cached, wanted)
    if n_keep == len(wanted):
        return None
    for n_drop in range(1, len(cached) - n_keep - fewest + 1):
        n_rest = len(cached) - n_keep - n_drop
        is_next = cached[n_keep + n_drop] == wanted[n_keep]
        if is_next and list(cached[n_keep + n_drop :]) == list(wanted[n_keep : n_keep + n_rest]):
            return n_keep, n_drop
    return None


def _move(rows: np.ndarray[Any, np.dtype[np.uint8]], n_rows: int, n_keep: int, n_drop: int, length: int) -> None:
    """Move rows of (n_heads, bytes), which lie one behind the other in each head."""
    each = rows.shape[1] // n_rows
    rows[:, n_keep * each : (length - n_drop) * each] = rows[:, (n_keep + n_drop) * each : length * each].copy()


def _keys(cache: KVCache, layer: int, first: int, last: int) -> Floats:
    """Keys of some positions: (n_kv_heads, last - first, head_dim) float32."""
    from_tile, upto_tile = first // POSITIONS, -(-last // POSITIONS)
    tiles, scales = _tiles(cache, layer)
    part = tiles[:, from_tile:upto_tile].astype(np.float32)
    if scales is not None:
        group = part.shape[2] // scales.shape[2]
        part *= np.repeat(scales[:, from_tile:upto_tile], group, axis=2)
    rows = part.swapaxes(2, 3).reshape(len(part), -1, part.shape[2])
    found: Floats = rows[:, first - from_tile * POSITIONS : last - from_tile * POSITIONS].copy()
    return found


def _put_keys(cache: KVCache, layer: int, first: int, keys: Floats) -> None:
    """Write keys at positions from ``first`` on, as the kernels do."""
    tiles, scales = _tiles(cache, layer)
    if scales is None:
        _scatter(tiles, first, keys.astype(tiles.dtype))
        return
    groups = keys.reshape(*keys.shape[:2], scales.shape[2], -1)
    top = np.abs(groups).max(-1)
    inverse = np.divide(127.0, top, out=np.zeros_like(top), where=top > 0)
    _scatter(tiles, first, np.rint(groups * inverse[..., None]).astype(np.int8).reshape(keys.shape))
    _scatter(scales, first, (top / np.float32(127)).astype(np.float16).astype(np.float32))


def _scatter(tiles: np.ndarray[Any, Any], first: int, rows: np.ndarray[Any, Any]) -> None:
    """Write (n_heads, n, width) into (n_heads, n_tiles, width, 8)."""
    position = np.arange(first, first + rows.shape[1])
    tiles[:, position // POSITIONS, :, position % POSITIONS] = rows.swapaxes(0, 1)


def _tiles(cache: KVCache, layer: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """A layer's keys as (n_kv_heads, n_tiles, head_dim, 8), and their scales as (n_kv_heads, n_tiles, n_groups, 8)."""
    n_kv_heads, n_tiles = cache.elements.shape[1] // 2, cache.max_seq_len // POSITIONS
    elements = cache.elements[layer, :n_kv_heads].view(_ITEMS[cache.kv_type.name])
    keys = elements.reshape(n_kv_heads, n_tiles, -1, POSITIONS)
    if not cache.scale_bytes:
        return keys, None
    return keys, cache.scales[layer, :n_kv_heads].view(np.float32).reshape(n_kv_heads, n_tiles, -1, POSITIONS)


def _turn(keys: Floats, rotation: Rotation, positions: int) -> None:
    """Rotate every pair of (..., head_dim) by so many positions, in place."""
    first = np.arange(len(rotation.frequencies)) * rotation.pair_step
    second = first + rotation.pair_distance
    cos, sin = (f(positions * rotation.frequencies).astype(np.float32) for f in (np.cos, np.sin))
    x, y = keys[..., first], keys[..., second]
    keys[..., first], keys[..., second] = x * cos - y * sin, x * sin + y * cos
