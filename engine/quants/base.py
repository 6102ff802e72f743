"""The parts of one weight type: layout and kernels."""

from dataclasses import dataclass
from typing import Literal

from engine.jit import Kernel

ActivationForm = Literal["f32", "f16", "bf16", "q8_k", "q8_0"]
"""Format of the activations in a product: float32, rounded to 16 bits, or int8 in groups of 256 (q8_k) or 32 (q8_0)."""


ProductWidth = Literal["", "bytes", "words"]
"""Operands of prefill products: float ("") or int8 ("bytes") or int16 ("words")."""


RowOrder = Literal["", "paired", "planes8", "planes4"]
"""Order of int8 activations in decode: as they come (""), or grouped by the register of weights they multiply."""


@dataclass(frozen=True)
class QuantType:
    """A weight format: its layout and the kernels that read it.

    Attributes:
        name: as ggml writes it, ``"Q4_K"``.
        block_size: weights in a block.
        type_size: bytes of a block.
        activations: format of the activations.
        products: operands of ``matmul``.
        order: of activations in ``matvec`` and ``few``.
        embed: rows picked by token id, dequantised to f32 (record ``Embed``).
        matvec: rows times one column (record ``Matmul``).
        few: rows times up to ``buffers.FEW_COLUMNS`` columns; each column is bit-identical to ``matvec``.
        matmul: rows times all columns of a block (record ``Matmul``).
    """

    name: str
    block_size: int
    type_size: int
    activations: ActivationForm
    embed: Kernel
    matvec: Kernel
    few: Kernel
    matmul: Kernel
    products: ProductWidth = "bytes"
    order: RowOrder = ""

    def form(self, in_rows: bool) -> str:
        """Name in ``buffers.FORMS`` of what ``matvec`` and ``few`` read (in rows), or ``matmul``."""
        return f"{self.activations} {self.order if in_rows else self.products}".rstrip()
