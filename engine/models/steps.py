"""Steps of decoder-only architectures, as operations of a plan.

The usual layer is below; the module of an architecture contains only its differences::

    x ------------------------------+   residual stream, (tokens, dim) float32
    |                               |
    norm                            |   rmsnorm or layernorm of x
    |                               |
    q, k, v = products of the norm  |   (heads, head_dim); optional biases and norms of heads
    q, k rotated by positions       |   RoPE
    k, v -> KV cache                |
    attention(q, all k, all v)      |   a group of query heads shares a head of keys and values
    output product                  |   branch, (tokens, dim)
    |                               |
    + ------------------------------+   x += branch, normed first in some families
    |
    norm -> gate(x) * up(x) -> down -> +   feed-forward, or experts

A step writes the operations of some part of a layer: it reads one buffer and returns another.
Adding a branch to the residual stream is a separate step, so norms after branches and parallel
branches combine. Kernels and the plan provide the speed, not this module.
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
"""Vector that a router reads, if it is not the input of the experts."""
NORMS_APART = (
    "post_ffw_norm_1.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight",
    "post_ffw_norm_2.weight",
)  # fmt: skip
"""Norms of a feed-forward next to experts: of its result, of the inputs of router and experts, and
of the result of experts."""


def all_layers(d: Decoder, ffn_norm: str = "ffn_norm", mixer_norm: str = "attn_norm") -> None:
    """Write the layers, from token ids to the residual stream; ``each_layer`` describes the
    arguments."""
    embedding(d)
    each_layer(d, ffn_norm, mixer_norm)


def each_layer(
    d: Decoder,
    ffn_norm: str = "ffn_norm",
    mixer_norm: str = "attn_norm",
    end_layer: Callable[[int], None] | None = None,
) -> None:
    """Write the layers of this stage, in order.

    Args:
        ffn_norm, mixer_norm: Names of the norms before the feed-forward and the mixer.
        end_layer: Function that writes the end of a layer, by its number.
    """
    for number, layer in d.layers:
        if layer.own_norms and d.computes_queries(number):
            own_normed = norm(d, number, ffn_norm, "normed of its own")
        else:
            own_normed = None
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
        if not layer.side_by_side:  # if so, x is still the input of attention
            if layer.norm_before:
                x = norm(d, number, ffn_norm)
            else:
                x = d.x
        residual(
            d,
            feed_forward(d, number, layer.feed_forward, own_normed or x),
            _norm_after(d, number, 1),
        )
        if end_layer is not None:
            end_layer(number)
        if (part := d.deepstack(number)) is not None:
            d.plan.add(d.x, part)
            d.plan.barrier()


def _norm_after(d: Decoder, layer: int, branch: int) -> Tensor | None:
    if d.config.layers[layer].norm_after:
        return d.weight(layer, NORMS_AFTER[branch])
    return None


def embedding(d: Decoder) -> None:
    """Write the residual stream from the embedding, and the angles of positions, which all layers
    use.

    For the last token of a block, the earlier layers are already added.
    """
    d.plan.phase = "embedding"
    if d.hidden is not None:
        _begin_prediction(d, d.hidden)
    elif d.stage is Stage.LAST:
        d.plan.take_token(d.buffers.vector("x", d.config.dim), d.x)
    elif not d.visibility:
        _begin(d)
    for rope in d.config.ropes:
        if rope.sections and d.visibility:
            continue
        d.plan.attention.angles(d.rotations[rope], d.angles(rope), is_index=not rope.sections)
        if rope.query_growth:
            d.plan.attention.angles(
                d.rotations[rope], d.query_angles(rope), rope.query_growth, rope.original_context
            )
    d.plan.barrier()


def _begin(d: Decoder) -> None:
    """Write the residual stream of the step's tokens, with the changes of some models."""
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
    ):  # all tokens have the first type: a table with one row for all positions
        d.plan.add_positions(d.weights["token_types.weight"].address, 1, out)
    if d.config.embedding_norm:
        d.plan.barrier()
        normed_by(d, out, "token_embd_norm", d.x)


def _begin_prediction(d: Decoder, hidden: Activations) -> None:
    """Write the predictor's stream: eh_proj of the normed embedding, then the normed hidden row."""
    plan = d.plan
    dim = d.config.dim
    layer = d.config.n_layers - 1
    embedded = d.buffers.vector("embedded", dim)
    table = d.optional(layer, "nextn.embed_tokens.weight")
    if not d.visibility:
        plan.embed(table or d.weights["token_embd.weight"], embedded)
        plan.barrier()
    pair = d.buffers.vector("embedding and hidden", 2 * dim)
    halves = (("enorm", embedded, 0), ("hnorm", hidden, dim))
    for name, x, first in halves:
        normed = d.buffers.vector(f"{name} of predictor", dim)
        weight = d.weight(layer, f"nextn.{name}.weight")
        plan.rmsnorm(x, weight, normed, d.config.norm_eps)
        plan.barrier()
        plan.copy(normed, (0, 0), pair, (first, 0), dim)
    plan.barrier()
    projection = d.weight(layer, "nextn.eh_proj.weight")
    plan.quantize(pair, projection)
    plan.barrier()
    plan.matmul(projection, pair, d.x)
    plan.barrier()


def look_up(d: Decoder, out: Activations) -> None:
    """Write the scaled rows of the embedding."""
    d.plan.embed(d.weights["token_embd.weight"], out)
    if d.config.embedding_scale != d.config.residual_scale:
        d.plan.scale(out, d.config.embedding_scale / d.config.residual_scale)


def norm(d: Decoder, layer: int, name: str, buffer_name: str = "normed") -> Activations:
    """Return the normed residual stream, the input of a branch."""
    normed = d.buffers.vector(buffer_name, d.config.dim)
    d.plan.phase = "norms"
    normed_by(d, d.x, f"blk.{layer}.{name}", normed)
    return normed


def normed_by(d: Decoder, x: Activations, name: str, out: Activations) -> None:
    """Norm a vector of the stream by the weights of a name, and by its bias if the file has one."""
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
    """x += branch, normed first if there is a norm after it; the branch is overwritten."""
    d.plan.add(d.x, branch, norm_after, d.config.norm_after_eps or d.config.norm_eps)
    d.plan.barrier()


def mix(d: Decoder, layer: int, mixer: Mixer, x: Activations) -> Activations | None:
    """Apply a mixer to x; None as for ``self_attention``."""
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
    """Return output(attention(q, k, v)) of x, with grouped queries; biases and norms of heads are
    optional.

    Return None if this stage only needs keys and values of x in this layer.
    """
    plan = d.plan
    is_needed = {
        "q": d.computes_queries(layer),
        "k": d.computes_keys(layer, attention),
        "v": d.computes_keys(layer, attention),
    }
    widths = attention.q_rows, attention.k_dim, attention.v_dim
    names = "queries and gates" if attention.gated else "q", "k", "v"
    q, k, v = (d.buffers.vector(name, n) for name, n in zip(names, widths, strict=True))
    weights, biases = (
        d.parts(
            layer, f"attn_qkv.{suffix}", [f"attn_{letter}.{suffix}" for letter in "qkv"], widths
        )
        for suffix in ("weight", "bias")
    )
    products = [
        (weight, out, bias)
        for letter, weight, out, bias in zip("qkv", weights, (q, k, v), biases, strict=True)
        if weight and is_needed[letter]
    ]
    if attention.gated or attention.gated_apart:
        gate = d.buffers.vector("q gate", attention.q_dim)
    else:
        gate = None
    if gate is not None and attention.gated_apart and is_needed["q"]:
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
        is_needed["v"] and attention.value_norms
    ):  # threads have the same heads in all rows up to the store: no barrier
        plan.attention.unit_heads(v if weights[2] else k, attention.value_dim, v, d.config.norm_eps)
    if (
        attention.gated and gate is not None
    ):  # threads have the same heads when they norm and rotate them: no barrier
        queries_and_gates = q
        q = d.buffers.vector("q", attention.q_dim)
        if is_needed["q"]:
            plan.attention.split_heads(queries_and_gates, attention.key_dim, q, gate)
    _norm_and_rotate(
        d, layer, attention, {letter: x for letter, x in (("q", q), ("k", k)) if is_needed[letter]}
    )
    if is_needed["q"]:  # threads have the same heads in all rows from the norms on: no barrier
        plan.attention.hadamard(attention.key_dim, q)
    if is_needed["k"]:
        plan.attention.store_kv(layer, k, v)
    plan.barrier()
    if not is_needed["q"]:
        return None
    attended = d.buffers.vector("attended", attention.out_dim)
    plan.attention.attend(
        layer, d.attention_of_run(attention), q, attended, d.optional(layer, "attn_sinks.weight")
    )
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


def _norm_and_rotate(
    d: Decoder, layer: int, attention: Attention, heads: Mapping[str, Activations]
) -> None:
    """Norm queries and keys, by their letters, and rotate them by their positions, as the layer
    does."""
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
            plan.attention.rope(x, x.n, None, None, norm, eps)  # one head of the full width
        plan.barrier()
        norms = [None] * len(turned)
    if attention.head_layer_norms:
        for (x, _), norm in zip(turned, norms, strict=True):
            assert norm is not None
            plan.attention.layernorm_heads(
                x, width, norm, eps
            )  # threads have the same heads when they rotate them: no barrier
        norms = [None] * len(turned)
    for (x, angles), norm in zip(turned, norms, strict=True):
        if attention.norms_turned:  # threads have the same heads in both rows: no barrier
            plan.attention.rope(x, width, rotation, angles)
            plan.attention.rope(x, width, None, None, norm, eps)
        else:
            plan.attention.rope(x, width, rotation, angles, norm, eps)


def feed_forward(d: Decoder, layer: int, form: FeedForward, x: Activations) -> Activations:
    """Apply the feed-forward of a layer to x, with or without experts."""
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
    """Return norm(shared feed-forward of x) + norm(experts); the experts have their own norm of the
    stream."""
    assert form.shared is not None
    plan = d.plan
    dim = d.config.dim
    shared = dense_feed_forward(d, layer, form.shared, x)
    plan.phase = "norms"
    out, routed = (d.buffers.vector(name, dim) for name in ("normed branch", ROUTED))
    plan.rmsnorm(shared, d.weight(layer, "post_ffw_norm_1.weight"), out, d.config.norm_eps)
    scale = (
        f"blk.{layer}.ffn_gate_inp.scale"  # scale of a vector of unit length, not unit mean square
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
    d: Decoder, layer: int, dense: Dense, x: Activations, suffix: str = ""
) -> Activations:
    """Return down(function(gate(x)) * up(x)), or down(function(up(x))).

    Args:
        suffix: Suffix of the names of tensors.
    """
    plan = d.plan
    n = dense.hidden_dim
    gate, up = (d.buffers.vector(name, n) for name in ("gate", "up"))
    w_up = d.weight(layer, f"ffn_up{suffix}.weight")
    w_down = d.weight(layer, f"ffn_down{suffix}.weight")
    products = [(w_up, up, d.optional(layer, f"ffn_up{suffix}.bias"))]
    if dense.is_fused:
        products = [(w_up.part(0, n), gate, None), (w_up.part(n, n), up, None)]
    elif not dense.has_no_gate:
        w_gate = d.weight(layer, f"ffn_gate{suffix}.weight")
        products = [(w_gate, gate, d.optional(layer, f"ffn_gate{suffix}.bias")), *products]
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
    return product(
        d, w_down, hidden, d.optional(layer, f"ffn_down{suffix}.bias"), is_quantized=True
    )


def product(
    d: Decoder,
    weight: Tensor,
    x: Activations,
    bias: Tensor | None = None,
    is_quantized: bool = False,
) -> Activations:
    """Return weight @ x + bias as a branch; a barrier must come before."""
    branch = d.buffers.vector("branch", weight.n_rows)
    if not is_quantized:
        n_operations = len(d.plan.operations)
        d.plan.quantize(x, weight)
        if len(d.plan.operations) > n_operations:  # the product reads int8
            d.plan.barrier()
    d.plan.matmul(weight, x, branch, bias)
    d.plan.barrier()
    _scaled(d, [(weight, branch, bias)])
    return branch


def _scaled(d: Decoder, products: Sequence[tuple[Tensor, Activations, Tensor | None]]) -> None:
    """Multiply results of products by the scales of their weights, if the file has them."""
    scales = [(out, weight.name.removesuffix("weight") + "scale") for weight, out, _ in products]
    scaled = [(out, name) for out, name in scales if d.weights.get(name) is not None]
    for out, name in scaled:
        d.plan.scale(out, float(d.weights.float32(name)[0, 0]))
    if scaled:
        d.plan.barrier()


def _normed_within(d: Decoder, layer: int, name: str, x: Activations) -> Activations:
    """Return the normed input of a branch's last product."""
    normed = d.buffers.vector(f"normed {x.n}", x.n)
    d.plan.rmsnorm(x, d.weight(layer, name + ".weight"), normed, d.config.norm_eps)
    d.plan.barrier()
    return normed


def output_head(d: Decoder, norm_name: str = "output_norm") -> None:
    """Write logits = output(norm(x)); without an output tensor the embedding is used.

    A plan of embeddings has no logits, but the normed vectors of all tokens.
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
        plan.scale(normed, d.config.logit_scale)  # instead of the logits, which are longer
        plan.barrier()
    plan.quantize(normed, output)
    plan.barrier()
    logits = buffers.vector("logits", d.config.vocab_size, d.n_logits)
    plan.matmul(output, normed, logits, d.weights.get("output.bias"))
    plan.barrier()
    if d.config.logit_soft_cap is not None:
        plan.soft_cap(logits, d.config.logit_soft_cap)
        plan.barrier()
