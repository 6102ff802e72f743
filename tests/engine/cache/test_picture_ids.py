"""Ids of the rows of pictures in lists of tokens."""

import hashlib

import numpy as np
import pytest

from engine.cache.cached_tokens import CachedTokens
from engine.cache.picture_ids import (
    LOWEST_ID,
    PictureSpan,
    grid_positions,
    part_ids,
    part_start,
    spans_in,
    text_ids,
)

DIGESTS = [hashlib.sha256(text).hexdigest() for text in (b"cat", b"dog")]


def test_ids_are_negative_and_fit_into_32_bits() -> None:
    ids = part_ids(DIGESTS[0], 0, 64, 64, True)
    assert len(ids) == len(set(ids)) == 4096
    assert min(ids) >= LOWEST_ID
    assert max(ids) < 0


def test_pictures_parts_and_grids_have_other_ids() -> None:
    all_ids = [
        part_ids(digest, part, *grid, True)
        for digest in DIGESTS
        for part in (0, 1)
        for grid in ((3, 4), (4, 3))
    ]
    assert len({tuple(ids) for ids in all_ids}) == 8
    firsts = {ids[0] for ids in all_ids}
    assert len(firsts) == 4  # the digest and the part decide the first rows
    assert part_ids(DIGESTS[0], 0, 3, 4, True)[-1] == part_ids(DIGESTS[1], 0, 3, 4, True)[-1]


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (11, 20), (69, 1), (1, 8192), (64, 64)])
@pytest.mark.parametrize("has_positions", [False, True])
def test_a_span_is_found_with_its_grid(grid: tuple[int, int], has_positions: bool) -> None:
    ids = part_ids(DIGESTS[0], 2, *grid, has_positions)
    assert list(spans_in([5, 6, *ids, *ids, 7])) == [
        PictureSpan(2, *grid, has_positions),
        PictureSpan(2 + len(ids), *grid, has_positions),
    ]


def test_spans_of_damaged_lists_are_left_out() -> None:
    ids = part_ids(DIGESTS[0], 0, 3, 4, True)
    assert not list(spans_in([1, *ids[:-1]]))
    assert not list(spans_in([1, *ids[1:], 2]))
    assert not list(spans_in([1, *ids[:5], 2, *ids[5:]]))


@pytest.mark.parametrize("grid", [(1, 1), (0, 5), (8193, 1)])
def test_grids_out_of_bounds_are_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="picture of"):
        part_ids(DIGESTS[0], 0, *grid, True)


def test_part_start_is_that_of_the_part_around_an_index() -> None:
    ids = part_ids(DIGESTS[0], 0, 1, 4, False)
    tokens = [1, 2, *ids, *ids, 3]
    starts = [part_start(tokens, n) for n in range(len(tokens) + 1)]
    assert starts == [0, 1, 2, 2, 2, 2, 6, 6, 6, 6, 10, 11]


def test_positions_follow_the_grid_or_the_rows() -> None:
    assert grid_positions(PictureSpan(9, 2, 3, True)).tolist() == [
        [0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 1, 1], [0, 1, 2],
    ]  # fmt: skip
    assert grid_positions(PictureSpan(9, 1, 3, False)).tolist() == [[n] * 3 for n in range(3)]


def test_a_cache_follows_the_positions_of_its_pictures() -> None:
    cached = CachedTokens()
    ids = part_ids(DIGESTS[0], 0, 3, 4, True)
    cached.append([1, 2])
    cached.append(ids[:5])
    assert (cached.pictures, cached.position_offset) == ([], 0)
    cached.append(ids[5:])
    cached.append([3])
    cached.append([*ids, 4, 5])
    assert cached.position_offset == 2 * (4 - 12)
    assert cached.n_positions(0, 14) == 2 + 4
    cached.cut(20)
    assert cached.position_offset == 4 - 12
    assert text_ids(cached.ids) == [1, 2, 3]


def test_appended_blocks_of_any_size_give_the_same_pictures() -> None:
    rng = np.random.default_rng(2)
    tokens = [1, *part_ids(DIGESTS[0], 0, 3, 4, True), *part_ids(DIGESTS[1], 0, 2, 2, False), 7, 8]
    for _ in range(20):
        cached = CachedTokens()
        ends = [*sorted(rng.integers(0, len(tokens), 4).tolist()), len(tokens)]
        for first, end in zip([0, *ends], ends, strict=False):
            cached.append(tokens[first:end])
        assert cached.ids == tokens
        assert cached.pictures == list(spans_in(tokens))
