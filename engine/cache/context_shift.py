"""Dropping tokens from the middle of a cache: later positions move down, their keys rotated to the
new positions."""

from collections.abc import Sequence

from engine.cache.cached_tokens import common_prefix
from engine.cache.layer_cache import LayerCache


def drop_positions(layer: LayerCache, n_keep: int, n_drop: int, length: int) -> None:
    """Move one layer's keys and values of [n_keep + n_drop, length) to n_keep.

    Rotations add up, so rotating a key of position p by -n_drop gives the key of position p -
    n_drop. The influence of the dropped tokens on the moved keys and values remains.
    """
    layer.values.move(n_keep, n_keep + n_drop, length)
    keys = layer.keys.read_tiles(n_keep + n_drop, length)
    layer.turn(keys, -n_drop)
    layer.keys.write_tiles(n_keep, keys)


def find_gap(cached: Sequence[int], wanted: Sequence[int], fewest: int) -> tuple[int, int] | None:
    """Find one run of cached tokens whose removal makes the cache a prefix of ``wanted``.

    Args:
        cached: token ids in the cache.
        wanted: token ids of the next prompt.
        fewest: least number of cached tokens after the gap.

    Returns:
        (position, length) of the shortest such gap, or None.
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
