"""The llama architecture: twin, tiny model, and its variants."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, assert_equals_twin, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_gguf.decoder("llama", **{"vocabulary": "spm", **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=True)

    def experts(block: str, h: Array) -> Array:
        return twin.experts(block, h, twin.routes(block, h, is_renormalised=True))

    feed_forward = experts if twin.key("expert_count", 0) > 1 else None
    return twin.head(twin.pre_norm_layers(twin.embed(ids), partial(twin.attention, turn=turn), feed_forward))


@pytest.mark.parametrize("n_experts", [1, 8])
def test_mixtral_and_a_single_expert_equal_the_numpy_twin(n_experts: int, tmp_path: Path) -> None:
    described = tiny()
    if n_experts > 1:
        described.with_experts(n_experts, hidden_dim=described.value("llama.feed_forward_length"))
    described.set("llama.expert_count", n_experts)
    assert_equals_twin(described, logits, tmp_path)


@pytest.mark.parametrize("arguments", [{"rope_factors": True}, {"tied": True}, {"n_kv_heads": 4}, {"biases": True}])
def test_variants_equal_the_numpy_twin(arguments: dict[str, Any], tmp_path: Path) -> None:
    assert_equals_twin(tiny(**arguments), logits, tmp_path)


def test_biases_of_every_projection_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(biases=True)
    described.add_biases("attn_output", "ffn_gate", "ffn_up", "ffn_down")
    assert_equals_twin(described, logits, tmp_path)


def test_stretched_positions_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=1)
    described.set("llama.rope.scaling.factor", 4.0)
    assert_equals_twin(described, logits, tmp_path)


def test_layers_of_different_heads_and_widths_equal_the_twin(tmp_path: Path) -> None:
    model = Model.open(unlike_layers().write(tmp_path / "m.gguf"), threads=2)
    assert [one.n_kv_heads for one in model.config.attentions.values()] == [2, 4, 1]
    wanted = logits(Twin(model._checked), IDS)
    for kv, bound in (("f32", 1e-9), ("f16", 1e-6)):
        session = model.session(n_ctx=64, kv=kv)
        assert nmse(session.feed(IDS, every=True), wanted) < bound
        session.truncate(0)
        assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < bound
    model.close()


def unlike_layers(head_dim: int = 16) -> tiny_gguf.TinyGGUF:
    """Three layers, none like another."""
    described = tiny(n_layers=3, head_dim=head_dim)
    kv_heads, hidden = [2, 4, 1], [96, 64, 128]
    described.set("llama.attention.head_count_kv", np.array(kv_heads, "<u4"))
    described.set("llama.feed_forward_length", np.array(hidden, "<u4"))
    rng = np.random.default_rng(1)
    for layer in range(3):
        block = f"blk.{layer}."
        for name, rows, cols in (
            ("attn_k", head_dim * kv_heads[layer], 64),
            ("attn_v", head_dim * kv_heads[layer], 64),
            ("ffn_gate", hidden[layer], 64),
            ("ffn_up", hidden[layer], 64),
            ("ffn_down", 64, hidden[layer]),
        ):
            full_name = f"{block}{name}.weight"
            described.drop_tensor(full_name)
            described.tensors.append(tiny_gguf.quantised(full_name, "F32", rows, cols, cols**-0.5, rng))
    return described
