"""The internlm2 architecture: twin, tiny model, and fused projections with a fused bias."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_gguf.decoder("internlm2", **{"vocabulary": "spm", **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=True)
    return twin.head(twin.pre_norm_layers(twin.embed(ids), partial(twin.attention, turn=turn)))


def test_fused_projections_and_biases_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_heads=6, n_kv_heads=2, dim=96)
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")
    described.add_biases("attn_qkv")
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()
