"""The stablelm architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.refusals import Break, refusal
from tests.engine.test_models import assert_equals_twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """A quarter of each head is turned."""
    described = tiny_gguf.decoder("stablelm", **{"vocabulary": "bpe", **arguments})
    described.set("stablelm.rope.dimension_count", 4)
    described.with_layer_norms()
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        has_norms = twin.tensor(block + "attn_q_norm.weight") is not None
        h = twin.layer_norm(x, block + "attn_norm")
        attended = twin.attention(block, h, turn, has_head_layer_norms=has_norms)
        if twin.tensor(block + "ffn_norm.weight") is not None:
            h = twin.layer_norm(x + attended, block + "ffn_norm")
        x = x + attended + twin.feed_forward(block, h)
    return twin.unembed(twin.layer_norm(x, "output_norm"))


def test_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    assert_equals_twin(tiny(biases=True), logits, tmp_path)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_norms_of_heads_equal_the_numpy_twin(side_by_side: bool, n_kv_heads: int, tmp_path: Path) -> None:
    described = tiny(n_kv_heads=n_kv_heads)
    described.with_head_layer_norms()
    if side_by_side:
        described.drop_tensors("ffn_norm.weight", "ffn_norm.bias")
    assert_equals_twin(described, logits, tmp_path)


def _lacks_a_norm(described: tiny_gguf.TinyGGUF) -> None:
    described.drop_tensor("blk.1.attn_k_norm.weight")


def _has_a_short_norm(described: tiny_gguf.TinyGGUF) -> None:
    described.drop_tensor("blk.1.attn_k_norm.weight")
    described.add_vector("blk.1.attn_k_norm.weight", np.ones(16))


def _has_a_norm_of_another_type(described: tiny_gguf.TinyGGUF) -> None:
    tensor = described.tensor("blk.1.attn_k_norm.weight")
    tensor.ggml_type, tensor.data = 1, bytes(len(tensor.data) // 2)


def _has_a_damaged_norm(described: tiny_gguf.TinyGGUF) -> None:
    described.fill("blk.1.attn_k_norm.weight", float("nan"))


def _lacks_a_norm_of_a_feed_forward(described: tiny_gguf.TinyGGUF) -> None:
    described.drop_tensors("blk.0.ffn_norm.weight", "blk.0.ffn_norm.bias")


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (_lacks_a_norm, "tensor blk.1.attn_k_norm.weight is missing"),
        (_has_a_short_norm, "tensor blk.1.attn_k_norm.weight has shape 16, the hyperparameters say 2 x 16"),
        (_has_a_norm_of_another_type, "tensor blk.1.attn_k_norm.weight is F16; norms"),
        (_has_a_damaged_norm, "tensor blk.1.attn_k_norm.weight holds NaN"),
        (_lacks_a_norm_of_a_feed_forward, "tensor blk.1.ffn_norm.weight is unknown"),
    ],
)
def test_missing_or_unsound_norms_are_refused(break_it: Break, name: str, tmp_path: Path) -> None:
    described = tiny()
    described.with_head_layer_norms()
    break_it(described)
    assert name in refusal(described.write(tmp_path / "model.gguf"))
