"""``python -m tests.programs.engine.arm64 [TYPE...]``: the tests of vector operations and of weight types on
emulated ARM64.

Kernels are compiled for a Cortex-A72 (without instructions for sums of four products) and a
Neoverse N1 (with them), and run in ``unicorn``, against the same NumPy twins as on this processor.
All types if none is named: an hour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.engine.arm64_features import ARM64

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = "tests/engine/simd/test_simd.py"
TYPES = "tests/engine/quants/test_quants.py"
PROCESSORS = ("cortex-a72", "neoverse-n1")


def compiled_for(processor: str) -> dict[str, str]:
    """The variables by which kernels are compiled for a processor."""
    return {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ARM64[processor]}


def main() -> int:
    """Run the tests for each processor; 0 if all passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", help="weight types; all if none is named")
    type_names = [name.upper() for name in parser.parse_args().types]
    runs = [(OPERATIONS,), (TYPES, *(["-k", " or ".join(type_names)] if type_names else []))]
    failed = 0
    emulated = ("-q", "-p", "no:cacheprovider", "-p", "tests.engine.emulated_arm64")
    for processor in PROCESSORS:
        for tests in runs:
            print(f"{processor}: {' '.join(tests)}", flush=True)
            command = [sys.executable, "-m", "pytest", *emulated, *tests]
            env = {**os.environ, **compiled_for(processor)}
            failed |= subprocess.run(command, cwd=ROOT, env=env).returncode
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
