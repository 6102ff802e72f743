"""The olmo2 architecture: twin, tiny model, and OLMo 3's windows next to stretched layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder(
        "olmo2", **{"vocabulary": "bpe", "head_norms": "whole", "norms_after": True, **arguments}
    )
    described.drop_tensors(".attn_norm.weight", ".ffn_norm.weight")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, plain = twin.embed(ids), twin.turner(len(ids), neighbours=False, divisor=1.0)
    stretched = plain
    if twin.key("rope.scaling.type") == "yarn":
        stretched = twin.yarn_turner(len(ids), neighbours=False)
    window, pattern = twin.key("attention.sliding_window"), twin.key("attention.sliding_window_pattern")
    for number, block in enumerate(twin.blocks):
        slides = bool(window) and (number % 4 < 3 if pattern is None else bool(pattern[number]))
        attended = twin.attention(
            block, x, plain if slides else stretched, has_whole_norms=True, window=window if slides else None
        )
        x = x + twin.norm(attended, block + "post_attention_norm")
        x = x + twin.norm(twin.feed_forward(block, x), block + "post_ffw_norm")
    return twin.head(x)


def test_windows_keep_the_plain_rope_next_to_stretched_layers(tmp_path: Path) -> None:
    described = tiny(n_layers=3)
    described.set("olmo2.attention.sliding_window", 6)
    described.set("olmo2.attention.sliding_window_pattern", np.array([True, False, True]))
    described.set("olmo2.rope.scaling.type", "yarn")
    described.set("olmo2.rope.scaling.factor", 8.0)
    described.set("olmo2.rope.scaling.original_context_length", 32)
    model = Model.open(described.write(tmp_path / "m.gguf"))
    assert [one.window for one in model.config.attentions.values()] == [6, None, 6]
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()
