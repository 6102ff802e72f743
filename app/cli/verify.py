"""``jalopy verify``: check that a model file is intact and writes sensible text.

The checks are the SHA-256 of the file, the vocabulary, NaN and infinity in the weights, the
kernels, and a short reply at temperature 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from app.backend.local import engine_access
from app.backend.work_thread import start_work_thread
from app.cli.bench import QUESTION, ask
from app.cli.output import ProgressLine
from app.models.library.sha256 import given_sha256, sha256_of, stated_sha256
from app.program import exit_codes
from app.program.refusals import Refusal, exit_code_of
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, size, whole_seconds
from app.text.json_line import json_line
from app.text.record import record

OK = "ok"
BAD = "x"
UNKNOWN = "?"
"""Result of a check that has nothing to compare with."""
REPLY_TOKENS = 32
MAX_REPEATS = 12
"""Repetitions of a token in a row from which the model counts as damaged."""
_MAX_TENSORS_SHOWN = 5


@record
class Check:
    """Result of a check.

    Attributes:
        mark: OK, BAD or UNKNOWN.
        topic: subject of the check in a word.
        found: description of the result, safe for a terminal.
        sha256: hash of the file; "" for other checks.
    """

    mark: str
    topic: str
    found: str
    sha256: str = ""


def verify(
    settings: Settings, model: str, sha256: str = "", runs: bool = True, as_json: bool = False
) -> int:
    """Check a model file, print the results, and return OK or BAD_DATA.

    Args:
        sha256: hash that the file must have; "" for the one that is known of the file.
        runs: whether the model is opened and writes a reply.

    Raises:
        EngineError: the file cannot be opened.
        Refusal: ``sha256`` is not a hash, or the model has several files.
    """
    checks = []
    for check in _checks(settings, model, given_sha256(sha256, "verify"), runs):
        checks.append(check)
        if not as_json:
            print(f"{check.mark:<3} {check.topic:<9} {check.found}", flush=True)
    if as_json:
        print(
            json_line({"model": model, "checks": [asdict(check) for check in checks]}, indent=1),
            flush=True,
        )
    if any(check.mark == BAD for check in checks):
        return exit_codes.BAD_DATA
    return exit_codes.OK


def _checks(settings: Settings, model: str, sha256: str, runs: bool) -> Iterator[Check]:
    engine = start_work_thread()
    progress = ProgressLine()
    checked = engine.run(lambda: engine_access.validate_model(model))
    with closing(checked.gguf):
        paths = [file.path for file in checked.gguf.files]
        if sha256 and len(paths) > 1:
            raise Refusal(
                f"jalopy verify: {clean_line(paths[0].name, 80)}: the model has {len(paths)} "
                "files, but --sha256 is the hash of one (leave it out)"
            )
        for path in paths:
            yield hash_check(path, sha256, progress)
        yield engine.run(lambda: vocabulary_check(checked))
        yield engine.run(lambda: weights_check(checked, progress))
    if runs:
        yield from engine.run(lambda: list(_running_checks(model, settings, progress)))


def hash_check(path: Path, expected: str, progress: ProgressLine) -> Check:
    """Compare a file's SHA-256 with the expected one; "" for the one in its folder or name."""

    def show(done: int, total: int, remaining_s: float) -> None:
        time_left = ""
        if done < total:
            time_left = f", about {whole_seconds(remaining_s)} left"
        progress.show(
            f"sha256 of {clean_line(path.name, 30)}: {size(done)} of {size(total)}{time_left}"
        )

    sha256 = sha256_of(path, show)
    progress.clear()
    expected = expected or stated_sha256(path)
    name = clean_line(path.name, 60)
    if not expected:
        description = f"{sha256} {name} (nothing to compare with; give --sha256)"
        return Check(UNKNOWN, "sha256", description, sha256)
    if sha256 == expected:
        return Check(OK, "sha256", f"{sha256} as expected ({name})", sha256)
    description = f"{name} has {sha256} instead of {expected}: download it again"
    return Check(BAD, "sha256", description, sha256)


def vocabulary_check(checked: Any) -> Check:
    """Check every entry of the vocabulary."""
    try:
        checked.tokenizer.check()
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return Check(BAD, "tokens", clean_line(str(error), 200))
    return Check(OK, "tokens", f"{count(checked.tokenizer.vocab_size)} in the vocabulary")


def weights_check(checked: Any, progress: ProgressLine) -> Check:
    """Check every tensor for NaN and infinity."""
    from engine.weights.scan import damaged_tensors

    def show(done: int, total: int, name: str) -> None:
        progress.show(f"weights: {size(done)} of {size(total)}, {clean_line(name, 40)}")

    damaged = list(damaged_tensors(checked.weights, show))
    progress.clear()
    n_tensors = len(checked.weights.tensors)
    if not damaged:
        total = size(checked.weights.total_bytes)
        return Check(OK, "weights", f"{count(n_tensors)} tensors, {total}: no NaN, no infinity")
    names = [
        f"{clean_line(tensor.name, 60)} ({tensor.quant}, {count(tensor.n_bad)} from row "
        f"{count(tensor.first_row)})"
        for tensor in islice(damaged, _MAX_TENSORS_SHOWN)
    ]
    if len(damaged) > len(names):
        names.append(f"{len(damaged) - len(names)} more")
    return Check(BAD, "weights", f"NaN or infinity in {', '.join(names)}: download it again")


def _running_checks(path: str, settings: Settings, progress: ProgressLine) -> Iterator[Check]:
    """Open the model in the engine thread, check its kernels and its reply."""
    try:
        with closing(engine_access.open_model(settings, path, progress.show_opening)) as model:
            engine_access.check_kernels(model)
            yield Check(
                OK,
                "kernels",
                "same results as the references, on this processor with these weights",
            )
            yield _reply_check(model, progress)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        yield Check(BAD, "run", clean_line(str(error), 200))
    finally:
        progress.clear()


def _reply_check(model: Any, progress: ProgressLine) -> Check:
    reply = ask(
        model, REPLY_TOKENS, lambda reply: progress.show(f"writing: {reply.meter.tokens} tokens")
    )
    text = clean_line(reply.text.strip(), 120)
    repeats = max((len(list(group)) for _, group in groupby(reply.ids)), default=0)
    if repeats >= MAX_REPEATS:
        return Check(BAD, "reply", f"the same token {repeats} times in a row: {text}")
    if not text:
        return Check(UNKNOWN, "reply", "the model wrote nothing")
    return Check(OK, "reply", f'"{QUESTION}" -> "{text}"')
