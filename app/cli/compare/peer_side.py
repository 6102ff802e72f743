"""The other engine's side of ``jalopy compare``: a script for the Python that has its package.

The script imports nothing from Jalopy. It reads a job as JSON from standard input (described in
``app.cli.compare.command``) and writes the measurement as JSON.

llama.cpp runs with its defaults and without a graphics card. Its fork ik_llama.cpp runs twice, with
mapped and with repacked weights, and the better rate counts. OpenVINO GenAI and mistral.rs cannot
be fed tokens, so they write whole replies to the same prompt.
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
    """Run the job on standard input with the first engine that is installed."""
    package = None
    for name in ENGINES:
        try:
            package = import_module(name)
            break
        except ImportError:
            pass
    if package is None:
        return NOT_INSTALLED
    engine, run = ENGINES[package.__name__]
    job = json.load(sys.stdin)
    try:
        measurement = run(package, job)
    except AttributeError as error:
        sys.stderr.write(f"{package.__name__} {version_of(package)}: {error}")
        return TOO_OLD
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(" ".join(str(error).split()))
        return REFUSED
    print(
        json.dumps(
            {
                "engine": engine,
                "version": version_of(package),
                **measurement,
                "peak_bytes": peak_bytes(),
            }
        )
    )
    return 0


def version_of(package: Any) -> str:
    """Return a package's version, from the package or from its wheel."""
    return str(getattr(package, "__version__", None) or metadata.version(package.__name__))


def peak_bytes() -> int:
    """Return the peak memory of this process with mapped files; 0 if the system cannot tell."""
    try:
        import resource
    except ImportError:
        return 0
    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return maximum
    return 1024 * maximum


def run_llama_cpp(library: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job with llama.cpp. Raises what ``Peer`` raises."""
    quiet = library.llama_log_callback(lambda level, text, user: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(library, job)
    return {
        **run_job(peer, job),
        "level": library.llama_print_system_info().decode("utf-8", "replace").strip(),
    }


def run_ik_llama_cpp(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job with ik_llama.cpp, in the faster of its two layouts of the weights.

    Raises what ``Peer`` raises.
    """
    library = package._ctypes_api
    measurements = []
    for is_repacked in (False, True):
        with closing(Peer(library, job, is_repacked)) as peer:
            measurements.append(run_job(peer, job))
    mapped, repacked = measurements
    rates = {
        key: max(mapped[key], repacked[key], key=statistics.median)
        for key in ("prefill_tps", "decode_tps")
    }
    system_info = library._lib.llama_print_system_info
    system_info.restype = ctypes.c_char_p
    level = system_info().decode("utf-8", "replace").strip()
    return {**mapped, **rates, "level": level}


def run_openvino(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job with OpenVINO GenAI. Raises RuntimeError: it refuses the file."""
    import numpy as np

    openvino = import_module("openvino")
    pipeline = package.LLMPipeline(job["model"], "CPU", INFERENCE_NUM_THREADS=job["threads"])

    def write(prompt: list[int], n: int) -> Any:
        config = package.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False)
        return pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config)

    read_tps = []
    write_tps = []
    for prompt in rotations(job["prompt"], job["repeats"] + 1):
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


def run_mistral_rs(package: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job with mistral.rs. Raises ValueError: it refuses the file.

    mistral.rs takes prompts as text and does not report token ids. It reads the number of threads
    from the environment and writes its log to standard output.
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
        request = package.CompletionRequest(
            text, "default", max_tokens=1 + len(job["following"]), temperature=0.0
        )
        usage = runner.send_completion_request(request).usage
        read_tps.append(usage.avg_prompt_tok_per_sec)
        write_tps.append(usage.avg_compl_tok_per_sec)
    return {
        "prefill_tps": read_tps[1:],
        "decode_tps": write_tps[1:],
        "greedy": [],
        "level": "instructions not reported",
    }


def rotations(prompt: list[int], n: int) -> list[list[int]]:
    """Return ``n`` rotations of a prompt, so that no prefix cache can answer one from another."""
    return [prompt[start:] + prompt[:start] for start in range(n)]


ENGINES: dict[str, tuple[str, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    "llama_cpp": ("llama.cpp", run_llama_cpp),
    "ik_llama_cpp": ("ik_llama.cpp", run_ik_llama_cpp),
    "openvino_genai": ("OpenVINO", run_openvino),
    "mistralrs": ("mistral.rs", run_mistral_rs),
}
"""Names of the engines, and the functions that run a job, by package."""


class Peer:
    """A model opened with llama.cpp's functions.

    Args:
        library: module with llama.cpp's functions.
        job: job with the model, the threads and the size of the context.
        is_repacked: whether ik_llama.cpp repacks the weights; None for llama.cpp.

    Raises:
        AttributeError: the package is too old or too new.
        ValueError: the file or the context is refused.
    """

    def __init__(self, library: Any, job: dict[str, Any], is_repacked: bool | None = None) -> None:
        self._l = library
        library.llama_backend_init()
        model_params = library.llama_model_default_params()
        model_params.n_gpu_layers = 0
        if is_repacked is not None:
            model_params.repack_tensors = is_repacked
            model_params.use_mmap = not is_repacked
        self._model = library.llama_model_load_from_file(job["model"].encode(), model_params)
        if not self._model:
            raise ValueError("refuses the model file")
        self._n_vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        context_params = library.llama_context_default_params()
        context_params.n_ctx = context_params.n_batch = job["n_ctx"]
        context_params.n_ubatch = min(512, job["n_ctx"])
        context_params.n_threads = context_params.n_threads_batch = job["threads"]
        if is_repacked is not None:
            context_params.flash_attn = True
        self._context = library.llama_init_from_model(self._model, context_params)
        if not self._context:
            raise ValueError(f"refuses a context of {job['n_ctx']} tokens")

    def close(self) -> None:
        """Free the model and its context."""
        self._l.llama_free(self._context)
        self._l.llama_free_model(self._model)

    def clear(self) -> None:
        """Remove all tokens from the context."""
        if hasattr(self._l, "llama_memory_clear"):
            self._l.llama_memory_clear(self._l.llama_get_memory(self._context), True)
        else:
            self._l.llama_kv_cache_clear(self._context)

    def feed(self, tokens: list[int], start: int) -> None:
        """Compute tokens from position ``start``, and the logits of the last one."""
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
        """Return the token with the largest logit."""
        logits = self._l.llama_get_logits_ith(self._context, -1)[: self._n_vocab]
        return max(range(self._n_vocab), key=logits.__getitem__)


def run_job(peer: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a job with an object that has ``clear``, ``feed`` and ``likeliest``."""
    read_tps, write_tps = measure(peer, job)
    tokens = greedy(peer, job["greedy_prompt"], job["n_greedy"])
    return {"prefill_tps": read_tps, "decode_tps": write_tps, "greedy": tokens}


def measure(peer: Any, job: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the rates of prefill and decode in tokens per second, without the warm-up."""
    prompt = job["prompt"]
    following = job["following"]
    read_tps = []
    write_tps = []
    for n in range(job["repeats"] + 1):
        peer.clear()
        started_s = time.perf_counter()
        peer.feed(prompt, 0)
        prefilled_s = time.perf_counter()
        for i, token in enumerate(following):
            peer.feed([token], len(prompt) + i)
        ended_s = time.perf_counter()
        if n:
            read_tps.append(len(prompt) / (prefilled_s - started_s))
            write_tps.append(len(following) / (ended_s - prefilled_s))
    return read_tps, write_tps


def greedy(peer: Any, prompt: list[int], n_tokens: int) -> list[int]:
    """Return the continuation of a prompt that always takes the likeliest token."""
    peer.clear()
    peer.feed(prompt, 0)
    tokens: list[int] = []
    while len(tokens) < n_tokens:
        tokens.append(peer.likeliest())
        peer.feed(tokens[-1:], len(prompt) + len(tokens) - 1)
    return tokens


if __name__ == "__main__":
    sys.exit(main())
