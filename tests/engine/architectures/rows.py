"""Architectures as rows: shape and keys of a tiny model, and components of the twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.gguf.ggml_types import GGML_TYPES
from tests.engine import tiny_gguf
from tests.engine.architectures import recurrent
from tests.engine.reference import (
    Array,
    Turn,
    Twin,
    causal_attention,
    gelu,
    rmsnorm,
    silu,
    squared_relu,
    xielu,
)

Change = Callable[[tiny_gguf.TinyGGUF], None]
Computed = Callable[[Twin, list[int]], Array]
Branch = Callable[[Twin, str, Array], Array]
PERIOD = 4
ALIBI = 8.0
MOST_POSITIONS = 4096


@dataclass(frozen=True)
class Row:
    """Architecture with the interface of a test module: ``tiny`` and ``logits``.

    Attributes:
        name: Name of the architecture in files.
        logits: Twin of the architecture.
        arguments: Arguments of ``tiny_gguf.decoder``.
        keys: Further keys, without the prefix of the architecture.
        changes: Changes of the tiny model, in order.
        build: Function that returns the tiny model, ``tiny_gguf.decoder`` by default.
        is_same: Whether the numbers of a variant equal those of its architecture's row.
    """

    name: str
    logits: Computed
    arguments: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    build: Callable[..., tiny_gguf.TinyGGUF] = tiny_gguf.decoder
    is_same: bool = False

    def tiny(self, **arguments: Any) -> tiny_gguf.TinyGGUF:
        """Return the description of a file."""
        described = self.build(self.name, **{"vocabulary": "bpe", **self.arguments, **arguments})
        for change in self.changes:
            change(described)
        for key, value in self.keys.items():
            if not key.startswith("xielu."):
                key = f"{self.name}.{key}"
            described.set(key, value)
        return described


def decoder(
    *,
    neighbours: bool | None,
    norm: Callable[[Twin, str, Array], Array] = lambda twin, name, x: twin.norm(x, name),
    attention: Callable[[Twin, int], Mapping[str, Any]] = lambda twin, number: {},
    mixer: Callable[[Twin, str, Array], Array | None] = lambda twin, block, h: None,
    feed_forward: Branch = Twin.feed_forward,
    norms: tuple[str, str] = ("attn_norm", "ffn_norm"),
    is_parallel: bool = False,
    norm_after: Callable[[Twin, str, Array], Array] | None = None,
    begin: Callable[[Twin, Array], Array] = lambda twin, x: x,
    factors: str = "rope_freqs.weight",
) -> Computed:
    """Return the twin of a decoder.

    Args:
        neighbours: Whether RoPE pairs neighbours rather than halves; None if there is no RoPE.
        norm: Norm of the residual stream, by a tensor's name without its suffix.
        attention: Arguments of ``Twin.attention`` for a layer, by its number.
        mixer: Output of a mixer other than attention; None if the layer has attention.
        norms: Norms before the mixer and the feed-forward.
        is_parallel: Whether both branches read the input of the layer.
        norm_after: Norm of the output of a branch, by its name.
        begin: Function that turns embeddings into the input of the first layer.
    """

    def logits(twin: Twin, ids: list[int]) -> Array:
        if neighbours is None:
            turn: Turn = np.copy
        elif twin.key("rope.scaling.type") == "yarn":
            turn = twin.yarn_turner(neighbours=neighbours)
        else:
            turn = twin.turner(neighbours=neighbours, factors=factors)
        x = begin(twin, twin.embed(ids))
        for number, block in enumerate(twin.blocks):
            h = norm(twin, block + norms[0], x)
            attended = mixer(twin, block, h)
            if attended is None:
                attended = twin.attention(block, h, **{"turn": turn, **attention(twin, number)})
            attended = (
                norm_after(twin, block + "post_attention_norm", attended)
                if norm_after
                else attended
            )
            h = norm(twin, block + norms[1], x if is_parallel else x + attended)
            hidden = feed_forward(twin, block, h)
            if norm_after:
                hidden = norm_after(twin, block + "post_ffw_norm", hidden)
            x = x + attended + hidden
        return twin.unembed(norm(twin, "output_norm", x))

    return logits


def layer_norm(twin: Twin, name: str, x: Array) -> Array:
    """Return the LayerNorm, with a bias if the file has one."""
    return twin.layer_norm(x, name)


def bare_norm(twin: Twin, name: str, x: Array) -> Array:
    """Return the LayerNorm without weights."""
    x = x - x.mean(-1, keepdims=True)
    return rmsnorm(x, np.ones(x.shape[-1]), twin.eps)


def ungated(function: Callable[[Array], Array]) -> Branch:
    """Return the output of a feed-forward without a gate."""
    return lambda twin, block, h: twin.plain_feed_forward(block, h, function)


def routed(
    score: str = "softmax",
    is_renormalised: bool = False,
    function: Callable[[Array], Array] | None = None,
    has_shared: bool = True,
) -> Branch:
    """Return the output of experts and a shared expert if the layer has a router.

    Args:
        function: Activation of experts without a gate.
    """

    def branch(twin: Twin, block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        scale = twin.key("expert_weights_scale", 1.0)
        weights = twin.routes(block, h, score=score, is_renormalised=is_renormalised, scale=scale)
        if function is not None:
            shared = function(twin.project(h, block + "ffn_up_shexp"))
            output = twin.experts(block, h, weights, lambda gate, up: function(up))
            return output + twin.project(shared, block + "ffn_down_shexp")
        output = twin.experts(block, h, weights)
        gate = twin.tensor(block + "ffn_gate_inp_shexp.weight")
        if not has_shared:
            return output
        shared = twin.shared_expert(block, h)
        if gate is not None:
            shared = shared / (1 + np.exp(-(h @ gate)))[:, None]
        return output + shared

    return branch


def learned(twin: Twin, x: Array) -> Array:
    """Return the sums of embeddings and position embeddings."""
    return x + twin.tensor("position_embd.weight")[: len(x)]


def bounded(twin: Twin, number: int) -> Mapping[str, Any]:
    return {"bound": BOUND}


BOUND = 0.4
"""Bound that clamps about half of the tiny models' queries, keys and values."""


def fused(described: tiny_gguf.TinyGGUF) -> None:
    described.fuse("attn_qkv.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight")


def layer_norms(described: tiny_gguf.TinyGGUF) -> None:
    described.with_layer_norms()


def unbiased_layer_norms(described: tiny_gguf.TinyGGUF) -> None:
    described.with_layer_norms()
    described.drop_tensors("norm.bias")


def biases(*names: str) -> Change:
    return lambda described: described.add_biases(*names)


def without(*names: str) -> Change:
    return lambda described: described.drop_tensors(*names)


def renamed(old_name: str, new_name: str) -> Change:
    return lambda described: described.rename(old_name, new_name)


def positions(described: tiny_gguf.TinyGGUF) -> None:
    """Add a vector for each position of the context."""
    name = described.value("general.architecture")
    n, dim = (described.value(f"{name}.{key}") for key in ("context_length", "embedding_length"))
    described.add_rows(
        "position_embd.weight", 0.05 * np.random.default_rng(13).standard_normal((n, dim))
    )


def embedding_norm(described: tiny_gguf.TinyGGUF) -> None:
    rng = np.random.default_rng(17)
    dim = described.tensor("token_embd.weight").dims[0]
    described.add_vector("token_embd_norm.weight", 1 + 0.1 * rng.standard_normal(dim))
    described.add_vector("token_embd_norm.bias", 0.1 * rng.standard_normal(dim))


def gates(described: tiny_gguf.TinyGGUF) -> None:
    """Add a gate for the result of each head, with a projection shaped like that of queries."""
    rng = np.random.default_rng(19)
    for tensor in [
        candidate
        for candidate in described.tensors
        if str(candidate.name).endswith("attn_q.weight")
    ]:
        quant = GGML_TYPES[tensor.ggml_type].name
        name = str(tensor.name).replace("attn_q.", "attn_gate.")
        described.tensors.append(
            tiny_gguf.quantised(name, quant, tensor.dims[1], tensor.dims[0], 0.1, rng)
        )


def experts(
    *, n: int = 6, first: int = 0, n_shared: int = 0, is_wide: bool = False, **arguments: Any
) -> Change:
    """Add ``n`` experts to each layer from ``first`` on, and a shared one of ``n_shared`` widths.

    Args:
        is_wide: Whether experts are as wide as the feed-forward in the file's keys.
        arguments: Further arguments of ``TinyGGUF.with_experts``.
    """

    def change(described: tiny_gguf.TinyGGUF) -> None:
        name = described.value("general.architecture")
        wide = described.tensor("token_embd.weight").dims[0] % 256 == 0
        hidden = 256 if wide else 64
        if is_wide:
            hidden = described.value(f"{name}.feed_forward_length")
        n_layers = described.value(f"{name}.block_count")
        described.with_experts(
            n,
            first=min(first, n_layers - 1),
            hidden_dim=hidden,
            shared_dim=n_shared * hidden,
            **arguments,
        )
        described.set(f"{name}.expert_feed_forward_length", hidden)
        described.set(f"{name}.expert_shared_count", n_shared)
        described.set(f"{name}.leading_dense_block_count", min(first, n_layers - 1))

    return change


def _gated_windows(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return arguments for layers with RoPE only in windows, and a gate for each head."""
    arguments = (
        {"window": twin.key("attention.sliding_window")}
        if number % PERIOD < PERIOD - 1
        else {"turn": np.copy}
    )
    return {**arguments, "has_head_norms": True, "has_gate": True}


def _windows(twin: Twin, number: int) -> Mapping[str, Any]:
    return {
        "has_head_norms": True,
        **(
            {"window": twin.key("attention.sliding_window")} if number % PERIOD < PERIOD - 1 else {}
        ),
    }


def _after(twin: Twin, name: str, x: Array) -> Array:
    return rmsnorm(x, twin.tensor(name + ".weight"), 1e-8)


def _capped(computed: Computed, default: float = 0.0) -> Computed:
    """Return logits multiplied and capped by the keys of the file, or by the defaults."""

    def logits(twin: Twin, ids: list[int]) -> Array:
        scaled = computed(twin, ids) * (twin.key("logit_scale") or 1.0)
        cap = twin.key("final_logit_softcapping", default)
        if cap:
            return cap * np.tanh(scaled / cap)
        return scaled

    return logits


def _experts_in_place(described: tiny_gguf.TinyGGUF) -> None:
    """Replace feed-forwards by experts without gates and shared experts."""
    rng = np.random.default_rng(5)
    n = 6
    name = described.value("general.architecture")
    for tensor in [
        candidate
        for candidate in described.tensors
        if str(candidate.name).endswith("ffn_up.weight")
    ]:
        block = str(tensor.name).removesuffix("ffn_up.weight")
        quant = GGML_TYPES[tensor.ggml_type].name
        dim = tensor.dims[0]
        hidden = 256 if tensor.dims[0] % 256 == 0 else 64
        described.drop_tensors(block + "ffn_up.weight", block + "ffn_down.weight")
        for direction, rows, cols in (("up", hidden, dim), ("down", dim, hidden)):
            slab = tiny_gguf.quantised(
                f"{block}ffn_{direction}_exps.weight", quant, n * rows, cols, cols**-0.5, rng
            )
            slab.dims = [cols, rows, n]
            shared = tiny_gguf.quantised(
                f"{block}ffn_{direction}_shexp.weight", quant, rows, cols, 0.5 * cols**-0.5, rng
            )
            described.tensors += [slab, shared]
        router = tiny_gguf.quantised(
            block + "ffn_gate_inp.weight", "F32", n, dim, 4 * dim**-0.5, rng
        )
        described.tensors.append(router)
        described.add_vector(block + "exp_probs_b.bias", rng.standard_normal(n))
        described.set(f"{name}.expert_feed_forward_length", hidden)
        described.set(f"{name}.expert_shared_feed_forward_length", hidden)
        described.set(f"{name}.expert_count", n)
        described.set(f"{name}.expert_used_count", 2)


def _halved(described: tiny_gguf.TinyGGUF) -> None:
    """Set the key to the width of gate and up together."""
    name = f"{described.value('general.architecture')}.feed_forward_length"
    described.set(name, 2 * described.value(name))


def sinks(described: tiny_gguf.TinyGGUF) -> None:
    """Add a sink score to each head."""
    rng = np.random.default_rng(2)
    name = described.value("general.architecture")
    n_heads, n_layers = (
        described.value(f"{name}.{key}") for key in ("attention.head_count", "block_count")
    )
    for number in range(n_layers):
        described.add_vector(f"blk.{number}.attn_sinks.weight", 1.5 * rng.standard_normal(n_heads))


def _patterns(described: tiny_gguf.TinyGGUF) -> None:
    """Give every second layer a window, and the last one no RoPE."""
    n_layers = described.value("granite_swa.block_count")
    described.set("granite_swa.attention.sliding_window_pattern", np.arange(n_layers) % 2 == 0)
    described.set(
        "granite_swa.attention.rope_pattern", (np.arange(n_layers) < n_layers - 1).astype("<u4")
    )


def _by_patterns(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return logits with a list of layers with a window, and a list of layers with RoPE."""
    arguments = {
        "sinks": twin.tensor(f"blk.{number}.attn_sinks.weight"),
        "scale": twin.key("attention.scale"),
    }
    if twin.key("attention.sliding_window_pattern")[number]:
        arguments["window"] = twin.key("attention.sliding_window")
    if not twin.key("attention.rope_pattern")[number]:
        arguments["turn"] = np.copy
    return arguments


def _fused_shared(twin: Twin, block: str, h: Array) -> Array:
    """Return experts and a shared expert with fused gate and up, if the layer has experts."""
    if twin.tensor(block + "ffn_up_shexp.weight") is None:
        return twin.feed_forward(block, h)
    fused = twin.project(h, block + "ffn_up_shexp")
    n = twin.key("expert_shared_feed_forward_length")
    shared = twin.project(silu(fused[:, :n]) * fused[:, n:], block + "ffn_down_shexp")
    return twin.experts(block, h, twin.routes(block, h, is_renormalised=True)) + shared


def _fuse_shared(described: tiny_gguf.TinyGGUF) -> None:
    """Join gate and up of the shared expert into one tensor."""
    described.fuse("ffn_up_shexp.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight")


def _stated_shared(described: tiny_gguf.TinyGGUF) -> None:
    """Set the key for a shared expert as wide as the other experts."""
    name = described.value("general.architecture")
    width = described.value(f"{name}.expert_feed_forward_length")
    described.set(f"{name}.expert_shared_feed_forward_length", width)


def _multiplied(twin: Twin, number: int) -> Mapping[str, Any]:
    arguments = {"scale": twin.key("attention.scale") or None}
    if not twin.key("rope.scaling.finetuned", True):
        arguments["turn"] = np.copy
    return arguments


def _granite(**arguments: Any) -> Computed:
    """Return a twin with four multipliers, including one for logits."""
    layers = decoder(
        **{"neighbours": True, "attention": _multiplied, **arguments},
        norm_after=lambda twin, name, x: x * (twin.key("residual_scale") or 1.0),
        begin=lambda twin, x: x * (twin.key("embedding_scale") or 1.0),
    )
    return lambda twin, ids: layers(twin, ids) / twin.key("logit_scale")


def _shared(width: int) -> Change:
    """Add wide experts and a shared expert of another width."""

    def change(described: tiny_gguf.TinyGGUF) -> None:
        name = described.value("general.architecture")
        described.with_experts(
            hidden_dim=described.value(f"{name}.feed_forward_length"), shared_dim=width
        )
        described.set(f"{name}.expert_shared_feed_forward_length", width)

    return change


def _minicpm(twin: Twin, ids: list[int]) -> Array:
    """Return a twin with multipliers that older files do not contain."""
    scale = twin.key("residual_scale", 1.4 / len(twin.blocks) ** 0.5)
    layers = decoder(
        neighbours=True,
        norm_after=lambda twin, name, x: x * scale,
        begin=lambda twin, x: x * twin.key("embedding_scale", 12.0),
    )
    return layers(twin, ids) / twin.key("logit_scale", 256 / twin.key("embedding_length"))


def _far_mean(described: tiny_gguf.TinyGGUF) -> None:
    """Make the mean of the residual stream far from zero."""
    bias = described.tensor("blk.0.ffn_down.bias")
    bias.data = np.linspace(50, 51, bias.dims[0], dtype="<f4").tobytes()


def _latent(described: tiny_gguf.TinyGGUF) -> None:
    """Return a model whose keys and values are projections of one vector, and whose queries are
    projections of another."""
    rng = np.random.default_rng(1)
    name = described.value("general.architecture")
    quant = GGML_TYPES[described.tensor("blk.0.attn_q.weight").ggml_type].name
    rank = 256 if quant.endswith("_K") else 64
    dim = described.value(f"{name}.embedding_length")
    n_heads, n_layers = (
        described.value(f"{name}.{key}") for key in ("attention.head_count", "block_count")
    )
    key_dim = 48
    turned = 16
    value_dim = dim // n_heads
    n_query = rank if name == "minicpm3" else dim

    def add(block: str, matrix: str, rows: int, cols: int) -> None:
        described.tensors.append(
            tiny_gguf.quantised(f"{block}{matrix}.weight", quant, rows, cols, cols**-0.5, rng)
        )

    described.drop_tensors("attn_q.weight", "attn_k.weight", "attn_v.weight")
    for block in (f"blk.{number}." for number in range(n_layers)):
        if n_query < dim or name == "minicpm3":
            add(block, "attn_q_a", n_query, dim)
            described.add_vector(
                block + "attn_q_a_norm.weight", 1 + 0.1 * rng.standard_normal(n_query)
            )
        add(block, "attn_q_b" if name == "minicpm3" else "attn_q", n_heads * key_dim, n_query)
        add(block, "attn_kv_a_mqa", rank + turned, dim)
        described.add_vector(block + "attn_kv_a_norm.weight", 1 + 0.1 * rng.standard_normal(rank))
        add(block, "attn_kv_b", n_heads * (key_dim - turned + value_dim), rank)
    keys = {
        "kv_lora_rank": rank,
        "q_lora_rank": n_query,
        "key_length": key_dim,
        "value_length": value_dim,
    }
    for key, value in keys.items():
        described.set(f"{name}.attention.{key}", value)
    described.set(f"{name}.rope.dimension_count", turned)


def _latent_attention(twin: Twin, block: str, h: Array, turn: Turn) -> Array:
    """Return latent attention with separate keys and values for each head, as in the paper."""
    n = len(h)
    n_heads = twin.key("attention.head_count")
    rank = twin.key("attention.kv_lora_rank")
    plain = twin.key("attention.key_length") - twin.key("rope.dimension_count")
    if twin.tensor(block + "attn_q_a.weight") is None:
        q = twin.project(h, block + "attn_q")
    else:
        q = twin.project(
            twin.norm(twin.project(h, block + "attn_q_a"), block + "attn_q_a_norm"),
            block + "attn_q_b",
        )
    q = q.reshape(n, n_heads, -1)
    compressed = twin.project(h, block + "attn_kv_a_mqa")
    keys_and_values = twin.project(
        twin.norm(compressed[:, :rank], block + "attn_kv_a_norm"), block + "attn_kv_b"
    )
    keys_and_values = keys_and_values.reshape(n, n_heads, -1)
    turned = np.repeat(turn(compressed[:, None, rank:]), n_heads, axis=1)
    k = np.concatenate([keys_and_values[..., :plain], turned], -1)
    q = np.concatenate([q[..., :plain], turn(q[..., plain:])], -1) * k.shape[-1] ** -0.5
    return twin.project(
        causal_attention(q, k, keys_and_values[..., plain:]).reshape(n, -1), block + "attn_output"
    )


def _minicpm3(twin: Twin, ids: list[int], length: str = "short") -> Array:
    """Return a twin whose RoPE divisors differ beyond the trained length."""
    turn = twin.turner(neighbours=False, factors=f"rope_factors_{length}.weight")
    layers = decoder(
        neighbours=None,
        mixer=lambda twin, block, h: _latent_attention(twin, block, h, turn),
        norm_after=lambda twin, name, x: x * 1.4 / len(twin.blocks) ** 0.5,
        begin=lambda twin, x: x * 12,
    )
    return layers(twin, ids) * 256 / twin.key("embedding_length")


def _divisors(described: tiny_gguf.TinyGGUF) -> None:
    n_pairs = described.value("minicpm3.rope.dimension_count") // 2
    described.add_vector("rope_factors_short.weight", np.linspace(1, 1.8, n_pairs))
    described.add_vector("rope_factors_long.weight", np.geomspace(1, 64, n_pairs))


def _smallthinker(twin: Twin, ids: list[int]) -> Array:
    """Return a twin whose router reads the input of the layer.

    The first of each four layers has no window and no RoPE.
    """
    x = twin.embed(ids)
    turn = twin.turner(neighbours=False)
    for number, block in enumerate(twin.blocks):
        score = {2: "sigmoid"}.get(twin.key("expert_gating_func"), "softmax")
        weights = twin.routes(block, x, score=score, is_renormalised=True)
        arguments = (
            {"turn": turn, "window": twin.key("attention.sliding_window")}
            if number % PERIOD
            else {"turn": np.copy}
        )
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), **arguments)
        h = twin.norm(x, block + "ffn_norm")
        x = x + twin.experts(block, h, weights, lambda gate, up: np.maximum(gate, 0) * up)
    return twin.head(x)


def gated_experts(described: tiny_gguf.TinyGGUF) -> None:
    """Add experts and a gated shared expert as wide as the feed-forward."""
    name = described.value("general.architecture")
    described.with_experts(
        shared_dim=described.value(f"{name}.feed_forward_length"), shared_gate=True
    )
    _stated_width(described)


def _stated_width(described: tiny_gguf.TinyGGUF) -> None:
    """Set the key for the width of experts."""
    width = next(
        tensor.dims[0]
        for tensor in described.tensors
        if str(tensor.name).endswith("ffn_down_exps.weight")
    )
    described.set(f"{described.value('general.architecture')}.expert_feed_forward_length", width)


def _qwen3moe(
    name: str,
    n_experts: int = 6,
    n_used: int = 2,
    expert_dim: int | None = None,
    is_fused: bool = False,
    **arguments: Any,
) -> tiny_gguf.TinyGGUF:
    described = tiny_gguf.decoder(name, **arguments)
    described.with_experts(n_experts, n_used, expert_dim, is_fused=is_fused)
    _stated_width(described)
    return described


def unlike_layers(described: tiny_gguf.TinyGGUF) -> None:
    """Return a model of three different layers."""
    head_dim = described.value("llama.attention.key_length")
    kv_heads = [2, 4, 1]
    hidden = [96, 64, 128]
    described.set("llama.attention.head_count_kv", np.array(kv_heads, "<u4"))
    described.set("llama.feed_forward_length", np.array(hidden, "<u4"))
    rng = np.random.default_rng(1)
    for layer in range(3):
        kv_dim = head_dim * kv_heads[layer]
        width = hidden[layer]
        for name, rows, cols in (
            ("attn_k", kv_dim, 64), ("attn_v", kv_dim, 64), ("ffn_gate", width, 64),
            ("ffn_up", width, 64),
            ("ffn_down", 64, width),
        ):  # fmt: skip
            full_name = f"blk.{layer}.{name}.weight"
            described.drop_tensor(full_name)
            described.tensors.append(
                tiny_gguf.quantised(full_name, "F32", rows, cols, cols**-0.5, rng)
            )


def _only_after(twin: Twin, name: str, x: Array) -> Array:
    """Return the stream unchanged for norms before branches."""
    if name.endswith(("attn_norm", "ffn_norm")):
        return x
    return twin.norm(x, name)


def _norm_and_bias(twin: Twin, name: str, x: Array) -> Array:
    return twin.norm(x, name) + twin.tensor(name + ".bias")


def _named_norm(twin: Twin, name: str, x: Array) -> Array:
    """Return the norm, with LFM2's name for the last one."""
    return twin.norm(x, name.replace("output_norm", "token_embd_norm"))


def _layer_normed(twin: Twin, number: int) -> Mapping[str, Any]:
    return {"has_head_layer_norms": twin.tensor(f"blk.{number}.attn_q_norm.weight") is not None}


def _stablelm(twin: Twin, ids: list[int]) -> Array:
    """Return a twin with parallel branches if the file has no second norm."""
    is_parallel = twin.tensor("blk.0.ffn_norm.weight") is None
    norms = ("attn_norm", "attn_norm" if is_parallel else "ffn_norm")
    return decoder(
        neighbours=False,
        norm=layer_norm,
        norms=norms,
        is_parallel=is_parallel,
        attention=_layer_normed,
    )(twin, ids)


def _by_length(**arguments: Any) -> Callable[..., Array]:
    """Return a twin whose frequency factors depend on the length."""

    def logits(twin: Twin, ids: list[int], length: str = "short") -> Array:
        return decoder(neighbours=False, **arguments, factors=f"rope_factors_{length}.weight")(
            twin, ids
        )

    return logits


def longrope(described: tiny_gguf.TinyGGUF) -> None:
    """Add two sets of RoPE factors for partly rotated heads."""
    name = described.value("general.architecture")
    described.set(f"{name}.rope.dimension_count", 12)
    described.set(f"{name}.rope.scaling.original_context_length", 64)
    described.set(f"{name}.rope.scaling.attn_factor", 1.3)
    described.add_vector("rope_factors_short.weight", np.linspace(1, 1.8, 6))
    described.add_vector("rope_factors_long.weight", np.geomspace(1, 64, 6))


def _exaone4(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return arguments for windows in the largest model; its other layers have no RoPE."""
    if len(twin.blocks) < LAYERS_OF_LARGEST:
        return HEADS
    arguments = (
        {"turn": np.copy}
        if number % PERIOD == PERIOD - 1
        else {"window": twin.key("attention.sliding_window")}
    )
    return {**HEADS, **arguments}


def _olmo2(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return arguments for plain RoPE in layers with a window."""
    window = twin.key("attention.sliding_window")
    pattern = twin.key("attention.sliding_window_pattern")
    slides = number % PERIOD < PERIOD - 1
    if pattern is not None:
        slides = bool(pattern[number])
    if not window or not slides:
        return {"has_whole_norms": True}
    turn = twin.turner(neighbours=False, divisor=1.0)
    return {"has_whole_norms": True, "turn": turn, "window": window}


def _hunyuan(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return a twin that scales the base of RoPE."""
    alpha = twin.key("rope.scaling.alpha", 1.0)
    width = twin.key("attention.key_length")
    theta = twin.key("rope.freq_base") * alpha ** (width / (width - 2))
    return {**TURNED, "turn": twin.turner(neighbours=False, theta=theta)}


def _growing(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return arguments for queries that grow with their position."""
    steps = np.arange(MOST_POSITIONS) // twin.key("rope.scaling.original_context_length")
    return {"query_growth": 1 + twin.key("attention.temperature_scale", 0.0) * np.log(1 + steps)}


def _period(twin: Twin, default: int) -> int:
    period: int = twin.key("attention.sliding_window_pattern", default)
    return period


def _cohere2(twin: Twin, number: int) -> Mapping[str, Any]:
    period = _period(twin, PERIOD)
    return (
        {"window": twin.key("attention.sliding_window")}
        if number % period < period - 1
        else {"turn": np.copy}
    )


def _gemma2(twin: Twin, number: int) -> Mapping[str, Any]:
    """Return arguments; the largest model scales queries by a different width."""
    width = twin.key("embedding_length") / twin.key("attention.head_count")
    return {
        "scale": width**-0.5 if len(twin.blocks) == 46 else None,
        "window": twin.key("attention.sliding_window", 4096) if number % 2 == 0 else None,
        "soft_cap": twin.key("attn_logit_softcapping", 50.0),
    }


def _gemma3(twin: Twin, number: int) -> Mapping[str, Any]:
    arguments = {**HEADS, "soft_cap": twin.key("attn_logit_softcapping")}
    period = _period(twin, 6)
    if number % period == period - 1:
        return arguments
    turn = twin.turner(neighbours=False, theta=twin.key("rope.freq_base_swa", 10000.0), divisor=1.0)
    return {**arguments, "turn": turn, "window": twin.key("attention.sliding_window")}


def _gemma(**arguments: Any) -> Computed:
    return decoder(
        neighbours=False,
        **arguments,
        feed_forward=lambda twin, block, h: twin.feed_forward(block, h, gelu),
        begin=lambda twin, x: x * x.shape[-1] ** 0.5,
    )


def norm(twin: Twin, name: str, x: Array) -> Array:
    """Return the normalised result of a branch."""
    return twin.norm(x, name)


def _clamped(twin: Twin, block: str, h: Array) -> Array:
    """Return experts with clamped gates and values."""

    def activate(gate: Array, up: Array) -> Array:
        gate = np.minimum(gate, 7)
        up = np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)

    return twin.experts(block, h, twin.routes(block, h, score="chosen"), activate)


def _beyond_clamps(described: tiny_gguf.TinyGGUF) -> None:
    for name in ("gate", "up"):
        described.fill(f"blk.0.ffn_{name}_exps.bias", 0.0)
        tensor = described.tensor(f"blk.0.ffn_{name}_exps.weight")
        tensor.data = (8 * np.frombuffer(tensor.data, "<f4")).tobytes()


def _xielu(twin: Twin, block: str, h: Array) -> Array:
    number = twin.blocks.index(block)
    values = {
        name: np.resize(twin.metadata[f"xielu.{name}"], len(twin.blocks))[number]
        for name in PARAMETERS
    }
    return twin.plain_feed_forward(block, h, lambda up: xielu(up, **values))


def _of_each_layer(described: tiny_gguf.TinyGGUF) -> None:
    """Return a different activation function for each layer."""
    for name, values in PARAMETERS.items():
        value = np.resize(np.array(values, "<f4"), described.value("apertus.block_count"))
        described.set(f"xielu.{name}", value)


def _scales(described: tiny_gguf.TinyGGUF) -> None:
    """Add a scale to every matrix, and norms in the middle of branches."""
    rng = np.random.default_rng(5)
    for tensor in list(described.tensors):
        stem = str(tensor.name).removesuffix(".weight")
        if stem.endswith(MATRICES):
            described.add_vector(stem + ".scale", rng.uniform(0.4, 2.5, 1))
        width = {"attn_output": "attn_sub_norm", "ffn_down": "ffn_sub_norm"}.get(
            stem.split(".")[-1]
        )
        if width:
            block = stem.rpartition(".")[0]
            described.add_vector(
                f"{block}.{width}.weight", 1 + 0.1 * rng.standard_normal(tensor.dims[0])
            )


def _bitnet(twin: Twin, ids: list[int]) -> Array:
    def product(x: Array, name: str) -> Array:
        scale = twin.tensor(name + ".scale")
        result = twin.project(x, name)
        if scale is None:
            return result
        return result * scale

    x = twin.embed(ids)
    turn = twin.turner(neighbours=False)
    n = len(ids)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        q, k, v = (
            product(h, block + f"attn_{x}").reshape(n, -1, twin.key("attention.key_length"))
            for x in "qkv"
        )
        attended = causal_attention(turn(q) * q.shape[-1] ** -0.5, turn(k), v).reshape(n, -1)
        x = x + product(twin.norm(attended, block + "attn_sub_norm"), block + "attn_output")
        h = twin.norm(x, block + "ffn_norm")
        hidden = silu(product(h, block + "ffn_gate")) * product(h, block + "ffn_up")
        x = x + product(twin.norm(hidden, block + "ffn_sub_norm"), block + "ffn_down")
    return twin.head(x)


def _falcon_h1(twin: Twin, ids: list[int]) -> Array:
    x = twin.embed(ids)
    turn = twin.turner(neighbours=False)
    for block in twin.blocks:
        h = twin.norm(x, block + "attn_norm")
        x = x + twin.attention(block, h, turn) + recurrent.mamba2(twin, block, h)
        bare = twin.tensor(block + "ffn_norm") is not None
        x = x + twin.feed_forward(
            block, twin.norm(x, block + "ffn_norm", "" if bare else ".weight")
        )
    return twin.head(x)


def _nemotron_h(feed_forward: Branch) -> Computed:
    """Return a twin whose layers have a single branch each; the predictor has two."""

    def logits(twin: Twin, ids: list[int]) -> Array:
        x = twin.embed(ids)
        for block in twin.blocks:
            h = twin.norm(x, block + "attn_norm")
            output = recurrent.mamba2(twin, block, h)
            if output is None:
                attends = twin.tensor(block + "attn_q.weight") is not None
                if attends:
                    output = twin.attention(block, h, np.copy)
                else:
                    output = feed_forward(twin, block, h)
            x = x + output
            if twin.tensor(block + "post_attention_norm.weight") is not None:  # the predictor
                x = x + feed_forward(twin, block, twin.norm(x, block + "post_attention_norm"))
        return twin.head(x)

    return logits


def _layer_eps(described: tiny_gguf.TinyGGUF) -> None:
    described.drop("nemotron_h.attention.layer_norm_rms_epsilon")
    described.set("nemotron_h.attention.layer_norm_epsilon", 1e-3)


def output_bias(described: tiny_gguf.TinyGGUF) -> None:
    described.add_vector(
        "output.bias", np.linspace(-1, 1, described.tensor("token_embd.weight").dims[1])
    )


def _head_norms(described: tiny_gguf.TinyGGUF) -> None:
    described.with_head_layer_norms()


def _lfm2(twin: Twin, number: int) -> Mapping[str, Any]:
    return {"has_head_norms": True, "window": twin.key("attention.sliding_window")}


GRANITE = {
    "embedding_scale": 6.0,
    "residual_scale": 0.4,
    "attention.scale": 0.1,
    "logit_scale": 4.0,
}
WINDOW = 6
LAYERS_OF_LARGEST = 64
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PARAMETERS = {
    "alpha_p": [0.8, -0.3],
    "alpha_n": [1.2, 0.1],
    "beta": [0.5, 0.3],
    "eps": [-1e-6, -0.5],
}
"""Parameters of Apertus' activation, as trained."""
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 32,
}
BIASES = biases("attn_qkv", "attn_output", "ffn_up", "ffn_down")
UNGATED = without("ffn_gate.weight")
HEADS = {"has_head_norms": True}
TURNED = {"has_turned_norms": True}
LEARNED = decoder(neighbours=None, norm=layer_norm, feed_forward=ungated(gelu), begin=learned)
OF_LEARNED = (layer_norms, fused, UNGATED, BIASES, positions)
LLAMA = decoder(neighbours=True, feed_forward=routed(is_renormalised=True, has_shared=False))


def _baichuan(twin: Twin, ids: list[int]) -> Array:
    """Return logits; the model of forty layers has no RoPE."""
    if len(twin.blocks) != 40:
        return LLAMA(twin, ids)
    of_13b = decoder(neighbours=None, attention=lambda twin, number: {"alibi": ALIBI})
    return of_13b(twin, ids)


_SECTIONS = {"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")}
_NEMOTRON = decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(squared_relu))
_SIDE_BY_SIDE = decoder(
    neighbours=False,
    norm=layer_norm,
    norms=("attn_norm", "attn_norm"),
    is_parallel=True,
    feed_forward=ungated(gelu),
)
_STARCODER2 = decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(gelu))
_GLM4 = decoder(neighbours=True, feed_forward=Twin.fused_feed_forward, norm_after=norm)
_SEED_OSS = decoder(neighbours=False, norms=("attn_norm", "post_attention_norm"))
_QWEN3 = decoder(neighbours=False, attention=lambda twin, number: HEADS)
_OF_EXPERTS = decoder(
    neighbours=False,
    attention=lambda twin, number: HEADS,
    feed_forward=routed(is_renormalised=True, has_shared=False),
)
_SIGMOID = decoder(
    neighbours=False,
    attention=lambda twin, number: HEADS,
    feed_forward=routed("sigmoid", is_renormalised=True),
)
_QWEN35 = decoder(
    neighbours=False,
    attention=lambda twin, number: {**HEADS, "has_query_gates": True},
    mixer=recurrent.delta_net,
    norms=("attn_norm", "post_attention_norm"),
    feed_forward=routed(is_renormalised=True),
)
_PLM = decoder(
    neighbours=None,
    mixer=lambda twin, block, h: _latent_attention(twin, block, h, twin.turner(neighbours=True)),
    feed_forward=ungated(squared_relu),
)
_ARCEE = decoder(neighbours=True, feed_forward=ungated(squared_relu))
_CHOSEN = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
_GATE_AND_UP = ("ffn_up.weight", "ffn_gate.weight", "ffn_up.weight")
OUTPUT_BIASES = biases("attn_output", "ffn_up", "ffn_down")
GATED_BIASES = biases("attn_output", "ffn_gate", "ffn_up", "ffn_down")


def _fuse_gate(described: tiny_gguf.TinyGGUF) -> None:
    """Join gate and up into one tensor."""
    described.fuse(*_GATE_AND_UP)


_ROWS = [
    Row("llama", LLAMA, {"vocabulary": "spm"}),
    Row("qwen2", decoder(neighbours=False), {"biases": True}),
    Row("qwen3", _QWEN3, {"head_norms": True}),
    Row("seed_oss", _SEED_OSS, changes=(renamed("ffn_norm", "post_attention_norm"),)),
    Row("ernie4_5", LLAMA, {"vocabulary": "spm"}),
    Row("internlm2", LLAMA, {"vocabulary": "spm"}),
    Row("minicpm", _minicpm, {"vocabulary": "spm"}),
    Row("arcee", _ARCEE, changes=(UNGATED,)),
    Row("nemotron", _NEMOTRON, keys={"rope.dimension_count": 8}, changes=(UNGATED, layer_norms)),
    Row("starcoder2", _STARCODER2, changes=(UNGATED, layer_norms, OUTPUT_BIASES)),
    Row(
        "phi2",
        _SIDE_BY_SIDE,
        {"biases": True},
        {"rope.dimension_count": 8},
        (
            without("ffn_gate.weight", "ffn_norm.weight"),
            layer_norms,
            biases("output", "ffn_up", "ffn_down"),
        ),
    ),
    Row(
        "smollm3",
        decoder(
            neighbours=True,
            attention=lambda twin, number: {} if (number + 1) % PERIOD else {"turn": np.copy},
        ),
        {"n_layers": 5},
    ),
    Row(
        "glm4",
        _GLM4,
        {"norms_after": True},
        {"rope.dimension_count": 8},
        (_fuse_gate,),
    ),
    Row(
        "olmoe",
        decoder(
            neighbours=False,
            attention=lambda twin, number: {"has_whole_norms": True},
            feed_forward=routed(has_shared=False),
        ),
        {"head_norms": "whole"},
        changes=(experts(is_wide=True),),
    ),
    Row(
        "ernie4_5-moe",
        decoder(neighbours=True, feed_forward=routed(is_renormalised=True)),
        {"vocabulary": "spm"},
        {"interleave_moe_layer_step": 1},
        (experts(first=1, n_shared=1, choice_biases=True), _stated_shared),
    ),
    Row(
        "dots1",
        _SIGMOID,
        {"head_norms": True, "n_kv_heads": 4},
        _CHOSEN,
        (experts(first=1, n_shared=2, choice_biases=True),),
    ),
    Row(
        "bailingmoe2",
        _SIGMOID,
        {"head_norms": True},
        {
            **_CHOSEN,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "rope.dimension_count": 8,
        },
        (experts(n=8, first=1, n_shared=2, choice_biases=True), fused),
    ),
    Row(
        "granitemoe",
        _granite(feed_forward=routed(is_renormalised=True)),
        {"vocabulary": "spm"},
        GRANITE,
        (_shared(64),),
    ),
    Row("qwen2vl", decoder(neighbours=False), {"biases": True}, _SECTIONS),
    Row("qwen3vl", _QWEN3, {"head_norms": True}, {**_SECTIONS, "n_deepstack_layers": 0}),
    Row(
        "qwen3vlmoe",
        _OF_EXPERTS,
        {"head_norms": True},
        _SECTIONS,
        (experts(),),
    ),
    Row(
        "hunyuan_vl",
        decoder(neighbours=False, attention=lambda twin, number: TURNED),
        {"head_norms": True},
    ),
    Row(
        "nemotron_h_moe",
        _nemotron_h(routed("sigmoid", True, squared_relu)),
        {"order": "afm"},
        {"expert_weights_norm": True, "expert_weights_scale": 1.5},
        (_experts_in_place,),
        build=recurrent.nemotron_h,
    ),
    Row(
        "muse-glimmer",
        _capped(
            decoder(
                neighbours=True,
                attention=_gated_windows,
                norm_after=_after,
                begin=lambda twin, x: rmsnorm(x, np.ones(x.shape[-1]), twin.eps),
            )
        ),
        {"head_norms": True, "norms_after": True},
        {"attention.sliding_window": WINDOW, "logit_scale": 0.3, "final_logit_softcapping": 2.0},
        (gates,),
    ),
    Row("gemma", _gemma(), {"vocabulary": "spm", "tied": True}),
    Row("exaone", decoder(neighbours=False), {"rope_factors": True}),
    Row(
        "glm4moe",
        decoder(
            neighbours=False,
            attention=lambda twin, number: HEADS,
            norms=("attn_norm", "post_attention_norm"),
            feed_forward=routed("sigmoid", is_renormalised=True),
        ),
        {"head_norms": True, "biases": True},
        {"rope.dimension_count": 8, "expert_weights_norm": True, "expert_weights_scale": 1.5},
        (
            experts(first=1, n_shared=1, choice_biases=True),
            renamed("ffn_norm", "post_attention_norm"),
        ),
    ),
    Row(
        "deepseek",
        decoder(neighbours=True, feed_forward=routed()),
        keys={"expert_weights_scale": 1.5},
        changes=(experts(first=1, n_shared=2),),
    ),
    Row(
        "bailingmoe",
        decoder(neighbours=True, feed_forward=routed(is_renormalised=True)),
        keys={"expert_weights_norm": True},
        changes=(experts(n_shared=2),),
    ),
    Row(
        "hunyuan-moe",
        decoder(
            neighbours=False,
            attention=lambda twin, number: TURNED,
            feed_forward=routed(is_renormalised=True),
        ),
        {"head_norms": True},
        changes=(experts(n_shared=1, is_wide=True),),
    ),
    Row(
        "mellum",
        decoder(
            neighbours=False,
            attention=_windows,
            feed_forward=routed(is_renormalised=True, has_shared=False),
        ),
        {"head_norms": True},
        {"attention.sliding_window": WINDOW},
        (experts(),),
    ),
    Row(
        "olmo",
        decoder(neighbours=True, norm=bare_norm, attention=bounded),
        keys={"attention.clamp_kqv": BOUND},
        changes=(unbiased_layer_norms, without("norm.weight")),
    ),
    Row(
        "falcon",
        _SIDE_BY_SIDE,
        changes=(layer_norms, fused, UNGATED, without("ffn_norm.weight", "ffn_norm.bias")),
    ),
    Row("gpt2", LEARNED, changes=OF_LEARNED),
    Row("starcoder", LEARNED, {"n_kv_heads": 1}, changes=OF_LEARNED),
    Row(
        "gptneox",
        decoder(neighbours=False, norm=layer_norm, is_parallel=True, feed_forward=ungated(gelu)),
        keys={"use_parallel_residual": True, "rope.dimension_count": 4},
        changes=(layer_norms, fused, UNGATED, BIASES),
    ),
    Row(
        "mpt",
        decoder(
            neighbours=None,
            norm=layer_norm,
            attention=lambda twin, number: {"alibi": ALIBI, "bound": BOUND},
            feed_forward=ungated(gelu),
        ),
        keys={"attention.max_alibi_bias": ALIBI, "attention.clamp_kqv": BOUND},
        changes=(unbiased_layer_norms, fused, UNGATED),
    ),
    Row(
        "bloom",
        decoder(
            neighbours=None,
            norm=layer_norm,
            attention=lambda twin, number: {"alibi": ALIBI},
            feed_forward=ungated(gelu),
            begin=lambda twin, x: twin.layer_norm(x, "token_embd_norm"),
        ),
        changes=(layer_norms, fused, UNGATED, BIASES, embedding_norm),
    ),
    Row(
        "qwen",
        decoder(neighbours=False),
        {"n_kv_heads": 4},
        changes=(fused, biases("attn_qkv"), _halved),
    ),
    Row(
        "chatglm",
        decoder(neighbours=True, feed_forward=Twin.fused_feed_forward),
        {"biases": True},
        {"rope.dimension_count": 8},
        (_fuse_gate,),
    ),
    Row("baichuan", _baichuan, {"vocabulary": "spm"}),
    Row("xverse", LLAMA, {"vocabulary": "spm"}),
    Row(
        "orion",
        decoder(neighbours=False, norm=layer_norm),
        {"vocabulary": "spm"},
        changes=(layer_norms,),
    ),
    Row(
        "codeshell",
        _STARCODER2,
        changes=(layer_norms, fused, UNGATED, BIASES),
    ),
    Row(
        "refact",
        decoder(neighbours=None, attention=lambda twin, number: {"alibi": ALIBI}),
        {"n_kv_heads": 1},
    ),
    Row(
        "openelm",
        decoder(neighbours=False, attention=lambda twin, number: HEADS),
        {"vocabulary": "spm", "head_norms": True, "tied": True},
        changes=(fused,),
    ),
    Row(
        "plamo",
        decoder(neighbours=False, norms=("attn_norm", "attn_norm"), is_parallel=True),
        {"vocabulary": "spm"},
        changes=(without("ffn_norm.weight"),),
    ),
    Row(
        "pangu-embedded",
        decoder(neighbours=False),
        {"biases": True},
        changes=(biases("attn_output"),),
    ),
    Row(
        "maincoder",
        decoder(neighbours=True, attention=lambda twin, number: TURNED),
        {"head_norms": True},
    ),
    Row(
        "jais",
        decoder(
            neighbours=None,
            norm=layer_norm,
            attention=lambda twin, number: {
                "alibi": ALIBI,
                "scale": 1 / twin.key("attention.key_length"),
            },
        ),
        keys={"attention.max_alibi_bias": ALIBI},
        changes=(layer_norms, fused, BIASES, biases("ffn_gate")),
    ),
    Row(
        "jais2",
        _NEMOTRON,
        {"biases": True},
        changes=(layer_norms, UNGATED, OUTPUT_BIASES),
    ),
    Row(
        "dbrx",
        decoder(
            neighbours=False,
            norm=layer_norm,
            attention=lambda twin, number: {"bound": BOUND},
            norms=("attn_norm", "attn_output_norm"),
            feed_forward=routed(is_renormalised=True, has_shared=False),
        ),
        keys={"attention.clamp_kqv": BOUND},
        changes=(
            unbiased_layer_norms,
            fused,
            experts(is_wide=True),
            renamed("ffn_norm", "attn_output_norm"),
        ),
    ),
    Row(
        "granite_swa",
        _granite(attention=_by_patterns, feed_forward=_fused_shared),
        {"n_layers": 3},
        {**GRANITE, "attention.sliding_window": WINDOW},
        (sinks, _patterns),
    ),
    Row("plm", _PLM, {"n_kv_heads": 4, "tied": True}, changes=(UNGATED, _latent)),
    Row(
        "smallthinker",
        _smallthinker,
        {"n_layers": 2},
        {"attention.sliding_window": WINDOW, "expert_gating_func": 1},
        (experts(),),
    ),
    Row("minicpm3", _minicpm3, {"n_kv_heads": 4}, changes=(_latent, _divisors)),
    Row("qwen3moe", _OF_EXPERTS, {"head_norms": True}, build=_qwen3moe),
    Row(
        "qwen2moe",
        decoder(neighbours=False, feed_forward=routed()),
        {"biases": True},
        changes=(gated_experts,),
    ),
    Row("qwen35", _QWEN35, {"head_norms": True}, build=recurrent.qwen35),
    Row(
        "qwen35moe", _QWEN35, {"head_norms": True}, changes=(gated_experts,), build=recurrent.qwen35
    ),
    Row(
        "qwen3next",
        _QWEN35,
        {"head_norms": True},
        changes=(
            gated_experts,
            lambda described: described.fuse(
                "ssm_ba.weight", "ssm_beta.weight", "ssm_alpha.weight"
            ),
        ),
        build=recurrent.qwen35,
    ),
    Row("falcon-h1", _falcon_h1, build=recurrent.falcon_h1),
    Row("nemotron_h", _nemotron_h(ungated(squared_relu)), build=recurrent.nemotron_h),
    Row(
        "granitehybrid",
        _granite(mixer=recurrent.mamba2, feed_forward=routed(is_renormalised=True)),
        {"vocabulary": "spm"},
        GRANITE,
        build=recurrent.granitehybrid,
    ),
    Row(
        "lfm2",
        decoder(neighbours=False, norm=_named_norm, attention=_lfm2, mixer=recurrent.convolution),
        {"head_norms": True},
        build=recurrent.lfm2,
    ),
    Row(
        "lfm2moe",
        decoder(
            neighbours=False,
            norm=_named_norm,
            attention=_lfm2,
            mixer=recurrent.convolution,
            feed_forward=routed("sigmoid", is_renormalised=True, has_shared=False),
        ),
        {"head_norms": True},
        {"expert_gating_func": 2},
        (experts(first=1, choice_biases=True),),
        build=recurrent.lfm2,
    ),
    Row(
        "command-r",
        _capped(
            decoder(
                neighbours=True,
                norm=layer_norm,
                norms=("attn_norm", "attn_norm"),
                is_parallel=True,
                attention=_layer_normed,
            )
        ),
        {"tied": True},
        {"logit_scale": 0.25},
        (unbiased_layer_norms, without("ffn_norm.weight")),
    ),
    Row(
        "cohere2",
        _capped(
            decoder(
                neighbours=True,
                norm=layer_norm,
                norms=("attn_norm", "attn_norm"),
                is_parallel=True,
                attention=_cohere2,
            )
        ),
        {"tied": True},
        {
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": 2,
            "logit_scale": 0.25,
        },
        (unbiased_layer_norms, without("ffn_norm.weight")),
    ),
    Row("stablelm", _stablelm, keys={"rope.dimension_count": 4}, changes=(layer_norms,)),
    Row(
        "phi3",
        _by_length(feed_forward=Twin.fused_feed_forward),
        {"vocabulary": "spm"},
        changes=(_fuse_gate, fused),
    ),
    Row(
        "phimoe",
        _by_length(
            norm=_norm_and_bias, feed_forward=routed(is_renormalised=True, has_shared=False)
        ),
        {"vocabulary": "spm", "biases": True},
        changes=(
            experts(is_wide=True, seed=7),
            biases("attn_output", ".attn_norm", ".ffn_norm", "output_norm"),
            output_bias,
        ),
    ),
    Row(
        "exaone4",
        decoder(neighbours=False, norm=_only_after, attention=_exaone4, norm_after=norm),
        {"head_norms": True, "norms_after": True},
        changes=(without(".attn_norm.weight", ".ffn_norm.weight"),),
    ),
    Row(
        "olmo2",
        decoder(neighbours=False, norm=_only_after, attention=_olmo2, norm_after=norm),
        {"head_norms": "whole", "norms_after": True},
        changes=(without(".attn_norm.weight", ".ffn_norm.weight"),),
    ),
    Row("hunyuan-dense", decoder(neighbours=False, attention=_hunyuan), {"head_norms": True}),
    Row(
        "gpt-oss",
        decoder(
            neighbours=False,
            attention=lambda twin, number: {
                "window": twin.key("attention.sliding_window") if number % 2 == 0 else None,
                "sinks": twin.tensor(f"blk.{number}.attn_sinks.weight"),
            },
            norms=("attn_norm", "post_attention_norm"),
            feed_forward=_clamped,
        ),
        {"biases": True},
        {"attention.sliding_window": WINDOW, **YARN, "rope.scaling.original_context_length": 64},
        (
            experts(biases=True),
            renamed("ffn_norm", "post_attention_norm"),
            biases("attn_output"),
            sinks,
        ),
    ),
    Row(
        "gemma2",  # its caps lie within the range of what they cap
        _capped(_gemma(attention=_gemma2, norm_after=norm), 30.0),
        {"vocabulary": "spm", "norms_after": True},
        {
            "attention.sliding_window": WINDOW,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 0.5,
        },
    ),
    Row(
        "gemma3",  # two bases differ, so that neither passes for the other within a few tokens
        _capped(_gemma(attention=_gemma3, norm_after=norm)),
        {"vocabulary": "spm", "head_norms": True, "norms_after": True},
        {
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 1000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 4.0,
        },
    ),
    Row(
        "mistral3",  # its original context is so short that a few tokens leave it
        decoder(neighbours=True, attention=_growing),
        keys={
            **YARN,
            "rope.scaling.factor": 16.0,
            "rope.scaling.original_context_length": 4,
            "rope.scaling.yarn_beta_fast": 1.0,
            "rope.scaling.yarn_beta_slow": 0.05,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.4,
        },
    ),
    Row(
        "granite",  # so large an eps that it counts next to the stream
        _granite(),
        {"vocabulary": "spm"},
        {**GRANITE, "attention.layer_norm_rms_epsilon": 1e-2},
    ),
    Row(
        "apertus",
        decoder(neighbours=False, attention=lambda twin, number: HEADS, feed_forward=_xielu),
        {"head_norms": True, "rope_factors": True},
        changes=(UNGATED, _of_each_layer),
    ),
    Row(
        "bitnet",  # with a small eps norms undo the scales of what they read
        _bitnet,
        {"tied": True},
        {"attention.layer_norm_rms_epsilon": 0.1},
        (_scales,),
    ),
]
ROWS = {row.name: row for row in _ROWS}


def _second_norm(described: tiny_gguf.TinyGGUF) -> None:
    """Rename norms as in Falcon 40B: ``attn_norm_2`` is used before attention."""
    described.rename(".attn_norm.", ".attn_norm_2.")
    described.rename(".ffn_norm.", ".attn_norm.")


def varied(
    name: str,
    *changes: Change,
    keys: Mapping[str, Any] | None = None,
    logits: Computed | None = None,
    is_same: bool = False,
    **arguments: Any,
) -> Row:
    """Return the row of an architecture with further changes, arguments and keys.

    A key with the value None is dropped.
    """
    row = ROWS[name]
    return replace(
        row,
        logits=logits or row.logits,
        arguments={**row.arguments, **arguments},
        keys={
            key: value for key, value in {**row.keys, **(keys or {})}.items() if value is not None
        },
        changes=(*row.changes, *changes),
        is_same=is_same,
    )


_LEFT_OUT = {
    "gemma2": ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    "mistral3": (
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.yarn_beta_slow",
        "attention.temperature_scale",
    ),
    "granite": ("embedding_scale", "residual_scale", "attention.scale"),
}
_STATED = {
    "minicpm": {"embedding_scale": 0.3, "residual_scale": 0.3, "logit_scale": 0.3},
    "gemma3": {
        "attn_logit_softcapping": 0.7,
        "final_logit_softcapping": 0.5,
        "rope.freq_base_swa": 300.0,
    },
    # as if they were left out
    "granite": {
        "embedding_scale": 0.0,
        "residual_scale": 0.0,
        "attention.scale": 0.0,
    },
    "hunyuan-dense": {"rope.scaling.alpha": 50.0},
    "lfm2": {"attention.sliding_window": 7},
    "llama": {"rope.scaling.factor": 4.0},
}
_OLMO3 = {
    **YARN, "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": np.array([True, False, True]),
}  # fmt: skip
VARIANTS = {
    **{
        f"{name} without {key}": varied(name, keys={key: None})
        for name, keys in _LEFT_OUT.items()
        for key in keys
    },
    **{
        f"{name} with {key} {value}": varied(name, keys={key: value})
        for name, keys in _STATED.items()
        for key, value in keys.items()
    },
    **{
        f"bitnet with another {name}": varied(
            "bitnet", lambda one, name=name: one.fill(f"blk.1.{name}.scale", 4.0)
        )
        for name in MATRICES
    },
    "bitnet without scales": varied("bitnet", without(".scale")),
    "llama with a single expert": varied("llama", keys={"expert_count": 1}, is_same=True),
    "llama with experts": varied("llama", experts(n=8, is_wide=True)),
    "llama with divided frequencies": varied("llama", rope_factors=True),
    "llama without an output": varied("llama", tied=True),
    "llama with a key head for each": varied("llama", n_kv_heads=4),
    "llama with biases everywhere": varied("llama", GATED_BIASES, biases=True),
    "llama, no layer like another": varied("llama", unlike_layers, n_layers=3),
    "qwen2 with a bias of the output": varied("qwen2", output_bias),
    "qwen3 with another head width and odd groups": varied(
        "qwen3", n_heads=6, n_kv_heads=1, dim=48, head_dim=40, hidden_dim=52
    ),
    "seed_oss with biases": varied("seed_oss", biases=True),
    "ernie4_5 with biases": varied("ernie4_5", GATED_BIASES, biases=True),
    "internlm2 with one projection and its bias": varied(
        "internlm2", fused, biases("attn_qkv"), n_heads=6, n_kv_heads=2, dim=96
    ),
    "arcee with yarn and a width of 100": varied("arcee", keys=YARN, hidden_dim=100),
    "nemotron with biases": varied("nemotron", OUTPUT_BIASES, biases=True),
    "starcoder2 with a width of 100 and a mean far from zero": varied(
        "starcoder2", _far_mean, biases=True, hidden_dim=100, dim=40, head_dim=16
    ),
    "glm4 with biases": varied("glm4", biases=True),
    "granitemoe without a shared expert": replace(
        ROWS["granitemoe"],
        logits=_granite(feed_forward=routed(is_renormalised=True, has_shared=False)),
        changes=(experts(is_wide=True),),
    ),
    "granitemoe with a narrow shared expert": replace(ROWS["granitemoe"], changes=(_shared(24),)),
    "granite without rope, with biases": varied(
        "granite", GATED_BIASES, keys={"rope.scaling.finetuned": False}
    ),
    "granite_swa with experts": varied(
        "granite_swa", experts(n_shared=1, is_wide=True), _stated_shared, _fuse_shared, n_layers=2
    ),
    "granitehybrid with experts": varied("granitehybrid", _shared(40), n_layers=3),
    **{
        f"granitehybrid, {n_groups} groups, heads of {head_dim}, no rope": varied(
            "granitehybrid",
            keys={"rope.scaling.finetuned": False},
            n_groups=n_groups,
            head_dim=head_dim,
        )
        for n_groups, head_dim in ((1, 8), (4, 72))
    },
    "falcon 40B": replace(
        ROWS["falcon"],
        changes=(layer_norms, fused, UNGATED, _second_norm),
        logits=decoder(
            neighbours=False,
            norm=layer_norm,
            norms=("attn_norm_2", "attn_norm"),
            is_parallel=True,
            feed_forward=ungated(gelu),
        ),
    ),
    "falcon-h1 with norms": varied(
        "falcon-h1", mamba={"n_groups": 1, "n_heads": 6, "head_dim": 16}
    ),
    "falcon-h1 without biases": varied("falcon-h1", without("ssm_conv1d.bias")),
    "falcon-h1, a norm named in full": varied(
        "falcon-h1", ffn_norm="ffn_norm.weight", is_same=True
    ),
    "nemotron_h with biases and the other name of eps": varied(
        "nemotron_h", OUTPUT_BIASES, _layer_eps, n_layers=6
    ),
    "lfm2moe, four layers": varied("lfm2moe", n_layers=4),
    "qwen35, recurrent layers only": varied("qwen35", recurrent=[True, True]),
    "gptneox, one branch after the other": varied(
        "gptneox",
        keys={"use_parallel_residual": False},
        logits=decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(gelu)),
    ),
    "mpt with learned positions": Row("mpt", LEARNED, changes=OF_LEARNED),
    "baichuan 13B": varied(
        "baichuan", n_layers=40, dim=32, hidden_dim=16, n_heads=3, n_kv_heads=1, head_dim=8
    ),
    "glm4moe without norms of heads": varied(
        "glm4moe",
        head_norms=False,
        logits=decoder(
            neighbours=False,
            norms=("attn_norm", "post_attention_norm"),
            feed_forward=routed("sigmoid", is_renormalised=True),
        ),
    ),
    "command-r, 64 layers": varied(
        "command-r", _head_norms, n_layers=LAYERS_OF_LARGEST, dim=32, hidden_dim=16
    ),
    "cohere2, four layers of the usual period": varied(
        "cohere2", keys={"attention.sliding_window_pattern": None, "logit_scale": 0.0}, n_layers=4
    ),
    "exaone4, the largest": varied(
        "exaone4",
        keys={"attention.sliding_window": WINDOW},
        n_layers=LAYERS_OF_LARGEST,
        dim=32,
        hidden_dim=16,
        n_heads=2,
        n_kv_heads=1,
    ),
    "exaone4 with divided frequencies": varied("exaone4", rope_factors=True),
    "gemma2, the largest": varied("gemma2", n_layers=46, head_dim=32),
    "gemma3, four layers": varied("gemma3", n_layers=4),
    "olmo2 with windows next to stretched layers": varied("olmo2", keys=_OLMO3, n_layers=3),
    "gpt-oss beyond what its gate clamps": varied("gpt-oss", _beyond_clamps, n_layers=1),
    "apertus, one function for all layers": varied(
        "apertus",
        keys={f"xielu.{name}": values[1] for name, values in PARAMETERS.items()},
        hidden_dim=300,
    ),
    "phi3 with projections of their own": replace(
        ROWS["phi3"], changes=(_fuse_gate,), is_same=True
    ),
    "phi3 with longrope": varied("phi3", longrope),
    "phimoe with longrope": varied("phimoe", longrope),
    "stablelm with biases": varied("stablelm", biases=True),
    "stablelm with norms of heads": varied("stablelm", _head_norms, n_kv_heads=1),
    "stablelm with norms of heads, side by side": varied(
        "stablelm", _head_norms, without("ffn_norm.weight", "ffn_norm.bias")
    ),
}
"""Variants of architectures that occur in files."""
