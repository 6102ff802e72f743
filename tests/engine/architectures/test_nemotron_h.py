"""The nemotron_h architecture: twin, tiny model, and layers that are one thing each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine import Model
from engine.config import Attention, Dense, Mamba2
from tests.engine import tiny_gguf
from tests.engine.architectures.test_granitehybrid import OF_ATTENTION, add_mamba2, mamba2
from tests.engine.reference import Array, Twin, squared_relu
from tests.engine.test_config import config_of
from tests.engine.test_models import IDS, nmse


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Attention, Mamba-2 and a feed-forward in turn."""
    described = tiny_gguf.decoder("nemotron_h", **{"vocabulary": "bpe", "seed": 1, **arguments})
    n_layers = described.value("nemotron_h.block_count")
    n_kv_heads = described.value("nemotron_h.attention.head_count_kv")
    hidden_dim = described.value("nemotron_h.feed_forward_length")
    numbers = range(n_layers)
    kv_heads = [0 if number % 3 else n_kv_heads for number in numbers]
    described.set("nemotron_h.attention.head_count_kv", np.array(kv_heads, "<u4"))
    widths = [hidden_dim if number % 3 == 2 else 0 for number in numbers]
    described.set("nemotron_h.feed_forward_length", np.array(widths, "<u4"))
    for number in numbers:
        names = [f"attn_{name}.weight" for name in OF_ATTENTION] if number % 3 else []
        names += ["ffn_up.weight", "ffn_down.weight"] if number % 3 < 2 else []
        described.drop_tensors(*(f"blk.{number}.{name}" for name in [*names, "ffn_gate.weight", "ffn_norm.weight"]))
    add_mamba2(described, arguments.get("quant", "F32"), range(1, n_layers, 3))
    return described


def logits(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        if twin.tensor(block + "ssm_a") is not None:
            x = x + mamba2(twin, block, h)
        elif twin.tensor(block + "ffn_up.weight") is not None:
            x = x + twin.plain_feed_forward(block, h, squared_relu)
        else:
            x = x + twin.attention(block, h, np.copy)
    return twin.head(x)


def test_each_layer_is_what_its_widths_say(tmp_path: Path) -> None:
    config = config_of(tiny(n_layers=4).write(tmp_path / "m.gguf"))
    assert [type(layer.mixer) for layer in config.layers] == [Attention, Mamba2, type(None), Attention]
    assert [type(layer.feed_forward) for layer in config.layers] == [type(None), type(None), Dense, type(None)]
    assert config.ropes == ()


def test_biases_and_the_other_name_of_eps_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=6)
    described.add_biases("attn_output", "ffn_up", "ffn_down")
    described.drop("nemotron_h.attention.layer_norm_rms_epsilon")
    described.set("nemotron_h.attention.layer_norm_epsilon", 1e-3)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    session, wanted = model.session(n_ctx=64, kv="f32"), logits(Twin(model._checked), IDS)
    assert nmse(session.feed(IDS, every=True), wanted) < 1e-9
    session.truncate(0)
    assert nmse(np.stack([session.feed([token]) for token in IDS]), wanted) < 1e-9
    model.close()
