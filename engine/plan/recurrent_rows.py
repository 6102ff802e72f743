"""Rows of recurrent layers: convolutions, scans, and the norm of their heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.kernels import records
from engine.plan.operation import address_or_zero, float_bits

if TYPE_CHECKING:
    from engine.cache.states import SlotPair
    from engine.plan.buffers import Activations
    from engine.plan.rows import PlanRows
    from engine.weights.weights import Tensor


@dataclass(frozen=True)
class ConvolutionState:
    """Weights of a convolution, the number of inputs of an output, and the layer of its state."""

    weights: int
    taps: int
    layer: int


@dataclass(frozen=True)
class HeadLengths:
    """Lengths that a convolution scales its heads to.

    The first ``n_normed`` heads get unit length, the first ``n_scaled`` of these the length
    ``scale``.
    """

    head_dim: int
    n_normed: int = 0
    n_scaled: int = 0
    scale: float = 1.0
    eps: float = 0.0


@dataclass(frozen=True)
class ScanState:
    """Place of a scan's matrices in a layer's state, and the order of key heads; see
    ``records.SCAN``."""

    layer: int
    first_float: int
    n_rows: int
    n_key_heads: int
    is_grouped: bool


class RecurrentRows:
    """Writer of a plan's rows of recurrent layers."""

    def __init__(self, plan: PlanRows) -> None:
        self._plan = plan

    def short_convolution(self, source: ConvolutionState, x: Activations, out: Activations) -> None:
        """Compute out = c * convolution(b * x) of the thirds b, c and x of a vector.

        The first third is overwritten.
        """
        plan = self._plan
        for states in plan.each_state():
            plan.add_row(
                "short convolution",
                records.CONVOLUTION,
                None,
                x=plan.address_of(x),
                gate=plan.address_of(x, out.n),
                values=plan.address_of(x, 2 * out.n),
                stride=x.n,
                out=plan.address_of(out),
                n_channels=out.n,
                **_state_words(source, states),
            )

    def convolution(
        self,
        source: ConvolutionState,
        x: Activations,
        span: tuple[int, int],
        bias: Tensor | None = None,
        heads: HeadLengths | None = None,
    ) -> None:
        """Compute a part of x = silu(convolution(that part) + bias), in place.

        Args:
            span: (first element of x, number of elements).
            heads: Lengths of the heads in the part; None if they keep their lengths.
        """
        plan = self._plan
        heads = heads or HeadLengths(8)
        for states in plan.each_state():
            plan.add_row(
                "convolution",
                records.CONVOLUTION,
                None,
                x=plan.address_of(x, span[0]),
                stride=x.n,
                n_channels=span[1],
                bias=address_or_zero(bias),
                head_dim=heads.head_dim,
                n_normed=heads.n_normed,
                n_scaled=heads.n_scaled,
                scale=float_bits(heads.scale),
                eps=float_bits(heads.eps),
                **_state_words(source, states),
            )

    def rates(
        self,
        time: tuple[Activations, int],
        bias: Tensor,
        factor: Tensor,
        raw: tuple[Activations, int] | None,
        decay: Activations,
        rate: Activations,
        together: tuple[int, int] | None = None,
    ) -> None:
        """Compute how fast each head forgets and learns; see ``records.RATES``.

        Args:
            time, raw: (vector, first element in it); both vectors have the same length.
            together: (heads whose values are together, elements from those to the next ones); None
                for all heads.
        """
        plan = self._plan
        n_together, pitch = together or (decay.n, 0)
        plan.add_row(
            "rates",
            records.RATES,
            None,
            time=time[0].address + 4 * time[1],
            stride=time[0].n,
            bias=bias.address,
            factor=factor.address,
            raw=raw[0].address + 4 * raw[1] if raw else 0,
            n_heads=decay.n,
            decay=decay.address,
            rate=rate.address,
            n_together=n_together,
            pitch=pitch,
        )

    def scan(
        self,
        kernel: str,
        source: ScanState,
        qkv: tuple[Activations, int, int, int],
        decay: Activations,
        rate: Activations,
        out: Activations,
        skip: Tensor | None = None,
    ) -> None:
        """Write a row ``"delta net"`` or ``"selective scan"``; see ``records.SCAN``.

        Args:
            qkv: (vector, first element of queries, of keys, of values in it).
        """
        plan = self._plan
        x, q, k, v = qkv
        for states in plan.each_state():
            plan.add_row(
                kernel,
                records.SCAN,
                None,
                q=plan.address_of(x, q),
                k=plan.address_of(x, k),
                v=plan.address_of(x, v),
                stride=x.n,
                n_heads=decay.n,
                head_dim=out.n // decay.n,
                decay=plan.address_of(decay),
                rate=plan.address_of(rate),
                out=plan.address_of(out),
                skip=address_or_zero(skip),
                n_rows=source.n_rows,
                n_key_heads=source.n_key_heads,
                is_grouped=source.is_grouped,
                state=states.address_of(source.layer) + 4 * source.first_float,
                slot_bytes=states.slot_bytes,
            )

    def gated_norm(
        self,
        x: Activations,
        gate: tuple[Activations, int],
        norm: Tensor | None,
        n_heads: int,
        eps: float,
        gate_first: bool,
    ) -> None:
        """Normalise and gate every head of x; see ``records.GATED_NORM``.

        Args:
            gate: (vector, first element in it).
            norm: One row of weights for all heads, or one for each.
        """
        plan = self._plan
        plan.add_row(
            "gated norm",
            records.GATED_NORM,
            None,
            x=x.address,
            gate=gate[0].address + 4 * gate[1],
            gate_stride=gate[0].n,
            n_heads=n_heads,
            head_dim=x.n // n_heads,
            weight=address_or_zero(norm),
            weight_step=norm.row_bytes if norm and norm.n_rows > 1 else 0,
            eps=float_bits(eps),
            gate_first=int(gate_first),
        )


def _state_words(source: ConvolutionState, states: SlotPair) -> dict[str, int]:
    """Return the words of a record that describe a convolution's weights and state."""
    return {
        "weights": source.weights, "taps": source.taps, "state": states.address_of(source.layer),
        "slot_bytes": states.slot_bytes,
    }  # fmt: skip
