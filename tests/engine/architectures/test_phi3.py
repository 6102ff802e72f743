"""The phi3 architecture: twin, tiny model, and the two sets of factors of longrope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.models import expected_tensors
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

QKV = "attn_q.weight", "attn_k.weight", "attn_v.weight"


def tiny(is_fused: bool = True, **arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("phi3", **{"vocabulary": "spm", **arguments})
    described.fuse("ffn_up.weight", "ffn_gate.weight", "ffn_up.weight")
    if is_fused:
        described.fuse("attn_qkv.weight", *QKV)
    return described


def logits(twin: Twin, ids: list[int], length: str = "short") -> Array:
    magnitude = twin.key("rope.scaling.attn_factor", 1.0)
    turn = twin.turner(len(ids), neighbours=False, magnitude=magnitude, factors=f"rope_factors_{length}.weight")
    x = twin.embed(ids)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), turn)
        x = x + twin.fused_feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x)


def longrope(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Heads that are turned in part, and whose factors differ."""
    return longrope_of(tiny(**arguments))


def longrope_of(described: tiny_gguf.TinyGGUF) -> tiny_gguf.TinyGGUF:
    architecture = described.value("general.architecture")
    described.set(f"{architecture}.rope.dimension_count", 12)
    described.set(f"{architecture}.rope.scaling.original_context_length", 64)
    described.set(f"{architecture}.rope.scaling.attn_factor", 1.3)
    described.add_vector("rope_factors_short.weight", np.linspace(1, 1.8, 6))
    described.add_vector("rope_factors_long.weight", np.geomspace(1, 64, 6))
    return described


@pytest.mark.parametrize(("n_ctx", "length", "other"), [(64, "short", "long"), (65, "long", "short")])
def test_the_sessions_context_chooses_the_factors(n_ctx: int, length: str, other: str, tmp_path: Path) -> None:
    model = Model.open(longrope().write(tmp_path / "m.gguf"))
    session, twin = model.session(n_ctx=n_ctx, kv="f32"), Twin(model._checked)
    found = session.feed(IDS, every=True)
    assert nmse(found, logits(twin, IDS, length)) < 1e-9
    assert nmse(found, logits(twin, IDS, other)) > 1e-5
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), logits(twin, IDS, length)) < 1e-9
    model.close()


def test_projections_of_their_own_compute_the_same(tmp_path: Path) -> None:
    fused, split = (Model.open(tiny(one).write(tmp_path / f"{one}.gguf")) for one in (True, False))
    results = [model.session(n_ctx=64).feed(IDS, every=True) for model in (fused, split)]
    assert results[0].tobytes() == results[1].tobytes()
    for model in (fused, split):
        model.close()


def test_projections_that_are_there_twice_or_half_are_refused(tmp_path: Path) -> None:
    twice, half = tiny(), tiny(is_fused=False)
    twice.tensors.append(half.tensor("blk.0.attn_k.weight"))
    half.drop_tensor("blk.1.attn_v.weight")
    assert "attn_k.weight is there twice" in refusal(twice.write(tmp_path / "model.gguf"))
    assert "blk.1.attn_v.weight is missing" in refusal(half.write(tmp_path / "model.gguf"))


def test_factors_of_both_lengths_are_checked(tmp_path: Path) -> None:
    model = Model.open(tiny().write(tmp_path / "m.gguf"))
    assert {"rope_factors_short.weight", "rope_factors_long.weight"} <= set(expected_tensors(model.config))
    model.close()
    for name in ("rope_factors_short.weight", "rope_factors_long.weight"):
        described = longrope()
        described.fill(name, -1.0)
        assert f"tensor {name} holds a factor" in refusal(described.write(tmp_path / "model.gguf"))
