"""Weight types and the activations that their kernels read. Imports no kernel and no numba."""

from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from engine.gguf.ggml_types import TYPES_BY_NAME

ActivationForm = Literal["f32", "f16", "bf16", "q8_k", "q8_0"]
"""Format of the activations in a product: f32, rounded to 16 bits, or int8 in groups of 256 (q8_k)
or 32 (q8_0)."""


ProductWidth = Literal["", "bytes", "words"]
"""Integers of prefill products: none ("", float), int8 ("bytes") or int16 ("words")."""

SIGNED: Literal["signed"] = "signed"
"""Declared width of types with signed weights: bytes if four products are added at once, else
words."""


ProductKernel = Literal["matvec", "small_batch", "matmul"]
"""Kernels of products: of one token, of few, of a block."""

ActivationOrder = Literal["", "paired", "fours", "planes8", "planes4"]
"""Order of int8 activations in decode: unchanged (""), or grouped by the register of weights they
multiply."""


@dataclass(frozen=True)
class QuantType:
    """Weight format, and the form of activations that its kernels read.

    Attributes:
        name: Name as ggml writes it, ``"Q4_K"``.
        activations: Format of the activations.
        declared_width: Integers of ``matmul``, or ``SIGNED`` if they depend on the processor.
        declared_order: Order of activations in ``matvec`` and ``small_batch``, where blocks have
            no lanes of their own.
    """

    name: str
    activations: ActivationForm
    declared_width: ProductWidth | Literal["signed"] = "bytes"
    declared_order: ActivationOrder = ""

    @property
    def product_width(self) -> ProductWidth:
        """Integers that ``matmul`` multiplies on this processor."""
        if self.declared_width != SIGNED:
            return self.declared_width
        level = import_module(
            "engine.machine.level"
        )  # imports LLVM, which opening a model does not need
        return "bytes" if level.SUMS_FOURS else "words"

    @property
    def block_size(self) -> int:
        """Weights in a block."""
        return TYPES_BY_NAME[self.name].block_size

    @property
    def type_size(self) -> int:
        """Bytes of a block."""
        return TYPES_BY_NAME[self.name].type_size

    def form(self, kernel: ProductKernel) -> str:
        """Return the name in ``buffers.FORMS`` of the activations that a kernel reads."""
        if kernel == "matmul":
            variant: str = self.product_width
        elif self._has_block_lanes(kernel):
            variant = "fours"
        else:
            variant = self.declared_order
        return f"{self.activations} {variant}".rstrip()

    def _has_block_lanes(self, kernel: ProductKernel) -> bool:
        """Return whether decode or small batches have a lane for each block on this processor."""
        if self.activations != "q8_0" or self.block_size != 32:
            return False
        level = import_module("engine.machine.level")
        has_lanes: bool = level.BLOCK_LANES and (
            kernel == "small_batch" or (level.TWO_ROWS and level.SUMS_FOURS)
        )
        return has_lanes


QUANT_TYPES = {
    quant.name: quant
    for quant in (
        QuantType("F32", "f32", ""),
        QuantType("F16", "f16", ""),
        QuantType("BF16", "bf16", ""),
        QuantType("Q8_0", "q8_0", SIGNED),
        QuantType("Q4_0", "q8_0", declared_order="paired"),
        QuantType("Q4_1", "q8_0", declared_order="paired"),
        QuantType("Q5_0", "q8_0", declared_order="paired"),
        QuantType("Q5_1", "q8_0", declared_order="paired"),
        QuantType("Q2_K", "q8_k"),
        QuantType("Q3_K", "q8_k"),
        QuantType("Q4_K", "q8_k"),
        QuantType("Q5_K", "q8_k"),
        QuantType("Q6_K", "q8_k"),
        QuantType("IQ4_NL", "q8_0", SIGNED, "paired"),
        QuantType("IQ4_XS", "q8_k", SIGNED, "paired"),
        QuantType("IQ3_S", "q8_k", SIGNED),
        QuantType("IQ3_XXS", "q8_k", SIGNED),
        QuantType("IQ2_S", "q8_k", SIGNED),
        QuantType("IQ2_XS", "q8_k", SIGNED),
        QuantType("IQ2_XXS", "q8_k", SIGNED),
        QuantType("IQ1_M", "q8_k", SIGNED),
        QuantType("IQ1_S", "q8_k", SIGNED),
        QuantType("MXFP4", "q8_0", declared_order="paired"),
        QuantType("NVFP4", "q8_0"),
        QuantType("Q1_0", "q8_0", declared_order="planes8"),
        QuantType("Q2_0", "q8_0", declared_order="planes4"),
        QuantType("TQ1_0", "q8_k"),
        QuantType("TQ2_0", "q8_k"),
    )
}
"""Weight types by name.

A type's module has four kernels. ``embed`` (record ``EMBED``) dequantises rows picked by token id
to f32. The others (``MATMUL``) multiply rows by activations: ``matvec`` by those of one token,
``small_batch`` of up to ``buffers.SMALL_BATCH_TOKENS``, each with the same bits as ``matvec``, and
``matmul`` of all tokens of a block.
"""
