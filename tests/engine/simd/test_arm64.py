"""ARM64 on another processor: compiled instructions, and results in an emulator, each in a fork."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs.engine import arm64

pytestmark = pytest.mark.slow

EXACT = "tests/engine/quants/test_quants.py::test_integers_are_exact[{}-one]"
CASES = {
    "cortex-a72": (arm64.OPERATIONS, EXACT.format("Q4_K")),
    "neoverse-n1": (
        f"{arm64.OPERATIONS}::test_sums_of_whole_groups",
        EXACT.format("Q4_K"),
        EXACT.format("IQ4_NL"),
    ),
}
"""Types that add one or four products at a time, and one with a table.

``python -m tests.programs.engine.arm64`` tests all types.
"""
PROGRAM = """
import tests.engine.arm64_target
from engine.machine.level import LEVEL
from tests.engine import simd_kernels
print(LEVEL)
for kernel in (simd_kernels.group_sums, simd_kernels.waiting):
    print(kernel.compiled._library.get_asm_str())
"""


@pytest.mark.parametrize("processor", CASES)
def test_results_are_the_same_on_arm64(processor: str, forked: Callable[..., str]) -> None:
    pytest.importorskip("unicorn", reason="unicorn, the emulator, is not installed")
    forked(
        ["-p", "tests.engine.emulated_arm64", *CASES[processor]], **arm64.compiled_for(processor)
    )


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("processor", "level", "n_sdot", "n_products"),
    [("cortex-a72", "neon", 0, 48), ("neoverse-n1", "dotprod", 24, 0)],
)
def test_arm64_uses_the_instructions_of_its_level(
    forked: Callable[..., str],
    tmp_path: Path,
    processor: str,
    level: str,
    n_sdot: int,
    n_products: int,
) -> None:
    # Kernels from the cache have no assembly, so compile them here.
    output = forked(PROGRAM, **arm64.compiled_for(processor), JALOPY_CACHE_DIR=str(tmp_path))
    detected_level, assembly = output.split("\n", 1)
    words = assembly.split()
    assert detected_level == level
    assert words.count("sdot") == n_sdot
    assert sum(words.count(name) for name in ("smull", "smull2", "smlal", "smlal2")) == n_products
    assert words.count("isb") == 1
    assert "CNTFRQ_EL0" in assembly.upper()
    assert "CNTVCT_EL0" in assembly.upper()
