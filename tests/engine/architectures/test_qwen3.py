"""The qwen3 architecture: twin, tiny model, and heads of their own width."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from engine import Model
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_gguf.decoder("qwen3", **{"vocabulary": "bpe", "head_norms": True, **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    attention = partial(twin.attention, turn=turn, has_head_norms=True)
    return twin.head(twin.pre_norm_layers(twin.embed(ids), attention))


def test_another_head_width_and_odd_groups_equal_the_numpy_twin(tmp_path: Path) -> None:
    path = tiny(n_heads=6, n_kv_heads=1, dim=48, head_dim=40, hidden_dim=52).write(tmp_path / "m.gguf")
    model = Model.open(path, threads=3)
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()
