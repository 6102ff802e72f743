"""What one quantised type consists of."""

from dataclasses import dataclass
from typing import Literal

from engine.jit import Kernel

ActivationForm = Literal["f32", "f16", "bf16", "q8_k", "q8_0"]
"""How activations meet the weights: as they are, rounded to 16 bits, or as int8 in groups of 256 or of 32."""


ProductWidth = Literal["", "bytes", "words"]
"""What prefill multiplies: floats, int8 or int16."""


RowOrder = Literal["", "paired"]
"""How decode wants int8 activations: in order, or those side by side that meet weights in one register."""


@dataclass(frozen=True)
class QuantType:
    """A weight format: its layout and the kernels that read it.

    Attributes:
        name: as ggml writes it, ``"Q4_K"``.
        block_size: weights in a block.
        type_size: bytes of a block.
        activations: how activations meet the weights.
        products: in ``matmul``.
        order: of activations in ``matvec`` and ``few``.
        embed: rows picked by token id, dequantised to f32 (record ``Embed``).
        matvec: rows times one column (record ``Matmul``).
        few: rows times up to ``buffers.FEW_COLUMNS`` columns, each as ``matvec`` has it, to the bit.
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
