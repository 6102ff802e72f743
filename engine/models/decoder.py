"""Model that is written into a plan: its shape, weights, memory, and the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate

from engine.cache.rotation import Rotation
from engine.config import (
    BOTH_WAYS,
    BOTH_WAYS_IN_WINDOWS,
    Attention,
    Layer,
    ModelConfig,
    Rope,
)
from engine.plan.buffers import Activations, Buffers
from engine.plan.plan import Plan
from engine.weights.weights import Tensor, Weights


class Stage(Enum):
    """Share of the layers that a run computes for its tokens.

    A prompt needs keys and values of all tokens and logits of one token. So its blocks need only
    ``STORED``, and its last token also ``LAST``. The two stages of a token equal ``ALL``, bit for
    bit.
    """

    ALL = "all layers"
    STORED = "up to the last keys and values that are stored"
    LAST = "from there on, for one token of a block"


@dataclass(frozen=True)
class Decoder:
    """Everything that ``compose`` may use.

    Attributes:
        rotations: Rotation of each RoPE of the model.
        n_logits: Number of tokens of a run that get logits: one, chosen by the step, or all.
        stage: Stage of the layers.
        hidden: Rows after the last norm of the token before each token of the run. If it is set,
            the last layer alone is written, as the predictor, with a residual stream of its own.
        visibility: How the rows of a picture see each other, one of
            ``engine.config.VISIBILITIES``; empty for a run of tokens. The caller writes what comes
            from outside: the rows in "x" (and in "embedded", for a predictor), their further
            parts, and the angles of ropes with sections.
    """

    plan: Plan
    config: ModelConfig
    weights: Weights
    buffers: Buffers
    rotations: Mapping[Rope, Rotation]
    n_logits: int = 1
    stage: Stage = Stage.ALL
    hidden: Activations | None = None
    visibility: str = ""

    @property
    def x(self) -> Activations:
        """Residual stream."""
        if self.hidden is not None:
            return self.buffers.vector("predicted", self.config.dim)
        if self.stage is Stage.LAST:
            return self.buffers.vector("last", self.config.dim, 1)
        return self.buffers.vector("x", self.config.dim)

    @property
    def layers(self) -> list[tuple[int, Layer]]:
        """Layers of this stage, by number; the last layer that stores belongs to both stages."""
        if self.hidden is not None:
            first = self.config.n_layers - 1
        elif self.stage is Stage.LAST:
            first = self.config.last_storing
        else:
            first = 0
        if self.stage is Stage.STORED:
            end = self.config.last_storing + 1
        else:
            end = self.config.n_layers
        return list(enumerate(self.config.layers))[first:end]

    def computes_queries(self, layer: int) -> bool:
        """Return whether the queries of a layer and what follows from them belong to this stage."""
        return (
            self.stage is not Stage.STORED
            or layer != self.config.last_storing
            or self._is_last_mixed(layer)
        )

    def computes_mixers(self, layer: int) -> bool:
        """Return whether the mixers of a layer belong to this stage."""
        return self.stage is not Stage.LAST or not self._is_last_mixed(layer)

    def ends_after_mixers(self, layer: int) -> bool:
        """Return whether this stage ends after the mixers of a layer."""
        return self.stage is Stage.STORED and self._is_last_mixed(layer)

    def _is_last_mixed(self, layer: int) -> bool:
        """Return whether a layer is the last that stores, and one of its mixers is recurrent: all
        tokens then pass them."""
        return layer == self.config.last_storing and not self.config.layers[layer].only_attends

    def computes_keys(self, layer: int, attention: Attention) -> bool:
        """Return whether the keys and values of a layer belong to this stage."""
        return attention.kv_of is None and (
            self.stage is not Stage.LAST or layer != self.config.last_storing
        )

    def weight(self, layer: int, name: str) -> Tensor:
        """Return a tensor of a layer."""
        return self.weights[f"blk.{layer}.{name}"]

    def optional(self, layer: int, name: str) -> Tensor | None:
        """Return an optional tensor of a layer."""
        return self.weights.get(f"blk.{layer}.{name}")

    def parts(
        self, layer: int, fused: str, names: Sequence[str], sizes: Sequence[int]
    ) -> list[Tensor | None]:
        """Return tensors of a layer that may be consecutive rows of one tensor."""
        tensor = self.optional(layer, fused)
        if tensor is None:
            return [self.optional(layer, name) for name in names]
        starts = accumulate(sizes, initial=0)
        return [tensor.part(first, n) for first, n in zip(starts, sizes, strict=False)]

    def angles(self, rope: Rope) -> Activations:
        """Return the vector of cos and sin of rope.dim / 2 pairs."""
        return self.buffers.vector(f"angles {self.config.ropes.index(rope)}", rope.dim)

    def query_angles(self, rope: Rope) -> Activations:
        """Return the angles of queries, which may grow with their positions."""
        if not rope.query_growth:
            return self.angles(rope)
        return self.buffers.vector(f"query angles {self.config.ropes.index(rope)}", rope.dim)

    def deepstack(self, layer: int) -> Activations | None:
        """Return what the rows of a picture add to the output of a layer; None for nothing."""
        if self.visibility and self.hidden is None and self.config.layers[layer].adds_picture_part:
            return self.buffers.vector(f"deepstack {layer}", self.config.dim)
        return None

    def attention_of_run(self, attention: Attention) -> Attention:
        """Return a layer's attention; rows of a picture may see later rows of it."""
        is_sliding = attention.window is not None
        if self.visibility == BOTH_WAYS or (self.visibility == BOTH_WAYS_IN_WINDOWS and is_sliding):
            return replace(attention, sees_after=self.plan.max_tokens)
        return attention

    @property
    def stream_eps(self) -> float:
        """Epsilon of norms of the residual stream.

        The stream is divided by ``residual_scale``, so branches need no multiplication.
        """
        return self.config.norm_eps / self.config.residual_scale**2
