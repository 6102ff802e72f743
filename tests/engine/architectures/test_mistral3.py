"""The mistral3 architecture: twin, tiny model, YaRN and queries that grow."""

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

SCALING = {
    "type": "yarn",
    "factor": 16.0,
    "original_context_length": 4,
    "yarn_beta_fast": 1.0,
    "yarn_beta_slow": 0.05,
    "yarn_log_multiplier": 1.0,
}


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """The original context is so short that a few tokens leave it."""
    described = tiny_gguf.decoder("mistral3", **{"vocabulary": "bpe", **arguments})
    for key, value in SCALING.items():
        described.set(f"mistral3.rope.scaling.{key}", value)
    described.set("mistral3.attention.temperature_scale", 0.4)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.yarn_turner(len(ids), neighbours=True)
    original = twin.key("rope.scaling.original_context_length")
    growth = 1 + twin.key("attention.temperature_scale", 0.0) * np.log(1 + np.arange(len(ids)) // original)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), turn, query_growth=growth)
        x = x + twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x)


@pytest.mark.parametrize(
    "key", ["rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_slow", "attention.temperature_scale"]
)
def test_each_key_counts_and_may_be_left_out(key: str, tmp_path: Path) -> None:
    described = tiny()
    described.drop(f"mistral3.{key}")
    model, full = Model.open(described.write(tmp_path / "m.gguf")), Model.open(tiny().write(tmp_path / "full.gguf"))
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    assert nmse(wanted, logits(Twin(full._checked), IDS)) > 1e-5, "the key makes no difference"
    model.close()
    full.close()


def test_what_yarn_cannot_be_computed_of_is_refused(tmp_path: Path) -> None:
    for key, value in (
        ("rope.freq_base", 1.0),
        ("rope.scaling.yarn_beta_fast", 1e30),
        ("rope.scaling.yarn_beta_slow", 0.0),
        ("rope.scaling.original_context_length", 0),
        ("rope.dimension_count", 8),
    ):
        described = tiny()
        described.set(f"mistral3.{key}", value)
        assert f"mistral3.{key}" in refusal(described.write(tmp_path / "model.gguf"))
