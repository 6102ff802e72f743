"""The exaone4 architecture: twin, tiny model, and the windows of the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, assert_equals_twin, nmse

LAYERS_OF_32B = 64


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder(
        "exaone4", **{"vocabulary": "bpe", "head_norms": True, "norms_after": True, **arguments}
    )
    described.drop_tensors(".attn_norm.weight", ".ffn_norm.weight")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for number, block in enumerate(twin.blocks):
        is_whole = len(twin.blocks) == LAYERS_OF_32B and number % 4 == 3
        window = twin.key("attention.sliding_window") if len(twin.blocks) == LAYERS_OF_32B and not is_whole else None
        attended = twin.attention(block, x, np.copy if is_whole else turn, has_head_norms=True, window=window)
        x = x + twin.norm(attended, block + "post_attention_norm")
        x = x + twin.norm(twin.feed_forward(block, x), block + "post_ffw_norm")
    return twin.head(x)


def test_the_largest_has_windows_and_rope_only_there(tmp_path: Path) -> None:
    described = tiny(n_layers=LAYERS_OF_32B)
    described.set("exaone4.attention.sliding_window", 6)
    model = Model.open(described.write(tmp_path / "m.gguf"))
    found = [(one.window, one.rope is None) for one in model.config.attentions.values()]
    assert found == [(6, False), (6, False), (6, False), (None, True)] * 16
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-8  # 64 layers of rounding
    model.close()


def test_divided_frequencies_equal_the_numpy_twin(tmp_path: Path) -> None:
    assert_equals_twin(tiny(rope_factors=True), logits, tmp_path)
