"""Processor of this machine as LLVM knows it: its name, its features, and their traits.

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


def without(text: str, names: frozenset[str]) -> str:
    """Return features, in LLVM's words, with some of them switched off."""
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
    return without(text, frozenset(["amx-tile", "amx-int8"]))


FEATURE_TEXT = _features()
"""Features in LLVM's words: ``+avx,-avx2``."""
FEATURES = frozenset(word[1:] for word in FEATURE_TEXT.split(",") if word.startswith("+"))
IS_CHOSEN = not {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "JALOPY_OWN_LEVEL"}.isdisjoint(os.environ)
"""Whether variables ask for kernels of exactly this processor's level, as tests do."""
HAS_ARM64 = get_process_triple().startswith(("aarch64", "arm64"))


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
