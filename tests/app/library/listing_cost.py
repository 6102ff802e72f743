"""Cost of a list of models: ``python -m tests.app.library.listing_cost [N]`` writes N models and lists them.

Each has a vocabulary as large as those of today's models, 128,256 tokens and 280,147 merges, since getting over that
is most of reading a header. Processor time counts: it does not depend on what else runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.library.header import HeaderCache
from app.library.listing import Lister, list_models
from app.library.places import Place, find_files
from app.machine.reply_history import ReplyHistory
from engine.gguf.read import read_gguf
from engine.measure.fit import MachineMemory, MachineRates
from tests.engine import tiny_gguf

N_TOKENS, N_MERGES = 128_256, 280_147


def write_models(directory: Path, n_models: int) -> None:
    """Write models that differ in their names; the vocabulary is the same bytes in each."""
    tiny = tiny_gguf.model()
    tiny.set("tokenizer.ggml.tokens", [f"t{n}" for n in range(N_TOKENS)])
    tiny.set("tokenizer.ggml.merges", [f"to {n}" for n in range(N_MERGES)])
    tiny.set("tokenizer.ggml.scores", np.zeros(N_TOKENS, "<f4"))
    tiny.set("tokenizer.ggml.token_type", np.ones(N_TOKENS, "<i4"))
    for n in range(n_models):
        tiny.set("general.name", f"Synthetic {n}")
        tiny.write(directory / f"synthetic-{n:03}.gguf")


def timed(what: str, work: Callable[[], int]) -> None:
    """Do it and print what it took."""
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    count = work()
    cpu_s, wall_s = time.process_time() - started_cpu_s, time.perf_counter() - started_s
    print(f"{what:<44} {count:>4} models, {cpu_s:6.3f} s of processor, {wall_s:6.3f} s by the clock")


def main(n_models: int) -> None:
    """Time the names, the first list and the second, and reading whole headers for comparison."""
    lister = Lister(MachineMemory(8 << 30, 6 << 30), MachineRates(12.0), ReplyHistory())
    with tempfile.TemporaryDirectory() as directory:
        places = [Place("here", Path(directory))]
        write_models(Path(directory), n_models)

        def whole_headers() -> int:
            files = find_files(places)
            for file in files:
                read_gguf(file.path).close()
            return len(files)

        def listed() -> int:
            return len(list_models(places, lister, HeaderCache(Path(directory) / "cache" / "models.json")))

        timed("names and sizes only", lambda: len(find_files(places)))
        timed("every header with all its strings", whole_headers)
        timed("first list, every header without them", listed)
        timed("second list, from the cache", listed)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
