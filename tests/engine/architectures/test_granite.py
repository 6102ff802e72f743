"""The granite architecture: twin, tiny model, and its multipliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.refusals import refusal
from tests.engine.test_models import IDS, nmse

SCALES = {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.1, "logit_scale": 4.0}


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("granite", **{"vocabulary": "spm", **arguments})
    for key, value in SCALES.items():
        described.set(f"granite.{key}", value)
    described.set("granite.attention.layer_norm_rms_epsilon", 1e-2)  # so that it counts next to the stream
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids) * (twin.key("embedding_scale") or 1.0), twin.turner(len(ids), neighbours=True)
    if twin.key("rope.scaling.finetuned") is False:
        turn = np.copy
    residual_scale, scale = twin.key("residual_scale") or 1.0, twin.key("attention.scale") or None
    for block in twin.blocks:
        x = x + residual_scale * twin.attention(block, twin.norm(x, block + "attn_norm"), turn, scale=scale)
        x = x + residual_scale * twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x) / twin.key("logit_scale")


@pytest.mark.parametrize("is_nought", [False, True])
@pytest.mark.parametrize("key", [key for key in SCALES if key != "logit_scale"])
def test_each_multiplier_counts_and_may_be_left_out_or_nought(key: str, is_nought: bool, tmp_path: Path) -> None:
    described = tiny()
    described.drop(f"granite.{key}")
    if is_nought:
        described.set(f"granite.{key}", 0.0)
    model, full = Model.open(described.write(tmp_path / "m.gguf")), Model.open(tiny().write(tmp_path / "full.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    assert nmse(found, logits(Twin(full._checked), IDS)) > 1e-5, "the key makes no difference"
    model.close()
    full.close()


def test_no_rope_and_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny()
    described.set("granite.rope.scaling.finetuned", False)
    described.add_biases("attn_output", "ffn_gate", "ffn_up", "ffn_down")
    model = Model.open(described.write(tmp_path / "m.gguf"))
    assert model.config.ropes == ()
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()


def test_multipliers_that_are_no_positive_numbers_are_refused(tmp_path: Path) -> None:
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        for value in (-1.0, float("nan"), "x"):
            described = tiny()
            described.set(f"granite.{key}", value)
            assert f"granite.{key}" in refusal(described.write(tmp_path / "model.gguf"))
    described = tiny()
    described.set("granite.logit_scale", 0.0)
    assert "granite.logit_scale" in refusal(described.write(tmp_path / "model.gguf"))
    described = tiny()
    described.set("granite.rope.scaling.finetuned", "yes")
    assert "rope.scaling.finetuned" in refusal(described.write(tmp_path / "model.gguf"))
