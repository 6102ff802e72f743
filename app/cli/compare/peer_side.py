"""The part of another engine in a comparison: a file run by a Python that has its package.

Imports nothing of ours. Reads one job as JSON from standard input (``app.cli.compare.command``
describes it), and writes one answer as JSON. llama.cpp is in its default mode: weights repacked
where it likes, flash attention as it chooses, no graphics card. Its fork ik_llama.cpp does the job
with its weights mapped and repacked; the better rate counts. OpenVINO GenAI and mistral.rs write
whole replies: after the same prompt, but tokens that they choose.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

NOT_INSTALLED = 3
TOO_OLD = 4
REFUSED = 5


def main() -> int:
    """Do the job on standard input with the first engine that is there."""
    package = None
    for name in ENGINES:
        try:
            package = import_module(name)
            break
        except ImportError:
            pass
    if package is None:
        return NOT_INSTALLED
    engine, do = ENGINES[package.__name__]
    job = json.load(sys.stdin)
    try:
        found = do(package, job)
    except AttributeError as error:
        sys.stderr.write(f"{package.__name__} {version_of(package)}: {error}")
        return TOO_OLD
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(" ".join(str(error).split()))
        return REFUSED
    print(
        json.dumps(
            {"engine": engine, "version": version_of(package), **found, "peak_bytes": peak_bytes()}
        )
    )
    return 0


def version_of(package: Any) -> str:
    """Return a package's version: as it says itself, or as its wheel does."""
    return str(getattr(package, "__version__", None) or metadata.version(package.__name__))


def peak_bytes() -> int:
    """Return the most memory that this process had by now, mapped weights included; 0 where that is
    not told."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def done_by_llama_cpp(library: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what llama.cpp does with a job. Raises as ``Peer``."""
    quiet = library.llama_log_callback(lambda level, text, user: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(library, job)
    return {
        **done(peer, job),
        "level": library.llama_print_system_info().decode("utf-8", "replace").strip(),
    }


def done_by_ik(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what ik_llama.cpp does with a job, in the better of its two layouts.

    Raises as ``Peer``.
    """
    library = package._ctypes_api
    each = []
    for is_repacked in (False, True):
        with closing(Peer(library, job, is_repacked)) as peer:
            each.append(done(peer, job))
    mapped, repacked = each
    rates = {
        key: max(mapped[key], repacked[key], key=statistics.median)
        for key in ("prefill_tps", "decode_tps")
    }
    says = library._lib.llama_print_system_info
    says.restype = ctypes.c_char_p
    return {**mapped, **rates, "level": says().decode("utf-8", "replace").strip()}


def done_by_openvino(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenVINO GenAI does with a job. Raises RuntimeError: the file is refused."""
    import numpy as np

    openvino = import_module("openvino")
    pipeline = package.LLMPipeline(job["model"], "CPU", INFERENCE_NUM_THREADS=job["threads"])

    def write(prompt: list[int], n: int) -> Any:
        wanted = package.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False)
        return pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), wanted)

    read_tps = []
    write_tps = []
    for prompt in prompts(job["prompt"], job["repeats"] + 1):
        # The first token comes with the prompt.
        figures = write(prompt, 1 + len(job["following"])).perf_metrics
        read_tps.append(1000 * len(prompt) / figures.get_ttft().mean)
        write_tps.append(1000 / figures.get_tpot().mean)
    greedy = [int(token) for token in write(job["greedy_prompt"], job["n_greedy"]).tokens[0]]
    level = " ".join(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    return {
        "prefill_tps": read_tps[1:],
        "decode_tps": write_tps[1:],
        "greedy": greedy,
        "level": level,
    }


def done_by_mistral_rs(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return what mistral.rs does with a job: it takes texts and tells no ids. Raises ValueError:
    it refuses the file.

    It takes its threads from the environment, and writes its log to standard output.
    """
    os.environ["RAYON_NUM_THREADS"] = str(job["threads"])
    os.environ["HF_HUB_OFFLINE"] = "1"
    path = Path(job["model"])
    runner = package.Runner(
        which=package.Which.GGUF(str(path.parent), path.name), max_seqs=1, prefix_cache_n=0
    )
    read_tps = []
    write_tps = []
    for text in (job["prompt_text"][n:] for n in range(job["repeats"] + 1)):
        wanted = package.CompletionRequest(
            text, "default", max_tokens=1 + len(job["following"]), temperature=0.0
        )
        used = runner.send_completion_request(wanted).usage
        read_tps.append(used.avg_prompt_tok_per_sec)
        write_tps.append(used.avg_compl_tok_per_sec)
    return {
        "prefill_tps": read_tps[1:],
        "decode_tps": write_tps[1:],
        "greedy": [],
        "level": "instructions not told",
    }


def prompts(prompt: list[int], n: int) -> list[list[int]]:
    """Return so many prompts of the same tokens that begin in another way each: none is known from
    the one before."""
    return [prompt[at:] + prompt[:at] for at in range(n)]


ENGINES: dict[str, tuple[str, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    "llama_cpp": ("llama.cpp", done_by_llama_cpp),
    "ik_llama_cpp": ("ik_llama.cpp", done_by_ik),
    "openvino_genai": ("OpenVINO", done_by_openvino),
    "mistralrs": ("mistral.rs", done_by_mistral_rs),
}
"""By package: the engine's name, and what does a job with it."""


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
            wanted.repack_tensors = is_repacked
            wanted.use_mmap = not is_repacked
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
            batch.pos[i] = start + i
            batch.token[i] = token
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
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
    """Do a job with anything that has ``clear``, ``feed`` and ``likeliest``: all engines are
    measured by this."""
    read_tps, write_tps = measure(peer, job)
    tokens = greedy(peer, job["greedy_prompt"], job["n_greedy"])
    return {"prefill_tps": read_tps, "decode_tps": write_tps, "greedy": tokens}


def measure(peer: Any, job: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Read the prompt at once and write token by token; the first time only warms up."""
    prompt = job["prompt"]
    following = job["following"]
    read_tps = []
    write_tps = []
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
