"""The bitnet architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_attention, silu
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, assert_equals_twin, nmse

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Every matrix has a scale, and every other one's is far from one."""
    described = tiny_gguf.decoder("bitnet", **{"vocabulary": "bpe", "tied": True, **arguments})
    rng = np.random.default_rng(5)
    for tensor in list(described.tensors):
        stem = str(tensor.name).removesuffix(".weight")
        if stem.endswith(MATRICES):
            described.add_vector(stem + ".scale", rng.uniform(0.4, 2.5, 1))
        width = {"attn_output": "attn_sub_norm", "ffn_down": "ffn_sub_norm"}.get(stem.split(".")[-1])
        if width:
            block = stem.rpartition(".")[0]
            described.add_vector(f"{block}.{width}.weight", 1 + 0.1 * rng.standard_normal(tensor.dims[0]))
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    def product(x: Array, name: str) -> Array:
        scale = twin.tensor(name + ".scale")
        return twin.project(x, name) * (1.0 if scale is None else scale)

    x, turn, n = twin.embed(ids), twin.turner(len(ids), neighbours=False), len(ids)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        q, k, v = (product(h, block + f"attn_{x}").reshape(n, -1, twin.key("attention.key_length")) for x in "qkv")
        attended = causal_attention(turn(q) * q.shape[-1] ** -0.5, turn(k), v).reshape(n, -1)
        x = x + product(twin.norm(attended, block + "attn_sub_norm"), block + "attn_output")
        h = twin.norm(x, block + "ffn_norm")
        hidden = silu(product(h, block + "ffn_gate")) * product(h, block + "ffn_up")
        x = x + product(twin.norm(hidden, block + "ffn_sub_norm"), block + "ffn_down")
    return twin.head(x)


def test_a_file_without_scales_equals_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny()
    described.drop_tensors(".scale")
    assert_equals_twin(described, logits, tmp_path)


@pytest.mark.parametrize("name", MATRICES)
def test_each_scale_counts(name: str, tmp_path: Path) -> None:
    described = tiny()
    described.set("bitnet.attention.layer_norm_rms_epsilon", 0.1)  # else norms undo those of what they read
    plain = Model.open(described.write(tmp_path / "plain.gguf"))
    described.fill(f"blk.1.{name}.scale", 4.0)
    model = Model.open(described.write(tmp_path / "m.gguf"))
    found, before = (one.session(n_ctx=64, kv="f32").feed(IDS, every=True) for one in (model, plain))
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    assert nmse(found, before) > 1e-5
    model.close()
    plain.close()


def test_a_width_that_no_norm_takes_is_refused(tmp_path: Path) -> None:
    path = tiny(hidden_dim=100).write(tmp_path / "model.gguf")
    assert "bitnet.feed_forward_length is 100: must be a multiple of 8" in refusal(path)


@pytest.mark.slow
def test_types_of_three_values_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(quant="TQ2_0", n_layers=1)
    tensor = described.tensor("blk.0.ffn_up.weight")
    other = tiny_gguf.quantised(tensor.name, "TQ1_0", 512, 256, 1 / 16, np.random.default_rng(3))
    tensor.ggml_type, tensor.data = other.ggml_type, other.data
    assert_equals_twin(described, logits, tmp_path, 1e-3)
