"""What a plan must know of each weight type. Imports no kernel and no numba."""

from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from engine.gguf.ggml_types import TYPES_BY_NAME

ActivationForm = Literal["f32", "f16", "bf16", "q8_k", "q8_0"]
"""Format of the activations in a product: float32, rounded to 16 bits, or int8 in groups of 256
(q8_k) or 32 (q8_0)."""


ProductWidth = Literal["", "bytes", "words"]
"""Operands of prefill products: float ("") or int8 ("bytes") or int16 ("words")."""

SIGNED: Literal["signed"] = "signed"
"""Operands of types whose weights have a sign of their own: bytes where four products are added at
once, else words."""


ActivationOrder = Literal["", "paired", "planes8", "planes4"]
"""Order of int8 activations in decode: as they come (""), or grouped by the register of weights
they multiply."""


@dataclass(frozen=True)
class QuantType:
    """A weight format, and the form of activations that its kernels read.

    Attributes:
        name: as ggml writes it, ``"Q4_K"``.
        activations: format of the activations.
        declared_width: of ``matmul``, or ``SIGNED``.
        activation_order: of activations in ``matvec`` and ``small_batch``.
    """

    name: str
    activations: ActivationForm
    declared_width: ProductWidth | Literal["signed"] = "bytes"
    activation_order: ActivationOrder = ""

    @property
    def product_width(self) -> ProductWidth:
        """Operands of ``matmul`` on this processor."""
        if self.declared_width != SIGNED:
            return self.declared_width
        level = import_module(
            "engine.machine.level"
        )  # asks LLVM, which opening a model does not need
        return "bytes" if level.SUMS_FOURS else "words"

    @property
    def block_size(self) -> int:
        """Weights in a block."""
        return TYPES_BY_NAME[self.name].block_size

    @property
    def type_size(self) -> int:
        """Bytes of a block."""
        return TYPES_BY_NAME[self.name].type_size

    def form(self, in_rows: bool) -> str:
        """Name in ``buffers.FORMS`` of what ``matvec`` and ``small_batch`` read (in rows), or
        ``matmul``."""
        return f"{self.activations} {self.activation_order if in_rows else self.product_width}".rstrip()


QUANT_TYPES = {
    one.name: one
    for one in (
        QuantType("F32", "f32", ""),
        QuantType("F16", "f16", ""),
        QuantType("BF16", "bf16", ""),
        QuantType("Q8_0", "q8_0", SIGNED),
        QuantType("Q4_0", "q8_0", activation_order="paired"),
        QuantType("Q4_1", "q8_0", activation_order="paired"),
        QuantType("Q5_0", "q8_0", activation_order="paired"),
        QuantType("Q5_1", "q8_0", activation_order="paired"),
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
        QuantType("MXFP4", "q8_0", activation_order="paired"),
        QuantType("NVFP4", "q8_0"),
        QuantType("Q1_0", "q8_0", activation_order="planes8"),
        QuantType("Q2_0", "q8_0", activation_order="planes4"),
        QuantType("TQ1_0", "q8_k"),
        QuantType("TQ2_0", "q8_k"),
    )
}
"""The weight types by name. A type's module has four kernels: ``embed`` (record ``EMBED``: rows
picked by token id, dequantised to f32), ``matvec`` (``MATMUL``: rows times one column),
``small_batch`` (times up to ``buffers.SMALL_BATCH_TOKENS``, each to the bit as by ``matvec``) and
``matmul`` (times all columns of a block)."""
