"""Attention's kernels: near their twin, and the same to the bit by token, by block, by thread and
by neighbours."""

from itertools import pairwise

import numpy as np
import pytest

from engine.cache.kv_types import KV_TYPES
from tests.engine.attention_call import Layer, Shape, as_kept

TYPES = [
    "f16",
    pytest.param("q8_0/q4_0", marks=pytest.mark.slow),
    pytest.param("f32", marks=pytest.mark.slow),
]
TOKENS = 40
SHAPES = {
    "seven heads": Shape(14, 2, 64), "six heads": Shape(12, 2, 128), "three heads": Shape(9, 3, 64),
    "one head each": Shape(3, 3, 96), "two heads of 256": Shape(4, 2, 256),
    "five heads": Shape(5, 1, 32),
    "eight heads": Shape(8, 1, 64), "more heads than a list holds": Shape(71, 1, 64),
    "window": Shape(4, 1, 64, 100),
    "short window": Shape(4, 2, 32, 3), "cap": Shape(4, 2, 64, 0, 2.0),
    "large heads": Shape(2, 1, 512),
}  # fmt: skip


def filled(
    shape: Shape, kv: str, n_slots: int, with_sinks: bool = False, with_slopes: bool = False
) -> Layer:
    rng = np.random.default_rng(shape.n_heads)
    extras = (rng.standard_normal(shape.n_heads).astype(np.float32) for _ in range(2))
    sinks, slopes = (
        extra if is_used else None
        for extra, is_used in zip(extras, (with_sinks, with_slopes), strict=True)
    )
    layer = Layer(
        shape, KV_TYPES[kv], n_slots, sinks=sinks, slopes=None if slopes is None else slopes / 50
    )
    layer.heads = rng.standard_normal((2, shape.n_kv_heads, n_slots, shape.head_dim)).astype(
        np.float32
    )
    layer.fill(*layer.heads)
    return layer


def queries(shape: Shape, n: int) -> np.ndarray:
    return (
        np.random.default_rng(n)
        .standard_normal((n, shape.n_heads, shape.head_dim))
        .astype(np.float32)
    )


def twin(layer: Layer, x: np.ndarray, pos: int) -> np.ndarray:
    """Compute attention in float64, without rings."""
    shape = layer.shape
    kv = layer.kv
    k, v = (
        as_kept(element_type, heads).astype(np.float64)
        for element_type, heads in zip((kv.keys, kv.values), layer.heads, strict=True)
    )
    out = np.zeros(x.shape)
    group = shape.n_heads // shape.n_kv_heads
    for t in range(len(x)):
        end = pos + t + 1
        seen = slice(max(0, end - shape.window) if shape.window else 0, end)
        for h in range(shape.n_heads):
            scores = k[h // group, seen] @ x[t, h].astype(np.float64) / np.sqrt(shape.head_dim)
            if shape.soft_cap:
                scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
            if layer.slopes is not None:
                scores += layer.slopes[h] * np.arange(seen.start - end + 1, 1)
            e = np.exp(scores)
            sink = 0 if layer.sinks is None else np.exp(np.float64(layer.sinks[h]))
            out[t, h] = e @ v[h // group, seen] / (e.sum() + sink)
    return out


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_a_prompt_is_its_tokens_to_the_bit_and_near_its_twin(kv: str, name: str) -> None:
    shape = SHAPES[name]
    layer = filled(shape, kv, 600)
    x = queries(shape, TOKENS)
    pos = 491
    attended = layer.prompt(x, pos)
    assert np.abs(attended - twin(layer, x, pos)).max() < 2e-6
    for t in (0, 1, 20, 21, TOKENS - 1):  # a chunk ends after the 21st
        assert (layer.decode(x[t], pos + t, n_threads=1 + t % 3) == attended[t]).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_neither_cuts_nor_threads_change_a_bit(n_threads: int) -> None:
    shape = SHAPES["seven heads"]
    layer = filled(shape, "f16", 600)
    x = queries(shape, TOKENS)
    pos = 230
    expected = layer.prompt(x, pos)
    cuts = (0, 1, 2, 5, 16, TOKENS)
    pieces = [layer.prompt(x[a:b], pos + a, n_threads) for a, b in pairwise(cuts)]
    assert (np.concatenate(pieces) == expected).all()


@pytest.mark.parametrize("window", [0, 200])
def test_sinks_and_slopes_weigh_in_both_paths(window: int) -> None:
    shape = Shape(6, 3, 64, window)
    layer = filled(shape, "f16", 600, with_sinks=True, with_slopes=True)
    x = queries(shape, TOKENS)
    pos = 500
    attended = layer.prompt(x, pos, 2)
    assert np.abs(attended - twin(layer, x, pos)).max() < 2e-6
    assert (layer.decode(x[-1], pos + TOKENS - 1) == attended[-1]).all()


def test_what_lies_after_a_token_does_not_reach_it() -> None:
    shape = SHAPES["seven heads"]
    layer = filled(shape, "f16", 128)
    x = queries(shape, 9)
    attended = layer.prompt(x, 20)
    layer.heads[:, :, 29:] = 60000.0
    layer.fill(*layer.heads)
    assert (layer.prompt(x, 20) == attended).all()


def test_from_the_first_token_on() -> None:
    shape = SHAPES["three heads"]
    layer = filled(shape, "f16", 64)
    x = queries(shape, 3)
    assert np.abs(layer.prompt(x, 0) - twin(layer, x, 0)).max() < 2e-6
    assert (layer.decode(x[0], 0) == layer.prompt(x, 0)[0]).all()


def test_a_ring_gives_what_the_whole_cache_gives() -> None:
    shape = Shape(4, 2, 64, 200)
    n = 1300
    pos = 1200
    expected = filled(shape, "f16", n + 12)
    ring = Layer(shape, KV_TYPES["f16"], 512)
    heads = expected.heads[:, :, pos + TOKENS - 512 : pos + TOKENS]
    ring.fill(*np.roll(heads, (pos + TOKENS) % 512, axis=2))
    x = queries(shape, TOKENS)
    assert (ring.prompt(x, pos) == expected.prompt(x, pos)).all()
    assert (ring.decode(x[-1], pos + TOKENS - 1) == expected.decode(x[-1], pos + TOKENS - 1)).all()
