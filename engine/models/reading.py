"""Hyperparameters that decoder-only architectures share: their keys, and the bounds that the
kernels set."""

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
from engine.errors import shown
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
"""Feed-forwards without a gate, by what they make of ``up``."""
MEAN = "mean"
RANK = "rank"
POOLINGS = "", MEAN, "cls", "last", RANK
"""By the number in the file (ggml-org/llama.cpp, ``llama.h``)."""
MAX_LABELS = 1 << 10
DIM_MULTIPLE = 8
"""Of the width and of a head: kernels take eight floats at a time and have no rest."""


def decoder(
    layer: LayerMaker | None = None, **options: Any
) -> Callable[[Hyperparameters], ModelConfig]:
    """Return what reads ``decoder_config`` with these options."""
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
    has_experts: bool = False,
    is_encoder: bool = False,
    mixers: list[Attention] | None = None,
    **more: float | None,
) -> ModelConfig:
    """Read what every decoder has.

    Args:
        layer: makes layer i of its attention and its feed-forward, as the shared keys describe
            them; plain by default.
        neighbours, factors: of the rope, see ``Rope``.
        layer_norm: see ``ModelConfig``; it has its own key for what is added.
        eps_name: key of what is added; "" for the usual one.
        is_hybrid: some layers do not attend: they come to ``layer`` with no key heads.
        has_bare_mixers: some layers have no feed-forward: it comes to ``layer`` with a width of 0.
        has_predictors: files may hold blocks after the layers that predict further tokens.
        has_experts: ``layer`` reads them; else a model with experts is refused.
        is_encoder: tokens see those after them.
        mixers: attention of each block, where the shared keys do not describe it.
        more: fields of ``ModelConfig`` that have a default.
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
    return ModelConfig(
        architecture=read.architecture,
        dim=dim,
        layers=tuple(layer(i, mixers[i], Dense(hidden[i])) for i in range(n_layers)),
        norm_eps=norm_eps(read, eps_name or (LAYER_EPS if layer_norm else RMS_EPS)),
        context_length=read.integer("context_length", 1, MAX_CONTEXT_LENGTH),
        vocab_size=vocab_size(read),
        layer_norm=layer_norm,
        ignored_blocks=ignored,
        **more,  # type: ignore[arg-type]
    )


def layer_maker(
    mixer: LayerFields = NO_FIELDS, form: LayerFields = NO_FIELDS, **own: Any
) -> LayerMaker:
    """Return what makes all layers of what the shared keys say, but for some fields.

    Args:
        mixer, form: fields of each layer's attention and of its feed-forward.
        own: fields of each ``Layer``.
    """
    return lambda _, attention, dense: Layer(
        replace(attention, **mixer), replace(dense, **form), **own
    )


def width(read: Hyperparameters) -> int:
    """Width of the residual stream."""
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
    """Attention of every layer; the numbers of heads may differ between layers.

    Args:
        is_hybrid: layers without key heads are described, too; they do not attend.
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
    """Width of a head of keys, which must be that of values too."""
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
    """The rotation that all layers share, by the usual keys; see ``Rope`` for the arguments."""
    dim = read.integer("rope.dimension_count", 2, head_dim, default=head_dim)
    if dim % 2:
        raise read.fail(f"{read.key('rope.dimension_count')} is {dim}: must be even")
    kind = scaling_kind(read)
    magnitude = read.positive("rope.scaling.attn_factor", 1.0)
    plain = Rope(
        read.positive("rope.freq_base", 10000.0), dim, neighbours, 1.0, factors, magnitude=magnitude
    )
    if kind == "none":
        return plain
    if kind == "longrope":
        return longrope(read, plain)
    factor = read.positive(
        "rope.scaling.factor", default=read.positive("rope.scale_linear", default=1.0)
    )
    if kind == "yarn":
        return yarn(read, plain, factor)
    return replace(plain, scaling_factor=factor)


def longrope(read: Hyperparameters, plain: Rope) -> Rope:
    """Divisors of the frequencies, those for long contexts and others (Ding et al.

    2024, arXiv:2402.13753).
    """
    short, long = (f"rope_factors_{length}.weight" for length in ("short", "long"))
    return replace(plain, factors=short, long_factors=long, original_context=original_context(read))


def yarn(read: Hyperparameters, plain: Rope, factor: float) -> Rope:
    """Stretch a rope by YaRN's keys; what it is trained to gain in length it loses in sharpness,
    which is made up for.

    Raises:
        EngineError: the base of the frequencies is 1 or less, or there is no knowing how often each
            turns.
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
    """Positions the model was trained for before it was stretched."""
    trained = read.integer("context_length", 1, MAX_CONTEXT_LENGTH)
    return read.integer(
        "rope.scaling.original_context_length", 1, MAX_CONTEXT_LENGTH, default=trained
    )


def window(read: Hyperparameters, default: int | None = None) -> int:
    """Positions that the queries of sliding layers see, of a family that has such layers.

    Args:
        default: where the file does not say; None where it must.
    """
    return read.integer("attention.sliding_window", 1, MAX_CONTEXT_LENGTH, default=default)


def window_or_none(read: Hyperparameters) -> int | None:
    """The same of a family whose models may do without; None where no layer slides."""
    return read.integer("attention.sliding_window", 0, MAX_CONTEXT_LENGTH, default=0) or None


def experts(read: Hyperparameters, hidden_dim: int, router: Router, gate: str = "silu") -> Experts:
    """The experts of a layer by the usual keys; the shared one is the architecture's.

    Args:
        hidden_dim: width of one.
        router: what the architecture says of it; keys may make groups.

    Raises:
        EngineError: fewer than two experts, none or more used than there are, or groups that do not
            hold enough.
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
    """Width of one expert.

    Args:
        dense: where the file does not say, those used are as wide together; None where it must say.
    """
    used = read.integer("expert_used_count", 1, MAX_USED)
    if dense is None:
        default = None
    else:
        default = max(1, dense.hidden_dim // used)
    return read.integer("expert_feed_forward_length", 1, MAX_DIM, default=default)


def shared_width(read: Hyperparameters) -> int:
    """Width of a shared expert; 0 where the file does not say."""
    return read.integer("expert_shared_feed_forward_length", 0, MAX_DIM, default=0)


def leading_dense(read: Hyperparameters) -> int:
    """How many of the first layers have no experts."""
    return read.integer("leading_dense_block_count", 0, MAX_LAYERS, default=0)


def next_to_shared(
    read: Hyperparameters,
    router: Router,
    mixer: LayerFields = NO_FIELDS,
    part_width: int = 0,
    is_width_stated: bool = True,
) -> LayerMaker:
    """Return what makes layers of experts next to a shared one; the first ones have no experts.

    Args:
        mixer: fields of each layer's attention.
        part_width: of one part of the shared one; 0 for that of an expert.
        is_width_stated: files must say how wide an expert is.
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
    """The router of a family whose files say themselves how experts are scored, and what they
    weigh."""
    score = SCORES[read.integer("expert_gating_func", 1, len(SCORES), default=1) - 1]
    return Router(
        score, read.flag("expert_weights_norm", False), multiplier(read, "expert_weights_scale")
    )


def multiplier(read: Hyperparameters, name: str, default: float | None = 1.0) -> float:
    """Read a factor; a file's 0 means no multiplication.

    Args:
        default: where the file does not say; None where it must.
    """
    if read.number(name, default):
        return read.positive(name, default)
    return 1.0


def number_or_none(read: Hyperparameters, name: str) -> float | None:
    """Read a number above 0; a file's 0 means none."""
    if read.number(name, 0.0):
        return read.positive(name)
    return None


def sliding_layers(read: Hyperparameters, period: int, dense: int = -1) -> list[bool]:
    """Which layers slide: as a list says, or all but one of each period.

    Args:
        period: layers of it, where the file does not say.
        dense: the one of each period that does not.
    """
    key = "attention.sliding_window_pattern"
    n_layers = read.integer("block_count", 1, MAX_LAYERS)
    if isinstance(read.raw(key), np.ndarray):
        return layer_flags(read, key, "a number or ")
    period = read.integer(key, 1, MAX_LAYERS, default=period)
    return [number % period != dense % period for number in range(n_layers)]


def layer_flags(read: Hyperparameters, name: str, or_else: str = "") -> list[bool]:
    """Read what holds of some layers and not of others: a list of bools, or of 1 and 0.

    Args:
        or_else: what else the value may be, for the message.
    """
    value = read.raw(name)
    n_layers = read.integer("block_count", 1, MAX_LAYERS)
    is_list = isinstance(value, np.ndarray) and len(value) == n_layers
    if not is_list or value.dtype.kind not in "biu" or not np.isin(value, (0, 1)).all():
        raise read.fail(f"{read.key(name)} must be {or_else}{n_layers} bools")
    return [bool(one) for one in value]


def scaling_kind(read: Hyperparameters) -> str:
    """How positions are stretched: a name of ``SCALINGS``; linear where the file does not say.

    Raises:
        EngineError: scaling of another type.
    """
    kind = read.word("rope.scaling.type", "linear")
    if kind not in SCALINGS:
        raise read.fail(
            f"{read.key('rope.scaling.type')}: rope scaling '{shown(kind)}' is not supported; "
            f"supported: {', '.join(SCALINGS)}"
        )
    return kind


def norm_eps(read: Hyperparameters, name: str) -> float:
    """Read the epsilon that a norm adds to the mean square; must be below 1."""
    eps = read.positive(name)
    if eps >= 1:
        raise read.fail(f"{read.key(name)} is {eps}: must be below 1")
    return eps


def vocab_size(read: Hyperparameters) -> int:
    """Length of the list of tokens; a key that states another one is ignored, as llama.cpp does."""
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
    """Refuse a file whose last layers predict further tokens; ``block_count`` counts them."""
    if read.integer("nextn_predict_layers", 0, MAX_LAYERS, default=0):
        raise read.fail(
            f"{read.key('nextn_predict_layers')} is not 0: layers that predict ahead are not "
            f"supported"
        )


def refuse_experts(read: Hyperparameters) -> None:
    """Refuse a mixture of experts of an architecture that has none."""
    if read.integer("expert_count", 0, MAX_DIM, default=0):
        found = f"{read.key('expert_count')} is {read.raw('expert_count')}"
        raise read.fail(f"{found}: experts are not supported in {read.architecture}")


def no_model(kind: Any) -> str:
    """Say of a file's ``general.type``, which is not that of a model, what the file is."""
    if not isinstance(kind, str):
        return f"general.type is {kind_of(kind)}: must be a string"
    what = KINDS.get(kind, "no language model (get the model itself)")
    return f"general.type is '{shown(kind)}': this is {what}"


def refuse_what_is_no_whole_model(read: Hyperparameters, is_encoder: bool) -> None:
    """Refuse adapters, parts of split models, and models whose tokens see others than the
    architecture's, by name."""
    kind = read.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":  # an array compares entry by entry
        raise read.fail(no_model(kind))
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
            wanted = "false"
        else:
            wanted = "true"
        raise read.fail(
            f"{read.key('attention.causal')} is not {wanted}: not supported in {read.architecture}"
        )


def pooling(read: Hyperparameters) -> dict[str, Any]:
    """Fields of ``ModelConfig`` that say what becomes of a text's vectors."""
    kind = read.integer("pooling_type", 0, len(POOLINGS) - 1, default=0)
    labels = read.raw("classifier.output_labels")
    if labels is not None and not (
        isinstance(labels, (list, StringArray)) and 1 <= len(labels) <= MAX_LABELS
    ):
        raise read.fail(
            f"{read.key('classifier.output_labels')} must be up to {MAX_LABELS} strings"
        )
    return {"pooling": POOLINGS[kind], "n_labels": len(labels) if labels is not None else 0}
