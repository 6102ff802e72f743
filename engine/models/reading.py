"""Hyperparameters that decoder-only architectures share: their keys, and the bounds of the
kernels."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import (
    Attention,
    Dense,
    Experts,
    Layer,
    ModelConfig,
    Rope,
    Router,
    Yarn,
    sharpness,
)
from engine.errors import printable
from engine.gguf.hyperparameters import Hyperparameters, kind_of
from engine.gguf.strings import StringArray, StringCount
from engine.kernels.records import SCORES
from engine.models.not_yet import KINDS

MAX_LAYERS = 512
MAX_DIM = 1 << 20
MAX_HEADS = 1 << 10
MAX_HEAD_DIM = 1 << 10
MAX_CONTEXT_LENGTH = 1 << 30
MAX_EXPERTS = 1 << 10
MAX_USED = 64
RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"
SCORE_CAP = "attn_logit_softcapping"
LOGIT_CAP = "final_logit_softcapping"
SCALINGS = "none", "linear", "yarn", "longrope"
LayerMaker = Callable[[int, Attention, Dense], Layer]
LayerFields = Mapping[str, Any]
NO_FIELDS: LayerFields = {}
UNGATED: LayerFields = {"gate": "gelu", "has_no_gate": True}
SQUARED: LayerFields = {"gate": "relu squared", "has_no_gate": True}
"""Fields of feed-forwards without a gate."""
MEAN = "mean"
RANK = "rank"
POOLINGS = "", MEAN, "cls", "last", RANK
"""Types of pooling by their numbers in files (ggml-org/llama.cpp, ``llama.h``)."""
MAX_LABELS = 1 << 10
DIM_MULTIPLE = 8
PREDICTOR_INPUT = "nextn.eh_proj.weight"
"""Matrix that every block for predictions has."""
"""Divisor of the model width and of head widths: kernels process eight floats at a time, without a
remainder."""


def decoder(
    layer: LayerMaker | None = None, **options: Any
) -> Callable[[Hyperparameters], ModelConfig]:
    """Return a function that calls ``decoder_config`` with these options."""
    return lambda read: decoder_config(read, layer, **options)


def decoder_config(
    read: Hyperparameters,
    layer: LayerMaker | None = None,
    *,
    neighbours: bool,
    factors: str = "",
    layer_norm: bool = False,
    eps_name: str = "",
    is_hybrid: bool = False,
    has_bare_mixers: bool = False,
    has_predictors: bool = False,
    predictor: LayerMaker | None = None,
    has_experts: bool = False,
    is_encoder: bool = False,
    mixers: list[Attention] | None = None,
    **fields: float | None,
) -> ModelConfig:
    """Read the hyperparameters that all decoders have.

    Args:
        layer: Function that returns layer i, given its attention and feed-forward by the shared
            keys; plain layers by default.
        neighbours, factors: Fields of ``Rope``.
        layer_norm: Field of ``ModelConfig``; LayerNorm has its own key for epsilon.
        eps_name: Key of epsilon; "" for the usual one.
        is_hybrid: Whether some layers do not attend: ``layer`` gets them with no key heads.
        has_bare_mixers: Whether some layers have no feed-forward: ``layer`` gets it with a
            width of 0.
        has_predictors: Whether files may contain blocks that predict further tokens, after the
            layers.
        predictor: Function like ``layer`` for the first of these blocks; None if it is not used.
        has_experts: Whether ``layer`` reads experts; if not, a model with experts is refused.
        is_encoder: Whether tokens see later tokens.
        mixers: Attention of each block, if the shared keys do not describe it.
        fields: Fields of ``ModelConfig`` that have a default.
    """
    refuse_what_is_no_whole_model(read, is_encoder)
    if not has_experts:
        refuse_experts(read)
    n_blocks = read.integer("block_count", 1, MAX_LAYERS)
    dim = width(read)
    if has_predictors:
        ignored = read.integer("nextn_predict_layers", 0, n_blocks - 1, default=0)
    else:
        ignored = 0
    n_layers = n_blocks - ignored
    layer = layer or layer_maker()
    mixers = mixers or attentions(read, n_blocks, dim, neighbours, factors, is_hybrid)
    hidden = read.per_layer("feed_forward_length", n_blocks, 0 if has_bare_mixers else 1, MAX_DIM)
    predicting = None
    if predictor is not None and f"blk.{n_layers}.{PREDICTOR_INPUT}" in read.tensors:
        predicting = predictor(n_layers, mixers[n_layers], Dense(hidden[n_layers]))
    return ModelConfig(
        architecture=read.architecture,
        dim=dim,
        layers=tuple(layer(i, mixers[i], Dense(hidden[i])) for i in range(n_layers)),
        norm_eps=norm_eps(read, eps_name or (LAYER_EPS if layer_norm else RMS_EPS)),
        context_length=read.integer("context_length", 1, MAX_CONTEXT_LENGTH),
        vocab_size=vocab_size(read),
        layer_norm=layer_norm,
        ignored_blocks=ignored,
        predictor=predicting,
        **fields,  # type: ignore[arg-type]
    )


def layer_maker(
    mixer: LayerFields = NO_FIELDS, form: LayerFields = NO_FIELDS, **fields: Any
) -> LayerMaker:
    """Return a function that returns layers by the shared keys, with some fields replaced.

    Args:
        mixer, form: Fields of each layer's attention and of its feed-forward.
        fields: Fields of each ``Layer``.
    """
    return lambda _, attention, dense: Layer(
        replace(attention, **mixer), replace(dense, **form), **fields
    )


def width(read: Hyperparameters) -> int:
    """Read the width of the residual stream."""
    dim = read.integer("embedding_length", 1, MAX_DIM)
    if dim % DIM_MULTIPLE:
        raise read.fail(
            f"{read.key('embedding_length')} is {dim}: must be a multiple of {DIM_MULTIPLE}"
        )
    return dim


def attentions(
    read: Hyperparameters,
    n_layers: int,
    dim: int,
    neighbours: bool,
    factors: str = "",
    is_hybrid: bool = False,
) -> list[Attention]:
    """Return the attention of each layer; the number of heads may differ between layers.

    Args:
        is_hybrid: Whether to include layers without key heads, which do not attend.
    """
    if is_hybrid:
        least = 0
    else:
        least = 1
    heads = read.per_layer("attention.head_count", n_layers, least, MAX_HEADS)
    kv_heads = heads
    if read.raw("attention.head_count_kv") is not None:
        kv_heads = read.per_layer("attention.head_count_kv", n_layers, least, MAX_HEADS)
    for n_heads, n_kv_heads in zip(heads, kv_heads, strict=True):
        if n_kv_heads and (n_heads % n_kv_heads or not n_heads):
            key = read.key("attention.head_count_kv")
            raise read.fail(f"{key} is {n_kv_heads}, which does not divide the {n_heads} heads")
    head_dim = head_width(read, dim, max(1, *heads))
    turned = rope(read, head_dim, neighbours, factors)
    return [
        Attention(n, m, head_dim, head_dim, turned, head_dim**-0.5)
        for n, m in zip(heads, kv_heads, strict=True)
    ]


def head_width(read: Hyperparameters, dim: int, n_heads: int) -> int:
    """Read the width of a head, which keys and values must share."""
    key = read.key("attention.key_length")
    if read.raw("attention.key_length") is None and dim % n_heads:
        heads = read.key("attention.head_count")
        raise read.fail(
            f"{heads} is {n_heads}, which does not divide {read.key('embedding_length')} {dim}"
        )
    head_dim = read.integer("attention.key_length", 1, MAX_HEAD_DIM, default=dim // n_heads)
    if head_dim > MAX_HEAD_DIM or head_dim < DIM_MULTIPLE or head_dim % DIM_MULTIPLE:
        raise read.fail(
            f"heads of {head_dim} elements are not supported ({key}, or "
            f"{read.key('embedding_length')} / "
            f"{read.key('attention.head_count')}): must be a multiple of {DIM_MULTIPLE} up to "
            f"{MAX_HEAD_DIM}"
        )
    value_dim = read.integer("attention.value_length", 1, MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise read.fail(
            f"{read.key('attention.value_length')} is {value_dim}, keys have {head_dim}: must "
            f"be equal"
        )
    return head_dim


def rope(read: Hyperparameters, head_dim: int, neighbours: bool, factors: str = "") -> Rope:
    """Read the RoPE that all layers share, by the usual keys; see ``Rope`` for the arguments."""
    dim = read.integer("rope.dimension_count", 2, head_dim, default=head_dim)
    if dim % 2:
        raise read.fail(f"{read.key('rope.dimension_count')} is {dim}: must be even")
    scaling = scaling_kind(read)
    magnitude = read.positive("rope.scaling.attn_factor", 1.0)
    plain = Rope(
        read.positive("rope.freq_base", 10000.0), dim, neighbours, 1.0, factors, magnitude=magnitude
    )
    if scaling == "none":
        return plain
    if scaling == "longrope":
        return longrope(read, plain)
    factor = read.positive(
        "rope.scaling.factor", default=read.positive("rope.scale_linear", default=1.0)
    )
    if scaling == "yarn":
        return yarn(read, plain, factor)
    return replace(plain, scaling_factor=factor)


def with_sections(read: Hyperparameters, attention: Attention) -> Attention:
    """Read the sections of M-RoPE, interleaved: the numbers of pairs that turn by time, row and
    column in the rows of a picture. Files of models that see have them."""
    key = "rope.dimension_sections"
    value = read.raw(key)
    if value is None or attention.rope is None:
        return attention
    n_pairs = attention.rope.dim // 2
    sections = read.per_layer(key, len(value) if isinstance(value, np.ndarray) else 1, 0, n_pairs)
    if len(sections) < 3 or sum(sections) > n_pairs:
        raise read.fail(
            f"{read.key(key)} is {sections}: must be at least three numbers of pairs, of {n_pairs}"
        )
    return replace(attention, rope=replace(attention.rope, sections=tuple(sections[:3])))


def longrope(read: Hyperparameters, plain: Rope) -> Rope:
    """Add divisors of frequencies for short and for long contexts (Ding et al. 2024,
    arXiv:2402.13753)."""
    short, long = (f"rope_factors_{length}.weight" for length in ("short", "long"))
    return replace(plain, factors=short, long_factors=long, original_context=original_context(read))


def yarn(read: Hyperparameters, plain: Rope, factor: float) -> Rope:
    """Stretch a RoPE by the keys of YaRN, and compensate the loss of sharpness.

    Raises:
        EngineError: The base of frequencies is 1 or less, or the number of rotations is out of
            bounds.
    """
    if plain.theta <= 1:
        raise read.fail(f"{read.key('rope.freq_base')} is {plain.theta}: must be above 1 for YaRN")
    log_multiplier = read.number("rope.scaling.yarn_log_multiplier", 0.0)
    gained = sharpness(factor) / (sharpness(factor, log_multiplier) if log_multiplier else 1.0)
    fast = _beta(read, "fast", 32.0)
    slow = _beta(read, "slow", 1.0)
    return replace(
        plain,
        scaling_factor=factor,
        original_context=original_context(read),
        yarn=Yarn(fast, slow),
        magnitude=plain.magnitude * gained,
    )


def _beta(read: Hyperparameters, which: str, default: float) -> float:
    name = f"rope.scaling.yarn_beta_{which}"
    turns = read.positive(name, default)
    if turns > MAX_CONTEXT_LENGTH:
        raise read.fail(f"{read.key(name)} is {turns}: must be at most {MAX_CONTEXT_LENGTH}")
    return turns


def original_context(read: Hyperparameters) -> int:
    """Read the number of positions that the model was trained for before it was stretched."""
    trained = read.integer("context_length", 1, MAX_CONTEXT_LENGTH)
    return read.integer(
        "rope.scaling.original_context_length", 1, MAX_CONTEXT_LENGTH, default=trained
    )


def window(read: Hyperparameters, default: int | None = None) -> int:
    """Read the number of positions that queries of sliding layers see; the family always has such
    layers.

    Args:
        default: Value if the file has no key; None if the key is required.
    """
    return read.integer("attention.sliding_window", 1, MAX_CONTEXT_LENGTH, default=default)


def window_or_none(read: Hyperparameters) -> int | None:
    """Read the window of a family that may have sliding layers; None if no layer slides."""
    return read.integer("attention.sliding_window", 0, MAX_CONTEXT_LENGTH, default=0) or None


def experts(read: Hyperparameters, hidden_dim: int, router: Router, gate: str = "silu") -> Experts:
    """Read the experts of a layer by the usual keys; the architecture adds the shared expert.

    Args:
        hidden_dim: Width of an expert.
        router: Router by the architecture; keys may add groups.

    Raises:
        EngineError: There are fewer than two experts, no expert or more than all are used, or
            groups are too small.
    """
    n = read.integer("expert_count", 2, MAX_EXPERTS)
    used = read.integer("expert_used_count", 1, min(n, MAX_USED))
    groups = read.integer("expert_group_count", 0, n - 1, default=0)
    if groups > 1:
        if n % groups or n // groups < 2:
            raise read.fail(
                f"{read.key('expert_group_count')} is {groups}: must divide {n} experts into "
                f"twos or more"
            )
        groups_used = read.integer("expert_group_used_count", 1, groups)
        if groups_used * (n // groups) < used:
            key = read.key("expert_group_used_count")
            raise read.fail(
                f"{key} is {groups_used}: holds fewer than the {used} experts that are used"
            )
        router = replace(router, n_groups=groups, n_groups_used=groups_used)
    return Experts(n, used, hidden_dim, router, gate)


def expert_width(read: Hyperparameters, dense: Dense | None = None) -> int:
    """Read the width of an expert.

    Args:
        dense: Feed-forward as wide as the used experts together, if the file does not give the
            width; None if the key is required.
    """
    used = read.integer("expert_used_count", 1, MAX_USED)
    if dense is None:
        default = None
    else:
        default = max(1, dense.hidden_dim // used)
    return read.integer("expert_feed_forward_length", 1, MAX_DIM, default=default)


def shared_width(read: Hyperparameters) -> int:
    """Read the width of a shared expert; 0 if the file does not give it."""
    return read.integer("expert_shared_feed_forward_length", 0, MAX_DIM, default=0)


def leading_dense(read: Hyperparameters) -> int:
    """Read the number of leading layers without experts."""
    return read.integer("leading_dense_block_count", 0, MAX_LAYERS, default=0)


def next_to_shared(
    read: Hyperparameters,
    router: Router,
    mixer: LayerFields = NO_FIELDS,
    part_width: int = 0,
    is_width_stated: bool = True,
) -> LayerMaker:
    """Return a function that returns layers of experts next to a shared expert; the leading layers
    have no experts.

    Args:
        mixer: Fields of each layer's attention.
        part_width: Width of one part of the shared expert; 0 for that of an expert.
        is_width_stated: Whether files must give the width of an expert.
    """
    first = leading_dense(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if number < first:
            return Layer(replace(attention, **mixer), dense)
        wide = expert_width(read, None if is_width_stated else dense)
        shared = Dense((part_width or wide) * read.integer("expert_shared_count", 1, MAX_USED))
        return Layer(
            replace(attention, **mixer), replace(experts(read, wide, router), shared=shared)
        )

    return layer


def keyed_router(read: Hyperparameters) -> Router:
    """Read the router of a family whose files give the scoring and the weights of experts."""
    score = SCORES[read.integer("expert_gating_func", 1, len(SCORES), default=1) - 1]
    return Router(
        score, read.flag("expert_weights_norm", False), multiplier(read, "expert_weights_scale")
    )


def multiplier(read: Hyperparameters, name: str, default: float | None = 1.0) -> float:
    """Read a factor; 0 in a file means no multiplication.

    Args:
        default: Value if the file has no key; None if the key is required.
    """
    if read.number(name, default):
        return read.positive(name, default)
    return 1.0


def number_or_none(read: Hyperparameters, name: str) -> float | None:
    """Read a number above 0; 0 in a file means none."""
    if read.number(name, 0.0):
        return read.positive(name)
    return None


def sliding_layers(read: Hyperparameters, period: int, dense: int = -1) -> list[bool]:
    """Return which layers slide: those of a list, or all except one of each period.

    Args:
        period: Layers of a period, if the file does not give it.
        dense: Layer of each period that does not slide.
    """
    key = "attention.sliding_window_pattern"
    n_layers = read.integer("block_count", 1, MAX_LAYERS)
    if isinstance(read.raw(key), np.ndarray):
        return layer_flags(read, key, "a number or ")
    period = read.integer(key, 1, MAX_LAYERS, default=period)
    return [number % period != dense % period for number in range(n_layers)]


def layer_flags(read: Hyperparameters, name: str, or_else: str = "") -> list[bool]:
    """Read a flag of each layer: a list of bools, or of 1 and 0.

    Args:
        or_else: Other allowed values, for the message.
    """
    value = read.raw(name)
    n_layers = read.integer("block_count", 1, MAX_LAYERS)
    is_list = isinstance(value, np.ndarray) and len(value) == n_layers
    if not is_list or value.dtype.kind not in "biu" or not np.isin(value, (0, 1)).all():
        raise read.fail(f"{read.key(name)} must be {or_else}{n_layers} bools")
    return [bool(flag) for flag in value]


def scaling_kind(read: Hyperparameters) -> str:
    """Read the type of RoPE scaling, a member of ``SCALINGS``; "linear" if the file does not give
    it.

    Raises:
        EngineError: The type is not supported.
    """
    scaling = read.word("rope.scaling.type", "linear")
    if scaling not in SCALINGS:
        raise read.fail(
            f"{read.key('rope.scaling.type')}: rope scaling '{printable(scaling)}' is not "
            f"supported; "
            f"supported: {', '.join(SCALINGS)}"
        )
    return scaling


def norm_eps(read: Hyperparameters, name: str) -> float:
    """Read the epsilon that a norm adds to the mean square; it must be below 1."""
    eps = read.positive(name)
    if eps >= 1:
        raise read.fail(f"{read.key(name)} is {eps}: must be below 1")
    return eps


def vocab_size(read: Hyperparameters) -> int:
    """Return the length of the list of tokens; a key with another size is ignored, as in
    llama.cpp."""
    key = "tokenizer.ggml.tokens"
    tokens = read.metadata.get(key)
    if tokens is None:
        raise read.fail(f"{key} is missing")
    if not isinstance(tokens, (list, StringArray, StringCount)):
        raise read.fail(f"{key} is not an array of strings")
    if not len(tokens):
        raise read.fail(f"{key} is empty")
    return len(tokens)


def refuse_prediction_layers(read: Hyperparameters) -> None:
    """Refuse a file whose last layers predict further tokens; ``block_count`` includes them."""
    if read.integer("nextn_predict_layers", 0, MAX_LAYERS, default=0):
        raise read.fail(
            f"{read.key('nextn_predict_layers')} is not 0: layers that predict ahead are not "
            f"supported"
        )


def refuse_experts(read: Hyperparameters) -> None:
    """Refuse a mixture of experts of an architecture without experts."""
    if read.integer("expert_count", 0, MAX_DIM, default=0):
        setting = f"{read.key('expert_count')} is {read.raw('expert_count')}"
        raise read.fail(f"{setting}: experts are not supported in {read.architecture}")


def no_model(file_type: Any) -> str:
    """Return a description of a file by its ``general.type``, which is not that of a model."""
    if not isinstance(file_type, str):
        return f"general.type is {kind_of(file_type)}: must be a string"
    description = KINDS.get(file_type, "no language model (get the model itself)")
    return f"general.type is '{printable(file_type)}': this is {description}"


def refuse_what_is_no_whole_model(read: Hyperparameters, is_encoder: bool) -> None:
    """Refuse adapters, parts of split models, and models with the wrong direction of attention."""
    file_type = read.metadata.get("general.type", "model")
    if not isinstance(file_type, str) or file_type != "model":  # an array compares entry by entry
        raise read.fail(no_model(file_type))
    n_parts = read.metadata.get("split.count", 0)
    if not isinstance(n_parts, int) or isinstance(n_parts, bool):
        raise read.fail(f"split.count is {kind_of(n_parts)}: must be an integer")
    if n_parts > 1:
        raise read.fail(
            f"split.count is {n_parts}: the model is split into files (open its first part)"
        )
    causal = read.raw("attention.causal")
    if causal is not None and causal is not (not is_encoder):
        if is_encoder:
            expected = "false"
        else:
            expected = "true"
        raise read.fail(
            f"{read.key('attention.causal')} is not {expected}: "
            f"not supported in {read.architecture}"
        )


def pooling(read: Hyperparameters) -> dict[str, Any]:
    """Return the fields of ``ModelConfig`` for pooling and classification."""
    number = read.integer("pooling_type", 0, len(POOLINGS) - 1, default=0)
    labels = read.raw("classifier.output_labels")
    if labels is not None and not (
        isinstance(labels, (list, StringArray)) and 1 <= len(labels) <= MAX_LABELS
    ):
        raise read.fail(
            f"{read.key('classifier.output_labels')} must be up to {MAX_LABELS} strings"
        )
    return {"pooling": POOLINGS[number], "n_labels": len(labels) if labels is not None else 0}
