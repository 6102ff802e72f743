"""Context shift: drops tokens from the middle of a cache and moves later ones down."""

from collections.abc import Sequence

from engine.cache.cached_tokens import common_prefix
from engine.cache.layer_cache import LayerCache


def drop_positions(
    layer: LayerCache, n_keep: int, n_drop: int, length: int, n_turned: int | None = None
) -> None:
    """Move one layer's keys and values of [n_keep + n_drop, length) to n_keep.

    Rotations add up, so a key of position p, rotated by -n_drop, is the key of position p - n_drop.
    The influence of the dropped tokens on the moved keys and values remains.

    Args:
        n_turned: number of positions that the keys move down by, if that is not ``n_drop``.
    """
    layer.values.move(n_keep, n_keep + n_drop, length)
    keys = layer.keys.read_tiles(n_keep + n_drop, length)
    layer.rotate(keys, -(n_drop if n_turned is None else n_turned))
    layer.keys.write_tiles(n_keep, keys)


def find_gap(
    cached: Sequence[int], prompt: Sequence[int], min_moved: int
) -> tuple[int, int] | None:
    """Find one run of cached tokens whose removal makes the cache a prefix of a prompt.

    Args:
        cached: token ids in the cache.
        prompt: token ids of the next prompt.
        min_moved: least number of cached tokens after the gap.

    Returns:
        (position, length) of the shortest such gap, or None.
    """
    n_keep = common_prefix(cached, prompt)
    if n_keep == len(prompt):
        return None
    for n_drop in range(1, len(cached) - n_keep - min_moved + 1):
        if cached[n_keep + n_drop] != prompt[n_keep]:
            continue
        moved = list(cached[n_keep + n_drop :])
        if moved == list(prompt[n_keep : n_keep + len(moved)]):
            return n_keep, n_drop
    return None
