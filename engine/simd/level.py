"""Which instruction set the kernels are compiled for, read once from the features numba will hand to LLVM."""

import ctypes
import os
import sys

from llvmlite.binding import get_host_cpu_name, get_process_triple
from numba import config
from numba.core import codegen

# numba leaves AVX off on Sandy and Ivy Bridge, where LLVM used to write slow code with it. Ours is half as fast again.
# Other cases in which numba leaves AVX off (systems that do not save its registers, emulators) are respected.
_LEFT_OFF = ("corei7-avx", "core-avx-i", "sandybridge", "ivybridge")
if "NUMBA_ENABLE_AVX" not in os.environ and (config.CPU_NAME or get_host_cpu_name()) in _LEFT_OFF:
    config.ENABLE_AVX = config._os_supports_avx()


def _features() -> frozenset[str]:
    """Features switched on: the host's, or those named by NUMBA_CPU_FEATURES."""
    text = config.CPU_FEATURES if config.CPU_FEATURES is not None else codegen.get_host_cpu_features()
    return frozenset(word[1:] for word in text.split(",") if word.startswith("+"))


FEATURES = _features()
_AMX = {"amx-tile", "amx-int8"}


def _may_use_tiles() -> bool:
    """Ask Linux for AMX's registers, which a process gets when it asks: Documentation/arch/x86/xstate.rst."""
    arch_prctl, permission, tile_data = 158, 0x1023, 18
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(arch_prctl, permission, tile_data) == 0


if _AMX <= FEATURES and not _may_use_tiles():
    # Said to numba as well, which keeps machine code by features: code with AMX must not come back here.
    FEATURES -= _AMX
    config.CPU_FEATURES = ",".join(f"+{name}" for name in sorted(FEATURES))

HAS_AVX2 = "avx2" in FEATURES
HAS_SSSE3 = "ssse3" in FEATURES
HAS_ARM64 = get_process_triple().startswith(("aarch64", "arm64"))
HAS_DOTPROD = HAS_ARM64 and "dotprod" in FEATURES
HAS_FMA = HAS_ARM64 or {"fma", "avx"} <= FEATURES
HAS_F16C = HAS_ARM64 or {"f16c", "avx"} <= FEATURES
HAS_X86 = "sse2" in FEATURES
HAS_VNNI = HAS_AVX2 and ("avxvnni" in FEATURES or {"avx512vnni", "avx512vl"} <= FEATURES)

HAS_VNNI_512 = HAS_VNNI and {"avx512vnni", "avx512bw"} <= FEATURES
HAS_AMX = HAS_VNNI_512 and _AMX <= FEATURES

SUMS_FOURS = HAS_VNNI or HAS_ARM64
"""Whether kernels add four byte products to an int32 in one step. Tests also set it on other processors: the
operation is correct at every level, and fast only with VNNI and on ARM64."""

SIXTEEN_ROWS = HAS_VNNI_512
"""Whether such kernels keep the sums of sixteen rows in one register of 512 bits, instead of eight. The results are the
same; tests also set it elsewhere."""

SIXTEEN_COLUMNS = HAS_AMX
"""Whether prefill multiplies sixteen rows by sixteen columns at once. The results are the same; tests also set it
elsewhere."""

FOURS_OFFSET = 0 if HAS_ARM64 or SIXTEEN_COLUMNS else -128
"""Added to signed weights, modulo 256, in such kernels: VNNI multiplies unsigned bytes, ARM64 and AMX signed ones."""

_BY_NAME = {
    "amx": HAS_AMX and HAS_FMA, "vnni": HAS_VNNI and HAS_FMA, "avx2": HAS_AVX2 and HAS_FMA, "ssse3": HAS_SSSE3,
    "dotprod": HAS_DOTPROD, "neon": HAS_ARM64, "generic": True,
}  # fmt: skip

LEVEL = next(name for name, has in _BY_NAME.items() if has)
"""Name of the instruction set as `jalopy bench` reports it."""
