"""The apertus architecture: twin, tiny model, and its feed-forward's function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.config import Xielu
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, xielu
from tests.engine.refusals import refusal
from tests.engine.test_models import assert_equals_twin

PARAMETERS = {"alpha_p": [0.8, -0.3], "alpha_n": [1.2, 0.1], "beta": [0.5, 0.3], "eps": [-1e-6, -0.5]}


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Every layer's function is another, and wide values of ``up`` reach all of its parts."""
    described = tiny_gguf.decoder(
        "apertus", **{"vocabulary": "bpe", "head_norms": True, "rope_factors": True, **arguments}
    )
    described.drop_tensors("ffn_gate.weight")
    n_layers = described.value("apertus.block_count")
    for name, values in PARAMETERS.items():
        described.set(f"xielu.{name}", np.resize(np.array(values, "<f4"), n_layers))
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for number, block in enumerate(twin.blocks):
        values = {name: np.resize(twin.metadata[f"xielu.{name}"], len(twin.blocks))[number] for name in PARAMETERS}
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), turn, has_head_norms=True)
        hidden = twin.norm(x, block + "ffn_norm")
        x = x + twin.plain_feed_forward(block, hidden, lambda up, values=values: xielu(up, **values))
    return twin.head(x)


def test_one_value_for_all_layers_and_width_300_equal_the_twin(tmp_path: Path) -> None:
    described = tiny(hidden_dim=300)
    for name, values in PARAMETERS.items():
        described.set(f"xielu.{name}", values[1])
    assert_equals_twin(described, logits, tmp_path)


def test_parameters_of_any_size_keep_their_values(tmp_path: Path) -> None:
    described = tiny()
    for name in PARAMETERS:
        described.set(f"xielu.{name}", np.array([3000.0, -3000.0], "<f4"))
    model = Model.open(described.write(tmp_path / "m.gguf"))
    wanted = Xielu(3000.0, 6000.0, 3000.0, 3000.0), Xielu(0.0, -3000.0, -3000.0, -3000.0)
    assert tuple(layer.feed_forward.xielu for layer in model.config.layers) == wanted
    model.close()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_are_missing_or_unsound_are_refused(name: str, tmp_path: Path) -> None:
    key, path = f"xielu.{name}", tmp_path / "model.gguf"
    described = tiny()
    described.drop(key)
    assert f"{key} is missing" in refusal(described.write(path))
    for value in (np.ones(3, "<f4"), np.ones(2, "<i4"), np.array([1, np.nan], "<f4"), np.inf, "x", ["x", "y"]):
        described.set(key, value)
        assert key in refusal(described.write(path))
