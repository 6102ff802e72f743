"""The cohere2 architecture: twin, tiny model, and threads that share its branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse

WINDOW = 6


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder("cohere2", **{"vocabulary": "bpe", "tied": True, **arguments})
    described.drop_tensors("ffn_norm.weight")
    described.drop("cohere2.attention.layer_norm_rms_epsilon")
    described.set("cohere2.attention.layer_norm_epsilon", 1e-5)
    described.set("cohere2.attention.sliding_window", WINDOW)
    described.set("cohere2.attention.sliding_window_pattern", 2)
    described.set("cohere2.logit_scale", 0.25)
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=True)
    period = twin.key("attention.sliding_window_pattern", 4)
    for number, block in enumerate(twin.blocks):
        slides = number % period < period - 1
        h = twin.layer_norm(x, block + "attn_norm")
        window = twin.key("attention.sliding_window") if slides else None
        attended = twin.attention(block, h, turn if slides else np.copy, window=window)
        x = x + attended + twin.feed_forward(block, h)
    normed = twin.layer_norm(x, "output_norm")
    return twin.unembed(normed) * (twin.key("logit_scale") or 1.0)


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
def test_threads_change_no_bit(quant: str, tmp_path: Path) -> None:
    path = tiny(quant=quant, n_layers=4).write(tmp_path / "m.gguf")
    results = []
    for threads in (1, 3):
        model = Model.open(path, threads=threads)
        session = model.session(n_ctx=64)
        results.append((session.feed(IDS, every=True).tobytes(), session.feed([3]).tobytes()))
        model.close()
    assert results[0] == results[1]


def test_four_layers_of_the_usual_period_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=4)
    described.drop("cohere2.attention.sliding_window_pattern")
    described.set("cohere2.logit_scale", 0.0)  # no multiplication
    model = Model.open(described.write(tmp_path / "m.gguf"))
    assert [one.rope is None for one in model.config.attentions.values()] == [False, False, False, True]
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()
