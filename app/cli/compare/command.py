"""``jalopy compare``: Jalopy's speed next to other engines.

Each engine runs in its own process, in random order. The result has medians, ratios, and whether
the engines write the same greedy text.
"""

from __future__ import annotations

import json
import random
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from app.backend.local import engine_access
from app.cli.bench import spread, versions
from app.cli.compare import peer_side
from app.program import exit_codes
from app.program.installing import install_command
from app.program.paths import own_module
from app.program.refusals import Refusal, exit_code_of, say
from app.program.settings import built_in_settings, override
from app.text.clean_text import clean_line
from app.text.json_line import json_line
from app.text.record import record

JALOPY = "jalopy"
GREEDY_TEXT = "The capital of France is"
N_GREEDY = 32
TIMEOUT_S = 3600
NEAR_TIE = 0.1
"""Lead of the likeliest token below which rounding may decide, in standard deviations of the
logits."""
_SEED = 0
_RATES = "decode_tps", "prefill_tps"
_PEER_LEVELS = {
    "AMX_INT8": "amx", "AVX512_VNNI": "vnni", "AVX_VNNI": "vnni", "AVX512": "avx512",
    "AVX2": "avx2", "SSSE3": "ssse3",
}  # fmt: skip
"""Levels of Jalopy by features in llama.cpp's system line; the first feature that is on decides."""

Job = dict[str, Any]
"""Work for an engine.

``model``, ``threads``, ``n_ctx``; ``prompt``, token ids to prefill, also as ``prompt_text``;
``following``, token ids to decode; ``repeats`` after the warm-up; ``greedy_prompt`` and
``n_greedy``, for the comparison of texts.
"""
Measurement = dict[str, Any]
"""Answer of an engine to a job: rates, greedy tokens, version, level and peak memory."""


@record
class CompareOptions:
    """Arguments of ``compare``."""

    model: str
    threads: int = 0
    n_prompt: int = 128
    n_gen: int = 32
    rounds: int = 3
    weights: str = "mmap"
    peer_python: Sequence[str] = ()
    as_json: bool = False


def compare(options: CompareOptions) -> int:
    """Run the rounds and print the comparison.

    Raises:
        EngineError: the model cannot be used.
        Refusal: another engine is not installed, too old, or refuses the file.
    """
    job = make_job(options)
    pythons = [JALOPY, *(dict.fromkeys(options.peer_python) or [sys.executable])]
    measurements: dict[str, list[Measurement]] = {python: [] for python in pythons}
    for n in range(options.rounds):
        for python in random.sample(pythons, len(pythons)):
            say(f"round {n + 1} of {options.rounds}: {clean_line(python, 100)}")
            measurements[python].append(run_engine(python, job))

    jalopy = measurements.pop(JALOPY)
    comparison = report(options, job, jalopy, list(measurements.values()))
    if options.as_json:
        print(json_line(comparison), flush=True)
    else:
        print("\n".join(lines(comparison)), flush=True)
    return exit_codes.OK


def make_job(options: CompareOptions) -> Job:
    """Return the job for all engines. Raises EngineError: the model cannot be used."""
    from engine.machine import host

    checked = engine_access.validate_model(options.model)
    with closing(checked.gguf):
        vocab_size = checked.config.vocab_size
        context_length = checked.config.context_length
        greedy_prompt = list(checked.tokenizer.encode(GREEDY_TEXT)) or [0]
        numbers = random.Random(_SEED)
        prompt = [numbers.randrange(vocab_size) for _ in range(options.n_prompt)]
        following = [numbers.randrange(vocab_size) for _ in range(options.n_gen)]
        prompt_text = checked.tokenizer.decode(prompt)
    n_ctx = max(256, options.n_prompt + options.n_gen, len(greedy_prompt) + N_GREEDY)
    if options.n_prompt + options.n_gen > context_length:
        raise Refusal(
            f"jalopy compare: the model's context holds {context_length} tokens "
            "(use a smaller -p or -n)"
        )
    return {
        "model": str(Path(options.model).resolve()),
        "threads": options.threads or host.cores().default_threads,
        "weights": options.weights,
        "n_ctx": n_ctx,
        "prompt": prompt,
        "following": following,
        "prompt_text": prompt_text,
        "repeats": 2,
        "greedy_prompt": greedy_prompt,
        "n_greedy": N_GREEDY,
    }


def run_engine(python: str, job: Job) -> Measurement:
    """Run a job with Jalopy, or with the engine that is installed in a Python.

    Args:
        python: ``JALOPY`` or the path of a Python.

    Raises:
        Refusal: the engine cannot do the job; the line says what to do.
    """
    if python == JALOPY:
        command = own_module("app.cli.compare.command")
    else:
        command = [python, peer_side.__file__]
    try:
        process = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "took longer than an hour"
        raise Refusal(f"jalopy compare: {command[0]}: {reason}", exit_codes.UNREADABLE) from None
    error_line = clean_line(process.stderr.strip().rpartition("\n")[2], 200)
    if process.returncode and python == JALOPY:
        raise Refusal(
            error_line or "jalopy compare: Jalopy's process ended without a result",
            process.returncode,
        )
    if process.returncode:
        raise Refusal(
            f"jalopy compare: {_failure(python, process.returncode, error_line)}",
            exit_codes.UNSUPPORTED,
        )
    try:
        measurement = json.loads(process.stdout.rstrip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        measurement = None
    if not _is_measurement(measurement):
        if python == JALOPY:
            code = exit_codes.INTERNAL
        else:
            code = exit_codes.UNSUPPORTED
        raise Refusal(f"jalopy compare: {python}: printed an unknown result", code)
    return measurement  # type: ignore[no-any-return]


def _failure(python: str, code: int, error_line: str) -> str:
    if code == peer_side.NOT_INSTALLED:
        name = "llama-cpp-python"
        if python == sys.executable:
            install = install_command(name)
        else:
            install = f"{shlex.quote(python)} -m pip install {name}"
        advice = f"{install}, or name a Python that has one: --peer-python PATH"
        return f"{python} has no engine to compare with ({advice})"
    if code == peer_side.TOO_OLD:
        return f"{error_line} (update it)"
    return f"{python}: {error_line or f'ended with {code}'}"


def _is_measurement(value: Any) -> bool:
    """Whether a value is a valid measurement; ``--peer-python`` may name any program."""
    types = {
        "engine": str,
        "level": str,
        "peak_bytes": int,
        "greedy": list,
        **dict.fromkeys(_RATES, list),
    }
    if not isinstance(value, dict) or "version" not in value:
        return False
    if any(type(value.get(key)) is not key_type for key, key_type in types.items()):
        return False
    numbers = [number for key in ("greedy", *_RATES) for number in value[key]]
    if not all(type(number) in (int, float) for number in numbers):
        return False
    return all(value[key] and min(value[key]) > 0 for key in _RATES)


def first_difference(tokens: list[int], peer_tokens: list[int]) -> int | None:
    """Return the index of the first token that differs; None if there is none."""
    pairs = enumerate(zip(tokens, peer_tokens, strict=False))
    return next((index for index, (a, b) in pairs if a != b), None)


def report(
    options: CompareOptions,
    job: Job,
    jalopy: list[Measurement],
    peers: list[list[Measurement]],
) -> dict[str, Any]:
    """Return the comparison: all rates, ratios, and where the greedy texts differ."""
    rates = _rates_of(jalopy)
    last = jalopy[-1]
    return {
        "model": options.model,
        "threads": job["threads"],
        "weights": options.weights,
        "n_prompt": options.n_prompt,
        "n_gen": options.n_gen,
        "greedy_tokens": len(last["greedy"]),
        JALOPY: {**rates, **{key: last[key] for key in ("version", "level", "peak_bytes")}},
        "peers": [_peer(last, rates, peer) for peer in peers],
    }


def _peer(
    jalopy: Measurement, jalopy_rates: Mapping[str, list[float]], measurements: list[Measurement]
) -> dict[str, Any]:
    """Return the figures of another engine, with ratios to Jalopy's."""
    rates = _rates_of(measurements)
    last = measurements[-1]
    difference = first_difference(jalopy["greedy"], last["greedy"])
    margin = None
    if difference is not None:
        margin = jalopy["margins"][difference]
    return {
        "engine": clean_line(last["engine"], 40),
        **rates,
        "ratio": {
            key: statistics.median(jalopy_rates[key]) / statistics.median(rates[key])
            for key in rates
        },
        "greedy_tokens": len(last["greedy"]),
        "greedy_parts_at": difference,
        "greedy_margin": margin,
        "version": clean_line(str(last["version"]), 40),
        "level": clean_line(last["level"], 600),
        "peak_bytes": max(measurement["peak_bytes"] for measurement in measurements),
    }


def _rates_of(measurements: list[Measurement]) -> dict[str, list[float]]:
    """Return the rates of prefill and decode, each in ascending order."""
    return {
        key: sorted(float(rate) for measurement in measurements for rate in measurement[key])
        for key in _RATES
    }


def peer_level(system: str) -> str:
    """Return Jalopy's name for the CPU level that llama.cpp was built for."""
    enabled = set(re.findall(r"(\w+) = 1\b", system))
    return next((level for feature, level in _PEER_LEVELS.items() if feature in enabled), "generic")


def lines(comparison: dict[str, Any]) -> list[str]:
    """Return the comparison as lines of text."""
    jalopy = comparison[JALOPY]
    peers = comparison["peers"]
    n_rates = len(jalopy["decode_tps"])
    write = f"write {comparison['n_gen']} tokens"
    read = f"read {comparison['n_prompt']} tokens"
    name = clean_line(Path(comparison["model"]).name, 60)
    text = [
        f"{name} · {comparison['threads']} threads · {comparison['weights']}",
        f"tok/s, median of {n_rates} (lowest-highest); ratio: Jalopy's speed to the engine's",
        f"{'':<14}{write:>24}{'ratio':>8}{read:>24}{'ratio':>8}",
        f"{JALOPY:<14}{spread(jalopy['decode_tps']):>24}{'':>8}{spread(jalopy['prefill_tps']):>24}",
    ]
    for peer in peers:
        cells = (f"{spread(peer[key]):>24}{peer['ratio'][key]:>7.2f}x" for key in _RATES)
        text.append(f"{peer['engine']:<14}{''.join(cells)}")
    versions = ", ".join(f"{name} {version}" for name, version in jalopy["version"].items())
    sizes = (
        f"{engine} {figures['peak_bytes'] / 1e6:,.0f} MB"
        for engine, figures in [(JALOPY, jalopy), *((peer["engine"], peer) for peer in peers)]
    )
    text += [f"peak memory: {', '.join(sizes)}", f"jalopy: {versions}, level {jalopy['level']}"]
    for peer in peers:
        text += [
            _greedy_line(peer, comparison["greedy_tokens"]),
            f"{peer['engine']} {peer['version']}: {peer['level']}",
        ]
        if " = " in peer["level"] and jalopy["level"] != peer_level(peer["level"]):
            level = peer_level(peer["level"])
            text.append(
                f"different CPU instructions: jalopy {jalopy['level']}, {peer['engine']} {level}"
            )
    return text


def _greedy_line(peer: dict[str, Any], n_tokens: int) -> str:
    engine = peer["engine"]
    index = peer["greedy_parts_at"]
    if not peer["greedy_tokens"]:
        return f"greedy: {engine} does not report its tokens"
    if index is None:
        return f"greedy: jalopy and {engine} write the same {n_tokens} tokens after {GREEDY_TEXT!r}"

    margin = peer["greedy_margin"]
    if margin < NEAR_TIE:
        meaning = "a near tie, which rounding decides"
    else:
        meaning = "not a near tie: one engine computes wrongly, or the weights differ"
    return (
        f"greedy: the first {index} of {n_tokens} tokens are the same as {engine}'s; at the first "
        f"difference Jalopy's token led by {margin:.3f} standard deviations: {meaning}"
    )


def main() -> int:
    """Run the job on standard input with Jalopy and print the measurement."""
    job = json.load(sys.stdin)
    try:
        print(json.dumps(measure(job)))
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        say(str(error))
        return code
    return exit_codes.OK


def measure(job: Job) -> Measurement:
    """Run a job with Jalopy. Raises EngineError: the model cannot be used."""
    settings = built_in_settings()
    overrides = {
        "threads": job["threads"],
        "prefill_threads": job["threads"],
        "weights": job.get("weights", "mmap"),
    }
    for key, value in overrides.items():
        settings = override(settings, key, value, key)
    model = engine_access.open_model(settings, job["model"])
    session = _PeerSession(model.session(job["n_ctx"], "f16"))
    return {
        **peer_side.run_job(session, job),
        "engine": JALOPY,
        "margins": session.margins,
        "version": versions(),
        "level": engine_access.cpu_level(),
        "peak_bytes": peer_side.peak_bytes(),
    }


class _PeerSession:
    """Engine session with the methods that ``peer_side.run_job`` calls."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._logits: Any = None
        self.margins: list[float] = []
        """Lead of each likeliest token over the second, in standard deviations of the logits."""

    def clear(self) -> None:
        self._session.truncate(0)

    def feed(self, tokens: list[int], start: int) -> None:
        self._logits = self._session.feed(tokens)

    def likeliest(self) -> int:
        logits = self._logits
        second, first = logits.argsort()[-2:]
        self.margins.append(float((logits[first] - logits[second]) / logits.std()))
        return int(first)


if __name__ == "__main__":
    sys.exit(main())
