"""Engines in random order, each in a process of its own; medians, ratios, and whether they say the
same."""

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

from app.backend.local import opening as engine_access
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

OURS = "jalopy"
GREEDY_TEXT = "The capital of France is"
N_GREEDY = 32
PATIENCE_S = 3600
NEAR_TIE = 0.1
"""Spreads of the logits: what rounding may turn around."""
_SEED = 0
_RATES = "decode_tps", "prefill_tps"
_PEER_LEVELS = {
    "AMX_INT8": "amx", "AVX512_VNNI": "vnni", "AVX_VNNI": "vnni", "AVX512": "avx512",
    "AVX2": "avx2", "SSSE3": "ssse3",
}  # fmt: skip
"""Our name for the widest instructions that llama.cpp's system line says it was built with; the
first that holds."""

Job = dict[str, Any]
"""Work for each engine: ``model``, ``threads``, ``n_ctx``; ``prompt`` and ``following``, token ids
to read at once and one by one, ``repeats`` times after once to warm up; ``prompt_text``;
``greedy_prompt`` and ``n_greedy``."""
Answer = dict[str, Any]


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
    """Run the rounds and print.

    Raises:
        EngineError: the model cannot be used.
        Refusal: the peer is not installed, too old, or refuses the file.
    """
    job = make_job(options)
    pythons = [OURS, *(dict.fromkeys(options.peer_python) or [sys.executable])]
    answers: dict[str, list[Answer]] = {python: [] for python in pythons}
    for n in range(options.rounds):
        for python in random.sample(pythons, len(pythons)):
            say(f"round {n + 1} of {options.rounds}: {clean_line(python, 100)}")
            answers[python].append(ask(python, job))
    found = report(options, job, answers.pop(OURS), list(answers.values()))
    print(json_line(found) if options.as_json else "\n".join(lines(found)), flush=True)
    return exit_codes.OK


def make_job(options: CompareOptions) -> Job:
    """Choose the tokens that all engines read. Raises EngineError: the model cannot be used."""
    from engine.machine import host

    checked = engine_access.validate_model(options.model)
    with closing(checked.gguf):
        vocab_size = checked.config.vocab_size
        trained = checked.config.context_length
        greedy_prompt = list(checked.tokenizer.encode(GREEDY_TEXT)) or [0]
        chosen = random.Random(_SEED)
        prompt, following = (
            [chosen.randrange(vocab_size) for _ in range(n)]
            for n in (options.n_prompt, options.n_gen)
        )
        prompt_text = checked.tokenizer.decode(prompt)
    n_ctx = max(256, options.n_prompt + options.n_gen, len(greedy_prompt) + N_GREEDY)
    if options.n_prompt + options.n_gen > trained:
        raise Refusal(
            f"jalopy compare: the model holds {trained} tokens (choose smaller -p and -n)"
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


def ask(python: str, job: Job) -> Answer:
    """Have our engine do the job, or the one that a Python has.

    Raises Refusal: it cannot; the line says what to do.
    """
    if python == OURS:
        command = own_module("app.cli.compare.command")
    else:
        command = [python, peer_side.__file__]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "took more than an hour"
        raise Refusal(f"jalopy compare: {command[0]}: {reason}", exit_codes.UNREADABLE) from None
    complaint = clean_line(done.stderr.strip().rpartition("\n")[2], 200)
    if done.returncode and python == OURS:
        raise Refusal(
            complaint or "jalopy compare: our side ended without an answer", done.returncode
        )
    if done.returncode:
        raise Refusal(
            f"jalopy compare: {_why(python, done.returncode, complaint)}", exit_codes.UNSUPPORTED
        )
    try:
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        answer = None
    if not _is_answer(answer):
        if python == OURS:
            code = exit_codes.INTERNAL
        else:
            code = exit_codes.UNSUPPORTED
        raise Refusal(f"jalopy compare: {python}: answered nothing sensible", code)
    return answer  # type: ignore[no-any-return]


def _why(python: str, code: int, complaint: str) -> str:
    if code == peer_side.NOT_INSTALLED:
        name = "llama-cpp-python"
        if python == sys.executable:
            install = install_command(name)
        else:
            install = f"{shlex.quote(python)} -m pip install {name}"
        cure = f"{install}, or name the Python that has it: --peer-python PATH"
        return f"{python} has none of the engines that can be compared ({cure})"
    if code == peer_side.TOO_OLD:
        return f"{complaint} (update it)"
    return f"{python}: {complaint or f'ended with {code}'}"


def _is_answer(found: Any) -> bool:
    """Whether that is what a side answers; ``--peer-python`` may name any program."""
    kinds = {
        "engine": str,
        "level": str,
        "peak_bytes": int,
        "greedy": list,
        **dict.fromkeys(_RATES, list),
    }
    if not isinstance(found, dict) or any(
        type(found.get(key)) is not kind for key, kind in kinds.items()
    ):
        return False
    numbers = [one for key in ("greedy", *_RATES) for one in found[key]]
    are_numbers = "version" in found and all(type(one) in (int, float) for one in numbers)
    return are_numbers and all(found[key] and min(found[key]) > 0 for key in _RATES)


def parting(ours: list[int], theirs: list[int]) -> int | None:
    """Return the position of the first greedy token that differs; None where all agree."""
    return next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def report(
    options: CompareOptions, job: Job, ours: list[Answer], others: list[list[Answer]]
) -> dict[str, Any]:
    """Return everything measured and what follows from it."""
    mine = _rates_of(ours)
    return {
        "model": options.model,
        "threads": job["threads"],
        "weights": options.weights,
        "n_prompt": options.n_prompt,
        "n_gen": options.n_gen,
        "greedy_tokens": len(ours[-1]["greedy"]),
        OURS: {**mine, **{key: ours[-1][key] for key in ("version", "level", "peak_bytes")}},
        "peers": [_peer(ours[-1], mine, theirs) for theirs in others],
    }


def _peer(ours: Answer, mine: Mapping[str, list[float]], theirs: list[Answer]) -> dict[str, Any]:
    """Return what one engine did, next to ours."""
    rates = _rates_of(theirs)
    last = theirs[-1]
    part = parting(ours["greedy"], last["greedy"])
    return {
        "engine": clean_line(last["engine"], 40),
        **rates,
        "ratio": {
            key: statistics.median(mine[key]) / statistics.median(rates[key]) for key in rates
        },
        "greedy_tokens": len(last["greedy"]),
        "greedy_parts_at": part,
        "greedy_margin": None if part is None else ours["margins"][part],
        "version": clean_line(str(last["version"]), 40),
        "level": clean_line(last["level"], 600),
        "peak_bytes": max(one["peak_bytes"] for one in theirs),
    }


def _rates_of(answers: list[Answer]) -> dict[str, list[float]]:
    """Return all rates by their kinds, the slowest first."""
    return {key: sorted(float(one) for answer in answers for one in answer[key]) for key in _RATES}


def peer_level(system: str) -> str:
    """Return our name for the instructions llama.cpp was built for, from the line it prints about
    itself."""
    on = set(re.findall(r"(\w+) = 1\b", system))
    return next((level for feature, level in _PEER_LEVELS.items() if feature in on), "generic")


def lines(found: dict[str, Any]) -> list[str]:
    """Write the comparison for people."""
    ours = found[OURS]
    peers = found["peers"]
    n = len(ours["decode_tps"])
    write = f"write {found['n_gen']} tokens"
    read = f"read {found['n_prompt']} tokens"
    written = [
        (
            f"{clean_line(Path(found['model']).name, 60)} · {found['threads']} threads · "
            f"{found['weights']}"
        ),
        f"tok/s, median of {n} (lowest-highest); ratio: jalopy to it",
        f"{'':<14}{write:>24}{'ratio':>8}{read:>24}{'ratio':>8}",
        f"{OURS:<14}{spread(ours['decode_tps']):>24}{'':>8}{spread(ours['prefill_tps']):>24}",
    ]
    for peer in peers:
        cells = (f"{spread(peer[key]):>24}{peer['ratio'][key]:>7.2f}x" for key in _RATES)
        written.append(f"{peer['engine']:<14}{''.join(cells)}")
    versions = ", ".join(f"{name} {version}" for name, version in ours["version"].items())
    sizes = (
        f"{name} {one['peak_bytes'] / 1e6:,.0f} MB"
        for name, one in [(OURS, ours), *((p["engine"], p) for p in peers)]
    )
    written += [f"memory at most: {', '.join(sizes)}", f"jalopy: {versions}, level {ours['level']}"]
    for peer in peers:
        written += [
            _greedy_line(peer, found["greedy_tokens"]),
            f"{peer['engine']} {peer['version']}: {peer['level']}",
        ]
        if " = " in peer["level"] and ours["level"] != peer_level(peer["level"]):
            theirs = peer_level(peer["level"])
            written.append(
                f"not the same instructions: jalopy {ours['level']}, {peer['engine']} {theirs}"
            )
    return written


def _greedy_line(peer: dict[str, Any], n_tokens: int) -> str:
    part = peer["greedy_parts_at"]
    engine = peer["engine"]
    if not peer["greedy_tokens"]:
        return f"greedy: {engine} does not tell its tokens"
    if part is None:
        return f"greedy: jalopy and {engine} write the same {n_tokens} tokens after {GREEDY_TEXT!r}"
    margin = peer["greedy_margin"]
    if margin < NEAR_TIE:
        what = "a near tie that rounding decides"
    else:
        what = "no near tie: one of them computes wrongly, or other weights"
    return (
        f"greedy: as {engine} up to token {part} of {n_tokens}, then they part; ours was ahead by "
        f"{margin:.3f} spreads: {what}"
    )


def main() -> int:
    """Do the job on standard input with our engine."""
    job = json.load(sys.stdin)
    try:
        print(json.dumps(answer(job)))
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        say(str(error))
        return code
    return exit_codes.OK


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Measure, and continue the prompt greedily. Raises EngineError: the model cannot be used."""
    settings = built_in_settings()
    wanted = {
        "threads": job["threads"],
        "prefill_threads": job["threads"],
        "weights": job.get("weights", "mmap"),
    }
    for key, value in wanted.items():
        settings = override(settings, key, value, key)
    model = engine_access.open_model(settings, job["model"])
    session = _PeerSession(model.session(job["n_ctx"], "f16"))
    found = peer_side.done(session, job)
    return {
        **found,
        "engine": OURS,
        "margins": session.margins,
        "version": versions(),
        "level": engine_access.cpu_level(),
        "peak_bytes": peer_side.peak_bytes(),
    }


class _PeerSession:
    """A session with the methods that the peer's loops call."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._logits: Any = None
        self.margins: list[float] = []
        """By how much each likeliest token was ahead of the second, in spreads of the logits."""

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
