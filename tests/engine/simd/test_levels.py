"""Lower instruction sets of this processor: intrinsics, integer results of some types, and compiled
instructions, each in a fork."""

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core.codegen import get_host_cpu_features

from engine.machine.level import HAS_AMX, HAS_VNNI, HAS_VNNI_512

pytestmark = pytest.mark.slow

SSE2 = "+64bit,+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"
SSE42 = f"{SSE2},+crc32,+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
LEVELS = {
    "haswell": f"{SSE42},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave",
    "ivybridge": f"{SSE42},+avx,+f16c,+xsave",
    "nehalem": SSE42,
    "x86-64": SSE2,
}
VNNI = {
    "alderlake": f"{LEVELS['haswell']},+avxvnni",
    "icelake-client": f"{LEVELS['haswell']},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
    ",+avx512vnni",
}
PRODUCTS = {
    "haswell": (),
    "ivybridge": ("IQ4_XS-block", "IQ3_S-one"),
    "nehalem": ("Q6_K-block", "Q5_1-one"),
}
PRODUCTS["x86-64"] = ("IQ4_XS-one", "IQ3_S-block", "Q6_K-one", "Q5_1-block")
"""Types that together use every operation whose code depends on the level: products, signs, tables,
bits, folds and gathers.

Each level tests both kinds of products. ``test_simd.py`` runs all operations at each level.
"""
TYPES_OF_FOURS = ("Q4_K", "Q6_K", "Q4_1", "Q8_0", "IQ4_XS", "IQ2_S")
"""Types that cover each way to add four products at a time in prefill."""
FEW = "tests/engine/quants/test_quants.py::test_a_few_columns_equal_single_ones_bit_for_bit"
TWO_ROWS = [f"{FEW}[Q{bits}_K-256]" for bits in (2, 3, 4, 5, 6)]
IN_LANES = [f"{FEW}[{name}-288]" for name in ("Q8_0", "Q4_0", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")]
"""Small batches of each kind of block with a lane of its own."""
ATTENTION = [
    "tests/engine/test_attention.py::test_a_prompt_is_its_tokens_to_the_bit_and_near_its_twin"
    f"[{name}-f16]"
    for name in ("seven heads", "window")
]


@pytest.mark.smoke
def test_avx_is_used_where_numba_would_disable_it(forked: Callable[..., str]) -> None:
    code = "from engine import jit; print(bool(jit.numba.config.ENABLE_AVX))"
    cases = (
        ({"NUMBA_CPU_NAME": "ivybridge"}, "True"),
        ({"NUMBA_CPU_NAME": "ivybridge", "NUMBA_ENABLE_AVX": "0"}, "False"),
        ({"NUMBA_CPU_NAME": "nocona"}, "False"),  # name reported by some virtual machines
    )
    for variables, expected in cases:
        assert forked(code, **variables).strip() == expected


@pytest.mark.parametrize("level", LEVELS)
def test_integer_results_are_the_same_at_older_levels(
    level: str, forked: Callable[..., str], tmp_path: Path
) -> None:
    features = LEVELS[level]
    if not set(features.split(",")) - {"+64bit"} <= {*get_host_cpu_features().split(",")}:
        pytest.skip(f"this processor cannot run code for {level}")
    tests = ["tests/engine/simd/test_simd.py"]
    tests += [
        f"tests/engine/quants/test_quants.py::test_integers_are_exact[{product}]"
        for product in PRODUCTS[level]
    ]
    if level == "haswell":  # small batches have a lane for each block from this level on
        tests += IN_LANES
    if level == "ivybridge":  # all forms fold halves of registers at this level
        tests += [f"{FEW}[{name}-256]" for name in ("Q4_K", "Q5_K")]
    if level == "x86-64":  # registers hold fewer sums at this level
        tests += ATTENTION
    forked(
        [f"--basetemp={tmp_path / 'inner'}", *tests],
        NUMBA_CPU_NAME=level,
        NUMBA_CPU_FEATURES=features,
    )


TYPES = "tests/engine/quants/test_quants.py::{}[{}-block]"
EXACT = ("test_integers_are_exact", "test_largest_values_fit_the_integers_on_the_way")
PRODUCTS_OF_FOURS = [TYPES.format(test, name) for test in EXACT for name in TYPES_OF_FOURS]


@pytest.mark.parametrize(
    ("form", "is_own", "tests"),
    [
        ("wide attention", HAS_VNNI_512, ATTENTION),
        ("two rows", HAS_VNNI_512, TWO_ROWS),
        ("vnni", HAS_VNNI and not HAS_VNNI_512, PRODUCTS_OF_FOURS),
        ("avx512", HAS_VNNI_512 and not HAS_AMX, PRODUCTS_OF_FOURS + IN_LANES),
        ("amx", False, [*PRODUCTS_OF_FOURS, "tests/engine/test_picture_attention.py"]),
    ],
)
def test_the_forms_of_other_processors_give_correct_results(
    form: str, is_own: bool, tests: list[str], forked: Callable[..., str], tmp_path: Path
) -> None:
    if is_own:
        pytest.skip("other tests cover this processor's own form")
    # Both forms have the same name in numba's cache, so each needs a separate cache.
    cache = Path(os.environ.get("JALOPY_CACHE_DIR", tmp_path)) / form
    options = [f"--basetemp={tmp_path / 'inner'}", "-p", "tests.engine.another_form"]
    forked([*options, *tests], JALOPY_CACHE_DIR=str(cache), FORM=form)


SUMS = """
from engine.jit import kernel
from engine.kernels.matmul import sum_by_fours
from engine.quants.base import QUANT_TYPES

@kernel
def summed(tile, y, totals):
    sum_by_fours(4, 32, tile, y, totals)

asm = summed.compiled._library.get_asm_str().splitlines()
products = [line for line in asm if "vpdpbusd" in line]
n_ymm = sum("ymm" in line for line in products)
n_zmm = sum("zmm" in line for line in products)
print(QUANT_TYPES["Q8_0"].form("matmul"), n_ymm, n_zmm)
"""
"""Program that prints which instructions add the blocks of K types."""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86-64")
@pytest.mark.parametrize("level", VNNI)
def test_prefill_uses_vnni_if_available(level: str, forked: Callable[..., str]) -> None:
    output = forked(SUMS, NUMBA_CPU_NAME=level, NUMBA_CPU_FEATURES=VNNI[level])
    form, ymm, zmm = output.strip().rsplit(maxsplit=2)
    assert form == "q8_0 bytes"
    assert (int(zmm) if "avx512" in VNNI[level] else int(ymm)) >= 32
