"""The model under composition: its shape, weights, memory, and the plan that its layers' steps are
written into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from engine.cache.rotation import Rotation
from engine.config import Attention, Layer, ModelConfig, Rope
from engine.plan.buffers import Activations, Buffers
from engine.plan.plan import Plan
from engine.weights.weights import Tensor, Weights


class Stage(Enum):
    """The part of its tokens' results that a walk computes.

    A prompt leaves keys and values and asks for one token's logits. So its blocks need ``STORED``
    alone, and its last token ``LAST``, to which the step of the walk belongs; both together are
    ``ALL`` of that token, to the bit.
    """

    ALL = "all layers"
    STORED = "up to the last keys and values that are stored"
    LAST = "from there on, for one token of a block"


@dataclass(frozen=True)
class Decoder:
    """Everything ``compose`` may refer to.

    Attributes:
        rotations: what each rope of the model turns by.
        n_logits: tokens of a walk whose logits are wanted: one, chosen by the step, or all.
        part: of the layers.
    """

    plan: Plan
    config: ModelConfig
    weights: Weights
    buffers: Buffers
    rotations: Mapping[Rope, Rotation]
    n_logits: int = 1
    stage: Stage = Stage.ALL

    @property
    def x(self) -> Activations:
        """The residual stream."""
        if self.stage is Stage.LAST:
            return self.buffers.vector("last", self.config.dim, 1)
        return self.buffers.vector("x", self.config.dim)

    @property
    def layers(self) -> list[tuple[int, Layer]]:
        """The layers of this part, by number; of the last that stores, each part has its own
        share."""
        if self.stage is Stage.LAST:
            first = self.config.last_storing
        else:
            first = 0
        if self.stage is Stage.STORED:
            end = self.config.last_storing + 1
        else:
            end = self.config.n_layers
        return list(enumerate(self.config.layers))[first:end]

    def computes_queries(self, layer: int) -> bool:
        """Whether the queries of a layer, and what becomes of them, are of this part."""
        return (
            self.stage is not Stage.STORED
            or layer != self.config.last_storing
            or self._is_last_mixed(layer)
        )

    def computes_mixers(self, layer: int) -> bool:
        """Whether what mixes a layer's tokens is of this part."""
        return self.stage is not Stage.LAST or not self._is_last_mixed(layer)

    def ends_after_mixers(self, layer: int) -> bool:
        """Whether this part ends after what mixes a layer's tokens."""
        return self.stage is Stage.STORED and self._is_last_mixed(layer)

    def _is_last_mixed(self, layer: int) -> bool:
        """Whether the layer is the last that stores, and all tokens pass its mixers, of which one
        is recurrent."""
        return layer == self.config.last_storing and not self.config.layers[layer].only_attends

    def computes_keys(self, layer: int, attention: Attention) -> bool:
        """Whether the keys and values of a layer are of this part."""
        return attention.kv_of is None and (
            self.stage is not Stage.LAST or layer != self.config.last_storing
        )

    def weight(self, layer: int, name: str) -> Tensor:
        """A tensor of a layer."""
        return self.weights[f"blk.{layer}.{name}"]

    def optional(self, layer: int, name: str) -> Tensor | None:
        """A tensor that a layer may do without."""
        return self.weights.get(f"blk.{layer}.{name}")

    def parts(
        self, layer: int, fused: str, names: Sequence[str], sizes: Sequence[int]
    ) -> list[Tensor | None]:
        """Tensors of a layer that may be one, the rows of each after those of the one before."""
        whole = self.optional(layer, fused)
        if whole is None:
            return [self.optional(layer, name) for name in names]
        starts = accumulate(sizes, initial=0)
        return [whole.part(first, n) for first, n in zip(starts, sizes, strict=False)]

    def angles(self, rope: Rope) -> Activations:
        """cos and sin of rope.dim / 2 pairs."""
        return self.buffers.vector(f"angles {self.config.ropes.index(rope)}", rope.dim)

    def query_angles(self, rope: Rope) -> Activations:
        """The same for queries, which may grow with their positions."""
        if not rope.query_growth:
            return self.angles(rope)
        return self.buffers.vector(f"query angles {self.config.ropes.index(rope)}", rope.dim)

    @property
    def stream_eps(self) -> float:
        """Of norms of the residual stream, which is kept divided by ``residual_scale``: so no
        branch is multiplied."""
        return self.config.norm_eps / self.config.residual_scale**2
