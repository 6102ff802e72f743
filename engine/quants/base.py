"""What one quantised type consists of."""

from dataclasses import dataclass
from typing import Literal

from engine.jit import Kernel

ActivationForm = Literal["f32", "f16", "bf16", "q8_k", "q8_0"]
"""How activations meet the weights: as they are, rounded to 16 bits, or as int8 in groups of 256 or of 32."""


ProductWidth = Literal["", "bytes", "words"]
"""What prefill multiplies: floats, int8 or int16."""


@dataclass(frozen=True)
class QuantType:
    """A weight format: its layout and the kernels that read it.

    Attributes:
        name: as ggml writes it, ``"Q4_K"``.
        block_size: weights in a block.
        type_size: bytes of a block.
        activations: how activations meet the weights.
        products: in ``matmul``.
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

    def form(self, in_rows: bool) -> str:
        """Name in ``buffers.FORMS`` of what ``matvec`` and ``few`` read (in rows), or ``matmul``."""
        return self.activations if in_rows or not self.products else f"{self.activations} {self.products}"
