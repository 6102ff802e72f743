"""Steps in combinations that no registered architecture has, against separate twins.

The invented architectures consist of the steps in ``engine.models.steps``: parallel branches from
one norm, norms only after branches, layers without RoPE, and multipliers of embedding and logits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Model, models
from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import llama, reading, steps
from engine.models.base import decoder_tensors
from engine.models.decoder import Decoder
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin
from tests.engine.test_models import IDS, nmse


def _side_by_side(d: Decoder) -> None:
    """Build x += attention(n) + ffn(n) from one norm, as in Command R."""
    steps.embedding(d)
    for number, layer in d.layers:
        x = steps.norm(d, number, "attn_norm")
        attended = steps.self_attention(d, number, layer.mixer, x)
        if attended is None:
            return
        steps.residual(d, attended)
        steps.residual(d, steps.feed_forward(d, number, layer.feed_forward, x))


def _side_by_side_twin(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids)
    turn = twin.turner(neighbours=True)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, turn) + twin.feed_forward(block, h)
    return twin.head(x)


def _read_odd(read: Hyperparameters) -> ModelConfig:
    """Read a model with RoPE of two types in every other layer, and norms only after branches."""

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        rope = (attention.rope, None, Rope(300.0, 8, neighbours=False))[number]
        return Layer(
            replace(attention, rope=rope), feed_forward, norm_before=False, norm_after=True
        )

    return reading.decoder_config(
        read, layer, neighbours=True, embedding_scale=3.0, logit_soft_cap=0.5
    )


def _odd_twin(twin: Twin, ids: list[int]) -> Array:
    def half(heads: Array) -> Array:
        turned = heads.copy()
        frequencies = 300.0 ** (-np.arange(0, 8, 2) / 8)
        angle = np.arange(len(ids))[:, None, None] * frequencies
        a = heads[..., :4]
        b = heads[..., 4:8]
        turned[..., :4] = a * np.cos(angle) - b * np.sin(angle)
        turned[..., 4:8] = a * np.sin(angle) + b * np.cos(angle)
        return turned

    x = 3.0 * twin.embed(ids)
    turns = (twin.turner(neighbours=True), lambda heads: heads, half)
    for block, turn in zip(twin.blocks, turns, strict=True):
        x = x + twin.norm(twin.attention(block, x, turn), block + "post_attention_norm")
        x = x + twin.norm(twin.feed_forward(block, x), block + "post_ffw_norm")
    return 0.5 * np.tanh(twin.head(x) / 0.5)


SIDE_BY_SIDE = replace(llama.ARCHITECTURE, compose=_side_by_side)
ODD = replace(llama.ARCHITECTURE, read=_read_odd, tensors=decoder_tensors)


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    load = models.load_architecture
    made_up = {"side-by-side": SIDE_BY_SIDE, "odd": ODD}
    for name in made_up:
        monkeypatch.setitem(models.ARCHITECTURES, name, "made up")
    for module in ("engine.models", "engine.pipeline"):
        monkeypatch.setattr(
            f"{module}.load_architecture", lambda name: made_up.get(name) or load(name)
        )


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize(
    ("name", "twin", "n_layers"), [("side-by-side", _side_by_side_twin, 2), ("odd", _odd_twin, 3)]
)
def test_composed_steps_equal_the_twin(
    name: str, twin: object, n_layers: int, quant: str, tmp_path: Path
) -> None:
    described = tiny_gguf.decoder(
        name, quant, n_layers=n_layers, norms_after=name != "side-by-side"
    )
    for tensor in [str(entry.name) for entry in described.tensors]:
        is_before = tensor.endswith(("attn_norm.weight", "ffn_norm.weight"))
        if is_before and name != "side-by-side":
            described.drop_tensor(tensor)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    expected = twin(Twin(model._file), IDS)  # type: ignore[operator]
    session = model.session(n_ctx=64, kv="f32")
    bound = 1e-9 if quant == "F32" else 1e-2
    assert nmse(session.feed(IDS, all_logits=True), expected) < bound
    session.truncate(0)
    steps = np.stack([session.feed([token]) for token in IDS])
    assert nmse(steps, expected) < bound
    again = model.session(n_ctx=64, kv="f32")
    again.feed(IDS[:1])
    assert again.verify(IDS[1:7]).tobytes() == steps[1:7].tobytes()
    all_logits = session.feed(IDS, all_logits=True)[-1]
    session.truncate(len(IDS))
    assert session.feed(IDS).tobytes() == all_logits.tobytes()
    model.close()
