"""The nemotron_h architecture: twin, tiny model, and layers that are one thing each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import Attention, Dense, Mamba2
from tests.engine import tiny_gguf
from tests.engine.architectures.test_granitehybrid import OF_ATTENTION, add_mamba2, mamba2
from tests.engine.reference import Array, Twin, squared_relu
from tests.engine.test_config import config_of
from tests.engine.test_models import assert_equals_twin

ORDER = "amf"


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return described_as("nemotron_h", **arguments)


def described_as(name: str, order: str = ORDER, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Layers of three kinds in turn, by their letters: attention, Mamba-2 and a feed-forward."""
    described = tiny_gguf.decoder(name, **{"vocabulary": "bpe", "seed": 1, **arguments})
    n_layers = described.value(f"{name}.block_count")
    n_kv_heads = described.value(f"{name}.attention.head_count_kv")
    hidden_dim = described.value(f"{name}.feed_forward_length")
    numbers = range(n_layers)
    kinds = [order[number % 3] for number in numbers]
    kv_heads = [n_kv_heads if kind == "a" else 0 for kind in kinds]
    described.set(f"{name}.attention.head_count_kv", np.array(kv_heads, "<u4"))
    widths = [hidden_dim if kind == "f" else 0 for kind in kinds]
    described.set(f"{name}.feed_forward_length", np.array(widths, "<u4"))
    for number, kind in enumerate(kinds):
        left_out = [f"attn_{one}.weight" for one in OF_ATTENTION] if kind != "a" else []
        left_out += ["ffn_up.weight", "ffn_down.weight"] if kind != "f" else []
        described.drop_tensors(*(f"blk.{number}.{one}" for one in [*left_out, "ffn_gate.weight", "ffn_norm.weight"]))
    add_mamba2(described, arguments.get("quant", "F32"), range(order.index("m"), n_layers, 3))
    return described


def logits(twin: Twin, ids: list[int], feed_forward: Callable[[Twin, str, Array], Array] | None = None) -> Array:
    x = twin.embed(ids)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        if twin.tensor(block + "ssm_a") is not None:
            x = x + mamba2(twin, block, h)
        elif twin.tensor(block + "attn_q.weight") is not None:
            x = x + twin.attention(block, h, np.copy)
        elif feed_forward is not None:
            x = x + feed_forward(twin, block, h)
        else:
            x = x + twin.plain_feed_forward(block, h, squared_relu)
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
    assert_equals_twin(described, logits, tmp_path)
