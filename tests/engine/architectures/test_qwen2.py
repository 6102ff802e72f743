"""The qwen2 architecture: twin and tiny model."""

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
    return tiny_gguf.decoder("qwen2", **{"vocabulary": "bpe", "biases": True, **arguments})


def logits(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=False)
    return twin.head(twin.pre_norm_layers(twin.embed(ids), partial(twin.attention, turn=turn)))


def test_a_bias_of_the_output_equals_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny()
    described.add_vector("output.bias", np.linspace(-1, 1, described.tensor("output.weight").dims[1]))
    model = Model.open(described.write(tmp_path / "m.gguf"))
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()
