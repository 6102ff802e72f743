"""The shape of a model as data: what every layer is made of.

The architecture reads it from a file (``engine.models``). Knows no file, no tensors and no
arithmetic, so that cache, memory fit, context shift and saved states can loop over layers that need
not be alike.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Yarn:
    """Frequencies that are stretched (arXiv:2309.00071), by how often they turn within the original
    context.

    Attributes:
        beta_fast: turns from which on none is.
        beta_slow: turns below which they are in full.
    """

    beta_fast: float = 32.0
    beta_slow: float = 1.0


def sharpness(factor: float, multiplier: float = 1.0) -> float:
    """What YaRN multiplies queries and keys by where positions are stretched by a factor (its
    section 3.4)."""
    if factor > 1:
        return 1.0 + 0.1 * multiplier * math.log(factor)
    return 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of a layer: pairs of elements of queries and keys are rotated.

    Attributes:
        theta: base of the frequencies.
        dim: how many elements of a head are turned; even.
        neighbours: pairs are elements 2i and 2i + 1, else i and i + dim / 2.
        scaling_factor: positions are divided by it (linear scaling).
        factors: name of a tensor that divides the frequencies, used where the file has it; "" for
            none.
        long_factors: its name in sessions of more than ``original_context`` positions (longrope);
            "" for the same.
        original_context: positions the model was trained for before it was stretched; 0 where that
            plays no part.
        yarn: None where all frequencies are divided by ``scaling_factor``.
        magnitude: what turned elements are multiplied by.
        query_growth: queries are multiplied by 1 + query_growth * ln(1 + floor(position /
            original_context)).
    """

    theta: float
    dim: int
    neighbours: bool
    scaling_factor: float = 1.0
    factors: str = ""
    long_factors: str = ""
    original_context: int = 0
    yarn: Yarn | None = None
    magnitude: float = 1.0
    query_growth: float = 0.0

    @property
    def factor_names(self) -> list[str]:
        """Names of the tensors that may divide the frequencies."""
        return [name for name in (self.factors, self.long_factors) if name]


@dataclass(frozen=True)
class Latent:
    """Latent attention: keys and values of all heads are made of one vector of a token, next to a
    part that is turned.

    Attributes:
        rank: width of the vector.
        key_dim: width of a head of queries, the turned part included.
        value_dim: width of a head's result.
        query_rank: width of the vector that queries are made of; 0 where they are made of the token
            itself.
        is_joint: keys and values are products with one tensor, whose rows are those of each head's
            keys, then values.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0
    is_joint: bool = False

    def plain_dim(self, attention: Attention) -> int:
        """Width of the part of a head's queries that is not turned."""
        return self.key_dim - (attention.key_dim - self.rank)

    def derived_bytes(self, attention: Attention) -> int:
        """Size of the matrices that queries are multiplied by where they are made of the joint
        ones; else 0."""
        if self.is_joint:
            return 4 * attention.n_heads * self.rank * self.plain_dim(attention)
        return 0


@dataclass(frozen=True)
class Attention:
    """A mixer: softmax attention with grouped queries.

    Attributes:
        n_heads: query heads; a multiple of ``n_kv_heads``.
        key_dim: width of a head of queries and keys, a multiple of 8; ``n_heads * key_dim`` need
            not be the model's.
        value_dim: width of a head of values.
        rope: None where positions are not told apart.
        scale: of the products of queries and keys.
        window: positions that a query sees, its own included; None for all.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None for no cap.
        head_norms: every head of queries and keys is normalised before it is turned.
        norms_turned: heads are normalised after they are turned, instead.
        whole_norms: queries are normalised over all heads together, keys too, before they are
            turned.
        head_layer_norms: every head has a LayerNorm of its own, without bias, before it is turned.
        norm_within: the heads' results are normalised together before the output projection.
        sinks: every head has one more score, which takes its share of the softmax and has no value.
        value_norms: every head of values is normalised, without a weight; where the file has no
            values, they are the keys before anything was done to them.
        gated: a gate follows each head of queries: the head's result is multiplied by its sigmoid.
        gated_apart: the same, with gates that are a projection of their own.
        bound: queries, keys and values are cut at plus and minus this number; None for none.
        alibi: scores fall with the distance of positions, the first head's by 2 ** -(alibi / heads)
            for each; 0 for no.
        kv_of: number of the earlier layer whose keys and values are read; None for a layer that
            stores its own.
        latent: where one head of keys serves all and is the values, too; None where heads have keys
            of their own.
        sees_after: positions after its own that a query sees, of those that are computed with it: a
            text is one block.
    """

    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    rope: Rope | None
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    head_norms: bool = False
    norms_turned: bool = False
    whole_norms: bool = False
    head_layer_norms: bool = False
    norm_within: bool = False
    sinks: bool = False
    value_norms: bool = False
    gated: bool = False
    gated_apart: bool = False
    bound: float | None = None
    alibi: float = 0.0
    kv_of: int | None = None
    latent: Latent | None = None
    sees_after: int = 0

    @property
    def cache_window(self) -> int | None:
        """Positions that the layer must remember; None for all, as where queries see what comes
        after them."""
        if self.sees_after:
            return None
        return self.window

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.key_dim

    @property
    def q_rows(self) -> int:
        """Rows of the projection of queries, and of their gates where they have any."""
        if self.gated:
            return 2 * self.q_dim
        return self.q_dim

    @property
    def k_dim(self) -> int:
        """Width of all key heads together."""
        return self.n_kv_heads * self.key_dim

    @property
    def v_dim(self) -> int:
        """Width of all value heads together."""
        return self.n_kv_heads * self.value_dim

    @property
    def out_dim(self) -> int:
        """Width of all heads' results together."""
        return self.n_heads * self.value_dim

    @property
    def slopes(self) -> tuple[float, ...]:
        """What each head's scores lose for every position of distance (ALiBi, arXiv:2108.12409).

        Heads beyond a power of two have the slopes between those of twice as many.
        """
        n = 1 << (self.n_heads.bit_length() - 1)
        first = [2.0 ** (-self.alibi * (i + 1) / n) for i in range(n)]
        return (*first, *(2.0 ** (-self.alibi * (i + 0.5) / n) for i in range(self.n_heads - n)))


@dataclass(frozen=True)
class ShortConvolution:
    """A mixer: y = c * convolution(b * x) of three projections, a causal convolution of each
    channel by itself.

    Attributes:
        n_channels: width of each projection.
        taps: inputs that an output is made of, the present one included.
    """

    n_channels: int
    taps: int

    @property
    def buffer_floats(self) -> int:
        """Floats of the intermediate results of one token."""
        return 4 * self.n_channels

    @property
    def window_floats(self) -> int:
        """Inputs that are kept for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of what a layer remembers."""
        return self.window_floats


@dataclass(frozen=True)
class DeltaNet:
    """A mixer: gated delta net (Yang et al. 2024, arXiv:2412.06464), a matrix for each value head.

    Attributes:
        n_key_heads: heads of queries and keys, which divide the value heads.
        n_value_heads: heads of values.
        head_dim: width of every head, a multiple of 32.
        taps: of the causal convolution that queries, keys and values pass.
        is_grouped: a key head goes with neighbouring value heads, else with every
            ``n_key_heads``-th.
    """

    n_key_heads: int
    n_value_heads: int
    head_dim: int
    taps: int
    is_grouped: bool = False

    @property
    def n_channels(self) -> int:
        """Width of queries, keys and values together."""
        return (2 * self.n_key_heads + self.n_value_heads) * self.head_dim

    @property
    def out_dim(self) -> int:
        """Width of all value heads together."""
        return self.n_value_heads * self.head_dim

    @property
    def buffer_floats(self) -> int:
        """Floats of the intermediate results of one token."""
        return self.n_channels + 2 * self.out_dim + 2 * self.n_value_heads

    @property
    def window_floats(self) -> int:
        """Inputs of the convolution that are kept for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of what a layer remembers."""
        return self.window_floats + self.out_dim * self.head_dim


@dataclass(frozen=True)
class Mamba2:
    """A mixer: Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), a matrix for each head.

    Attributes:
        n_heads: heads of values.
        head_dim: width of each, a multiple of 8.
        n_groups: heads of keys and queries, each of which goes with neighbouring heads of values.
        key_dim: width of each, a multiple of 8.
        taps: of the causal convolution that queries, keys and values pass.
    """

    n_heads: int
    head_dim: int
    n_groups: int
    key_dim: int
    taps: int

    @property
    def out_dim(self) -> int:
        """Width of all heads of values together."""
        return self.n_heads * self.head_dim

    @property
    def n_channels(self) -> int:
        """Width of values, keys and queries together."""
        return self.out_dim + 2 * self.n_groups * self.key_dim

    @property
    def in_dim(self) -> int:
        """Width of what is projected of a token: gate, values, keys and queries, and a time for
        each head."""
        return self.out_dim + self.n_channels + self.n_heads

    @property
    def buffer_floats(self) -> int:
        """Floats of the intermediate results of one token."""
        return self.in_dim + self.out_dim + 2 * self.n_heads

    @property
    def window_floats(self) -> int:
        """Inputs of the convolution that are kept for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of what a layer remembers."""
        return self.window_floats + self.out_dim * self.key_dim


Recurrent = ShortConvolution | DeltaNet | Mamba2
"""A mixer whose memory has a fixed size and cannot be cut."""


@dataclass(frozen=True)
class Xielu:
    """A trained function (arXiv:2411.13010), made of parabola, line and exponential.

    f(x) = above x^2 + slope x for x > 0, else below (exp(min(x, bound)) - 1 - x) + slope x.
    """

    above: float
    below: float
    slope: float
    bound: float


@dataclass(frozen=True)
class Dense:
    """A feed-forward: down(function(gate(x)) * up(x)), or down(function(up(x))) where there is no
    gate.

    Attributes:
        gate: the function: ``"silu"``, ``"gelu"`` (the approximation by tanh), ``"relu"`` or
            ``"clamped silu"`` (GPT-OSS); without a gate, ``"gelu"``, ``"relu squared"`` or
            ``"xielu"``.
        has_no_gate: whether the function is of ``up`` itself.
        is_fused: gate and up are one tensor, the gate first.
        xielu: what the function of that name is made of.
        norm_within: what ``down`` reads is normalised.
    """

    hidden_dim: int
    gate: str = "silu"
    has_no_gate: bool = False
    is_fused: bool = False
    xielu: Xielu | None = None
    norm_within: bool = False


@dataclass(frozen=True)
class Router:
    """How a token's experts are chosen, and how much each of them counts.

    Attributes:
        score: of an expert: ``"softmax"`` or ``"sigmoid"`` of the router's product;
            ``"softmax of chosen"``: the product itself, and the weights are the softmax over the
            chosen.
        renormalised: the weights of a token's experts are divided by their sum.
        scale: weights are multiplied by it.
        n_groups: groups of neighbours, chosen by their two best scores; experts come from chosen
            groups only.
        n_groups_used: groups that are chosen from.
    """

    score: str = "softmax"
    renormalised: bool = False
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1


@dataclass(frozen=True)
class Experts:
    """A feed-forward of many parts, of which a token passes a few: the weighted sum of gated
    feed-forwards.

    Attributes:
        n_experts: how many there are, at least 2.
        n_used: how many a token passes.
        hidden_dim: width of one.
        gate: as of ``Dense``.
        has_no_gate: as of ``Dense``.
        shared: a feed-forward that every token passes next to them; None for none.
        shared_is_gated: what it adds is multiplied by the sigmoid of a product with one row of
            weights.
        norms_apart: the shared feed-forward and the experts read the residual stream through a norm
            each and what each leaves is normed before their sum; the router reads the stream
            itself, normed by weights of its own.
        routes_first: the router reads the residual stream as the layer begins with it.
    """

    n_experts: int
    n_used: int
    hidden_dim: int
    router: Router = Router()
    gate: str = "silu"
    has_no_gate: bool = False
    shared: Dense | None = None
    shared_is_gated: bool = False
    norms_apart: bool = False
    routes_first: bool = False

    @property
    def read_share(self) -> float:
        """Of the experts' weights, what one token reads."""
        return self.n_used / self.n_experts


Mixer = Attention | Recurrent
"""The token mixer of a layer."""
FeedForward = Dense | Experts
"""The feed-forward of a layer."""


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer, then a feed-forward, each a branch that is added to the residual stream.

    Attributes:
        mixer: None for a feed-forward alone.
        feed_forward: None for a mixer alone.
        second_mixer: reads what the first one reads and is added, too; None for none.
        norm_before: each branch reads a normed residual stream.
        norm_after: what each branch adds is normed.
        side_by_side: both branches read the residual stream as it was before either was added,
            through one norm.
        own_norms: branches side by side read it through a norm each.
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norm_before: bool = True
    norm_after: bool = False
    side_by_side: bool = False
    own_norms: bool = False
    second_mixer: Recurrent | None = None

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Attention and recurrent mixers of the layer, in order."""
        return tuple(mixer for mixer in (self.mixer, self.second_mixer) if mixer is not None)

    @property
    def stores(self) -> bool:
        """Whether the layer remembers tokens."""
        return any(not isinstance(mixer, Attention) or mixer.kv_of is None for mixer in self.mixers)

    @property
    def only_attends(self) -> bool:
        """Whether keys and values are all that the layer remembers of a token."""
        return self.second_mixer is None and isinstance(self.mixer, Attention)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one model.

    Attributes:
        architecture: a key of ``engine.models.ARCHITECTURES``.
        dim: width of the residual stream.
        norm_eps: added to the mean square before the root.
        context_length: positions the model was trained for; sizes nothing by itself.
        vocab_size: length of the token list, which is also the number of embedding rows.
        embedding_scale: what the looked-up embedding is multiplied by.
        residual_scale: what each branch is multiplied by before it is added.
        logit_scale: what logits are multiplied by, before their cap.
        logit_soft_cap: logits x become logit_soft_cap * tanh(x / logit_soft_cap); None for no cap.
        layer_norm: norms of the residual stream take the mean off (LayerNorm) and may have a bias.
        bare_norms: they have no weights either.
        norm_after_eps: of norms after branches; 0 for ``norm_eps``.
        learned_positions: rows of a table that is added to what tokens begin with, one for each
            position; 0 for none.
        embedding_norm: what tokens begin with is normed; by weights where the file has them.
        per_layer_width: of what each layer adds of the token by itself; 0 where they do not.
        token_types: rows of a table of which what tokens begin with have the first one added; 0 for
            none.
        pooling: what becomes of a text's vectors when it is embedded: a name of
            ``engine.models.reading.POOLINGS``, or "" where the file does not say.
        n_labels: rows of the matrix that judges a pooled vector; 0 where the file does not say.
        dense_widths: of matrices that a pooled vector passes.
        ignored_blocks: blocks of tensors after those of the layers, which nothing reads: they
            predict further tokens.
    """

    architecture: str
    dim: int
    layers: tuple[Layer, ...]
    norm_eps: float
    context_length: int
    vocab_size: int
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    layer_norm: bool = False
    bare_norms: bool = False
    norm_after_eps: float = 0.0
    learned_positions: int = 0
    embedding_norm: bool = False
    per_layer_width: int = 0
    token_types: int = 0
    pooling: str = ""
    n_labels: int = 0
    dense_widths: tuple[int, ...] = ()
    ignored_blocks: int = 0

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see those after them, so that no text can be gone on with."""
        return any(attention.sees_after for attention in self.attentions.values())

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def attentions(self) -> dict[int, Attention]:
        """The layers that attend, by their number."""
        return {
            i: layer.mixer
            for i, layer in enumerate(self.layers)
            if isinstance(layer.mixer, Attention)
        }

    @property
    def recurrents(self) -> dict[int, Recurrent]:
        """The recurrent mixers, by the number of their layer."""
        mixers = ((i, mixer) for i, layer in enumerate(self.layers) for mixer in layer.mixers)
        return {i: mixer for i, mixer in mixers if not isinstance(mixer, Attention)}

    @cached_property  # every layer of every plan asks
    def last_storing(self) -> int:
        """Number of the last layer that remembers tokens: what comes after, a prompt needs for its
        last token alone."""
        return max((i for i, layer in enumerate(self.layers) if layer.stores), default=0)

    @property
    def activation_floats(self) -> int:
        """Numbers that a token of a block takes between the steps of the layers, about."""
        attention_floats = max((mixer.q_dim for mixer in self.attentions.values()), default=0)
        feed_forwards = [
            layer.feed_forward for layer in self.layers if layer.feed_forward is not None
        ]
        hidden_floats = max(
            (_feed_forward_floats(feed_forward, self.dim) for feed_forward in feed_forwards),
            default=0,
        )
        mixer_floats = max((mixer.buffer_floats for mixer in self.recurrents.values()), default=0)
        return (
            4 * self.dim
            + 2 * attention_floats
            + hidden_floats
            + mixer_floats
            + 2 * self.n_layers * self.per_layer_width
        )

    @cached_property
    def ropes(self) -> tuple[Rope, ...]:
        """The ways in which layers tell positions apart, each once, in order of first use."""
        return tuple(
            dict.fromkeys(
                attention.rope
                for attention in self.attentions.values()
                if attention.rope is not None
            )
        )

    def summary(self) -> dict[str, Any]:
        """Fields by name for people; what differs between layers is a list of each layer's value.

        What a model does without, such as windows, is left out.
        """
        layers: dict[str, list[Any]] = {}
        for number, layer in enumerate(self.layers):
            flat = _flat(asdict(layer))
            for name in [*flat, *(name for name in layers if name not in flat)]:
                layers.setdefault(name, [None] * number).append(flat.get(name))
        model_fields = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("layers", "ignored_blocks")
        }
        layer_fields = {
            name: values[0] if values.count(values[0]) == len(values) else values
            for name, values in layers.items()
        }
        summary = {**model_fields, "n_layers": self.n_layers, **layer_fields}
        return {
            name: value for name, value in summary.items() if value not in (None, "", False, ())
        }


def _feed_forward_floats(feed_forward: FeedForward, dim: int) -> int:
    """Numbers that a token takes in a feed-forward; of experts a token passes several."""
    if not isinstance(feed_forward, Experts):
        return 3 * feed_forward.hidden_dim
    if feed_forward.shared:
        shared = feed_forward.shared.hidden_dim
    else:
        shared = 0
    return 3 * shared + feed_forward.n_used * (dim + 3 * feed_forward.hidden_dim)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Draw nested fields up; those of a rope and of a shared expert keep its name in front."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            if name in ("rope", "shared"):
                prefix = f"{name}_"
            else:
                prefix = ""
            flat |= {prefix + inner: member for inner, member in _flat(value).items()}
        else:
            flat[name] = value
    return flat
