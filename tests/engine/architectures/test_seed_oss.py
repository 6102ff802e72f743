"""The seed_oss architecture: twin and tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("seed_oss", **{"vocabulary": "bpe", **arguments})
    described.rename("ffn_norm", "post_attention_norm")
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for block in twin.blocks:
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), turn)
        x = x + twin.feed_forward(block, twin.norm(x, block + "post_attention_norm"))
    return twin.head(x)


def test_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    model = Model.open(tiny(biases=True).write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()
