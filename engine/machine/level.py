"""Instruction set that kernels are compiled for, chosen once from the processor's features and from
the machine code that is there.

Imports no numba.
"""

from engine.machine import packs
from engine.machine.processor import HAS_ARM64 as HAS_ARM64
from engine.machine.processor import USES_AVX as USES_AVX
from engine.machine.processor import traits

COMPILED_FEATURES = packs.choice().compiled_features
"""Features that kernels are compiled for, in LLVM's words: ``+avx,-avx2``."""
FEATURES = frozenset(word[1:] for word in COMPILED_FEATURES.split(",") if word.startswith("+"))

HAS_X86 = "sse2" in FEATURES
HAS_SSSE3, _, HAS_AVX2, HAS_FMA, HAS_F16C, HAS_VNNI, HAS_VNNI_512, HAS_AMX, HAS_DOTPROD = traits(
    FEATURES, HAS_ARM64
)

SUMS_FOURS = HAS_VNNI or HAS_ARM64
"""Whether kernels add four byte products to an int32 in one step.

Tests also set it on other processors: the operation is correct at every level, and fast only with
VNNI and on ARM64.
"""

SIXTEEN_ROWS = HAS_VNNI_512
"""Whether such kernels sum sixteen rows in one register of 512 bits, instead of eight.

The results are the same; tests also set it elsewhere.
"""

TWO_ROWS = HAS_VNNI_512
"""Whether decode and small batches hold two rows in one register of 512 bits, one in each half.

The results are the same; tests also set it elsewhere.
"""

BLOCK_LANES = HAS_AVX2
"""Whether small batches of types with blocks of 32 weights have a lane for each block.

With ``TWO_ROWS`` and ``SUMS_FOURS`` decode has too. The results are the same.
"""

SIXTEEN_TOKENS = HAS_AMX
"""Whether prefill multiplies sixteen rows by sixteen tokens at once.

The results are the same; tests also set it elsewhere.
"""

FOURS_OFFSET = 0 if HAS_ARM64 or SIXTEEN_TOKENS else -128
"""Offset of signed weights, modulo 256, in such kernels.

VNNI multiplies unsigned bytes, ARM64 and AMX signed ones.
"""

_BY_NAME = {
    "amx": HAS_AMX and HAS_FMA, "vnni": HAS_VNNI and HAS_FMA, "avx2": HAS_AVX2 and HAS_FMA,
    "ssse3": HAS_SSSE3,
    "dotprod": HAS_DOTPROD, "neon": HAS_ARM64, "generic": True,
}  # fmt: skip

LEVEL = next(name for name, is_available in _BY_NAME.items() if is_available)
"""Name of the instruction set in `jalopy bench`."""
