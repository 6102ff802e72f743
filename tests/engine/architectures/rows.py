"""Architectures that a row describes: the shape of a tiny model, its keys, and what its twin is put together from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.gguf.ggml_types import GGML_TYPES
from tests.engine import tiny_gguf
from tests.engine.architectures import test_nemotron_h
from tests.engine.reference import Array, Turn, Twin, causal_attention, gelu, rmsnorm, silu, squared_relu

Change = Callable[[tiny_gguf.TinyGGUF], None]
Computed = Callable[[Twin, list[int]], Array]
Branch = Callable[[Twin, str, Array], Array]
PERIOD, ALIBI = 4, 8.0


@dataclass(frozen=True)
class Row:
    """One architecture; has what a module of tests has of another: ``tiny(**arguments)`` and ``logits(twin, ids)``.

    Attributes:
        name: as files have it.
        logits: its twin.
        arguments: of ``tiny_gguf.decoder``.
        keys: next to those, without the architecture's name.
        changes: to the tiny model, in order.
        made: makes the tiny model instead of ``tiny_gguf.decoder``.
    """

    name: str
    logits: Computed
    arguments: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    made: Callable[..., tiny_gguf.TinyGGUF] = tiny_gguf.decoder

    def tiny(self, **arguments: Any) -> tiny_gguf.TinyGGUF:
        """Describe a file."""
        described = self.made(self.name, **{"vocabulary": "bpe", **self.arguments, **arguments})
        for change in self.changes:
            change(described)
        for key, value in self.keys.items():
            described.set(f"{self.name}.{key}", value)
        return described


def decoder(
    *,
    neighbours: bool | None,
    norm: Callable[[Twin, str, Array], Array] = lambda twin, name, x: twin.norm(x, name),
    attention: Callable[[Twin, int], Mapping[str, Any]] = lambda twin, number: {},
    feed_forward: Branch = Twin.feed_forward,
    norms: tuple[str, str] = ("attn_norm", "ffn_norm"),
    is_parallel: bool = False,
    norm_after: Callable[[Twin, str, Array], Array] | None = None,
    begin: Callable[[Twin, Array], Array] = lambda twin, x: x,
    factors: str = "rope_freqs.weight",
) -> Computed:
    """The twin of a decoder.

    Args:
        neighbours: whether rope pairs neighbours or halves; None for no rope.
        norm: of the residual stream, by a tensor's name without its kind.
        attention: arguments of ``Twin.attention`` for a layer, by its number.
        norms: what the mixer and the feed-forward read through.
        is_parallel: both read what the layer begins with.
        norm_after: a norm of what a branch leaves, by its name.
        begin: makes what tokens begin with of their embedding.
    """

    def logits(twin: Twin, ids: list[int]) -> Array:
        if neighbours is None:
            turn: Turn = np.copy
        elif twin.key("rope.scaling.type") == "yarn":
            turn = twin.yarn_turner(len(ids), neighbours=neighbours)
        else:
            turn = twin.turner(len(ids), neighbours=neighbours, factors=factors)
        x = begin(twin, twin.embed(ids))
        for number, block in enumerate(twin.blocks):
            attended = twin.attention(
                block, norm(twin, block + norms[0], x), **{"turn": turn, **attention(twin, number)}
            )
            attended = norm_after(twin, block + "post_attention_norm", attended) if norm_after else attended
            h = norm(twin, block + norms[1], x if is_parallel else x + attended)
            hidden = feed_forward(twin, block, h)
            x = x + attended + (norm_after(twin, block + "post_ffw_norm", hidden) if norm_after else hidden)
        return twin.unembed(norm(twin, "output_norm", x))

    return logits


def layer_norm(twin: Twin, name: str, x: Array) -> Array:
    """With a bias where the file has one."""
    return twin.layer_norm(x, name)


def bare_norm(twin: Twin, name: str, x: Array) -> Array:
    """LayerNorm without weights."""
    x = x - x.mean(-1, keepdims=True)
    return rmsnorm(x, np.ones(x.shape[-1]), twin.eps)


def ungated(function: Callable[[Array], Array]) -> Branch:
    """A feed-forward without a gate."""
    return lambda twin, block, h: twin.plain_feed_forward(block, h, function)


def routed(
    score: str = "softmax",
    is_renormalised: bool = False,
    function: Callable[[Array], Array] | None = None,
    has_shared: bool = True,
) -> Branch:
    """Experts, where the layer has a router, next to a shared one.

    Args:
        function: of experts without a gate.
    """

    def branch(twin: Twin, block: str, h: Array) -> Array:
        if twin.tensor(block + "ffn_gate_inp.weight") is None:
            return twin.feed_forward(block, h)
        scale = twin.key("expert_weights_scale", 1.0)
        weights = twin.routes(block, h, score=score, is_renormalised=is_renormalised, scale=scale)
        if function is not None:
            shared = function(twin.project(h, block + "ffn_up_shexp"))
            found = twin.experts(block, h, weights, lambda gate, up: function(up))
            return found + twin.project(shared, block + "ffn_down_shexp")
        found = twin.experts(block, h, weights)
        return found + twin.shared_expert(block, h) if has_shared else found

    return branch


def learned(twin: Twin, x: Array) -> Array:
    """Embeddings with the vectors of their positions."""
    return x + twin.tensor("position_embd.weight")[: len(x)]


def bounded(twin: Twin, number: int) -> Mapping[str, Any]:
    return {"bound": BOUND}


BOUND = 0.4
"""Cuts about half of what the tiny models' queries, keys and values are."""


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


def renamed(old: str, new: str) -> Change:
    return lambda described: described.rename(old, new)


def positions(described: tiny_gguf.TinyGGUF) -> None:
    """A vector for each position of the context."""
    name = described.value("general.architecture")
    n, dim = (described.value(f"{name}.{key}") for key in ("context_length", "embedding_length"))
    described.add_rows("position_embd.weight", 0.05 * np.random.default_rng(13).standard_normal((n, dim)))


def embedding_norm(described: tiny_gguf.TinyGGUF) -> None:
    rng, dim = np.random.default_rng(17), described.tensor("token_embd.weight").dims[0]
    described.add_vector("token_embd_norm.weight", 1 + 0.1 * rng.standard_normal(dim))
    described.add_vector("token_embd_norm.bias", 0.1 * rng.standard_normal(dim))


def gates(described: tiny_gguf.TinyGGUF) -> None:
    """A gate for each head's result, by a projection of its own, shaped as that of queries."""
    rng = np.random.default_rng(19)
    for tensor in [one for one in described.tensors if str(one.name).endswith("attn_q.weight")]:
        quant = GGML_TYPES[tensor.ggml_type].name
        name = str(tensor.name).replace("attn_q.", "attn_gate.")
        described.tensors.append(tiny_gguf.quantised(name, quant, tensor.dims[1], tensor.dims[0], 0.1, rng))


def experts(
    *, n: int = 6, first: int = 0, n_shared: int = 0, choice_biases: bool = False, is_wide: bool = False
) -> Change:
    """Experts from a layer on, ``n`` in each, and a shared one as wide as ``n_shared`` of them.

    Args:
        is_wide: they are as wide as the keys say that a layer's feed-forward is.
    """

    def change(described: tiny_gguf.TinyGGUF) -> None:
        name = described.value("general.architecture")
        wide = described.tensor("token_embd.weight").dims[0] % 256 == 0
        hidden = described.value(f"{name}.feed_forward_length") if is_wide else 256 if wide else 64
        n_layers = described.value(f"{name}.block_count")
        described.with_experts(
            n,
            first=min(first, n_layers - 1),
            hidden_dim=hidden,
            shared_dim=n_shared * hidden,
            choice_biases=choice_biases,
        )
        described.set(f"{name}.expert_feed_forward_length", hidden)
        described.set(f"{name}.expert_shared_count", n_shared)
        described.set(f"{name}.leading_dense_block_count", min(first, n_layers - 1))

    return change


def _gated_windows(twin: Twin, number: int) -> Mapping[str, Any]:
    """Layers with a window turn, whole ones do not; every head's result has a gate."""
    own = {"window": twin.key("attention.sliding_window")} if number % PERIOD < PERIOD - 1 else {"turn": np.copy}
    return {**own, "has_head_norms": True, "has_gate": True}


def _windows(twin: Twin, number: int) -> Mapping[str, Any]:
    return {
        "has_head_norms": True,
        **({"window": twin.key("attention.sliding_window")} if number % PERIOD < PERIOD - 1 else {}),
    }


def _after(twin: Twin, name: str, x: Array) -> Array:
    return rmsnorm(x, twin.tensor(name + ".weight"), 1e-8)


def _capped(computed: Computed) -> Computed:
    def logits(twin: Twin, ids: list[int]) -> Array:
        cap = twin.key("final_logit_softcapping")
        return cap * np.tanh(computed(twin, ids) * twin.key("logit_scale") / cap)

    return logits


def _experts_in_place(described: tiny_gguf.TinyGGUF) -> None:
    """Experts without gates in place of feed-forwards, and shared ones."""
    rng, n, name = np.random.default_rng(5), 6, described.value("general.architecture")
    for tensor in [one for one in described.tensors if str(one.name).endswith("ffn_up.weight")]:
        block, quant = str(tensor.name).removesuffix("ffn_up.weight"), GGML_TYPES[tensor.ggml_type].name
        dim, hidden = tensor.dims[0], 256 if tensor.dims[0] % 256 == 0 else 64
        described.drop_tensors(block + "ffn_up.weight", block + "ffn_down.weight")
        for kind, rows, cols in (("up", hidden, dim), ("down", dim, hidden)):
            slab = tiny_gguf.quantised(f"{block}ffn_{kind}_exps.weight", quant, n * rows, cols, cols**-0.5, rng)
            slab.dims = [cols, rows, n]
            shared = tiny_gguf.quantised(f"{block}ffn_{kind}_shexp.weight", quant, rows, cols, 0.5 * cols**-0.5, rng)
            described.tensors += [slab, shared]
        router = tiny_gguf.quantised(block + "ffn_gate_inp.weight", "F32", n, dim, 4 * dim**-0.5, rng)
        described.tensors.append(router)
        described.add_vector(block + "exp_probs_b.bias", rng.standard_normal(n))
        described.set(f"{name}.expert_feed_forward_length", hidden)
        described.set(f"{name}.expert_shared_feed_forward_length", hidden)
        described.set(f"{name}.expert_count", n)
        described.set(f"{name}.expert_used_count", 2)


def _halved(described: tiny_gguf.TinyGGUF) -> None:
    """The key gives the width of gate and up together."""
    name = f"{described.value('general.architecture')}.feed_forward_length"
    described.set(name, 2 * described.value(name))


def sinks(described: tiny_gguf.TinyGGUF) -> None:
    """One more score for every head."""
    rng, name = np.random.default_rng(2), described.value("general.architecture")
    n_heads, n_layers = (described.value(f"{name}.{key}") for key in ("attention.head_count", "block_count"))
    for number in range(n_layers):
        described.add_vector(f"blk.{number}.attn_sinks.weight", 1.5 * rng.standard_normal(n_heads))


def _patterns(described: tiny_gguf.TinyGGUF) -> None:
    """Every second layer has a window, the last one is not turned."""
    n_layers = described.value("granite_swa.block_count")
    described.set("granite_swa.attention.sliding_window_pattern", np.arange(n_layers) % 2 == 0)
    described.set("granite_swa.attention.rope_pattern", (np.arange(n_layers) < n_layers - 1).astype("<u4"))


def _by_patterns(twin: Twin, number: int) -> Mapping[str, Any]:
    """Which layers have a window, and which turn."""
    found = {"sinks": twin.tensor(f"blk.{number}.attn_sinks.weight"), "scale": twin.key("attention.scale")}
    if twin.key("attention.sliding_window_pattern")[number]:
        found["window"] = twin.key("attention.sliding_window")
    return found if twin.key("attention.rope_pattern")[number] else {**found, "turn": np.copy}


def _fused_shared(twin: Twin, block: str, h: Array) -> Array:
    """Experts next to a shared one, whose gate and up are one tensor, where the layer has them."""
    if twin.tensor(block + "ffn_up_shexp.weight") is None:
        return twin.feed_forward(block, h)
    both, n = twin.project(h, block + "ffn_up_shexp"), twin.key("expert_shared_feed_forward_length")
    shared = twin.project(silu(both[:, :n]) * both[:, n:], block + "ffn_down_shexp")
    return twin.experts(block, h, twin.routes(block, h, is_renormalised=True)) + shared


def _fuse_shared(described: tiny_gguf.TinyGGUF) -> None:
    """One tensor for gate and up of the shared expert."""
    described.fuse("ffn_up_shexp.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight")


def _stated_shared(described: tiny_gguf.TinyGGUF) -> None:
    """A key says that the shared expert is as wide as the others."""
    name = described.value("general.architecture")
    width = described.value(f"{name}.expert_feed_forward_length")
    described.set(f"{name}.expert_shared_feed_forward_length", width)


def _granite(attention: Callable[[Twin, int], Mapping[str, Any]], feed_forward: Branch) -> Computed:
    """Four multipliers, of which the last is of the logits."""
    layers = decoder(
        neighbours=True,
        attention=attention,
        feed_forward=feed_forward,
        norm_after=lambda twin, name, x: x * twin.key("residual_scale"),
        begin=lambda twin, x: x * twin.key("embedding_scale"),
    )
    return lambda twin, ids: layers(twin, ids) / twin.key("logit_scale")


def _granitemoe(has_shared: bool) -> Computed:
    return _granite(
        lambda twin, number: {"scale": twin.key("attention.scale")},
        routed(is_renormalised=True, has_shared=has_shared),
    )


def _shared(width: int) -> Change:
    """Wide experts, and a shared one of another width."""

    def change(described: tiny_gguf.TinyGGUF) -> None:
        name = described.value("general.architecture")
        described.with_experts(hidden_dim=described.value(f"{name}.feed_forward_length"), shared_dim=width)
        described.set(f"{name}.expert_shared_feed_forward_length", width)

    return change


def _minicpm(twin: Twin, ids: list[int]) -> Array:
    """Multipliers that older files leave to who reads them."""
    scale = twin.key("residual_scale", 1.4 / len(twin.blocks) ** 0.5)
    layers = decoder(
        neighbours=True,
        norm_after=lambda twin, name, x: x * scale,
        begin=lambda twin, x: x * twin.key("embedding_scale", 12.0),
    )
    return layers(twin, ids) / twin.key("logit_scale", 256 / twin.key("embedding_length"))


def output_bias(described: tiny_gguf.TinyGGUF) -> None:
    described.add_vector("output.bias", np.linspace(-1, 1, described.tensor("output.weight").dims[1]))


def _far_mean(described: tiny_gguf.TinyGGUF) -> None:
    """The residual stream's mean is far from zero."""
    bias = described.tensor("blk.0.ffn_down.bias")
    bias.data = np.linspace(50, 51, bias.dims[0], dtype="<f4").tobytes()


def _latent(described: tiny_gguf.TinyGGUF) -> None:
    """Keys and values of all heads are made of one vector, by matrices in one tensor; queries of another one."""
    rng, name = np.random.default_rng(1), described.value("general.architecture")
    quant = GGML_TYPES[described.tensor("blk.0.attn_q.weight").ggml_type].name
    rank, dim = (256 if quant.endswith("_K") else 64), described.value(f"{name}.embedding_length")
    n_heads, n_layers = (described.value(f"{name}.{key}") for key in ("attention.head_count", "block_count"))
    key_dim, turned, value_dim = 48, 16, dim // n_heads
    n_query = rank if name == "minicpm3" else dim

    def add(block: str, matrix: str, rows: int, cols: int) -> None:
        described.tensors.append(tiny_gguf.quantised(f"{block}{matrix}.weight", quant, rows, cols, cols**-0.5, rng))

    described.drop_tensors("attn_q.weight", "attn_k.weight", "attn_v.weight")
    for block in (f"blk.{number}." for number in range(n_layers)):
        if n_query < dim or name == "minicpm3":
            add(block, "attn_q_a", n_query, dim)
            described.add_vector(block + "attn_q_a_norm.weight", 1 + 0.1 * rng.standard_normal(n_query))
        add(block, "attn_q_b" if name == "minicpm3" else "attn_q", n_heads * key_dim, n_query)
        add(block, "attn_kv_a_mqa", rank + turned, dim)
        described.add_vector(block + "attn_kv_a_norm.weight", 1 + 0.1 * rng.standard_normal(rank))
        add(block, "attn_kv_b", n_heads * (key_dim - turned + value_dim), rank)
    keys = {"kv_lora_rank": rank, "q_lora_rank": n_query, "key_length": key_dim, "value_length": value_dim}
    for key, value in keys.items():
        described.set(f"{name}.attention.{key}", value)
    described.set(f"{name}.rope.dimension_count", turned)


def _latent_attention(twin: Twin, block: str, h: Array, turn: Callable[[Array], Array]) -> Array:
    """Every head has its own keys and values, as the model's authors wrote it down."""
    n, n_heads, rank = len(h), twin.key("attention.head_count"), twin.key("attention.kv_lora_rank")
    plain = twin.key("attention.key_length") - twin.key("rope.dimension_count")
    if twin.tensor(block + "attn_q_a.weight") is None:
        q = twin.project(h, block + "attn_q")
    else:
        q = twin.project(twin.norm(twin.project(h, block + "attn_q_a"), block + "attn_q_a_norm"), block + "attn_q_b")
    q, kept = q.reshape(n, n_heads, -1), twin.project(h, block + "attn_kv_a_mqa")
    both = twin.project(twin.norm(kept[:, :rank], block + "attn_kv_a_norm"), block + "attn_kv_b")
    both, turned = both.reshape(n, n_heads, -1), np.repeat(turn(kept[:, None, rank:]), n_heads, axis=1)
    k = np.concatenate([both[..., :plain], turned], -1)
    q = np.concatenate([q[..., :plain], turn(q[..., plain:])], -1) * k.shape[-1] ** -0.5
    return twin.project(causal_attention(q, k, both[..., plain:]).reshape(n, -1), block + "attn_output")


def _plm(twin: Twin, ids: list[int]) -> Array:
    turn = twin.turner(len(ids), neighbours=True)
    return twin.head(
        twin.pre_norm_layers(
            twin.embed(ids),
            lambda block, h: _latent_attention(twin, block, h, turn),
            lambda block, h: twin.plain_feed_forward(block, h, squared_relu),
        )
    )


def _minicpm3(twin: Twin, ids: list[int], length: str = "short") -> Array:
    """Its ropes' divisors are others beyond the length that it was trained for."""
    turn = twin.turner(len(ids), neighbours=False, factors=f"rope_factors_{length}.weight")
    x, scale = twin.embed(ids) * 12, 1.4 / len(twin.blocks) ** 0.5
    for block in twin.blocks:
        x = x + scale * _latent_attention(twin, block, twin.norm(x, block + "attn_norm"), turn)
        x = x + scale * twin.feed_forward(block, twin.norm(x, block + "ffn_norm"))
    return twin.head(x) * 256 / x.shape[-1]


def _divisors(described: tiny_gguf.TinyGGUF) -> None:
    n_pairs = described.value("minicpm3.rope.dimension_count") // 2
    described.add_vector("rope_factors_short.weight", np.linspace(1, 1.8, n_pairs))
    described.add_vector("rope_factors_long.weight", np.geomspace(1, 64, n_pairs))


def _smallthinker(twin: Twin, ids: list[int]) -> Array:
    """The router reads what its layer begins with; a layer without a window, the first of four, is not turned."""
    x, turn = twin.embed(ids), twin.turner(len(ids), neighbours=False)
    for number, block in enumerate(twin.blocks):
        score = {2: "sigmoid"}.get(twin.key("expert_gating_func"), "softmax")
        weights = twin.routes(block, x, score=score, is_renormalised=True)
        own = {"turn": turn, "window": twin.key("attention.sliding_window")} if number % PERIOD else {"turn": np.copy}
        x = x + twin.attention(block, twin.norm(x, block + "attn_norm"), **own)
        h = twin.norm(x, block + "ffn_norm")
        x = x + twin.experts(block, h, weights, lambda gate, up: np.maximum(gate, 0) * up)
    return twin.head(x)


GRANITE = {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.1, "logit_scale": 4.0}
WINDOW = 6
BIASES = biases("attn_qkv", "attn_output", "ffn_up", "ffn_down")
UNGATED = without("ffn_gate.weight")
HEADS = {"has_head_norms": True}
TURNED = {"has_turned_norms": True}
LEARNED = decoder(neighbours=None, norm=layer_norm, feed_forward=ungated(gelu), begin=learned)
OF_LEARNED = (layer_norms, fused, UNGATED, BIASES, positions)
LLAMA = decoder(neighbours=True)


def _baichuan(twin: Twin, ids: list[int]) -> Array:
    """The model of forty layers has no rope."""
    of_13b = decoder(neighbours=None, attention=lambda twin, number: {"alibi": ALIBI})
    return (of_13b if len(twin.blocks) == 40 else LLAMA)(twin, ids)


_SECTIONS = {"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")}
_NEMOTRON = decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(squared_relu))
_SIDE_BY_SIDE = decoder(
    neighbours=False, norm=layer_norm, norms=("attn_norm", "attn_norm"), is_parallel=True, feed_forward=ungated(gelu)
)
_STARCODER2 = decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(gelu))
_GLM4 = decoder(
    neighbours=True,
    feed_forward=Twin.fused_feed_forward,
    norm_after=lambda twin, name, x: twin.norm(x, name),
)
_SEED_OSS = decoder(neighbours=False, norms=("attn_norm", "post_attention_norm"))
_QWEN3 = decoder(neighbours=False, attention=lambda twin, number: HEADS)
_ARCEE = decoder(neighbours=True, feed_forward=ungated(squared_relu))
_CHOSEN = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
_GATE_AND_UP = ("ffn_up.weight", "ffn_gate.weight", "ffn_up.weight")
OUTPUT_BIASES = biases("attn_output", "ffn_up", "ffn_down")
GATED_BIASES = biases("attn_output", "ffn_gate", "ffn_up", "ffn_down")
_ROWS = [
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
        (without("ffn_gate.weight", "ffn_norm.weight"), layer_norms, biases("output", "ffn_up", "ffn_down")),
    ),
    Row(
        "smollm3",
        decoder(neighbours=True, attention=lambda twin, number: {} if (number + 1) % PERIOD else {"turn": np.copy}),
        {"n_layers": 5},
    ),
    Row(
        "glm4",
        _GLM4,
        {"norms_after": True},
        {"rope.dimension_count": 8},
        (lambda described: described.fuse(*_GATE_AND_UP),),
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
        decoder(
            neighbours=False,
            attention=lambda twin, number: HEADS,
            feed_forward=routed("sigmoid", is_renormalised=True),
        ),
        {"head_norms": True, "n_kv_heads": 4},
        _CHOSEN,
        (experts(first=1, n_shared=2, choice_biases=True),),
    ),
    Row(
        "bailingmoe2",
        decoder(
            neighbours=False,
            attention=lambda twin, number: HEADS,
            feed_forward=routed("sigmoid", is_renormalised=True),
        ),
        {"head_norms": True},
        {**_CHOSEN, "expert_group_count": 4, "expert_group_used_count": 2, "rope.dimension_count": 8},
        (experts(n=8, first=1, n_shared=2, choice_biases=True), fused),
    ),
    Row("granitemoe", _granitemoe(True), {"vocabulary": "spm"}, GRANITE, (_shared(64),)),
    Row("qwen2vl", decoder(neighbours=False), {"biases": True}, _SECTIONS),
    Row("qwen3vl", _QWEN3, {"head_norms": True}, {**_SECTIONS, "n_deepstack_layers": 0}),
    Row(
        "qwen3vlmoe",
        decoder(
            neighbours=False,
            attention=lambda twin, number: HEADS,
            feed_forward=routed(is_renormalised=True, has_shared=False),
        ),
        {"head_norms": True},
        _SECTIONS,
        (experts(),),
    ),
    Row("hunyuan_vl", decoder(neighbours=False, attention=lambda twin, number: TURNED), {"head_norms": True}),
    Row(
        "nemotron_h_moe",
        lambda twin, ids: test_nemotron_h.logits(twin, ids, routed("sigmoid", True, squared_relu)),
        {"order": "afm"},
        {"expert_weights_norm": True, "expert_weights_scale": 1.5},
        (_experts_in_place,),
        made=test_nemotron_h.described_as,
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
    Row(
        "gemma",
        decoder(
            neighbours=False,
            feed_forward=lambda twin, block, h: twin.feed_forward(block, h, gelu),
            begin=lambda twin, x: x * x.shape[-1] ** 0.5,
        ),
        {"vocabulary": "spm", "tied": True},
    ),
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
        (experts(first=1, n_shared=1, choice_biases=True), renamed("ffn_norm", "post_attention_norm")),
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
        decoder(neighbours=False, attention=lambda twin, number: TURNED, feed_forward=routed(is_renormalised=True)),
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
    Row("qwen", decoder(neighbours=False), {"n_kv_heads": 4}, changes=(fused, biases("attn_qkv"), _halved)),
    Row(
        "chatglm",
        decoder(neighbours=True, feed_forward=Twin.fused_feed_forward),
        {"biases": True},
        {"rope.dimension_count": 8},
        (lambda described: described.fuse(*_GATE_AND_UP),),
    ),
    Row("baichuan", _baichuan, {"vocabulary": "spm"}),
    Row("xverse", LLAMA, {"vocabulary": "spm"}),
    Row("orion", decoder(neighbours=False, norm=layer_norm), {"vocabulary": "spm"}, changes=(layer_norms,)),
    Row(
        "codeshell",
        _STARCODER2,
        changes=(layer_norms, fused, UNGATED, BIASES),
    ),
    Row("refact", decoder(neighbours=None, attention=lambda twin, number: {"alibi": ALIBI}), {"n_kv_heads": 1}),
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
    Row("pangu-embedded", decoder(neighbours=False), {"biases": True}, changes=(biases("attn_output"),)),
    Row("maincoder", decoder(neighbours=True, attention=lambda twin, number: TURNED), {"head_norms": True}),
    Row(
        "jais",
        decoder(
            neighbours=None,
            norm=layer_norm,
            attention=lambda twin, number: {"alibi": ALIBI, "scale": 1 / twin.key("attention.key_length")},
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
        changes=(unbiased_layer_norms, fused, experts(is_wide=True), renamed("ffn_norm", "attn_output_norm")),
    ),
    Row(
        "granite_swa",
        _granite(_by_patterns, _fused_shared),
        {"n_layers": 3},
        {**GRANITE, "attention.sliding_window": WINDOW},
        (sinks, _patterns),
    ),
    Row("plm", _plm, {"n_kv_heads": 4, "tied": True}, changes=(UNGATED, _latent)),
    Row(
        "smallthinker",
        _smallthinker,
        {"n_layers": 2},
        {"attention.sliding_window": WINDOW, "expert_gating_func": 1},
        (experts(),),
    ),
    Row("minicpm3", _minicpm3, {"n_kv_heads": 4}, changes=(_latent, _divisors)),
]
ROWS = {row.name: row for row in _ROWS}


def _second_norm(described: tiny_gguf.TinyGGUF) -> None:
    """Attention reads through a norm of its own, the feed-forward through the other."""
    described.rename(".attn_norm.", ".attn_norm_2.")
    described.rename(".ffn_norm.", ".attn_norm.")


VARIANTS = {
    "qwen2 with a bias of the output": Row(
        "qwen2", decoder(neighbours=False), {"biases": True}, changes=(output_bias,)
    ),
    "qwen3 with another head width and odd groups": Row(
        "qwen3",
        _QWEN3,
        {"head_norms": True, "n_heads": 6, "n_kv_heads": 1, "dim": 48, "head_dim": 40, "hidden_dim": 52},
    ),
    "seed_oss with biases": Row(
        "seed_oss", _SEED_OSS, {"biases": True}, changes=(renamed("ffn_norm", "post_attention_norm"),)
    ),
    "ernie4_5 with biases": Row("ernie4_5", LLAMA, {"vocabulary": "spm", "biases": True}, changes=(GATED_BIASES,)),
    "internlm2 with one projection and its bias": Row(
        "internlm2",
        LLAMA,
        {"vocabulary": "spm", "n_heads": 6, "n_kv_heads": 2, "dim": 96},
        changes=(fused, biases("attn_qkv")),
    ),
    **{
        f"minicpm that states its {key}": Row("minicpm", _minicpm, {"vocabulary": "spm", "dim": 128}, {key: 0.3})
        for key in ("embedding_scale", "residual_scale", "logit_scale")
    },
    "arcee with yarn and a width of 100": Row(
        "arcee",
        _ARCEE,
        {"hidden_dim": 100},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32},
        (UNGATED,),
    ),
    "nemotron with biases": Row(
        "nemotron",
        _NEMOTRON,
        {"biases": True},
        {"rope.dimension_count": 8},
        (UNGATED, layer_norms, OUTPUT_BIASES),
    ),
    "starcoder2 with a width of 100 and a mean far from zero": Row(
        "starcoder2",
        _STARCODER2,
        {"biases": True, "hidden_dim": 100, "dim": 40, "head_dim": 16},
        changes=(UNGATED, layer_norms, OUTPUT_BIASES, _far_mean),
    ),
    "glm4 with biases": Row(
        "glm4",
        _GLM4,
        {"norms_after": True, "biases": True},
        {"rope.dimension_count": 8},
        (lambda described: described.fuse(*_GATE_AND_UP),),
    ),
    "granitemoe without a shared expert": Row(
        "granitemoe", _granitemoe(False), {"vocabulary": "spm"}, GRANITE, (experts(is_wide=True),)
    ),
    "granitemoe with a narrow shared expert": Row(
        "granitemoe", _granitemoe(True), {"vocabulary": "spm"}, GRANITE, (_shared(24),)
    ),
    "falcon 40B": Row(
        "falcon",
        decoder(
            neighbours=False,
            norm=layer_norm,
            norms=("attn_norm_2", "attn_norm"),
            is_parallel=True,
            feed_forward=ungated(gelu),
        ),
        changes=(layer_norms, fused, UNGATED, _second_norm),
    ),
    "gptneox, one branch after the other": Row(
        "gptneox",
        decoder(neighbours=False, norm=layer_norm, feed_forward=ungated(gelu)),
        keys={"use_parallel_residual": False},
        changes=(layer_norms, fused, UNGATED, BIASES),
    ),
    "mpt with learned positions": Row("mpt", LEARNED, changes=OF_LEARNED),
    "baichuan 13B": Row(
        "baichuan",
        _baichuan,
        {"n_layers": 40, "dim": 32, "hidden_dim": 16, "n_heads": 3, "n_kv_heads": 1, "head_dim": 8},
    ),
    "glm4moe without norms of heads": Row(
        "glm4moe",
        decoder(
            neighbours=False,
            norms=("attn_norm", "post_attention_norm"),
            feed_forward=routed("sigmoid", is_renormalised=True),
        ),
        {"biases": True},
        {"expert_weights_norm": True},
        (experts(n_shared=1, choice_biases=True), renamed("ffn_norm", "post_attention_norm")),
    ),
    "granite_swa with experts": Row(
        "granite_swa",
        _granite(_by_patterns, _fused_shared),
        keys={**GRANITE, "attention.sliding_window": WINDOW},
        changes=(sinks, _patterns, experts(n_shared=1, is_wide=True), _stated_shared, _fuse_shared),
    ),
}
"""What files of an architecture may have in place of what its row says."""
