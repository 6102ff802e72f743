"""llama.cpp's half of a comparison, run as a file by whatever Python has llama-cpp-python. Imports nothing of ours.

Reads one job as JSON from standard input (``app.cli.compare.command`` describes it), writes one answer as JSON. In its
default mode: weights repacked where it likes, flash attention as it chooses, no graphics card.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

NOT_INSTALLED, TOO_OLD, REFUSED = 3, 4, 5


def main() -> int:
    """Do the job on standard input."""
    try:
        import llama_cpp
    except ImportError:
        return NOT_INSTALLED
    job = json.load(sys.stdin)
    try:
        peer = Peer(llama_cpp, job)
    except AttributeError as error:
        sys.stderr.write(f"{llama_cpp.__version__}: {error}")
        return TOO_OLD
    except ValueError as error:
        sys.stderr.write(str(error))
        return REFUSED
    level = llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip()
    print(json.dumps({**done(peer, job), "version": llama_cpp.__version__, "level": level}))
    return 0


class Peer:
    """One model in llama.cpp.

    Raises:
        AttributeError: the package is of another time.
        ValueError: llama.cpp refuses the file or the context.
    """

    def __init__(self, library: Any, job: dict[str, Any]) -> None:
        self._l = library
        self._quiet = library.llama_log_callback(lambda level, text, user: None)
        library.llama_log_set(self._quiet, ctypes.c_void_p(0))
        library.llama_backend_init()
        wanted = library.llama_model_default_params()
        wanted.n_gpu_layers = 0
        model = library.llama_model_load_from_file(job["model"].encode(), wanted)
        if not model:
            raise ValueError("llama.cpp refuses the file")
        self._n_vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        chosen = library.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = job["n_ctx"]
        chosen.n_ubatch = min(512, job["n_ctx"])
        chosen.n_threads = chosen.n_threads_batch = job["threads"]
        chosen.no_perf = True
        self._context = library.llama_init_from_model(model, chosen)
        if not self._context:
            raise ValueError("llama.cpp makes no context of that size")

    def clear(self) -> None:
        """Forget every token."""
        self._l.llama_memory_clear(self._l.llama_get_memory(self._context), True)

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
    """Do a job with anything that has ``clear``, ``feed`` and ``likeliest``: both engines are measured by this."""
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
