"""Architecture gemma4 (Gemma 4): two head widths, layers that share keys and values, inputs of
layers.

Layers with a window have heads of another width. The last layers store nothing: they read the keys
and values of the last earlier layer of their type. Each layer of the small models adds an input
from a table by token. The table is half of the file; a token needs one row of it, so it stays in
the file. Layers of the 26B have experts next to their feed-forward.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from engine.config import Attention, Dense, Experts, Layer, ModelConfig, Rope, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, decoder_tensors, rope_factors
from engine.models.decoder import Decoder, Stage
from engine.plan.buffers import Activations
from engine.weights.weights import TensorSpec

PATTERN = "sliding_window_pattern"
SHARED = "shared_kv_layers"
WIDTH = "embedding_length_per_layer_input"
FACTORS = "rope_freqs.weight"
THETA_OF_WINDOWS = 10000.0


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and is never stretched in layers
    with a window."""
    dim = reading.width(read)
    window = reading.window(read)
    slides = slides_of(read)
    n_storing = len(slides) - read.integer(
        f"attention.{SHARED}", 0, max(0, len(slides) - 2), default=0
    )
    kv_heads: list[int] = []
    widths = _expert_widths(read, len(slides))

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        assert attention.rope is not None
        mixer = replace(attention, head_norms=True, value_norms=True, scale=1.0)
        if slides[number]:
            width, rope = head_of_windows(read, attention.rope)
            mixer = replace(mixer, window=window, key_dim=width, value_dim=width, rope=rope)
        kv_heads.append(mixer.n_kv_heads)
        if number >= n_storing:
            mixer = replace(mixer, kv_of=_source(read, number, n_storing, slides, kv_heads))
        return Layer(
            mixer,
            _feed_forward(read, number, replace(feed_forward, gate="gelu"), widths),
            norm_after=True,
        )

    width = read.integer(WIDTH, 0, reading.MAX_DIM, default=0)
    if width % reading.DIM_MULTIPLE:
        raise read.fail(
            f"{read.key(WIDTH)} is {width}: must be a multiple of {reading.DIM_MULTIPLE}"
        )
    config = reading.decoder_config(
        read,
        layer,
        neighbours=False,
        factors=FACTORS,
        has_experts=True,
        embedding_scale=dim**0.5,
        logit_soft_cap=read.positive(reading.LOGIT_CAP)
        if read.number(reading.LOGIT_CAP, 0.0)
        else None,
    )
    return replace(config, per_layer_width=width)


def _expert_widths(read: Hyperparameters, n_layers: int) -> list[int]:
    """Return the width of each layer's experts, 0 for none; the key of a file without experts is
    ignored."""
    if not _has_experts(read, "blk."):
        return [0] * n_layers
    return read.per_layer("expert_feed_forward_length", n_layers, 0, reading.MAX_DIM, default=0)


def _feed_forward(
    read: Hyperparameters, number: int, dense: Dense, widths: list[int]
) -> Dense | Experts:
    """Return the feed-forward of a layer, with experts next to it if the file has their tensors."""
    if not _has_experts(read, f"blk.{number}."):
        return dense
    if not widths[number]:
        raise read.fail(
            f"{read.key('expert_feed_forward_length')} is 0 or missing, but layer {number} "
            f"has experts"
        )
    experts = reading.experts(read, widths[number], Router(renormalised=True), dense.gate)
    return replace(experts, shared=dense, norms_apart=True)


def _has_experts(read: Hyperparameters, prefix: str) -> bool:
    names = (name for name in read.tensors if name.startswith(prefix))
    return any(name.endswith((".ffn_gate_inp.weight", "_exps.weight")) for name in names)


def slides_of(read: Hyperparameters) -> list[bool]:
    """Return which layers have a window; the file must list all."""
    key = f"attention.{PATTERN}"
    n_layers = read.integer("block_count", 1, reading.MAX_LAYERS)
    value = read.raw(key)
    if value is None:
        raise read.fail(f"{read.key(key)} is missing")
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or len(value) != n_layers:
        raise read.fail(f"{read.key(key)} must be {n_layers} bools, one for each layer")
    return [bool(flag) for flag in value]


def head_of_windows(read: Hyperparameters, rope: Rope) -> tuple[int, Rope]:
    """Return the width of a head in layers with a window, and its RoPE."""
    widths: list[int] = []
    for name in ("attention.key_length_swa", "attention.value_length_swa"):
        width = read.integer(name, reading.DIM_MULTIPLE, reading.MAX_HEAD_DIM)
        if width % reading.DIM_MULTIPLE:
            raise read.fail(
                f"{read.key(name)} is {width}: must be a multiple of {reading.DIM_MULTIPLE}"
            )
        if width != [*widths, width][0]:
            raise read.fail(f"{read.key(name)} is {width}, keys have {widths[0]}: must be equal")
        widths.append(width)
    if rope.dim <= widths[0]:
        default = rope.dim
    else:
        default = None
    dim = read.integer("rope.dimension_count_swa", 2, widths[0], default=default)
    if dim % 2:
        raise read.fail(f"{read.key('rope.dimension_count_swa')} is {dim}: must be even")
    return widths[0], Rope(
        read.positive("rope.freq_base_swa", THETA_OF_WINDOWS), dim, neighbours=False
    )


def _source(
    read: Hyperparameters, number: int, n_storing: int, slides: list[bool], kv_heads: list[int]
) -> int:
    """Return the layer whose keys and values another layer reads: the last of its type, one of the
    last two that store."""
    source = n_storing - (2 if slides[number] else 1)
    wrong = ""
    if slides[source] != slides[number]:
        wrong = f"which has {'a' if slides[source] else 'no'} window, unlike layer {number}"
    elif kv_heads[source] != kv_heads[number]:
        wrong = f"whose {kv_heads[source]} heads are not the {kv_heads[number]} of layer {number}"
    if wrong:
        shared = read.integer(f"attention.{SHARED}", 0, reading.MAX_LAYERS, default=0)
        raise read.fail(
            f"{read.key('attention.' + SHARED)} is {shared}: keys and values of layer "
            f"{source}, {wrong}"
        )
    return source


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the tensors.

    Values may be the keys before their norm. Tensors of keys and values of layers that store
    nothing are not read.
    """
    tensors = {
        **decoder_tensors(config),
        **{name: replace(spec, required=True) for name, spec in _factors(config)},
    }
    for number, attention in config.attentions.items():
        block = f"blk.{number}."
        value = block + "attn_v.weight"
        tensors[value] = replace(tensors[value], required=False)
        tensors[block + "layer_output_scale.weight"] = TensorSpec((1,), required=False)
        if attention.kv_of is not None:
            for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
                spec = tensors[block + name]
                tensors[block + name] = replace(
                    spec, required=False, read_share=0.0, stays_in_file=True
                )
    width = config.per_layer_width
    n_layers = config.n_layers
    if not width:
        return tensors
    tensors["per_layer_token_embd.weight"] = TensorSpec(
        (config.vocab_size, n_layers * width), is_table=True, stays_in_file=True, n_parts=n_layers
    )
    tensors["per_layer_model_proj.weight"] = TensorSpec((n_layers * width, config.dim))
    tensors["per_layer_proj_norm.weight"] = TensorSpec((width,))
    for number in range(n_layers):
        block = f"blk.{number}."
        tensors[block + "inp_gate.weight"] = TensorSpec((width, config.dim))
        tensors[block + "proj.weight"] = TensorSpec((config.dim, width))
        tensors[block + "post_norm.weight"] = TensorSpec((config.dim,))
    return tensors


def _factors(config: ModelConfig) -> list[tuple[str, TensorSpec]]:
    return list(rope_factors(config).items())


def _compose(d: Decoder) -> None:
    """Write the layers, from token ids to the residual stream."""
    steps.embedding(d)
    if d.config.per_layer_width:
        inputs = _inputs(d)
    else:
        inputs = None
    steps.each_layer(d, end_layer=partial(_end_layer, d, inputs))


def _asking(d: Decoder) -> list[int]:
    """Return the numbers of the layers that this stage computes to their end."""
    return [number for number, _ in d.layers if d.computes_queries(number)]


def _inputs(d: Decoder) -> Activations | None:
    """Compute the inputs of the layers of this stage: a row of the table plus a normed projection
    of the embedding.

    Both are too large by sqrt(2), which the norm after the branch compensates.
    """
    plan = d.plan
    config = d.config
    numbers = _asking(d)
    if not numbers:
        return None
    width = config.per_layer_width
    first = numbers[0] * width
    n = len(numbers) * width
    start = d.x
    if d.stage is Stage.LAST:
        start = d.buffers.vector("start", config.dim, 1)
        steps.look_up(d, start)
    rows, inputs = (d.buffers.vector(f"{name} of layers", n) for name in ("rows", "inputs"))
    plan.embed(d.weights["per_layer_token_embd.weight"], rows, first)
    plan.scale(rows, width**0.5)
    plan.barrier()
    projection = d.weights["per_layer_model_proj.weight"].part(first, n)
    plan.quantize(start, projection)
    plan.barrier()
    plan.matmul(projection, start, inputs)
    plan.barrier()
    # The model divides by the root of its width before this norm; a larger epsilon does the same.
    plan.attention.rope(
        inputs,
        width,
        None,
        None,
        d.weights["per_layer_proj_norm.weight"],
        config.norm_eps * config.dim,
    )
    plan.barrier()
    plan.add(inputs, rows)
    plan.barrier()
    return inputs


def _end_layer(d: Decoder, inputs: Activations | None, layer: int) -> None:
    """x += norm(proj(gelu(gate(x)) * input)) if layers have inputs; x *= scale of the layer, if it
    has one."""
    plan = d.plan
    if inputs is not None:
        width = d.config.per_layer_width
        gate = d.buffers.vector("gate of inputs", width)
        down = d.weight(layer, "inp_gate.weight")
        up = d.weight(layer, "proj.weight")
        plan.phase = "feed-forward"
        plan.quantize(d.x, down)
        plan.barrier()
        plan.matmul(down, d.x, gate)
        plan.barrier()
        plan.gate("gelu", gate, inputs, (layer - _asking(d)[0]) * width)
        plan.quantize(gate, up)
        plan.barrier()
        branch = steps.product(d, up, gate, is_quantized=True)
        plan.add(d.x, branch, d.weight(layer, "post_norm.weight"), 2 * d.config.norm_eps)
        plan.barrier()
    scale_layer(d, layer)


def scale_layer(d: Decoder, layer: int) -> None:
    """x *= scale of the layer, if it has one."""
    name = f"blk.{layer}.layer_output_scale.weight"
    if d.weights.get(name) is not None:
        d.plan.scale(d.x, float(d.weights.float32(name)[0, 0]))
        d.plan.barrier()


ARCHITECTURE = Architecture(_read, _tensors, _compose)
