"""``python -m tests.programs.peers.pictures --python PATH --mmproj FILE --model FILE``: rows of
pictures and sizes of 150 random pictures against llama.cpp's libmtmd.

PATH is the Python of an environment with llama-cpp-python 0.3.36 and Pillow. The text model must be
as wide as the rows; its weights do not matter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from engine import Crew, PictureEncoder
from engine.errors import EngineError
from engine.vision.rows import HIGH
from tests.engine.vision.tiny_mmproj import picture

PEER = Path(__file__).with_name("pictures_peer.py")
SIZES = ((512, 512), (640, 360), (97, 1001), (32, 32), (1, 1))
N_RANDOM = 150
LONGEST = 3000
BOUNDS = {"F32": 2e-6, "F16": 2e-6, "BF16": 1e-4, "Q8_0": 1e-3}
"""Bounds of the NMSE by the type of the matrices; ``Q8_0`` also for matrices turned into it."""


def main() -> int:
    """Compare; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="Python with llama-cpp-python and Pillow")
    parser.add_argument("--mmproj", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="text model of that width")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    crew = Crew()
    with tempfile.TemporaryDirectory() as folder:
        n_failed = _compare_rows(options, crew, Path(folder))
        n_failed += _compare_sizes(options, crew, Path(folder))
    crew.close()
    return n_failed


def _peer(options: Any, folder: Path, images: list[str]) -> dict[str, Any]:
    out = folder / "peer.npz"
    files = [str(options.mmproj), str(options.model), str(out)]
    subprocess.run([options.python, str(PEER), *files, *images], check=True)
    with np.load(out) as data:
        return dict(data)


def _compare_rows(options: Any, crew: Crew, folder: Path) -> int:
    paths = []
    for width, height in SIZES:
        paths.append(str(folder / f"{width}x{height}.png"))
        Image.fromarray(picture(width, height)).save(paths[-1])
    theirs = _peer(options, folder, paths)
    n_failed = 0
    for is_exact in (True, False):
        encoder = PictureEncoder.open(options.mmproj, crew, options.threads, is_exact)
        bound = BOUNDS["Q8_0"]
        if is_exact:
            bound = BOUNDS[encoder.matrix_type]
        for number, path in enumerate(paths):
            rows = encoder.encode(encoder.prepare_file(path, HIGH)).rows
            expected = [theirs[f"rows_{number}_{part}"] for part in range(len(rows))]
            error = _nmse(np.concatenate(rows), np.concatenate(expected))
            is_right = error <= bound
            n_failed += not is_right
            kind = "exact" if is_exact else "Q8_0"
            verdict = "ok    " if is_right else "FAILED"
            print(f"{verdict} {Path(path).stem} {kind}: NMSE {error:.1e}", flush=True)
        encoder.close()
    return n_failed


def _nmse(rows: Any, expected: Any) -> float:
    if rows.shape != expected.shape:
        return float("inf")
    difference = rows.astype(np.float64) - expected
    return float((difference**2).sum() / (expected.astype(np.float64) ** 2).sum())


def _grids(encoder: PictureEncoder, size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return rows and columns of each part of a picture; empty if it is too narrow."""
    try:
        frames, _ = encoder.family.frames(encoder.config, size, HIGH)
    except EngineError:
        return []
    grids = [(frame.grid.n_rows, frame.grid.n_columns) for frame in frames]
    if not encoder.family.has_grid_positions:  # libmtmd counts such parts in one row
        grids = [(1, n_rows * n_columns) for n_rows, n_columns in grids]
    return grids


def _compare_sizes(options: Any, crew: Crew, folder: Path) -> int:
    rng = np.random.default_rng(7)
    sides = np.exp(rng.uniform(0, np.log(LONGEST), (N_RANDOM, 2))).astype(int)
    theirs = _peer(options, folder, [f"{width}x{height}" for width, height in sides])
    encoder = PictureEncoder.open(options.mmproj, crew, 1)
    n_failed = 0
    n_refused = 0
    for number, (width, height) in enumerate(sides):
        expected = [theirs[key] for key in theirs if key.startswith(f"grid_{number}_")]
        grids = _grids(encoder, (int(width), int(height)))
        n_refused += not grids
        if [tuple(grid) for grid in expected] != grids:
            n_failed += 1
            print(f"FAILED {width} x {height}: {grids}, libmtmd {expected}", flush=True)
    n_equal = N_RANDOM - n_failed
    refused = f" ({n_refused} are too narrow)" if n_refused else ""
    print(f"{n_equal} of {N_RANDOM} random sizes are equal{refused}", flush=True)
    encoder.close()
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
