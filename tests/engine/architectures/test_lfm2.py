"""The lfm2 architecture: twin, tiny model, and convolutions that remember their last inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine import Model
from engine.config import Attention, ShortConvolution
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_convolution
from tests.engine.refusals import refusal
from tests.engine.test_config import config_of

TAPS = 3


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_of("lfm2", **arguments)


def tiny_of(name: str, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Every other layer, from the second on, is a convolution."""
    described = tiny_gguf.decoder(name, **{"vocabulary": "bpe", "head_norms": True, **arguments})
    quant, n_layers = arguments.get("quant", "F32"), described.value(f"{name}.block_count")
    dim, n_kv_heads = described.value(f"{name}.embedding_length"), described.value(f"{name}.attention.head_count_kv")
    described.set(f"{name}.shortconv.l_cache", TAPS)
    heads = [0 if number % 2 else n_kv_heads for number in range(n_layers)]
    described.set(f"{name}.attention.head_count_kv", np.array(heads, "<u4"))
    rng = np.random.default_rng(5)
    for number in range(1, n_layers, 2):
        block = f"blk.{number}."
        described.drop_tensors(
            *(f"{block}attn_{name}.weight" for name in ("q", "k", "v", "output", "q_norm", "k_norm"))
        )
        described.tensors += [
            tiny_gguf.quantised(block + "shortconv.in_proj.weight", quant, 3 * dim, dim, 1 / dim**0.5, rng),
            tiny_gguf.quantised(block + "shortconv.out_proj.weight", quant, dim, dim, 0.3 / dim**0.5, rng),
        ]
        described.add_rows(block + "shortconv.conv.weight", 0.6 * rng.standard_normal((dim, TAPS)))
    described.rename("output_norm", "token_embd_norm")
    return described


def convolution(twin: Twin, block: str, h: Array) -> Array:
    b, c, x = np.split(twin.project(h, block + "shortconv.in_proj"), 3, axis=1)
    mixed = c * causal_convolution(b * x, twin.tensor(block + "shortconv.conv.weight"))
    return twin.project(mixed, block + "shortconv.out_proj")


def logits(twin: Twin, ids: list[int], feed_forward: Callable[[str, Array], Array] | None = None) -> Array:
    turn = twin.turner(len(ids), neighbours=False)

    def mix(block: str, h: Array) -> Array:
        if twin.tensor(block + "shortconv.conv.weight") is not None:
            return convolution(twin, block, h)
        window = twin.key("attention.sliding_window")
        return twin.attention(block, h, turn, has_head_norms=True, window=window)

    return twin.unembed(twin.norm(twin.pre_norm_layers(twin.embed(ids), mix, feed_forward), "token_embd_norm"))


def test_layers_without_key_heads_are_convolutions(tmp_path: Path) -> None:
    config = config_of(tiny(n_layers=3).write(tmp_path / "m.gguf"))
    assert [type(layer.mixer) for layer in config.layers] == [Attention, ShortConvolution, Attention]
    assert config.recurrents == {1: ShortConvolution(64, TAPS)}


@pytest.mark.parametrize("taps", [0, 1, 65, -1])
def test_convolutions_that_cannot_be_are_refused(taps: int, tmp_path: Path) -> None:
    described = tiny()
    described.set("lfm2.shortconv.l_cache", taps, tiny_gguf.I32)
    assert "lfm2.shortconv.l_cache is" in refusal(described.write(tmp_path / "model.gguf"))


def test_convolutions_of_another_type_than_f32_are_refused(tmp_path: Path) -> None:
    described = tiny()
    described.tensor("blk.1.shortconv.conv.weight").ggml_type = GGMLQuantizationType.F16
    described.tensor("blk.1.shortconv.conv.weight").data = bytes(2 * 64 * TAPS)
    assert "blk.1.shortconv.conv.weight is F16" in refusal(described.write(tmp_path / "model.gguf"))


def test_a_window_is_that_of_the_layers_that_attend(tmp_path: Path) -> None:
    described = tiny()
    described.set("lfm2.attention.sliding_window", 7)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    assert [one.window for one in model.config.attentions.values()] == [7]
    model.close()
