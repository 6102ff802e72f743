"""Dropping tokens from the middle of a cache: what lies behind moves down, its keys turned to their new positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.cache.cached_tokens import common_prefix

if TYPE_CHECKING:
    from engine.cache.kv_cache import LayerCache


def drop_positions(layer: LayerCache, n_keep: int, n_drop: int, length: int) -> None:
    """Move one layer's keys and values of [n_keep + n_drop, length) to n_keep.

    Rotations of a plane add up, so a key of position p that is turned by -n_drop is one of position p - n_drop. What
    the keys and values say of the dropped tokens, which they were computed behind, stays in them.
    """
    layer.values.move(n_keep, n_keep + n_drop, length)
    keys = layer.keys.read_tiles(n_keep + n_drop, length)
    layer.turn(keys, -n_drop)
    layer.keys.write_tiles(n_keep, keys)


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
