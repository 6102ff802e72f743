"""``jalopy verify``: is this file what it should be, are its weights numbers, and does it write
sense. No Textual.

Four looks: sha256 over the bytes, the vocabulary, NaN and infinity in the weights, and a short
reply that always takes the likeliest token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from app.backend.local import opening as engine_access
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
OPEN = "?"
"""Marks: good, damaged, nothing to compare with."""
REPLY_TOKENS = 32
MOST_REPEATS = 12
"""Repeats of one token in a row from which a model counts as damaged, or as unable to write."""
_MOST_DAMAGED_SHOWN = 5


@record
class Check:
    """One line of the outcome; the text is clean."""

    mark: str
    topic: str
    found: str
    sha256: str = ""


def verify(
    settings: Settings, model: str, sha256: str = "", runs: bool = True, as_json: bool = False
) -> int:
    """Look, print, and return OK or BAD_DATA.

    Raises:
        EngineError: the file cannot be opened at all.
        Refusal: the hash given is none, or of one of several files.
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


def _checks(settings: Settings, model: str, wanted: str, runs: bool) -> Iterator[Check]:
    engine = start_work_thread()
    progress = ProgressLine()
    checked = engine.run(lambda: engine_access.validate_model(model))
    with closing(checked.gguf):
        paths = [file.path for file in checked.gguf.files]
        if wanted and len(paths) > 1:
            name = clean_line(paths[0].name, 80)
            why = f"this model is in {len(paths)} files, and --sha256 is of one"
            raise Refusal(f"jalopy verify: {name}: {why} (leave it out)")
        for path in paths:
            yield hash_check(path, wanted, progress)
        yield engine.run(lambda: vocabulary_check(checked))
        yield engine.run(lambda: weights_check(checked, progress))
    if runs:
        yield from engine.run(lambda: list(_running_checks(model, settings, progress)))


def hash_check(path: Path, wanted: str, progress: ProgressLine) -> Check:
    """Compare a file's sha256 with the one given, or with the one its store names it by."""

    def show(done: int, total: int, left_s: float) -> None:
        if done < total:
            left = f", about {whole_seconds(left_s)} left"
        else:
            left = ""
        progress.show(f"sha256 of {clean_line(path.name, 30)}: {size(done)} of {size(total)}{left}")

    found = sha256_of(path, show)
    progress.clear()
    stated = wanted or stated_sha256(path)
    name = clean_line(path.name, 60)
    if not stated:
        return Check(
            OPEN,
            "sha256",
            f"{found} {name} (nothing states what it should be; --sha256 compares)",
            found,
        )
    if found == stated:
        return Check(OK, "sha256", f"{found} as stated ({name})", found)
    return Check(
        BAD, "sha256", f"{name} has {found}, but {stated} is stated: download it again", found
    )


def vocabulary_check(checked: Any) -> Check:
    """Look at every entry of the vocabulary; opening the file has looked at most of it."""
    try:
        checked.tokenizer.check()
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return Check(BAD, "tokens", clean_line(str(error), 200))
    return Check(
        OK, "tokens", f"{count(checked.tokenizer.vocab_size)}, and what makes them of text"
    )


def weights_check(checked: Any, progress: ProgressLine) -> Check:
    """Look for NaN and infinity in every tensor of a checked file."""
    from engine.weights.scan import damaged_tensors

    def show(done: int, total: int, name: str) -> None:
        progress.show(f"weights: {size(done)} of {size(total)}, {clean_line(name, 40)}")

    damaged = list(damaged_tensors(checked.weights, show))
    progress.clear()
    n_tensors = len(checked.weights.tensors)
    if not damaged:
        found = (
            f"{count(n_tensors)} tensors, {size(checked.weights.total_bytes)}: no NaN, no infinity"
        )
        return Check(OK, "weights", found)
    named = [
        (
            f"{clean_line(one.name, 60)} ({one.quant}, {count(one.n_bad)} from row "
            f"{count(one.first_row)})"
        )
        for one in islice(damaged, _MOST_DAMAGED_SHOWN)
    ]
    if len(damaged) > len(named):
        more = f" and {len(damaged) - len(named)} more"
    else:
        more = ""
    return Check(BAD, "weights", f"NaN or infinity in {', '.join(named)}{more}: download it again")


def _running_checks(path: str, settings: Settings, progress: ProgressLine) -> Iterator[Check]:
    """Open the model, compare its kernels with their references and let it write; runs in the
    engine's thread."""
    try:
        with closing(engine_access.open_model(settings, path, progress.show_opening)) as model:
            engine_access.check_kernels(model)
            yield Check(
                OK,
                "kernels",
                "compute what their references do, on this processor and these weights",
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
    repeats = max((len(list(run)) for _, run in groupby(reply.ids)), default=0)
    if repeats >= MOST_REPEATS:
        return Check(BAD, "reply", f"the same token {repeats} times in a row: {text}")
    if not text:
        return Check(OPEN, "reply", "the model wrote nothing")
    return Check(OK, "reply", f'"{QUESTION}" -> "{text}"')
