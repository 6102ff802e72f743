"""Step of a feed-forward with a few of many experts for each token (Shazeer et al. 2017,
arXiv:1701.06538).

2017, arXiv:1701.06538).
"""

import numpy as np

from engine.config import Experts
from engine.models.decoder import Decoder
from engine.plan.buffers import Activations
from engine.plan.expert_rows import ExpertRows
from engine.weights.weights import Tensor


def routed_feed_forward(
    d: Decoder,
    layer: int,
    experts: Experts,
    x: Activations,
    shared: Activations | None,
    routed: Activations | None = None,
) -> Activations:
    """Return the weighted sum of down(function(gate(x)) * up(x)) over the experts of each token.

    Args:
        shared: Result of the shared expert, which is overwritten; None if there is none.
        routed: Input of the router; None for x.
    """
    rows = ExpertRows(d.plan, d.buffers, experts, x.n)
    plan = d.plan
    gate_and_up = _products(d, layer, experts, rows)
    down = d.weight(layer, "ffn_down_exps.weight")
    readers = [weights for weights, *_ in gate_and_up]
    shared_gate = _score(d, layer, x, readers if plan.is_decode else [], experts, routed or x)
    products = d.buffers.vector("router", experts.n_experts)
    rows.choose(products, d.optional(layer, "exp_probs_b.bias"), _factors(d, layer))
    plan.barrier()
    plan.phase = "feed-forward"
    if d.weights.exceeds_memory:
        rows.prefetch(*readers, down)
    spread = rows.spread(x)
    if spread is not x:
        rows.quantize(spread, *readers)
        plan.barrier()
    for weights, first, out, bias in gate_and_up:
        rows.matmul(weights, first, experts.hidden_dim, spread, out, bias)
    plan.barrier()
    if (scales := d.optional(layer, "ffn_gate_exps.scale")) is not None:
        rows.scale_gate(scales)
    hidden = rows.activate()
    rows.quantize(hidden, down)
    plan.barrier()
    rows.matmul(down, 0, x.n, hidden, rows.results, d.optional(layer, "ffn_down_exps.bias"))
    plan.barrier()
    out = shared or d.buffers.vector("branch", x.n)
    rows.join(shared, shared_gate, out)
    plan.barrier()
    return out


def _factors(d: Decoder, layer: int) -> int:
    """Return the address of each expert's factor, or 0: up and down are linear, so both scales may
    be applied last."""
    names = [f"blk.{layer}.ffn_{name}_exps.scale" for name in ("up", "down")]
    scales = [d.weights.float32(name) for name in names if d.weights.get(name) is not None]
    if scales:
        return d.buffers.constant(names[0], np.prod(scales, axis=0))
    return 0


def _products(
    d: Decoder, layer: int, experts: Experts, rows: ExpertRows
) -> list[tuple[Tensor, int, Activations, Tensor | None]]:
    """Return gate and up: weights of all experts, first row of an expert, output and bias."""
    fused = d.optional(layer, "ffn_gate_up_exps.weight")
    if fused is not None:
        return [(fused, 0, rows.gate, None), (fused, experts.hidden_dim, rows.up, None)]
    return [
        (
            d.weight(layer, f"ffn_{name}_exps.weight"),
            0,
            out,
            d.optional(layer, f"ffn_{name}_exps.bias"),
        )
        for name, out in (("gate", rows.gate), ("up", rows.up))
        if name == "up" or not experts.has_no_gate
    ]


def _score(
    d: Decoder,
    layer: int,
    x: Activations,
    readers: list[Tensor],
    experts: Experts,
    routed: Activations,
) -> Activations | None:
    """Write the products of the router and of the shared expert's gate; return the latter if there
    is one.

    Args:
        readers: Other weights whose input is x.
        routed: Input of the router and of the gate.
    """
    plan = d.plan
    router = d.weight(layer, "ffn_gate_inp.weight")
    products = [
        (
            router,
            d.buffers.vector("router", experts.n_experts),
            d.optional(layer, "ffn_gate_inp.bias"),
        )
    ]
    if experts.shared_is_gated:
        gate = d.buffers.vector("shared gate", 1)
        products.append((d.weight(layer, "ffn_gate_inp_shexp.weight"), gate, None))
    scored = [weight for weight, _, _ in products]
    if routed is x:
        readers = scored + readers
    else:
        plan.quantize(routed, *scored)
    plan.quantize(x, *readers)
    plan.barrier()
    plan.phase = "router"
    for weight, out, bias in products:
        plan.matmul(weight, routed, out, bias)
    plan.barrier()
    if experts.shared_is_gated:
        return products[-1][1]
    return None
