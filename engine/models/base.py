"""Architectures, and the lists of tensors that decoder-only architectures share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from engine.config import Attention, Dense, Experts, FeedForward, Mixer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import latent, recurrent, steps
from engine.models.decoder import Decoder
from engine.weights.weights import TensorSpec

TensorList = Callable[[ModelConfig], dict[str, TensorSpec]]
"""Function that returns tensors that a file with a configuration may contain, by GGUF name."""


@dataclass(frozen=True)
class Architecture:
    """Functions that describe an architecture; each architecture is a module of this package.

    Attributes:
        read: Function from hyperparameters to the configuration; it raises errors about them.
        tensors: Function that returns all tensors that a file may contain.
        compose: Function that writes the layers, from token ids to the residual stream.
        head: Function that writes the operations from the residual stream to logits.
        predictor_layer_norm: Whether the norm after the predictor is a LayerNorm.
    """

    read: Callable[[Hyperparameters], ModelConfig]
    tensors: TensorList
    compose: Callable[[Decoder], None] = steps.all_layers
    head: Callable[[Decoder], None] = steps.output_head
    predictor_layer_norm: bool = False


def all_of(*lists: TensorList) -> TensorList:
    """Return a function that merges the lists of these functions."""
    return lambda config: {
        name: spec for tensors in lists for name, spec in tensors(config).items()
    }


def outer_tensors(config: ModelConfig, norm_name: str = "output_norm") -> dict[str, TensorSpec]:
    """Return the embedding, the last norm, and the head; without ``output.weight`` the embedding is
    also the head."""
    if config.bare_norms:
        norm = {}
    else:
        norm = {f"{norm_name}.weight": TensorSpec((config.dim,))}
    names = {
        "position_embd.weight": config.learned_positions,
        "token_types.weight": config.token_types,
    }
    rows = {
        name: TensorSpec((n, config.dim), read_share=0.0, is_vectors=True)
        for name, n in names.items()
        if n
    }
    return {
        "token_embd.weight": TensorSpec((config.vocab_size, config.dim), is_table=True),
        **norm,
        **rows,
        "output.weight": TensorSpec(
            (config.vocab_size, config.dim), required=False, replaces="token_embd.weight"
        ),
    }


def decoder_tensors(config: ModelConfig, norm_name: str = "output_norm") -> dict[str, TensorSpec]:
    """Return the tensors that follow from the configuration alone: the outer tensors and those of
    all layers."""
    tensors = outer_tensors(config, norm_name)
    for number, layer in enumerate(config.layers):
        block = f"blk.{number}."
        if layer.norm_before and not config.bare_norms:
            if layer.mixers:
                names = ["attn"]
            else:
                names = []
            if layer.feed_forward is not None and (not layer.side_by_side or layer.own_norms):
                names += ["ffn"]
            else:
                names += []
            tensors |= {block + f"{name}_norm.weight": TensorSpec((config.dim,)) for name in names}
        if layer.norm_after:
            tensors |= {block + name: TensorSpec((config.dim,)) for name in steps.NORMS_AFTER}
        for mixer in layer.mixers:
            tensors |= mixer_tensors(block, mixer, config.dim)
        if layer.feed_forward is not None:
            tensors |= feed_forward_tensors(block, layer.feed_forward, config.dim)
    return tensors


def mixer_tensors(block: str, mixer: Mixer, dim: int) -> dict[str, TensorSpec]:
    """Return the tensors of a layer's mixer."""
    if isinstance(mixer, Attention):
        return attention_tensors(block, mixer, dim)
    return recurrent.tensors(block, mixer, dim)


def attention_tensors(block: str, attention: Attention, dim: int) -> dict[str, TensorSpec]:
    """Return the projections of a layer's attention, and the norms of its queries and keys if it
    has any."""
    if attention.latent is not None:
        return latent.tensors(block, attention, attention.latent, dim)
    tensors = {
        **projections(block, attention, ".weight", (dim,)),
        block + "attn_output.weight": TensorSpec((dim, attention.out_dim)),
    }
    if attention.whole_norms:
        widths = (attention.q_dim, attention.k_dim)
    else:
        widths = (attention.key_dim, attention.key_dim)
    if attention.head_norms or attention.whole_norms:
        tensors |= {
            block + f"attn_{x}_norm.weight": TensorSpec((n,))
            for x, n in zip("qk", widths, strict=True)
        }
    if attention.head_layer_norms:
        heads = zip("qk", (attention.n_heads, attention.n_kv_heads), strict=True)
        shapes = {x: (n, attention.key_dim) for x, n in heads}
        tensors |= {
            block + f"attn_{x}_norm.weight": TensorSpec(n, is_vectors=True)
            for x, n in shapes.items()
        }
    if attention.gated_apart:
        tensors[block + "attn_gate.weight"] = TensorSpec((attention.out_dim, dim))
    if attention.norm_within:
        tensors[block + "attn_sub_norm.weight"] = TensorSpec((attention.out_dim,))
    if attention.sinks:
        tensors[block + "attn_sinks.weight"] = TensorSpec((attention.n_heads,))
    return {**tensors, **scales(block, "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")}


def projections(
    block: str, attention: Attention, suffix: str, cols: tuple[int, ...]
) -> dict[str, TensorSpec]:
    """Return query, key and value, as three tensors or as rows of one.

    Args:
        suffix: Suffix of the tensors, ``".weight"`` or ``".bias"``.
        cols: Rest of their shapes after the number of rows.
    """
    widths = {"q": attention.q_rows, "k": attention.k_dim, "v": attention.v_dim}
    fused = block + "attn_qkv" + suffix
    return {
        **{
            block + f"attn_{x}{suffix}": TensorSpec((n, *cols), instead_of=fused)
            for x, n in widths.items()
        },
        fused: TensorSpec((sum(widths.values()), *cols), instead_of=block + "attn_q" + suffix),
    }


def feed_forward_tensors(block: str, feed_forward: FeedForward, dim: int) -> dict[str, TensorSpec]:
    """Return the matrices of a layer's feed-forward, with or without experts."""
    if isinstance(feed_forward, Experts):
        return expert_tensors(block, feed_forward, dim)
    return dense_tensors(block, feed_forward, dim)


def expert_tensors(block: str, experts: Experts, dim: int) -> dict[str, TensorSpec]:
    """Return the router and the experts of a layer.

    A tensor has the same matrix of all experts; gate and up may be one tensor.
    """
    n = experts.n_experts
    hidden = experts.hidden_dim
    share = experts.read_share
    gate, up, fused = (f"{block}ffn_{name}_exps.weight" for name in ("gate", "up", "gate_up"))
    inner = {
        gate: TensorSpec((n, hidden, dim), read_share=share, instead_of=fused),
        up: TensorSpec((n, hidden, dim), read_share=share, instead_of=fused),
        fused: TensorSpec((n, 2 * hidden, dim), read_share=share, instead_of=gate),
    }
    if experts.has_no_gate:
        inner = {up: TensorSpec((n, hidden, dim), read_share=share)}
    tensors = {
        block + "ffn_gate_inp.weight": TensorSpec((n, dim)),
        **inner,
        block + "ffn_down_exps.weight": TensorSpec((n, dim, hidden), read_share=share),
    }
    if experts.shared is not None:
        shared = dense_tensors(block, experts.shared, dim)
        if experts.norms_apart:
            suffix = ""
        else:
            suffix = "_shexp"
        tensors |= {
            f"{name.rpartition('.')[0]}{suffix}.{name.rpartition('.')[2]}": spec
            for name, spec in shared.items()
        }
    if experts.norms_apart:
        tensors |= {block + name: TensorSpec((dim,)) for name in steps.NORMS_APART}
    tensors |= scales(block, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", n=n)
    if experts.shared_is_gated:
        tensors[block + "ffn_gate_inp_shexp.weight"] = TensorSpec((dim,))
    return tensors


def expert_biases(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the biases of the router and of the matrices of experts."""
    tensors: dict[str, TensorSpec] = {}
    for number, layer in enumerate(config.layers):
        experts = layer.feed_forward
        block = f"blk.{number}."
        if isinstance(experts, Experts):
            n = experts.n_experts
            share = experts.read_share
            widths = {"gate": experts.hidden_dim, "up": experts.hidden_dim, "down": config.dim}
            tensors[block + "ffn_gate_inp.bias"] = TensorSpec((n,))
            tensors |= {
                f"{block}ffn_{name}_exps.bias": TensorSpec(
                    (n, width), is_vectors=True, read_share=share
                )
                for name, width in widths.items()
            }
    return tensors


def choice_biases(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the biases of the scores of experts that only affect their choice."""
    feed_forwards = (
        (f"blk.{n}.exp_probs_b.bias", layer.feed_forward) for n, layer in enumerate(config.layers)
    )
    return {
        name: TensorSpec((form.n_experts,), required=False)
        for name, form in feed_forwards
        if isinstance(form, Experts)
    }


def dense_tensors(block: str, feed_forward: Dense, dim: int) -> dict[str, TensorSpec]:
    """Return the matrices of a layer's feed-forward."""
    hidden = feed_forward.hidden_dim
    if feed_forward.has_no_gate or feed_forward.is_fused:
        gate = {}
    else:
        gate = {"gate": hidden}
    widths = {**gate, "up": 2 * hidden if feed_forward.is_fused else hidden}
    if feed_forward.norm_within:
        norm = {"ffn_sub_norm.weight": TensorSpec((hidden,))}
    else:
        norm = {}
    return {
        **{block + f"ffn_{name}.weight": TensorSpec((n, dim)) for name, n in widths.items()},
        **{block + name: spec for name, spec in norm.items()},
        block + "ffn_down.weight": TensorSpec((dim, hidden)),
        **scales(block, "ffn_gate", "ffn_up", "ffn_down"),
    }


def qkv_biases(config: ModelConfig, required: bool = True) -> dict[str, TensorSpec]:
    """Return the biases of the query, key and value projections of all layers."""
    tensors: dict[str, TensorSpec] = {}
    for number, attention in config.attentions.items():
        tensors |= projections(f"blk.{number}.", attention, ".bias", ())
    return {name: replace(spec, required=required) for name, spec in tensors.items()}


def fused_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the tensors of ``decoder_tensors``, fused projections first.

    The order determines the error for a file without projections: the fused tensor is missing.
    """
    return dict(
        sorted(decoder_tensors(config).items(), key=lambda tensor: ".attn_qkv." not in tensor[0])
    )


def output_biases(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the biases of the output projections of attention."""
    return {
        f"blk.{number}.attn_output.bias": TensorSpec((config.dim,), False)
        for number in config.attentions
    }


def other_biases(config: ModelConfig, required: bool = True) -> dict[str, TensorSpec]:
    """Return the biases of the other projections of all layers."""
    tensors: dict[str, TensorSpec] = {}
    for number, layer in enumerate(config.layers):
        block = f"blk.{number}."
        form = layer.feed_forward
        if number in config.attentions:
            widths = {"attn_output": config.dim}
        else:
            widths = {}
        if isinstance(form, Dense):
            if form.has_no_gate:
                gate = {}
            else:
                gate = {"ffn_gate": form.hidden_dim}
            widths |= {**gate, "ffn_up": form.hidden_dim, "ffn_down": config.dim}
        tensors |= {f"{block}{name}.bias": TensorSpec((n,), required) for name, n in widths.items()}
    return tensors


def scales(block: str, *names: str, n: int = 1) -> dict[str, TensorSpec]:
    """Return the scales of products with matrices, one number for each matrix; scales of inputs are
    not read."""
    specs = {
        "scale": TensorSpec((n,), False),
        "input_scale": TensorSpec((n,), False, read_share=0.0, stays_in_file=True),
    }
    return {f"{block}{name}.{suffix}": spec for name in names for suffix, spec in specs.items()}


def norm_biases(config: ModelConfig, required: bool = True) -> dict[str, TensorSpec]:
    """Return the biases of the norms of the residual stream."""
    names = ["attn_norm", "ffn_norm"]
    inner = [
        f"blk.{n}.{name}"
        for n, layer in enumerate(config.layers)
        for name in names[: 1 if layer.side_by_side and not layer.own_norms else 2]
    ]
    return {f"{name}.bias": TensorSpec((config.dim,), required) for name in ["output_norm", *inner]}


def rope_factors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the divisors of frequencies that the RoPE of layers names, one for each rotated
    pair."""
    return {
        name: TensorSpec((rope.dim // 2,), required=False)
        for rope in config.ropes
        for name in rope.factor_names
    }


optional_qkv_biases = partial(qkv_biases, required=False)
optional_other_biases = partial(other_biases, required=False)
optional_norm_biases = partial(norm_biases, required=False)
"""Variant for architectures whose files may lack the biases."""
