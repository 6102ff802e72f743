"""The granitehybrid architecture: twin, tiny model, and Mamba-2 with heads and groups of several shapes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.config import Attention, Experts, Mamba2
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_convolution, mamba_2_by_token, rmsnorm, silu
from tests.engine.refusals import refusal
from tests.engine.test_config import config_of
from tests.engine.test_models import IDS, nmse

SCALES = {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.1, "logit_scale": 4.0}
OF_ATTENTION = "q", "k", "v", "output"


def tiny(n_groups: int = 2, head_dim: int = 40, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Every other layer, from the second on, is Mamba-2."""
    described = tiny_gguf.decoder("granitehybrid", **{"vocabulary": "spm", **arguments})
    n_layers = described.value("granitehybrid.block_count")
    n_kv_heads = described.value("granitehybrid.attention.head_count_kv")
    for key, value in SCALES.items():
        described.set(f"granitehybrid.{key}", value)
    heads = [0 if number % 2 else n_kv_heads for number in range(n_layers)]
    described.set("granitehybrid.attention.head_count_kv", np.array(heads, "<u4"))
    recurrent = range(1, n_layers, 2)
    described.drop_tensors(*(f"blk.{number}.attn_{name}.weight" for number in recurrent for name in OF_ATTENTION))
    add_mamba2(described, arguments.get("quant", "F32"), recurrent, n_groups=n_groups, head_dim=head_dim)
    return described


def add_mamba2(
    described: tiny_gguf.TinyGGUF,
    quant: str,
    layers: Iterable[int],
    *,
    n_heads: int = 4,
    head_dim: int = 40,
    n_groups: int = 2,
    key_dim: int = 24,
    has_norm: bool = True,
) -> None:
    """Put Mamba-2 into layers, and its keys into the file; widths suit types with blocks of 256."""
    architecture, rng = described.value("general.architecture"), np.random.default_rng(5)
    dim = described.value(f"{architecture}.embedding_length")
    head_dim = 64 if dim % 256 == 0 else head_dim if quant == "F32" else 32
    inner, taps = n_heads * head_dim, 4
    channels = inner + 2 * n_groups * key_dim
    for key, value in {
        "conv_kernel": taps, "inner_size": inner, "state_size": key_dim, "time_step_rank": n_heads,
        "group_count": n_groups,
    }.items():  # fmt: skip
        described.set(f"{architecture}.ssm.{key}", value)
    for number in layers:
        block = f"blk.{number}."
        described.tensors += [
            tiny_gguf.quantised(block + "ssm_in.weight", quant, inner + channels + n_heads, dim, dim**-0.5, rng),
            tiny_gguf.quantised(block + "ssm_out.weight", quant, dim, inner, 0.3 / inner**0.5, rng),
        ]
        described.add_rows(block + "ssm_conv1d.weight", 0.6 * rng.standard_normal((channels, taps)))
        described.add_vector(block + "ssm_conv1d.bias", 0.2 * rng.standard_normal(channels))
        described.add_vector(block + "ssm_dt.bias", -1.5 + 0.5 * rng.standard_normal(n_heads))
        described.add_rows(block + "ssm_a", -np.exp(rng.uniform(np.log(0.05), np.log(2), (n_heads, 1))))
        described.add_rows(block + "ssm_d", 1 + 0.5 * rng.standard_normal((n_heads, 1)))
        if has_norm:
            norms = 1 + 0.2 * rng.standard_normal((n_groups, inner // n_groups))
            described.add_rows(block + "ssm_norm.weight", norms)


def mamba2(twin: Twin, block: str, h: Array) -> Array:
    """Step by step, as the recurrence is written down."""
    n, n_heads, n_groups = len(h), twin.key("ssm.time_step_rank"), twin.key("ssm.group_count")
    inner, key_dim = twin.key("ssm.inner_size"), twin.key("ssm.state_size")
    z, mixed, time = np.split(twin.project(h, block + "ssm_in"), [inner, -n_heads], axis=1)
    mixed = causal_convolution(mixed, twin.tensor(block + "ssm_conv1d.weight"))
    bias = twin.tensor(block + "ssm_conv1d.bias")
    mixed = silu(mixed if bias is None else mixed + bias)
    x, b, c = np.split(mixed, [inner, inner + n_groups * key_dim], axis=1)
    x, b, c = x.reshape(n, n_heads, -1), b.reshape(n, n_groups, -1), c.reshape(n, n_groups, -1)
    time = np.log1p(np.exp(time + twin.tensor(block + "ssm_dt.bias")))
    a, d = (twin.tensor(block + name).reshape(-1) for name in ("ssm_a", "ssm_d"))
    out, nothing = d[:, None] * x, np.zeros((key_dim, x.shape[-1]))
    for head in range(n_heads):
        group, rates = head // (n_heads // n_groups), (time[:, head], time[:, head] * a[head])
        out[:, head] += mamba_2_by_token(c[:, group], b[:, group], x[:, head], *rates, nothing)[0]
    out = out.reshape(n, inner) * silu(z)
    norm = twin.tensor(block + "ssm_norm.weight")
    if norm is not None:
        norm = norm.reshape(n_groups, -1)
        out = rmsnorm(out.reshape(n, n_groups, -1), norm, twin.eps).reshape(n, inner)
    return twin.project(out, block + "ssm_out")


def logits(twin: Twin, ids: list[int]) -> Array:
    x, scale = twin.embed(ids) * twin.key("embedding_scale"), twin.key("residual_scale")
    turn = twin.turner(len(ids), neighbours=True) if twin.key("rope.scaling.finetuned", True) else np.copy
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        if twin.tensor(block + "ssm_a") is not None:
            x = x + scale * mamba2(twin, block, h)
        else:
            x = x + scale * twin.attention(block, h, turn, scale=twin.key("attention.scale"))
        h = twin.norm(x, block + "ffn_norm")
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            passed = twin.feed_forward(block, h)
        else:
            passed = twin.experts(block, h, twin.routes(block, h, is_renormalised=True)) + twin.shared_expert(block, h)
        x = x + scale * passed
    return twin.head(x) / twin.key("logit_scale")


@pytest.mark.parametrize(("n_groups", "head_dim"), [(1, 8), (2, 32), (4, 72), (1, 24)])
def test_heads_and_groups_of_any_shape_equal_the_stepwise_twin(n_groups: int, head_dim: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 100).tolist()
    described = tiny(n_groups, head_dim)
    described.set("granitehybrid.rope.scaling.finetuned", False)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=3)
    assert model.config.recurrents == {1: Mamba2(4, head_dim, n_groups, 24, 4)}
    assert model.config.ropes == ()
    session = model.session(n_ctx=128, kv="f32")
    assert nmse(session.feed(ids, every=True), logits(Twin(model._checked), ids)) < 1e-9
    model.close()


def test_experts_instead_of_a_dense_layer_equal_the_numpy_twin(tmp_path: Path) -> None:
    described = tiny(n_layers=3)
    described.with_experts(hidden_dim=described.value("granitehybrid.feed_forward_length"), shared_dim=40)
    described.set("granitehybrid.expert_shared_feed_forward_length", 40)
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    assert [type(layer.feed_forward) for layer in model.config.layers] == [Experts] * 3
    assert [type(layer.mixer) for layer in model.config.layers] == [Attention, Mamba2, Attention]
    found = model.session(n_ctx=64, kv="f32").feed(IDS, every=True)
    assert nmse(found, logits(Twin(model._checked), IDS)) < 1e-9
    model.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [("state_size", 17), ("group_count", 3), ("inner_size", 100), ("inner_size", 156), ("conv_kernel", 1)],
)
def test_sizes_that_contradict_each_other_are_refused(key: str, value: int, tmp_path: Path) -> None:
    described = tiny()
    described.set(f"granitehybrid.ssm.{key}", value)
    assert f"granitehybrid.ssm.{key} is {value}" in refusal(described.write(tmp_path / "model.gguf"))


def test_layers_that_attend_are_those_with_key_heads(tmp_path: Path) -> None:
    config = config_of(tiny(n_layers=4).write(tmp_path / "m.gguf"))
    assert (list(config.attentions), list(config.recurrents)) == ([0, 2], [1, 3])
