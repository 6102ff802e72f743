"""The steps that decoder-only architectures are put together from, as operations of a plan.

A layer, as most families have it; a family's file says only what it does otherwise::

    x ------------------------------+                 the residual stream, (tokens, dim) float32
    |                               |
    norm                            |                 rmsnorm or layernorm of x
    |                               |
    q, k, v = products of the norm  |                 (heads, head_dim); biases, norms of heads where the file has them
    q, k turned by their positions  |                 rope
    k, v -> KV cache                |
    attention(q, all k, all v)      |                 a group of query heads shares one head of keys and values
    output product                  |                 a branch, (tokens, dim)
    |                               |
    + ------------------------------+                 x += branch, normed first in some families
    |
    norm -> gate(x) * up(x) -> down -> +              the feed-forward, or experts: the same way round

A step takes its part of a layer, reads one buffer and returns another; what a branch adds to the
residual stream is a step of its own, so that norms after a branch and branches side by side
compose. Speed lives in the kernels and in the plan, which lets a matrix product add by itself,
never here.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engine.config import Attention, Dense, Experts, FeedForward, Mixer
from engine.models import experts, latent, recurrent
from engine.models.decoder import Decoder, Stage
from engine.plan.buffers import Activations
from engine.weights.weights import Tensor

NORMS_AFTER = ("post_attention_norm.weight", "post_ffw_norm.weight")
"""Norms after the two branches of a layer."""
ROUTED = "routed"
"""The vector that a router reads where that is not what the experts read."""
NORMS_APART = (
    "post_ffw_norm_1.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight",
    "post_ffw_norm_2.weight",
)  # fmt: skip
"""Norms of a feed-forward next to experts: what it leaves, what the router and the experts read,
what those leave."""


def all_layers(d: Decoder, ffn_norm: str = "ffn_norm", mixer_norm: str = "attn_norm") -> None:
    """Token ids to residual stream; see ``each_layer`` for the arguments."""
    embedding(d)
    each_layer(d, ffn_norm, mixer_norm)


def each_layer(
    d: Decoder,
    ffn_norm: str = "ffn_norm",
    mixer_norm: str = "attn_norm",
    end_layer: Callable[[int], None] | None = None,
) -> None:
    """The layers of this part, in order.

    Args:
        ffn_norm, mixer_norm: names of the norms that the feed-forward and the mixer read through.
        end_layer: writes what ends a layer, by its number.
    """
    for number, layer in d.layers:
        if layer.own_norms and d.computes_queries(number):
            own = norm(d, number, ffn_norm, "normed of its own")
        else:
            own = None
        if (
            isinstance(layer.feed_forward, Experts)
            and layer.feed_forward.routes_first
            and d.computes_queries(number)
        ):
            d.plan.copy(d.x, (0, 0), d.buffers.vector(ROUTED, d.config.dim), (0, 0), d.config.dim)
        if d.computes_mixers(number):
            if layer.norm_before:
                x = norm(d, number, mixer_norm)
            else:
                x = d.x
            for mixer in layer.mixers:
                mixed = mix(d, number, mixer, x)
                if mixed is None:
                    return
                residual(d, mixed, _norm_after(d, number, 0))
        if d.ends_after_mixers(number):
            return
        if layer.feed_forward is None:
            continue
        if not layer.side_by_side:  # else x is still what attention has read
            if layer.norm_before:
                x = norm(d, number, ffn_norm)
            else:
                x = d.x
        residual(
            d, feed_forward(d, number, layer.feed_forward, own or x), _norm_after(d, number, 1)
        )
        if end_layer is not None:
            end_layer(number)


def _norm_after(d: Decoder, layer: int, branch: int) -> Tensor | None:
    if d.config.layers[layer].norm_after:
        return d.weight(layer, NORMS_AFTER[branch])
    return None


def embedding(d: Decoder) -> None:
    """x = rows of the embedding; and the angles of the step's positions, which all layers use.

    Of one token of a block, the layers before have been added already.
    """
    d.plan.phase = "embedding"
    if d.stage is Stage.LAST:
        d.plan.take_token(d.buffers.vector("x", d.config.dim), d.x)
    else:
        _begin(d)
    for rope in d.config.ropes:
        d.plan.attention.angles(d.rotations[rope], d.angles(rope))
        if rope.query_growth:
            d.plan.attention.angles(
                d.rotations[rope], d.query_angles(rope), rope.query_growth, rope.original_context
            )
    d.plan.barrier()


def _begin(d: Decoder) -> None:
    """The residual stream of the step's tokens, with what some models do to their embeddings."""
    if d.config.embedding_norm:
        out = d.buffers.vector("embedded", d.config.dim)
    else:
        out = d.x
    look_up(d, out)
    if d.config.learned_positions:
        d.plan.add_positions(
            d.weights["position_embd.weight"].address, d.config.learned_positions, out
        )
    if (
        d.config.token_types
    ):  # every token is of the first type: a table with one row for all positions
        d.plan.add_positions(d.weights["token_types.weight"].address, 1, out)
    if d.config.embedding_norm:
        d.plan.barrier()
        normed_by(d, out, "token_embd_norm", d.x)


def look_up(d: Decoder, out: Activations) -> None:
    """Out = what the residual stream of the step's tokens begins with."""
    d.plan.embed(d.weights["token_embd.weight"], out)
    if d.config.embedding_scale != d.config.residual_scale:
        d.plan.scale(out, d.config.embedding_scale / d.config.residual_scale)


def norm(d: Decoder, layer: int, name: str, place: str = "normed") -> Activations:
    """The residual stream, normed for a branch to read."""
    normed = d.buffers.vector(place, d.config.dim)
    d.plan.phase = "norms"
    normed_by(d, d.x, f"blk.{layer}.{name}", normed)
    return normed


def normed_by(d: Decoder, x: Activations, name: str, out: Activations) -> None:
    """Out = a vector of the stream, normed by the weights of a name, and by its bias where the file
    has one."""
    weight = d.weights.get(name + ".weight") or d.weights.get(name)
    bias = d.weights.get(name + ".bias")
    if weight:
        ones = 0
    else:
        ones = d.buffers.constant(f"ones {x.n}", np.ones(x.n, np.float32))
    if d.config.layer_norm:
        norm = d.plan.layernorm
    else:
        norm = d.plan.rmsnorm
    norm(x, weight=weight or ones, bias=bias, out=out, eps=d.stream_eps)


def residual(d: Decoder, branch: Activations, norm_after: Tensor | None = None) -> None:
    """x += branch, normed first if there is a norm after it; the branch means nothing
    afterwards."""
    d.plan.add(d.x, branch, norm_after, d.config.norm_after_eps or d.config.norm_eps)
    d.plan.barrier()


def mix(d: Decoder, layer: int, mixer: Mixer, x: Activations) -> Activations | None:
    """Apply a layer's mixer to x; None as for ``self_attention``."""
    if isinstance(mixer, Attention) and mixer.latent is not None:
        heads = latent.attend(d, layer, mixer, mixer.latent, x)
        if heads is None:
            return None
        return product(d, d.weight(layer, "attn_output.weight"), heads)
    if isinstance(mixer, Attention):
        return self_attention(d, layer, mixer, x)
    return product(d, *recurrent.mix(d, layer, mixer, x))


def self_attention(
    d: Decoder, layer: int, attention: Attention, x: Activations
) -> Activations | None:
    """output(attention(q, k, v)) of x, with grouped queries; biases and norms of heads where the
    file has them.

    None where keys and values of x are all that is wanted of this layer and of those after it.
    """
    plan = d.plan
    wanted = {
        "q": d.computes_queries(layer),
        "k": d.computes_keys(layer, attention),
        "v": d.computes_keys(layer, attention),
    }
    widths = attention.q_rows, attention.k_dim, attention.v_dim
    names = "queries and gates" if attention.gated else "q", "k", "v"
    q, k, v = (d.buffers.vector(name, n) for name, n in zip(names, widths, strict=True))
    weights, biases = (
        d.parts(layer, f"attn_qkv.{kind}", [f"attn_{letter}.{kind}" for letter in "qkv"], widths)
        for kind in ("weight", "bias")
    )
    products = [
        (weight, out, bias)
        for letter, weight, out, bias in zip("qkv", weights, (q, k, v), biases, strict=True)
        if weight and wanted[letter]
    ]
    if attention.gated or attention.gated_apart:
        gate = d.buffers.vector("q gate", attention.q_dim)
    else:
        gate = None
    if gate is not None and attention.gated_apart and wanted["q"]:
        products.append((d.weight(layer, "attn_gate.weight"), gate, None))
    plan.quantize(x, *(weight for weight, _, _ in products))
    plan.barrier()
    plan.phase = "qkv"
    for weight, out, bias in products:
        plan.matmul(weight, x, out, bias)
    plan.barrier()
    _scaled(d, products)
    plan.phase = "attention"
    if attention.bound is not None:
        for _, out, _ in products:
            plan.clamp(out, attention.bound)
        plan.barrier()
    if (
        wanted["v"] and attention.value_norms
    ):  # the threads have the same heads in all rows up to the store: no barrier
        plan.attention.unit_heads(v if weights[2] else k, attention.value_dim, v, d.config.norm_eps)
    if (
        attention.gated and gate is not None
    ):  # the threads have the same heads when they norm and turn them: no barrier
        both = q
        q = d.buffers.vector("q", attention.q_dim)
        if wanted["q"]:
            plan.attention.split_heads(both, attention.key_dim, q, gate)
    _norm_and_turn(
        d, layer, attention, {letter: x for letter, x in (("q", q), ("k", k)) if wanted[letter]}
    )
    if wanted["q"]:  # the threads have the same heads in all rows from the norms on: no barrier
        plan.attention.hadamard(attention.key_dim, q)
    if wanted["k"]:
        plan.attention.store_kv(layer, k, v)
    plan.barrier()
    if not wanted["q"]:
        return None
    attended = d.buffers.vector("attended", attention.out_dim)
    plan.attention.attend(layer, attention, q, attended, d.optional(layer, "attn_sinks.weight"))
    plan.barrier()
    if gate is not None:
        plan.gate("sigmoid", gate, attended)
        plan.barrier()
        attended = gate
    plan.phase = "attention output"
    if attention.norm_within:
        attended = _normed_within(d, layer, "attn_sub_norm", attended)
    return product(
        d, d.weight(layer, "attn_output.weight"), attended, d.optional(layer, "attn_output.bias")
    )


def _norm_and_turn(
    d: Decoder, layer: int, attention: Attention, heads: Mapping[str, Activations]
) -> None:
    """Norm queries and keys, by their letters, and turn them by their positions, each as far as the
    layer does."""
    plan = d.plan
    rope = attention.rope
    width = attention.key_dim
    eps = d.config.norm_eps
    if rope is not None:
        angles_of = {"q": d.query_angles(rope), "k": d.angles(rope)}
    else:
        angles_of = {}
    turned = [(x, angles_of.get(letter)) for letter, x in heads.items()]
    if rope is not None:
        rotation = d.rotations[rope]
    else:
        rotation = None
    norms = [d.optional(layer, f"attn_{letter}_norm.weight") for letter in heads]
    if attention.whole_norms:
        for (x, _), norm in zip(turned, norms, strict=True):
            plan.attention.rope(x, x.n, None, None, norm, eps)  # one head of all the width
        plan.barrier()
        norms = [None] * len(turned)
    if attention.head_layer_norms:
        for (x, _), norm in zip(turned, norms, strict=True):
            assert norm is not None
            plan.attention.layernorm_heads(
                x, width, norm, eps
            )  # the threads have the same heads when they turn them: no barrier
        norms = [None] * len(turned)
    for (x, angles), norm in zip(turned, norms, strict=True):
        if attention.norms_turned:  # the threads have the same heads in both rows: no barrier
            plan.attention.rope(x, width, rotation, angles)
            plan.attention.rope(x, width, None, None, norm, eps)
        else:
            plan.attention.rope(x, width, rotation, angles, norm, eps)


def feed_forward(d: Decoder, layer: int, form: FeedForward, x: Activations) -> Activations:
    """Apply the layer's feed-forward to x, with experts or without."""
    if not isinstance(form, Experts):
        return dense_feed_forward(d, layer, form, x)
    if form.norms_apart:
        return _normed_apart(d, layer, form, x)
    if form.shared:
        shared = dense_feed_forward(d, layer, form.shared, x, "_shexp")
    else:
        shared = None
    if form.routes_first:
        routed = d.buffers.vector(ROUTED, d.config.dim)
    else:
        routed = None
    return experts.routed_feed_forward(d, layer, form, x, shared, routed)


def _normed_apart(d: Decoder, layer: int, form: Experts, x: Activations) -> Activations:
    """norm(shared feed-forward of x) + norm(experts), which read the stream through a norm of their
    own."""
    assert form.shared is not None
    plan = d.plan
    dim = d.config.dim
    shared = dense_feed_forward(d, layer, form.shared, x)
    plan.phase = "norms"
    out, routed = (d.buffers.vector(name, dim) for name in ("normed branch", ROUTED))
    plan.rmsnorm(shared, d.weight(layer, "post_ffw_norm_1.weight"), out, d.config.norm_eps)
    scale = (
        f"blk.{layer}.ffn_gate_inp.scale"  # of a vector that has unit length, not unit mean square
    )
    plan.rmsnorm(
        d.x, d.buffers.constant(scale, d.weights.float32(scale) / dim**0.5), routed, d.stream_eps
    )
    x = norm(d, layer, "pre_ffw_norm_2")
    branch = experts.routed_feed_forward(d, layer, form, x, None, routed)
    plan.add(out, branch, d.weight(layer, "post_ffw_norm_2.weight"), d.config.norm_eps)
    plan.barrier()
    return out


def dense_feed_forward(
    d: Decoder, layer: int, dense: Dense, x: Activations, kind: str = ""
) -> Activations:
    """down(function(gate(x)) * up(x)) with the layer's function, or down(function(up(x))).

    Args:
        kind: what the tensors' names end with.
    """
    plan = d.plan
    n = dense.hidden_dim
    gate, up = (d.buffers.vector(name, n) for name in ("gate", "up"))
    w_up = d.weight(layer, f"ffn_up{kind}.weight")
    w_down = d.weight(layer, f"ffn_down{kind}.weight")
    products = [(w_up, up, d.optional(layer, f"ffn_up{kind}.bias"))]
    if dense.is_fused:
        products = [(w_up.part(0, n), gate, None), (w_up.part(n, n), up, None)]
    elif not dense.has_no_gate:
        w_gate = d.weight(layer, f"ffn_gate{kind}.weight")
        products = [(w_gate, gate, d.optional(layer, f"ffn_gate{kind}.bias")), *products]
    plan.quantize(x, *(weight for weight, _, _ in products))
    plan.barrier()
    plan.phase = "feed-forward"
    for weight, out, bias in products:
        plan.matmul(weight, x, out, bias)
    plan.barrier()
    _scaled(d, products)
    if dense.xielu is not None:
        plan.xielu(dense.xielu, up)
    elif dense.has_no_gate:
        plan.activate(dense.gate, up)
    else:
        plan.gate(dense.gate, gate, up)
    if dense.has_no_gate:
        hidden = up
    else:
        hidden = gate
    if dense.norm_within:
        plan.barrier()
        hidden = _normed_within(d, layer, "ffn_sub_norm", hidden)
    plan.quantize(hidden, w_down)
    plan.barrier()
    return product(d, w_down, hidden, d.optional(layer, f"ffn_down{kind}.bias"), is_quantized=True)


def product(
    d: Decoder,
    weight: Tensor,
    x: Activations,
    bias: Tensor | None = None,
    is_quantized: bool = False,
) -> Activations:
    """weight @ x + bias as a branch, for x that comes after a barrier."""
    branch = d.buffers.vector("branch", weight.n_rows)
    if not is_quantized:
        before = len(d.plan.operations)
        d.plan.quantize(x, weight)
        if len(d.plan.operations) > before:  # the reader wants int8
            d.plan.barrier()
    d.plan.matmul(weight, x, branch, bias)
    d.plan.barrier()
    _scaled(d, [(weight, branch, bias)])
    return branch


def _scaled(d: Decoder, products: Sequence[tuple[Tensor, Activations, Tensor | None]]) -> None:
    """Multiply what comes after a barrier by the scales of the weights it was made with, where the
    file has them."""
    scales = [(out, weight.name.removesuffix("weight") + "scale") for weight, out, _ in products]
    found = [(out, name) for out, name in scales if d.weights.get(name) is not None]
    for out, name in found:
        d.plan.scale(out, float(d.weights.float32(name)[0, 0]))
    if found:
        d.plan.barrier()


def _normed_within(d: Decoder, layer: int, name: str, x: Activations) -> Activations:
    """Normalize the input of a branch's last product."""
    normed = d.buffers.vector(f"normed {x.n}", x.n)
    d.plan.rmsnorm(x, d.weight(layer, name + ".weight"), normed, d.config.norm_eps)
    d.plan.barrier()
    return normed


def output_head(d: Decoder, norm_name: str = "output_norm") -> None:
    """logits = output(norm(x)); without a tensor of its own, the embedding is the output.

    What embeds texts wants no logits, but every token's normed vector.
    """
    plan = d.plan
    buffers = d.buffers
    dim = d.config.dim
    if not d.n_logits:
        normed_by(d, d.x, norm_name, buffers.vector("vectors", dim))
        plan.barrier()
        return
    output = d.weights.get("output.weight") or d.weights["token_embd.weight"]
    plan.phase = "output head"
    x = d.x
    if d.n_logits == 1 and d.stage is not Stage.LAST:
        x = buffers.vector("last", dim, 1)
        plan.take_token(d.x, x)
        plan.barrier()
    normed = buffers.vector("last_normed", dim, d.n_logits)
    normed_by(d, x, norm_name, normed)
    if d.config.logit_scale != 1.0:
        plan.barrier()
        plan.scale(normed, d.config.logit_scale)  # instead of the logits, which are more
        plan.barrier()
    plan.quantize(normed, output)
    plan.barrier()
    logits = buffers.vector("logits", d.config.vocab_size, d.n_logits)
    plan.matmul(output, normed, logits, d.weights.get("output.bias"))
    plan.barrier()
    if d.config.logit_soft_cap is not None:
        plan.soft_cap(logits, d.config.logit_soft_cap)
        plan.barrier()
