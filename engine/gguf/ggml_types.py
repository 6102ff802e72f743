"""Tensor types that ggml has numbers for: name, elements per block, bytes per block.

The table has all types, also ones that the engine cannot compute with (``engine.quants`` has the
supported ones), because checking the layout of a file requires the size of each tensor.

Source: enum ggml_type and the type table of ggml, cross-checked with ``gguf.GGML_QUANT_SIZES`` in
the tests.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class GGMLType(NamedTuple):
    """Layout of a type: ``type_size`` bytes hold ``block_size`` elements of a row.

    Attributes:
        f16_offsets: Offsets of the float16 values (scales and minima) in a block, in bytes; all
            other bytes are integers.
        mixtures: Names of mixtures that consist mostly of this type, by ``general.file_type``.
    """

    name: str
    block_size: int
    type_size: int
    f16_offsets: tuple[int, ...] = ()
    mixtures: Mapping[int, str] = MappingProxyType({})


GGML_TYPES: dict[int, GGMLType] = {
    0: GGMLType("F32", 1, 4, mixtures={0: "F32"}),
    1: GGMLType("F16", 1, 2, mixtures={1: "F16"}),
    2: GGMLType("Q4_0", 32, 2 + 16, (0,), {2: "Q4_0"}),
    3: GGMLType("Q4_1", 32, 2 + 2 + 16, (0, 2), {3: "Q4_1"}),
    6: GGMLType("Q5_0", 32, 2 + 4 + 16, (0,), {8: "Q5_0"}),
    7: GGMLType("Q5_1", 32, 2 + 2 + 4 + 16, (0, 2), {9: "Q5_1"}),
    8: GGMLType("Q8_0", 32, 2 + 32, (0,), {7: "Q8_0"}),
    9: GGMLType("Q8_1", 32, 4 + 4 + 32),
    10: GGMLType("Q2_K", 256, 16 + 64 + 2 + 2, (80, 82), {10: "Q2_K", 21: "Q2_K_S"}),
    11: GGMLType("Q3_K", 256, 32 + 64 + 12 + 2, (108,), {11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L"}),
    12: GGMLType("Q4_K", 256, 2 + 2 + 12 + 128, (0, 2), {14: "Q4_K_S", 15: "Q4_K_M"}),
    13: GGMLType("Q5_K", 256, 2 + 2 + 12 + 32 + 128, (0, 2), {16: "Q5_K_S", 17: "Q5_K_M"}),
    14: GGMLType("Q6_K", 256, 128 + 64 + 16 + 2, (208,), {18: "Q6_K"}),
    15: GGMLType("Q8_K", 256, 4 + 256 + 32),
    16: GGMLType("IQ2_XXS", 256, 2 + 64, (0,), {19: "IQ2_XXS"}),
    17: GGMLType("IQ2_XS", 256, 2 + 64 + 8, (0,), {20: "IQ2_XS", 28: "IQ2_S"}),
    18: GGMLType("IQ3_XXS", 256, 2 + 64 + 32, (0,), {23: "IQ3_XXS"}),
    19: GGMLType("IQ1_S", 256, 2 + 32 + 16, (0,), {24: "IQ1_S"}),
    20: GGMLType("IQ4_NL", 32, 2 + 16, (0,), {25: "IQ4_NL"}),
    21: GGMLType("IQ3_S", 256, 2 + 64 + 8 + 32 + 4, (0,), {22: "IQ3_XS", 26: "IQ3_S", 27: "IQ3_M"}),
    22: GGMLType("IQ2_S", 256, 2 + 64 + 16, (0,), {29: "IQ2_M"}),
    23: GGMLType("IQ4_XS", 256, 2 + 2 + 4 + 128, (0,), {30: "IQ4_XS"}),
    24: GGMLType("I8", 1, 1),
    25: GGMLType("I16", 1, 2),
    26: GGMLType("I32", 1, 4),
    27: GGMLType("I64", 1, 8),
    28: GGMLType("F64", 1, 8),
    29: GGMLType("IQ1_M", 256, 32 + 16 + 8, mixtures={31: "IQ1_M"}),
    30: GGMLType("BF16", 1, 2, mixtures={32: "BF16"}),
    34: GGMLType("TQ1_0", 256, 48 + 4 + 2, (52,), {36: "TQ1_0"}),
    35: GGMLType("TQ2_0", 256, 64 + 2, (64,), {37: "TQ2_0"}),
    39: GGMLType("MXFP4", 32, 1 + 16, mixtures={38: "MXFP4_MOE"}),
    40: GGMLType("NVFP4", 64, 4 + 32, mixtures={39: "NVFP4"}),
    41: GGMLType("Q1_0", 128, 2 + 16, (0,), {40: "Q1_0"}),
    42: GGMLType("Q2_0", 64, 2 + 16, (0,), {41: "Q2_0"}),
}

TYPES_BY_NAME: dict[str, GGMLType] = {layout.name: layout for layout in GGML_TYPES.values()}
MIXES: dict[int, tuple[str, str]] = {
    number: (layout.name, mix)
    for layout in GGML_TYPES.values()
    for number, mix in layout.mixtures.items()
}
"""``general.file_type`` -> type and mix. Source: enum llama_ftype, llama.h."""
