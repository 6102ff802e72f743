"""``python -m tests.programs.engine.truth [MODEL...] --peer-python PATH``: who is nearer to the exact
result, we or llama.cpp.

Two engines that round activations in ways of their own differ from each other by as much as each
differs from what the file's weights compute exactly. So each is compared with that: the
architecture's twin in float64 on the dequantised weights. Prompts go in one block, in odd blocks
(ours only) and token by token; the way that is farthest counts.

Without a model: one row for each registered architecture's tiny model, with float and with
quantised weights, across its window and beyond its rope's original context. For small files; the
twin multiplies whole matrices for every token.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import Model
from engine.models import ARCHITECTURES
from tests.engine import architectures
from tests.engine.families import FAMILIES, OTHERS, TWIN_ARGUMENTS, family
from tests.engine.reference import Array, Twin

FARTHEST = 1.3
"""Times llama.cpp's distance from the exact result: as far as ours may be."""
EXACT = 1e-5
"""A distance that is none: float weights."""
ODD_BLOCKS = 7, 31, 5, 64, 23, 11
MIXES = "F32", "Q4_K"
PEER = Path(__file__).with_name("truth_peer.py")


def distance(computed: Array, exact: Array) -> float:
    """Mean square error over the exact result's variance."""
    return float(((computed - exact) ** 2).mean() / exact.var())


@dataclass(frozen=True)
class Distances:
    """Distances of two engines from the exact result and from each other.

    Each is a mean over prompts, for the way of computing that is farthest off.
    """

    ours: float
    theirs: float
    between: float

    @property
    def are_good(self) -> bool:
        """Whether ours is as near as it has to be."""
        return self.ours <= max(FARTHEST * self.theirs, EXACT)

    def __str__(self) -> str:
        verdict = "" if self.are_good else " FALLS SHORT"
        return (
            f"{self.ours:.1e} | {self.theirs:.1e} | {self.ours / self.theirs:.2f}{verdict} | "
            f"{self.between:.1e}"
        )


def fed(model: Model, ids: list[int], n_ctx: int) -> list[Array]:
    """Logits of all positions: one block, odd blocks, token by token."""
    session = model.session(n_ctx=n_ctx, kv="f16")
    results = []
    for sizes in ([len(ids)], ODD_BLOCKS, [1]):
        session.truncate(0)
        rows: list[Array] = []
        while sum(map(len, rows)) < len(ids):
            position = sum(map(len, rows))
            rows.append(
                np.asarray(
                    session.feed(
                        ids[position : position + sizes[len(rows) % len(sizes)]], all_logits=True
                    )
                )
            )
        results.append(np.vstack(rows))
    session.close()
    return results


@dataclass(frozen=True)
class Prompts:
    """Random ids: how many prompts, of how many tokens, in which context."""

    n: int
    n_tokens: int
    n_ctx: int
    seed: int

    def ids(self, vocab_size: int) -> Array:
        """(n, n_tokens)."""
        return np.random.default_rng(self.seed).integers(3, vocab_size, (self.n, self.n_tokens))


def distances(path: Path, peer_python: str, prompts: Prompts, *twin_arguments: str) -> Distances:
    """How far from the exact result we are and llama.cpp is, and how far from each other."""
    model = Model.open(path, threads=1)
    ids = prompts.ids(model.config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "ids.npy")
        logits = Path(folder, "logits.npy")
        np.save(tokens, ids)
        subprocess.run(
            [peer_python, str(PEER), str(path), str(tokens), str(prompts.n_ctx), str(logits)],
            check=True,
        )
        peer_logits = np.load(logits)
    twin = architectures.load(model.config.architecture)
    rows = []
    for seed, prompt in enumerate(ids.tolist()):
        exact = twin.logits(Twin(model._file), prompt, *twin_arguments)
        our_logits = fed(model, prompt, prompts.n_ctx)
        rows.append((
            max(distance(result, exact) for result in our_logits),
            max(distance(result, exact) for result in peer_logits[:, seed]),
            max(distance(our_logits[index], peer_logits[peer_index, seed]) for index,
                peer_index in ((0, 0), (1, 0), (2, 1))),
        ))  # fmt: skip
    model.close()
    return Distances(*(float(np.mean(column)) for column in zip(*rows, strict=True)))


def of_registry(names: list[str], peer_python: str, prompts: Prompts) -> bool:
    """Print a row for each architecture; returns whether all are good."""
    titles = [
        f"{mix}: {title}"
        for mix in MIXES
        for title in ("ours", "llama.cpp", "ratio", "one from the other")
    ]
    print(f"| architecture | {' | '.join(titles)} |\n|{'---|' * (1 + len(titles))}", flush=True)
    are_good = True
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            arguments = TWIN_ARGUMENTS.get(name, ())
            paths = [family(name, quant=mix).write(Path(folder, f"{mix}.gguf")) for mix in MIXES]
            try:
                results = [distances(path, peer_python, prompts, *arguments) for path in paths]
            except subprocess.CalledProcessError:
                print(f"| {name} | llama.cpp does not compute it |", flush=True)
                are_good = False
                continue
            are_good &= all(result.are_good for result in results)
            print(f"| {name} | {' | '.join(map(str, results))} |", flush=True)
    return are_good


def of_files(paths: list[Path], peer_python: str, prompts: Prompts) -> bool:
    """Print a row for each model; returns whether all are good."""
    print(
        "| model | ours from exact | llama.cpp from exact | ratio | one from the other |\n"
        f"|{'---|' * 5}"
    )
    are_good = True
    for path in paths:
        result = distances(path, peer_python, prompts)
        are_good &= result.are_good
        print(f"| {path.stem} | {result} |", flush=True)
    return are_good


def main() -> int:
    """Print the rows; the exit status is 1 where one falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that has llama-cpp-python"
    )
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--n-ctx", type=int, default=256)
    parser.add_argument(
        "--prompts",
        type=int,
        default=3,
        help="a rounding that chooses another expert counts less in many",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="architectures instead of all")
    options = parser.parse_args()
    rest = (
        options.peer_python,
        Prompts(options.prompts, options.tokens, options.n_ctx, options.seed),
    )
    if options.models:
        return int(not of_files(options.models, *rest))
    return int(
        not of_registry(options.only or list({**ARCHITECTURES, **FAMILIES, **OTHERS}), *rest)
    )


if __name__ == "__main__":
    sys.exit(main())
