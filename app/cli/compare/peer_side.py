"""The part of llama.cpp, or of its fork ik_llama.cpp, in a comparison: a file run by a Python that has its package.

Imports nothing of ours. Reads one job as JSON from standard input (``app.cli.compare.command`` describes it), and
writes one answer as JSON. llama.cpp is in its default mode: weights repacked where it likes, flash attention as it
chooses, no graphics card. ik_llama.cpp does the job with its weights mapped and repacked; the better rate counts.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from contextlib import closing
from typing import Any

NOT_INSTALLED, TOO_OLD, REFUSED = 3, 4, 5


def main() -> int:
    """Do the job on standard input."""
    try:
        import llama_cpp as package
    except ImportError:
        try:
            import ik_llama_cpp as package
        except ImportError:
            return NOT_INSTALLED
    is_ik = package.__name__ == "ik_llama_cpp"
    job, version = json.load(sys.stdin), package.__version__
    try:
        found = done_by_ik(package._ctypes_api, job) if is_ik else done_by_llama_cpp(package, job)
    except AttributeError as error:
        sys.stderr.write(f"{package.__name__} {version}: {error}")
        return TOO_OLD
    except ValueError as error:
        sys.stderr.write(str(error))
        return REFUSED
    print(json.dumps({"engine": "ik_llama.cpp" if is_ik else "llama.cpp", "version": version, **found}))
    return 0


def done_by_llama_cpp(library: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what llama.cpp does with a job. Raises as ``Peer``."""
    quiet = library.llama_log_callback(lambda level, text, user: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(library, job)
    return {**done(peer, job), "level": library.llama_print_system_info().decode("utf-8", "replace").strip()}


def done_by_ik(library: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what ik_llama.cpp does with a job, in the better of its two layouts. Raises as ``Peer``."""
    each = []
    for is_repacked in (False, True):
        with closing(Peer(library, job, is_repacked)) as peer:
            each.append(done(peer, job))
    mapped, repacked = each
    rates = {key: max(mapped[key], repacked[key], key=statistics.median) for key in ("prefill_tps", "decode_tps")}
    says = library._lib.llama_print_system_info
    says.restype = ctypes.c_char_p
    return {**mapped, **rates, "level": says().decode("utf-8", "replace").strip()}


class Peer:
    """One model in an engine with the functions of llama.cpp.

    Args:
        library: has its functions.
        job: names file, threads and context.
        is_repacked: how ik_llama.cpp keeps the weights; None for llama.cpp, which chooses.

    Raises:
        AttributeError: the package is of another time.
        ValueError: the file or the context is refused.
    """

    def __init__(self, library: Any, job: dict[str, Any], is_repacked: bool | None = None) -> None:
        self._l = library
        library.llama_backend_init()
        wanted = library.llama_model_default_params()
        wanted.n_gpu_layers = 0
        if is_repacked is not None:
            wanted.repack_tensors, wanted.use_mmap = is_repacked, not is_repacked
        self._model = library.llama_model_load_from_file(job["model"].encode(), wanted)
        if not self._model:
            raise ValueError("the file is refused")
        self._n_vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        chosen = library.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = job["n_ctx"]
        chosen.n_ubatch = min(512, job["n_ctx"])
        chosen.n_threads = chosen.n_threads_batch = job["threads"]
        if is_repacked is not None:
            chosen.flash_attn = True
        self._context = library.llama_init_from_model(self._model, chosen)
        if not self._context:
            raise ValueError("no context of that size is made")

    def close(self) -> None:
        """Free its memory."""
        self._l.llama_free(self._context)
        self._l.llama_free_model(self._model)

    def clear(self) -> None:
        """Forget every token."""
        if hasattr(self._l, "llama_memory_clear"):
            self._l.llama_memory_clear(self._l.llama_get_memory(self._context), True)
        else:
            self._l.llama_kv_cache_clear(self._context)

    def feed(self, tokens: list[int], start: int) -> None:
        """Compute tokens from a position on, and the logits of the last."""
        batch = self._l.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, start + i, 1, 0
            batch.logits[i] = i == len(tokens) - 1
        code = self._l.llama_decode(self._context, batch)
        self._l.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def likeliest(self) -> int:
        """Return the token of the largest logit."""
        logits = self._l.llama_get_logits_ith(self._context, -1)[: self._n_vocab]
        return max(range(self._n_vocab), key=logits.__getitem__)


def done(peer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job with anything that has ``clear``, ``feed`` and ``likeliest``: all engines are measured by this."""
    read_tps, write_tps = measure(peer, job)
    tokens = greedy(peer, job["greedy_prompt"], job["n_greedy"])
    return {"prefill_tps": read_tps, "decode_tps": write_tps, "greedy": tokens}


def measure(peer: Any, job: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Read the prompt at once and write token by token; the first time only warms up."""
    prompt, following = job["prompt"], job["following"]
    read_tps, write_tps = [], []
    for n in range(job["repeats"] + 1):
        peer.clear()
        started_s = time.perf_counter()
        peer.feed(prompt, 0)
        read_s = time.perf_counter()
        for i, token in enumerate(following):
            peer.feed([token], len(prompt) + i)
        ended_s = time.perf_counter()
        if n:
            read_tps.append(len(prompt) / (read_s - started_s))
            write_tps.append(len(following) / (ended_s - read_s))
    return read_tps, write_tps


def greedy(peer: Any, prompt: list[int], n_tokens: int) -> list[int]:
    """Continue a prompt, always with the likeliest token."""
    peer.clear()
    peer.feed(prompt, 0)
    tokens: list[int] = []
    while len(tokens) < n_tokens:
        tokens.append(peer.likeliest())
        peer.feed(tokens[-1:], len(prompt) + len(tokens) - 1)
    return tokens


if __name__ == "__main__":
    sys.exit(main())
