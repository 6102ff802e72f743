import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LEFT_OVER = {
    "NUMBA_DISABLE_JIT": "1", "NUMBA_DEBUG": "1", "NUMBA_DUMP_ASSEMBLY": "1",
    "NUMBA_NUM_THREADS": "garbage",
    "NUMBA_OPT": "0", "NUMBA_BOUNDSCHECK": "1", "NUMBA_ENABLE_CUDASIM": "1",
    "NUMBA_CACHE_DIR": "/proc/nope",
    "NUMBA_CPU_FEATURES": "garbage", "NUMBA_ENABLE_AVX": "yes please",
}  # fmt: skip


@pytest.mark.smoke
def test_variables_left_over_from_debugging_change_nothing() -> None:
    code = (
        "import engine.jit as j, os; print(sorted(n for n in os.environ if 'NUMBA_' in n), "
        "int(j.numba.config.OPT))"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")
    } | LEFT_OVER
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
    output = b"['NUMBA_CACHE_DIR', 'NUMBA_DISABLE_PERFORMANCE_WARNINGS'] 3\n"
    assert (done.stdout, done.stderr) == (output, b"")
