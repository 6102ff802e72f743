"""``python -m tests.programs.engine.cycles [TYPE...]``: cycles of one core for 256 weights, by
weight type.

Measured: decode (one column), small batch (four columns) and prefill (a column of 128), with the
weights in L2 and beyond it; with ``--peer-python`` llama.cpp's in turn. Modelled with ``--mca
haswell,skylake``: the decode loop as compiled for that processor, by LLVM's model (``llvm-mca``, or
what MCA names). Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.quants import QUANTS
from tests.engine.arm64_features import ARM64

WEIGHTS = 256
_JUMP = re.compile(r"\s+(?:j\w+|b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+(\S+)$")
_PRODUCT = re.compile(
    r"pmaddubsw|(?P<half>\b[su]?m(?:ul|la|ls)l?2?\s+v\d+\.8h,)|(?P<dot>\b[su]dot\s)"
)
N_COLS = 2048
PLACES = {"L2": 256 << 10, "L3": 6 << 20}
COLUMNS = {"decode": 1, "small batch": 4, "prefill": 128}
ROUNDS = 12
LEAST_S = 0.002
PEER = Path(__file__).with_name("cycles_peer.py")
_OLD = "+64bit,+cmov,+cx16,+cx8,+fxsr,+mmx,+popcnt,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3"
_AVX2 = f"{_OLD},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
FEATURES = {
    "goldmont": _OLD,
    "sandybridge": f"{_OLD},+avx,+xsave",
    "ivybridge": f"{_OLD},+avx,+f16c,+xsave",
}
"""Features that numba may use, by processor; others have AVX2."""


def compiled_for(processor: str) -> dict[str, str]:
    """The environment in which kernels are compiled for another processor."""
    features = FEATURES.get(processor, _AVX2) if processor not in ARM64 else ARM64[processor]
    return {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}


def hot_loop(assembly: str) -> list[str]:
    """The innermost loop that multiplies bytes most, from its label to its jump.

    Raises:
        ValueError: no loop multiplies bytes.
    """
    lines = assembly.splitlines()
    labels = {
        match[1]: i for i, line in enumerate(lines) if (match := re.match(r"(\.?L?[\w.$]+):", line))
    }
    jumps = [
        (labels[match[1]], i)
        for i, line in enumerate(lines)
        if (match := _JUMP.match(line)) and labels.get(match[1], i) < i
    ]
    innermost = [
        (a, b)
        for a, b in jumps
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in jumps)
    ]
    most = max((lines[a : b + 1] for a, b in innermost), key=_products, default=[])
    if not _products(most):
        raise ValueError("no loop multiplies bytes")
    return most


def _products(lines: list[str]) -> int:
    return sum(bool(_PRODUCT.search(line)) for line in lines)


def weights_in(loop: list[str]) -> int:
    """Weights of one pass: each product of bytes takes a register of them; of ARM64's all but
    ``sdot`` half of one."""
    matches = [match for line in loop if (match := _PRODUCT.search(line))]
    return sum(map(_weights_of_product, matches))


def _weights_of_product(match: re.Match[str]) -> int:
    if match["half"]:
        return 8
    if match["dot"]:
        return 16
    return {"%zmm": 64, "%ymm": 32}.get(match.string.rpartition(" ")[2][:4], 16)


def modelled(quant: str, processor: str) -> str:
    """Instructions and cycles for 256 weights of one row in the decode loop, as LLVM models a
    processor."""
    program = (
        f"{'import tests.engine.arm64_target' if processor in ARM64 else ''}\n"
        f"from {QUANTS[quant]} import matvec\n"
        "print(matvec.compiled._library.get_asm_str())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **compiled_for(processor)},
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        loop = hot_loop(done.stdout)
    except ValueError:
        return "-"
    triple = "aarch64" if processor in ARM64 else "x86_64"
    model = subprocess.run(
        [os.environ.get("MCA", "llvm-mca"), f"-mtriple={triple}", f"-mcpu={processor}",
         "-iterations=200"],
        input="\n".join(loop), capture_output=True, text=True,
    )  # fmt: skip
    total = re.search(r"Total Cycles:\s+(\d+)", model.stdout)
    if not total:
        raise SystemExit(f"{processor}: {model.stderr.strip().splitlines()[-1]}")
    share = WEIGHTS / weights_in(loop)
    n_instructions = sum(not line.rstrip().endswith(":") for line in loop)
    return f"{n_instructions * share:.0f} / {int(total[1]) / 200 * share:.1f}"


class Ours:
    """Our kernels on one thread.

    Args:
        ahead: how decode asks ahead, a choice of ``engine.plan.lookahead``; None for none in L2,
            the default beyond.
    """

    def __init__(self, ahead: int | None = None) -> None:
        from engine.plan.crew import Crew

        self.crew = Crew(1)
        self.ahead = ahead

    def clock_ghz(self) -> float:
        """The clock now; figures in cycles need one."""
        from engine.plan.clock import clock_ghz

        ghz = clock_ghz(self.crew)
        assert ghz, "the clock of this processor is not known"
        return ghz

    def product_s(self, quant: str, n_rows: int, columns: int, repeats: int) -> float:
        """Seconds of one product, the best of ``ROUNDS``; the activations are quantised once for
        all."""
        import numpy as np

        from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
        from engine.machine.memory import Memory
        from engine.plan.buffers import Activations
        from engine.plan.compilation import compile_kernels
        from engine.plan.lookahead import default_choice
        from engine.plan.plan import Plan
        from engine.weights.weights import Tensor

        size = n_rows * row_bytes(quant)
        weights = Memory(size)
        step = Memory(128)
        tokens = Memory(4 * columns)
        scratch = Memory(MATMUL_SCRATCH_BYTES)
        weights.bytes[:size] = np.random.default_rng(1).integers(0, 255, size, np.uint8)
        words = step.array(np.int64, (16,))
        words[STEP.tokens // 8] = tokens.address
        words[STEP.n_tokens // 8] = columns
        x = Activations("x", N_COLS, columns)
        out = Activations("out", n_rows, columns)
        x.array()[:] = 1.0
        matrix = Tensor("cycles", quant, n_rows, N_COLS, row_bytes(quant), size, weights.address)
        plan = Plan(step.address, columns, (scratch.address, MATMUL_SCRATCH_BYTES), 1)
        plan.quantize(x, matrix)
        for _ in range(repeats):
            plan.barrier()
            plan.matmul(matrix, x, out)
        plan.barrier()
        default = 0 if size < 1 << 20 else default_choice()
        plan.look_ahead(lambda _: default if self.ahead is None else self.ahead)
        table = plan.table(compile_kernels(plan.kernels()))
        best_s = float("inf")
        for _ in range(ROUNDS):
            started_s = time.perf_counter()
            self.crew.run_to_end(table, 1)
            best_s = min(best_s, time.perf_counter() - started_s)
        return best_s / repeats


class Peer:
    """llama.cpp's kernels, in a process of its own."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, str(PEER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout
        self.built_for = self.process.stdout.readline().strip()

    def product_s(self, quant: str, n_rows: int, columns: int, repeats: int) -> float:
        """As ``Ours.product_s``; the activations are quantised each time."""
        from engine.gguf.ggml_types import GGML_TYPES

        number = next(n for n, layout in GGML_TYPES.items() if layout.name == quant)
        stdin = self.process.stdin
        answer = self.process.stdout
        assert stdin
        assert answer
        print(number, n_rows, N_COLS, columns, repeats, file=stdin, flush=True)
        return float(answer.readline())


def row_bytes(quant: str) -> int:
    """Bytes of a row of ``N_COLS`` weights."""
    layout = TYPES_BY_NAME[quant]
    return N_COLS // layout.block_size * layout.type_size


def measured(quant: str, bench: Ours, peer: Peer | None) -> list[str]:
    """Return a cell for each memory level and number of columns: our cycles, or ours / llama.cpp's
    = speed ratio."""
    cells = []
    for size in PLACES.values():
        n_rows = size // row_bytes(quant) // 16 * 16
        for columns in COLUMNS.values():
            blocks = n_rows * N_COLS // WEIGHTS * columns
            repeats = max(1, int(LEAST_S / (blocks * 7e-9)))
            cycles = (
                bench.product_s(quant, n_rows, columns, repeats) * bench.clock_ghz() * 1e9 / blocks
            )
            cell = f"{cycles:.1f}"
            if peer is not None:
                peer_cycles = (
                    peer.product_s(quant, n_rows, columns, repeats)
                    * bench.clock_ghz()
                    * 1e9
                    / blocks
                )
                cell += f" / {peer_cycles:.1f} = {peer_cycles / cycles:.2f}x"
            cells.append(cell)
    return cells


def main() -> int:
    """Print a table of what was measured, and one of what was modelled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("types", nargs="*", help="weight types; all if none is named")
    parser.add_argument("--peer-python", help="a Python that has llama-cpp-python")
    parser.add_argument(
        "--isa",
        help="compile for this processor, for instance haswell, to meet a peer built for it",
    )
    parser.add_argument(
        "--mca", default="", help="model the decode loop on these processors instead of measuring"
    )
    parser.add_argument(
        "--look", type=int, help="how decode asks ahead, a number of engine.plan.lookahead.CHOICES"
    )
    options = parser.parse_args()
    if options.isa:
        os.environ.update(compiled_for(options.isa))
    types = [name.upper() for name in options.types] or list(QUANTS)
    processors = [name for name in options.mca.split(",") if name]
    heads = processors or [f"{column}, {memory}" for memory in PLACES for column in COLUMNS]
    print(f"| type | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    bench = None if processors else Ours(options.look)
    peer = Peer(options.peer_python) if options.peer_python and bench else None
    for quant in types:
        cells = (
            [modelled(quant, processor) for processor in processors]
            if bench is None
            else measured(quant, bench, peer)
        )
        print(f"| {quant} | {' | '.join(cells)} |", flush=True)
    print(
        "\ninstructions / cycles for 256 weights"
        if bench is None
        else f"\nclock {bench.clock_ghz():.2f} GHz"
    )
    if peer is not None:
        from engine.machine.level import LEVEL

        print(f"ours: {LEVEL}; llama.cpp: {peer.built_for}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
