"""The tensor types ggml has numbers for, as plain facts: name, elements per block, bytes per block.

Knows all of them, whether the engine computes with them or not (``engine.quants`` says which), because a file's layout
can only be checked when every tensor's size is known.

Source: enum ggml_type and the type table of ggml, cross-checked with ``gguf.GGML_QUANT_SIZES`` in the tests.
"""

from typing import NamedTuple


class GGMLType(NamedTuple):
    """Layout of one type: ``type_size`` bytes hold ``block_size`` elements of a row."""

    name: str
    block_size: int
    type_size: int


GGML_TYPES: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 2 + 16),
    3: GGMLType("Q4_1", 32, 2 + 2 + 16),
    6: GGMLType("Q5_0", 32, 2 + 4 + 16),
    7: GGMLType("Q5_1", 32, 2 + 2 + 4 + 16),
    8: GGMLType("Q8_0", 32, 2 + 32),
    9: GGMLType("Q8_1", 32, 4 + 4 + 32),
    10: GGMLType("Q2_K", 256, 16 + 64 + 2 + 2),
    11: GGMLType("Q3_K", 256, 32 + 64 + 12 + 2),
    12: GGMLType("Q4_K", 256, 2 + 2 + 12 + 128),
    13: GGMLType("Q5_K", 256, 2 + 2 + 12 + 32 + 128),
    14: GGMLType("Q6_K", 256, 128 + 64 + 16 + 2),
    15: GGMLType("Q8_K", 256, 4 + 256 + 32),
    16: GGMLType("IQ2_XXS", 256, 2 + 64),
    17: GGMLType("IQ2_XS", 256, 2 + 64 + 8),
    18: GGMLType("IQ3_XXS", 256, 2 + 64 + 32),
    19: GGMLType("IQ1_S", 256, 2 + 32 + 16),
    20: GGMLType("IQ4_NL", 32, 2 + 16),
    21: GGMLType("IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
    22: GGMLType("IQ2_S", 256, 2 + 64 + 16),
    23: GGMLType("IQ4_XS", 256, 2 + 2 + 4 + 128),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", 256, 32 + 16 + 8),
    30: GGMLType("BF16", 1, 2),
    34: GGMLType("TQ1_0", 256, 48 + 4 + 2),
    35: GGMLType("TQ2_0", 256, 64 + 2),
    39: GGMLType("MXFP4", 32, 1 + 16),
    40: GGMLType("NVFP4", 64, 4 + 32),
    41: GGMLType("Q1_0", 128, 2 + 16),
}
