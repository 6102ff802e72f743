"""The starcoder2 architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, gelu
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("starcoder2", **{"vocabulary": "bpe", **arguments})
    described.drop_tensors("ffn_gate.weight")
    described.with_layer_norms()
    described.add_biases("attn_output", "ffn_up", "ffn_down")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.layer_norm(x, block + "attn_norm"), turn)
        x = x + twin.plain_feed_forward(block, twin.layer_norm(x, block + "ffn_norm"), gelu)
    return twin.unembed(twin.layer_norm(x, "output_norm"))


def test_width_100_and_a_mean_far_from_zero_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(biases=True, hidden_dim=100, dim=40, head_dim=16)
    bias = described.tensor("blk.0.ffn_down.bias")
    bias.data = np.linspace(50, 51, 40, dtype="<f4").tobytes()
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-8
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-8
    model.close()
