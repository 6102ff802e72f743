"""The lfm2moe architecture: twin, tiny model, and first layers without experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from engine.config import Dense, Experts, ShortConvolution
from tests.engine import tiny_gguf
from tests.engine.architectures import test_lfm2
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """The first of several layers has no experts; they are scored by sigmoids, and chosen with biases."""
    described = test_lfm2.tiny_of("lfm2moe", **arguments)
    first = int(described.value("lfm2moe.block_count") > 1)
    described.with_experts(first=first, choice_biases=True)
    described.set("lfm2moe.expert_gating_func", 2)
    described.set("lfm2moe.leading_dense_block_count", first)
    described.set("lfm2moe.expert_feed_forward_length", described.tensor(f"blk.{first}.ffn_down_exps.weight").dims[0])
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    def feed_forward(block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        return twin.experts(block, h, twin.routes(block, h, score="sigmoid", is_renormalised=True))

    return test_lfm2.logits(twin, ids, feed_forward)


def test_first_layers_without_experts_equal_the_numpy_twin(tmp_path: Path) -> None:
    model = Model.open(tiny(n_layers=4).write(tmp_path / "m.gguf"), threads=2)
    assert [type(layer.feed_forward) for layer in model.config.layers] == [Dense, Experts, Experts, Experts]
    assert model.config.recurrents == {1: ShortConvolution(64, 3), 3: ShortConvolution(64, 3)}
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()
