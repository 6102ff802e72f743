"""The shape of a model as data: the parts of every layer.

``engine.models`` reads it from a file. It has no tensors and no arithmetic, so that cache, memory
fit, context shift and saved states can loop over layers that need not be alike.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

CAUSAL = "causal"
BOTH_WAYS = "both ways"
BOTH_WAYS_IN_WINDOWS = "both ways in windows"
VISIBILITIES = CAUSAL, BOTH_WAYS, BOTH_WAYS_IN_WINDOWS
"""How the rows of a part of a picture see each other: like tokens, or both ways in all layers or in
sliding layers alone."""


@dataclass(frozen=True)
class Yarn:
    """YaRN's range of frequencies to stretch (arXiv:2309.00071), by their rotations within the
    original context.

    Attributes:
        beta_fast: number of rotations above which a frequency is not stretched.
        beta_slow: number of rotations below which a frequency is stretched fully.
    """

    beta_fast: float = 32.0
    beta_slow: float = 1.0


def sharpness(factor: float, multiplier: float = 1.0) -> float:
    """Return YaRN's factor of queries and keys for positions stretched by a factor (section
    3.4)."""
    if factor > 1:
        return 1.0 + 0.1 * multiplier * math.log(factor)
    return 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of a layer: pairs of elements of queries and keys are rotated.

    Attributes:
        theta: base of the frequencies.
        dim: number of rotated elements of a head; even.
        neighbours: whether pairs are elements 2i and 2i + 1, else i and i + dim / 2.
        scaling_factor: divisor of positions (linear scaling).
        factors: name of a tensor that divides the frequencies, if the file has it; empty for none.
        long_factors: name of that tensor in sessions of more than ``original_context`` positions
            (longrope); empty for ``factors``.
        original_context: positions that the model was trained for before it was stretched; 0 if
            that does not matter.
        yarn: YaRN's range; None if all frequencies are divided by ``scaling_factor``.
        magnitude: factor of rotated elements.
        query_growth: queries are multiplied by 1 + query_growth * ln(1 + floor(position /
            original_context)).
        sections: number of pairs that turn by time, by row and by column in the rows of a picture
            (M-RoPE, interleaved); empty if all pairs turn by the position.
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
    sections: tuple[int, ...] = ()

    @property
    def factor_names(self) -> list[str]:
        """Names of the tensors that may divide the frequencies."""
        return [name for name in (self.factors, self.long_factors) if name]


@dataclass(frozen=True)
class Latent:
    """Latent attention: keys and values of all heads are computed from one vector of a token, next
    to a rotated part.

    Attributes:
        rank: width of the vector.
        key_dim: width of a head of queries, rotated part included.
        value_dim: width of a head's result.
        query_rank: width of the vector that queries are computed from; 0 if they are computed from
            the token itself.
        is_joint: whether one tensor computes keys and values; its rows are those of each head's
            keys, then values.
    """

    rank: int
    key_dim: int
    value_dim: int
    query_rank: int = 0
    is_joint: bool = False

    def plain_dim(self, attention: Attention) -> int:
        """Return the width of the part of a head's queries that is not rotated."""
        return self.key_dim - (attention.key_dim - self.rank)

    def derived_bytes(self, attention: Attention) -> int:
        """Return the bytes of the matrices for queries that are derived from a joint tensor; 0 if
        there is none."""
        if self.is_joint:
            return 4 * attention.n_heads * self.rank * self.plain_dim(attention)
        return 0


@dataclass(frozen=True)
class Attention:
    """A mixer: softmax attention with grouped queries.

    Attributes:
        n_heads: number of query heads, a multiple of ``n_kv_heads``.
        n_kv_heads: number of heads of keys and values.
        key_dim: width of a head of queries and keys, a multiple of 8. ``n_heads * key_dim`` may
            differ from the width of the model.
        value_dim: width of a head of values.
        rope: rotary embedding; None for none.
        scale: factor of the products of queries and keys.
        window: number of positions that a query sees, its own included; None for all.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None for no cap.
        head_norms: whether every head of queries and keys is normalised before its rotation.
        norms_turned: whether heads are normalised after their rotation instead.
        whole_norms: whether queries, and keys, are normalised over all heads together before their
            rotation.
        head_layer_norms: whether every head has its own LayerNorm, without bias, before its
            rotation.
        norm_within: whether the results of all heads are normalised together before the output
            projection.
        sinks: whether every head has one more score, which takes its share of the softmax and has
            no value.
        value_norms: whether every head of values is normalised, without a weight. If the file has
            no values, they are the unchanged keys.
        gated: whether a gate follows each head of queries; its sigmoid multiplies the head's
            result.
        gated_apart: whether there are such gates with a projection of their own.
        bound: limit on the absolute values of queries, keys and values; None for no limit.
        alibi: slope parameter of ALiBi: the first head's scores fall by 2 ** -(alibi / heads) for
            each position of distance; 0 for no ALiBi.
        kv_of: number of the earlier layer whose keys and values are read; None for a layer that
            stores its own.
        latent: latent attention; None if heads have their own keys.
        sees_after: number of later positions in the same block that a query sees. The text is one
            block.
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
        """Number of positions that the layer must store; None for all."""
        if self.sees_after:
            return None
        return self.window

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.key_dim

    @property
    def q_rows(self) -> int:
        """Number of rows of the projection of queries and of their gates."""
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
        """Decrease of each head's scores for each position of distance (ALiBi, arXiv:2108.12409).

        Heads beyond a power of two have intermediate slopes.
        """
        n = 1 << (self.n_heads.bit_length() - 1)
        first = [2.0 ** (-self.alibi * (i + 1) / n) for i in range(n)]
        return (*first, *(2.0 ** (-self.alibi * (i + 0.5) / n) for i in range(self.n_heads - n)))


@dataclass(frozen=True)
class ShortConvolution:
    """A mixer: y = c * convolution(b * x) of three projections, with a causal convolution of each
    channel.

    Attributes:
        n_channels: width of each projection.
        taps: number of inputs of the convolution, the present one included.
    """

    n_channels: int
    taps: int

    @property
    def buffer_floats(self) -> int:
        """Floats of the intermediate results of one token."""
        return 4 * self.n_channels

    @property
    def window_floats(self) -> int:
        """Number of inputs that are stored for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of a layer's state in floats."""
        return self.window_floats


@dataclass(frozen=True)
class DeltaNet:
    """A mixer: gated delta net (Yang et al. 2024, arXiv:2412.06464), a matrix for each value head.

    Attributes:
        n_key_heads: number of heads of queries and keys, a divisor of ``n_value_heads``.
        n_value_heads: number of heads of values.
        head_dim: width of every head, a multiple of 32.
        taps: number of inputs of the causal convolution of queries, keys and values.
        is_grouped: whether a key head belongs to neighbouring value heads, else to every
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
        """Number of inputs of the convolution that are stored for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of a layer's state in floats."""
        return self.window_floats + self.out_dim * self.head_dim


@dataclass(frozen=True)
class Mamba2:
    """A mixer: Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), a matrix for each head.

    Attributes:
        n_heads: number of heads of values.
        head_dim: width of a head of values, a multiple of 8.
        n_groups: number of heads of keys and queries, each for neighbouring heads of values.
        key_dim: width of a head of keys, a multiple of 8.
        taps: number of inputs of the causal convolution of queries, keys and values.
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
        """Width of a token's projection: gate, values, keys and queries, and a time step for each
        head."""
        return self.out_dim + self.n_channels + self.n_heads

    @property
    def buffer_floats(self) -> int:
        """Floats of the intermediate results of one token."""
        return self.in_dim + self.out_dim + 2 * self.n_heads

    @property
    def window_floats(self) -> int:
        """Number of inputs of the convolution that are stored for the next token."""
        return (self.taps - 1) * self.n_channels

    @property
    def state_floats(self) -> int:
        """Size of a layer's state in floats."""
        return self.window_floats + self.out_dim * self.key_dim


Recurrent = ShortConvolution | DeltaNet | Mamba2
"""A mixer whose memory has a fixed size and cannot be cut."""


@dataclass(frozen=True)
class Xielu:
    """A trained activation function (arXiv:2411.13010) of a parabola, a line and an exponential.

    f(x) = above x^2 + slope x for x > 0, else below (exp(min(x, bound)) - 1 - x) + slope x.
    """

    above: float
    below: float
    slope: float
    bound: float


@dataclass(frozen=True)
class Dense:
    """A feed-forward: down(function(gate(x)) * up(x)), or down(function(up(x))) without a gate.

    Attributes:
        hidden_dim: width of gate and up.
        gate: activation function: ``"silu"``, ``"gelu"`` (approximated by tanh), ``"relu"`` or
            ``"clamped silu"`` (GPT-OSS); without a gate, ``"gelu"``, ``"relu squared"`` or
            ``"xielu"``.
        has_no_gate: whether there is no gate.
        is_fused: whether gate and up are one tensor, the gate first.
        xielu: parameters of ``"xielu"``; None for other functions.
        norm_within: whether the input of ``down`` is normalised.
    """

    hidden_dim: int
    gate: str = "silu"
    has_no_gate: bool = False
    is_fused: bool = False
    xielu: Xielu | None = None
    norm_within: bool = False


@dataclass(frozen=True)
class Router:
    """Choice of a token's experts, and their weights.

    Attributes:
        score: score of an expert: ``"softmax"`` or ``"sigmoid"`` of the router's product, or
            ``"softmax of chosen"`` for the product itself, with the softmax over the chosen experts
            as weights.
        renormalised: whether the weights of a token's experts are divided by their sum.
        scale: factor of the weights.
        n_groups: number of groups of neighbouring experts, which are chosen by their two best
            scores. Experts come from chosen groups only.
        n_groups_used: number of chosen groups.
    """

    score: str = "softmax"
    renormalised: bool = False
    scale: float = 1.0
    n_groups: int = 1
    n_groups_used: int = 1


@dataclass(frozen=True)
class Experts:
    """A feed-forward of experts, a few of which compute each token: the weighted sum of gated
    feed-forwards.

    Attributes:
        n_experts: number of experts, at least 2.
        n_used: number of experts for each token.
        hidden_dim: width of an expert.
        router: choice of the experts.
        gate: activation function, as in ``Dense``.
        has_no_gate: whether there is no gate, as in ``Dense``.
        shared: a feed-forward for all tokens next to the experts; None for none.
        shared_is_gated: whether the result of ``shared`` is multiplied by the sigmoid of a product
            with one row of weights.
        norms_apart: whether ``shared`` and the experts each have a norm before and after them; the
            router has its own norm.
        routes_first: whether the router reads the layer's input.
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
        """Share of the experts' weights that one token reads."""
        return self.n_used / self.n_experts


Mixer = Attention | Recurrent
"""The token mixer of a layer."""
FeedForward = Dense | Experts
"""The feed-forward of a layer."""


@dataclass(frozen=True)
class Layer:
    """Layer of a model: a mixer, then a feed-forward, each a branch that is added to the residual
    stream.

    Attributes:
        mixer: mixer; None for a feed-forward alone.
        feed_forward: feed-forward; None for a mixer alone.
        norm_before: whether each branch reads the residual stream through a norm.
        norm_after: whether the result of each branch is normed.
        side_by_side: whether both branches read the layer's input, through one norm.
        own_norms: whether branches side by side have a norm each.
        second_mixer: mixer with the same input as the first one; None for none.
        adds_picture_part: whether rows of pictures add a further part of theirs to the layer's
            output (deepstack).
        picture_rows: limit on the rows of a picture that see each other both ways, and so need one
            block; 0 if there are no such pictures.
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norm_before: bool = True
    norm_after: bool = False
    side_by_side: bool = False
    own_norms: bool = False
    second_mixer: Recurrent | None = None
    adds_picture_part: bool = False
    picture_rows: int = 0

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Attention and recurrent mixers of the layer, in order."""
        return tuple(mixer for mixer in (self.mixer, self.second_mixer) if mixer is not None)

    @property
    def stores(self) -> bool:
        """Whether the layer stores keys and values or a state."""
        return any(not isinstance(mixer, Attention) or mixer.kv_of is None for mixer in self.mixers)

    @property
    def only_attends(self) -> bool:
        """Whether the layer stores keys and values only."""
        return self.second_mixer is None and isinstance(self.mixer, Attention)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model.

    Attributes:
        architecture: a key of ``engine.models.ARCHITECTURES``.
        dim: width of the residual stream.
        layers: all layers in order.
        norm_eps: term that norms add to the mean square before the root.
        context_length: positions that the model was trained for.
        vocab_size: number of tokens, and of embedding rows.
        embedding_scale: factor of embeddings.
        residual_scale: factor of each branch before it is added.
        logit_scale: factor of logits before their cap.
        logit_soft_cap: logits x become logit_soft_cap * tanh(x / logit_soft_cap); None for no cap.
        layer_norm: whether norms of the residual stream are LayerNorms, which subtract the mean and
            may have a bias.
        bare_norms: whether these norms have no weights.
        norm_after_eps: term like ``norm_eps`` of norms after branches; 0 for ``norm_eps``.
        learned_positions: number of rows of a position table that is added to embeddings; 0 for
            none.
        embedding_norm: whether embeddings are normed, with weights if the file has them.
        per_layer_width: width of the token's own input to each layer; 0 for none.
        token_types: number of rows of a table whose first row is added to embeddings; 0 for none.
        pooling: pooling of a text's vectors, a name of ``engine.models.reading.POOLINGS``; empty if
            the file does not say.
        n_labels: rows of the matrix that judges a pooled vector; 0 if the file does not say.
        dense_widths: widths of the matrices after pooling.
        ignored_blocks: number of blocks of tensors after the layers that are ignored; they predict
            further tokens.
        predictor: the first of these blocks, if its tensors are there: it predicts the token after
            the next. Its number is ``n_layers``.
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
    predictor: Layer | None = None

    @property
    def with_predictor(self) -> ModelConfig:
        """The same model with the predictor as its last layer."""
        assert self.predictor is not None
        return replace(self, layers=(*self.layers, self.predictor), predictor=None)

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see later tokens, so that the model cannot continue a text."""
        return any(attention.sees_after for attention in self.attentions.values())

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def n_deepstack(self) -> int:
        """Number of further parts in each row of a picture, one for each of the first layers."""
        return sum(layer.adds_picture_part for layer in self.layers)

    @property
    def picture_rows(self) -> int:
        """Limit on the rows of a picture that see each other both ways in some layer."""
        return max(layer.picture_rows for layer in self.layers)

    @property
    def attentions(self) -> dict[int, Attention]:
        """Attention mixers by the number of their layer, with that of the predictor."""
        layers = self.layers
        if self.predictor is not None:
            layers = (*layers, self.predictor)
        return {
            i: layer.mixer for i, layer in enumerate(layers) if isinstance(layer.mixer, Attention)
        }

    @property
    def recurrents(self) -> dict[int, Recurrent]:
        """Recurrent mixers by the number of their layer."""
        mixers = ((i, mixer) for i, layer in enumerate(self.layers) for mixer in layer.mixers)
        return {i: mixer for i, mixer in mixers if not isinstance(mixer, Attention)}

    @cached_property
    def last_storing(self) -> int:
        """Number of the last layer that stores keys and values or a state. A prompt needs the
        layers after it for its last token only."""
        return max((i for i, layer in enumerate(self.layers) if layer.stores), default=0)

    @property
    def activation_floats(self) -> int:
        """Approximate number of floats of a token's activations in a block."""
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
        """Ropes of all layers without duplicates, in order of first use."""
        return tuple(
            dict.fromkeys(
                attention.rope
                for attention in self.attentions.values()
                if attention.rope is not None
            )
        )

    def summary(self) -> dict[str, Any]:
        """Return the fields by name for display. Fields that differ between layers are lists.

        Features that the model lacks, such as windows, are left out.
        """
        layers: dict[str, list[Any]] = {}
        for number, layer in enumerate(self.layers):
            flat = _flat(asdict(layer))
            for name in [*flat, *(name for name in layers if name not in flat)]:
                layers.setdefault(name, [None] * number).append(flat.get(name))
        model_fields = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("layers", "ignored_blocks", "predictor")
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
    """Return the number of floats of a token's activations in a feed-forward."""
    if not isinstance(feed_forward, Experts):
        return 3 * feed_forward.hidden_dim
    shared = feed_forward.shared.hidden_dim if feed_forward.shared else 0
    return 3 * shared + feed_forward.n_used * (dim + 3 * feed_forward.hidden_dim)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return nested fields at one level; those of a rope and of a shared expert have its name as a
    prefix."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            prefix = f"{name}_" if name in ("rope", "shared") else ""
            flat |= {prefix + inner: member for inner, member in _flat(value).items()}
        else:
            flat[name] = value
    return flat
