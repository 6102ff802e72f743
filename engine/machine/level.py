"""Instruction set that kernels are compiled for, read once from the processor's features.

Imports no numba.
"""

import os
import re
import sys
from contextlib import suppress

from llvmlite.binding import get_host_cpu_features, get_host_cpu_name, get_process_triple

from engine.machine import tiles

_KNOWN_VARIABLES = {
    "NUMBA_CPU_NAME": r"[\w.-]+",
    "NUMBA_CPU_FEATURES": r"(?:[+-][\w.-]+(?:,[+-][\w.-]+)*)?",
    "NUMBA_ENABLE_AVX": "[01]",
}
"""Variables that choose a processor, and the pattern of their valid values."""


def _drop_debug_variables() -> None:
    """Drop numba's other variables.

    Left over from debugging, they stop or slow the kernels, or write over the screen.
    """
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        if name not in _KNOWN_VARIABLES or not re.fullmatch(
            _KNOWN_VARIABLES[name], os.environ[name]
        ):
            del os.environ[name]
    os.environ["NUMBA_DISABLE_PERFORMANCE_WARNINGS"] = "1"


_drop_debug_variables()

PROCESSOR = os.environ.get("NUMBA_CPU_NAME") or get_host_cpu_name()
"""Name of the processor in LLVM."""


def _uses_avx() -> bool:
    """Return whether the system saves AVX's registers, unless NUMBA_ENABLE_AVX says it.

    Some virtual machines report an old processor (nocona); AVX is not reliable there. numba also
    leaves AVX off on Sandy and Ivy Bridge, where LLVM used to write slow code with it. The kernels
    here are half as fast again with it.
    """
    setting = os.environ.get("NUMBA_ENABLE_AVX")
    if setting is not None:
        return setting == "1"
    if PROCESSOR == "nocona":
        return False
    if sys.platform == "linux" and get_process_triple().startswith("x86_64"):
        with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return any("avx" in line.split() for line in lines if line.startswith("flags"))
    return True


USES_AVX = _uses_avx()


def _host_features() -> str:
    """Return the features of the processor as LLVM reads them, ``+avx,-avx2``; empty if it
    cannot."""
    try:
        features = get_host_cpu_features()
    except RuntimeError:
        return ""
    return ",".join(
        f"{'+' if is_on and (USES_AVX or not name.startswith('avx')) else '-'}{name}"
        for name, is_on in sorted(features.items())
    )


def _without(text: str, names: set[str]) -> str:
    return ",".join(word if word[1:] not in names else f"-{word[1:]}" for word in text.split(","))


def _features() -> str:
    """Return the processor's features, or those in NUMBA_CPU_FEATURES.

    AMX is left out if Linux does not grant its registers.
    """
    setting = os.environ.get("NUMBA_CPU_FEATURES")
    if setting is None:
        text = _host_features()
    else:
        text = setting
    is_allowed = not {"+amx-tile", "+amx-int8"} <= {*text.split(",")} or tiles.may_be_used()
    if is_allowed:
        return text
    return _without(text, {"amx-tile", "amx-int8"})


COMPILED_FEATURES = _features()
"""Features that kernels are compiled for, in LLVM's words: ``+avx,-avx2``."""
FEATURES = frozenset(word[1:] for word in COMPILED_FEATURES.split(",") if word.startswith("+"))


def traits(features: frozenset[str], arm64: bool) -> tuple[bool, ...]:
    """Return the properties of features that kernels depend on.

    Kernels of two sets of features with the same traits have the same forms and layouts.
    """
    avx = "avx" in features
    avx2 = "avx2" in features
    fma = arm64 or (avx and "fma" in features)
    f16c = arm64 or (avx and "f16c" in features)
    vnni = avx2 and ("avxvnni" in features or {"avx512vnni", "avx512vl"} <= features)
    vnni_512 = vnni and {"avx512vnni", "avx512bw"} <= features
    amx = vnni_512 and {"amx-tile", "amx-int8"} <= features
    return (
        "ssse3" in features,
        avx,
        avx2,
        fma,
        f16c,
        vnni,
        vnni_512,
        amx,
        arm64 and "dotprod" in features,
    )


HAS_ARM64 = get_process_triple().startswith(("aarch64", "arm64"))
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
