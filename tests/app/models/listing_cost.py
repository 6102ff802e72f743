"""What a list of models costs: ``python -m tests.app.models.listing_cost [N]`` writes N models and lists them twice.

Each has a vocabulary of 32,000 tokens, since reading that is most of reading a header.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from app.models.header_cache import HeaderCache
from app.models.listing import Lister, list_models
from app.models.places import Place
from app.models.rates import KnownRates
from app.performance.history import ReplyHistory
from engine.fit import MachineMemory
from tests.engine import tiny_gguf

N_TOKENS = 32_000


def write_models(directory: Path, n_models: int) -> None:
    """Write models that differ in their names."""
    tiny = tiny_gguf.model()
    tiny.set("tokenizer.ggml.tokens", [f"token{n}" for n in range(N_TOKENS)])
    tiny.set("tokenizer.ggml.scores", np.zeros(N_TOKENS, "<f4"))
    tiny.set("tokenizer.ggml.token_type", np.ones(N_TOKENS, "<i4"))
    for n in range(n_models):
        tiny.set("general.name", f"Synthetic {n}")
        tiny.write(directory / f"synthetic-{n:03}.gguf")


def main(n_models: int) -> None:
    """Time the first list and the second."""
    lister = Lister(MachineMemory(8 << 30, 6 << 30), KnownRates(12.0), ReplyHistory())
    with tempfile.TemporaryDirectory() as directory:
        write_models(Path(directory), n_models)
        for which in ("first, every header read", "second, from the cache"):
            started_s = time.perf_counter()
            cache = HeaderCache(Path(directory) / "cache" / "models.json")
            n_listed = len(list_models([Place("here", Path(directory))], lister, cache))
            elapsed_s = time.perf_counter() - started_s
            print(f"{which}: {n_listed} models in {elapsed_s:.3f} s, {cache.n_read} headers read")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
