"""``python -m tests.engine.truth MODEL... --peer-python PATH``: who is nearer to the exact result, we or llama.cpp.

Two engines that round activations in ways of their own differ from each other by as much as each differs from what the
file's weights compute exactly. So each is compared with that: the architecture's twin in float64 on the dequantised
weights. For small files; the twin multiplies whole matrices for every token.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from engine import Model
from tests.engine import architectures
from tests.engine.reference import Array, Twin

FARTHEST = 1.3
"""Times llama.cpp's distance from the exact result: as far as ours may be."""
EXACT = 1e-5
"""A distance that is none: float weights."""
SEEDS = 3
PEER = Path(__file__).with_name("truth_peer.py")


def distance(found: Array, exact: Array) -> float:
    """Mean square error over the exact result's variance."""
    return float(((found - exact) ** 2).mean() / exact.var())


def distances(path: Path, peer_python: str, n_tokens: int, n_ctx: int, seed: int) -> tuple[float, float, float]:
    """How far from the exact result we are and llama.cpp is, and how far from each other."""
    model = Model.open(path, threads=2)
    ids = np.random.default_rng(seed).integers(0, model.config.vocab_size, n_tokens)
    exact = architectures.load(model.config.architecture).logits(Twin(model._checked), ids.tolist())
    ours = np.asarray(model.session(n_ctx=n_ctx, kv="f16").feed(ids.tolist(), every=True))
    model.close()
    with tempfile.TemporaryDirectory() as place:
        tokens, logits = Path(place, "ids.npy"), Path(place, "logits.npy")
        np.save(tokens, ids)
        subprocess.run([peer_python, str(PEER), str(path), str(tokens), str(n_ctx), str(logits)], check=True)
        theirs = np.load(logits)
    return distance(ours, exact), distance(theirs, exact), distance(ours, theirs)


def main() -> int:
    """Print one row for each model; the exit status is 1 where one falls short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--n-ctx", type=int, default=512)
    options = parser.parse_args()
    print(f"| model | ours from exact | llama.cpp from exact | ratio | one from the other |\n|{'---|' * 5}")
    falls_short = False
    for path in options.models:
        rows = [distances(path, options.peer_python, options.tokens, options.n_ctx, seed) for seed in range(SEEDS)]
        ours, theirs, between = (float(np.mean(column)) for column in zip(*rows, strict=True))
        is_good = ours <= max(FARTHEST * theirs, EXACT)
        falls_short |= not is_good
        verdict = "" if is_good else " FALLS SHORT"
        print(f"| {path.stem} | {ours:.1e} | {theirs:.1e} | {ours / theirs:.2f}{verdict} | {between:.1e} |", flush=True)
    return int(falls_short)


if __name__ == "__main__":
    sys.exit(main())
