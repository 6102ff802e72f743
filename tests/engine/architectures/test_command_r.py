"""The command-r architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal
from tests.engine.test_models import assert_equals_twin


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("command-r", **{"vocabulary": "bpe", "tied": True, **arguments})
    described.drop_tensors("ffn_norm.weight")
    described.drop("command-r.attention.layer_norm_rms_epsilon")
    described.set("command-r.attention.layer_norm_epsilon", 1e-5)
    described.set("command-r.logit_scale", 0.25)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=True)
    has_norms = len(twin.blocks) >= 64
    for block in twin.blocks:
        h = twin.layer_norm(x, block + "attn_norm")
        attended = twin.attention(block, h, turn, has_head_layer_norms=has_norms)
        x = x + attended + twin.feed_forward(block, h)
    normed = twin.layer_norm(x, "output_norm")
    return twin.unembed(normed) * twin.key("logit_scale", 1.0)


def test_sixty_four_layers_with_head_norms_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=64, dim=32, hidden_dim=16)
    assert "blk.0.attn_q_norm.weight is missing" in refusal(described.write(tmp_path / "model.gguf"))
    described.with_head_layer_norms()
    assert_equals_twin(described, logits, tmp_path)


def test_norms_of_queries_in_fewer_layers_are_refused(tmp_path: Path) -> None:
    described = tiny()
    described.add_vector("blk.0.attn_q_norm.weight", np.ones(64))
    assert "blk.0.attn_q_norm.weight is unknown" in refusal(described.write(tmp_path / "model.gguf"))
