"""The qwen35 architecture: twin, tiny model, and delta nets that compute the same however tokens are fed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.config import Attention, DeltaNet
from engine.saved_state import StateWriter, restore_state
from tests.engine import tiny_gguf
from tests.engine.reference import Array, Twin, causal_convolution, delta_net_by_token, rmsnorm, silu
from tests.engine.refusals import refusal
from tests.engine.second_turn import N_OPENING, second_turn
from tests.engine.test_config import config_of
from tests.engine.test_models import IDS, nmse

N_KEYS, N_VALUES, TAPS = 2, 4, 4


def tiny(**arguments: Any) -> tiny_gguf.TinyGGUF:
    return tiny_of("qwen35", **arguments)


def tiny_of(name: str, **arguments: Any) -> tiny_gguf.TinyGGUF:
    """Every other layer, from the second on, is a delta net; half of each head is turned."""
    described = tiny_gguf.decoder(name, **{"vocabulary": "bpe", "head_norms": True, **arguments})
    quant, n_layers = arguments.get("quant", "F32"), described.value(f"{name}.block_count")
    dim, head_dim = described.value(f"{name}.embedding_length"), described.value(f"{name}.attention.key_length")
    n_heads = described.value(f"{name}.attention.head_count")
    described.set(f"{name}.rope.dimension_count", head_dim // 2)
    described.set(f"{name}.attention.recurrent_layers", np.array([number % 2 == 1 for number in range(n_layers)]))
    add_delta_nets(described, name, quant, range(1, n_layers, 2))
    rng = np.random.default_rng(6)
    for number in range(0, n_layers, 2):
        queries, rows = f"blk.{number}.attn_q.weight", 2 * n_heads * head_dim
        described.drop_tensors(queries)
        described.tensors.append(tiny_gguf.quantised(queries, quant, rows, dim, 0.8 / dim**0.5, rng))
    described.rename("ffn_norm", "post_attention_norm")
    return described


def with_gated_experts(described: tiny_gguf.TinyGGUF) -> tiny_gguf.TinyGGUF:
    """Experts in place of each feed-forward, and a shared one whose gate is a row of weights."""
    name = described.value("general.architecture")
    described.with_experts(shared_dim=described.value(f"{name}.feed_forward_length"), shared_gate=True)
    described.set(f"{name}.expert_feed_forward_length", described.tensor("blk.0.ffn_down_exps.weight").dims[0])
    return described


def add_delta_nets(described: tiny_gguf.TinyGGUF, architecture: str, quant: str, layers: range) -> None:
    """Put delta nets in the place of attention, and their keys into the file."""
    dim, rng = described.value(f"{architecture}.embedding_length"), np.random.default_rng(5)
    width = max(32, dim // N_VALUES)
    inner, channels = N_VALUES * width, (2 * N_KEYS + N_VALUES) * width
    for key, value in {
        "conv_kernel": TAPS, "inner_size": inner, "state_size": width, "time_step_rank": N_VALUES,
        "group_count": N_KEYS,
    }.items():  # fmt: skip
        described.set(f"{architecture}.ssm.{key}", value)
    for number in layers:
        block = f"blk.{number}."
        described.drop_tensors(
            *(f"{block}attn_{name}.weight" for name in ("q", "k", "v", "output", "q_norm", "k_norm"))
        )
        rows = {"attn_qkv": channels, "attn_gate": inner, "ssm_beta": N_VALUES, "ssm_alpha": N_VALUES}
        described.tensors += [
            *(tiny_gguf.quantised(f"{block}{name}.weight", quant, n, dim, dim**-0.5, rng) for name, n in rows.items()),
            tiny_gguf.quantised(block + "ssm_out.weight", quant, dim, inner, 0.3 / inner**0.5, rng),
        ]
        described.add_rows(block + "ssm_conv1d.weight", 0.6 * rng.standard_normal((channels, TAPS)))
        described.add_vector(block + "ssm_dt.bias", -1.5 + 0.5 * rng.standard_normal(N_VALUES))
        described.add_vector(block + "ssm_a", -np.exp(rng.uniform(np.log(0.05), np.log(2), N_VALUES)))
        described.add_vector(block + "ssm_norm.weight", 1 + 0.2 * rng.standard_normal(width))


def delta_net(twin: Twin, block: str, h: Array, is_grouped: bool = False) -> Array:
    """Step by step, as the recurrence is written down."""
    n, n_keys, n_values = len(h), twin.key("ssm.group_count"), twin.key("ssm.time_step_rank")
    width = twin.key("ssm.state_size")
    mixed = silu(causal_convolution(twin.project(h, block + "attn_qkv"), twin.tensor(block + "ssm_conv1d.weight")))
    q, k, v = np.split(mixed.reshape(n, -1, width), [n_keys, 2 * n_keys], axis=1)
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + twin.eps) for x in (q, k))
    if is_grouped:
        rates = twin.project(h, block + "ssm_ba").reshape(n, n_keys, 2, -1)
        beta, alpha = (rates[:, :, part].reshape(n, -1) for part in (0, 1))
    else:
        beta, alpha = (twin.project(h, block + name) for name in ("ssm_beta", "ssm_alpha"))
    beta, time = 1 / (1 + np.exp(-beta)), np.log1p(np.exp(alpha + twin.tensor(block + "ssm_dt.bias")))
    log_decay, out, nothing = time * twin.tensor(block + "ssm_a"), np.zeros_like(v), np.zeros((width, width))
    for head in range(n_values):
        its = head // (n_values // n_keys) if is_grouped else head % n_keys
        queries = q[:, its] * width**-0.5
        rates = beta[:, head], log_decay[:, head]
        out[:, head], _ = delta_net_by_token(queries, k[:, its], v[:, head], *rates, nothing)
    gate = silu(twin.project(h, block + "attn_gate")).reshape(v.shape)
    normed = rmsnorm(out, twin.tensor(block + "ssm_norm.weight"), twin.eps) * gate
    return twin.project(normed.reshape(n, -1), block + "ssm_out")


class GatedTwin(Twin):
    """Attention whose queries are next to gates."""

    def __init__(self, twin: Twin) -> None:
        self.__dict__ |= vars(twin)
        self._plain, self._gate = twin, np.empty(0)

    def project(self, x: Array, name: str, rows: slice = slice(None)) -> Array:
        if name.endswith("attn_output"):
            x = x / (1 + np.exp(-self._gate))
        found = self._plain.project(x, name, rows)
        if name.endswith("attn_q"):
            halves = found.reshape(len(x), -1, 2, self.key("attention.key_length"))
            found, self._gate = (halves[:, :, half].reshape(len(x), -1) for half in (0, 1))
        return found


def logits(
    twin: Twin, ids: list[int], is_grouped: bool = False, feed_forward: Callable[[str, Array], Array] | None = None
) -> Array:
    x, turn, gated = twin.embed(ids), twin.turner(len(ids), neighbours=False), GatedTwin(twin)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        if twin.tensor(block + "ssm_a") is not None:
            x = x + delta_net(twin, block, h, is_grouped)
        else:
            x = x + gated.attention(block, h, turn, has_head_norms=True)
        x = x + (feed_forward or twin.feed_forward)(block, twin.norm(x, block + "post_attention_norm"))
    return twin.head(x)


def gated_experts(twin: Twin, block: str, h: Array) -> Array:
    score = h @ twin.tensor(block + "ffn_gate_inp_shexp.weight")
    passed = twin.experts(block, h, twin.routes(block, h, is_renormalised=True))
    return passed + twin.shared_expert(block, h) / (1 + np.exp(-score))[:, None]


def test_layers_are_those_that_the_list_or_the_interval_says(tmp_path: Path) -> None:
    described = tiny(n_layers=5)
    config = config_of(described.write(tmp_path / "m.gguf"))
    assert [type(layer.mixer) for layer in config.layers] == [Attention, DeltaNet] * 2 + [Attention]
    assert config.recurrents[1] == DeltaNet(N_KEYS, N_VALUES, 32, TAPS)
    described.drop("qwen35.attention.recurrent_layers")
    assert list(config_of(described.write(tmp_path / "m.gguf")).attentions) == [3]
    described.set("qwen35.full_attention_interval", 2)
    assert list(config_of(described.write(tmp_path / "m.gguf")).attentions) == [1, 3]


def test_what_predicts_further_tokens_is_left_alone(tmp_path: Path) -> None:
    described, plain = tiny(), Model.open(tiny().write(tmp_path / "plain.gguf"), threads=1)
    described.set("qwen35.block_count", 3)
    described.set("qwen35.nextn_predict_layers", 1)
    described.set("qwen35.attention.recurrent_layers", np.array([False, True, False]))
    described.add_vector("blk.2.nextn.enorm.weight", np.ones(64))
    described.add_rows("blk.2.nextn.eh_proj.weight", np.ones((64, 128)))
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=1)
    assert (model.weights_bytes, model.bytes_per_token) == (plain.weights_bytes, plain.bytes_per_token)
    found, wanted = (one.session(n_ctx=64).feed(IDS) for one in (model, plain))
    assert found.tobytes() == wanted.tobytes()
    model.close()
    plain.close()
    described.add_vector("blk.3.attn_norm.weight", np.ones(64))
    assert "blk.3.attn_norm.weight is beyond qwen35.block_count 3" in refusal(described.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("state_size", 33), ("state_size", 16), ("group_count", 3), ("inner_size", 96), ("conv_kernel", 1)],
)
def test_sizes_that_contradict_each_other_are_refused(key: str, value: int, tmp_path: Path) -> None:
    described = tiny()
    described.set(f"qwen35.ssm.{key}", value)
    assert f"qwen35.ssm.{key} is {value}" in refusal(described.write(tmp_path / "model.gguf"))


def test_a_long_prompt_equals_the_recurrence_step_by_step(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 300).tolist()
    model = Model.open(tiny(context_length=512).write(tmp_path / "m.gguf"), threads=3)
    session = model.session(n_ctx=512, kv="f32")
    assert nmse(session.feed(ids, every=True), logits(Twin(model._checked), ids)) < 1e-9
    model.close()


def test_a_model_of_recurrent_layers_only_computes_and_is_saved(tmp_path: Path) -> None:
    described = tiny_gguf.decoder("qwen35", vocabulary="bpe", head_norms=True)
    described.set("qwen35.attention.recurrent_layers", np.array([True, True]))
    add_delta_nets(described, "qwen35", "F32", range(2))
    described.rename("ffn_norm", "post_attention_norm")
    model = Model.open(described.write(tmp_path / "m.gguf"), threads=2)
    session, back = model.session(n_ctx=128), model.session(n_ctx=128)
    assert nmse(session.feed(IDS, every=True), logits(Twin(model._checked), IDS)) < 1e-9
    assert session.kv_bytes_per_position == 0
    saving = StateWriter(session, tmp_path / "kv.state")
    assert saving.flush(60), saving.problem
    saving.close()
    assert restore_state(back, tmp_path / "kv.state", IDS).tokens == len(IDS)
    assert back.feed([5]).tobytes() == session.feed([5]).tobytes()
    model.close()


@pytest.mark.parametrize("n_thought", [0, 8])
def test_a_second_turn_reads_no_message_again(n_thought: int, tmp_path: Path) -> None:
    model = Model.open(tiny(context_length=512).write(tmp_path / "m.gguf"), threads=2)
    turn = second_turn(model, 300, n_thought)
    n_new = turn.n_prompt - 300
    assert turn.n_read_again == turn.n_prompt
    assert turn.n_computed <= n_new + N_OPENING
    model.close()
