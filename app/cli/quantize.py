"""``jalopy quantize``: a model file made smaller, by types of fewer bits. No Textual."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.budget import MANUAL, types_within
from app.cli.output import ProgressLine
from app.cli.output_file import check_output
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import counted, size, whole_seconds
from app.text.json_line import json_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import GGUFFile
    from engine.quantize.importance import FittedImportance
    from engine.quantize.mixtures import TypedShape

SOURCES = ("F32", "F16", "BF16", "Q8_0")
"""Types that lose so little that others may be made of them."""


@record
class QuantizeOptions:
    """Arguments of ``quantize`` that are no settings."""

    model: str
    out: str
    mix: str = ""
    budget: int = 0
    """Limit on the file's bytes, in place of a mix."""
    imatrix: str = ""
    keep: Sequence[str] = ()
    force: bool = False
    as_json: bool = False


def quantize(
    options: QuantizeOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Write the file and say what it became.

    Raises:
        EngineError: the model, or its importance, cannot be used; the file cannot be written.
        Refusal: a type is unknown, or the file is there.
    """
    from engine import read_gguf, read_imatrix
    from engine.machine.host import allowed_cpus
    from engine.quantize.file import quantise_file
    from engine.quantize.importance import fit_importance
    from engine.quantize.mixtures import MIXTURES, TypedShape, mixture

    out = Path(options.out)
    keep = _kept(options.keep)
    started_s = clock()
    if not options.budget and options.mix not in MIXTURES:
        if options.mix:
            what = f"{clean_line(options.mix, 40)}: no type"
        else:
            what = "neither --type nor --budget is given"
        raise Refusal(f"jalopy quantize: {what} (choose one of {', '.join(MIXTURES)})")
    progress = ProgressLine()
    with closing(read_gguf(options.model, keeps_strings=False)) as gguf:
        inputs = [file.path for file in gguf.files]
        if options.imatrix:
            inputs.append(Path(options.imatrix))
        advice = "is there already (--force replaces it)"
        check_output("jalopy quantize", out, inputs, advice, options.force)
        fitted: FittedImportance | None = None
        importance: Mapping[str, Any] = {}
        if options.imatrix:
            fitted = fit_importance(gguf, read_imatrix(options.imatrix), Path(options.imatrix).name)
            importance = fitted.columns
        tensors = {
            name: TypedShape(info.shape, info.type_name) for name, info in gguf.tensors.items()
        }
        if options.budget:
            some, importance = types_within(
                options.model, options.budget, importance, keep, settings, progress
            )
            types = {name: some.get(name, one.type_name) for name, one in tensors.items()}
        else:
            types = mixture(gguf.metadata, tensors, options.mix, bool(importance), keep)
        _note_source(gguf, types)
        _note_idle_keep(gguf, types, keep)
        if fitted is not None:
            importance = _note_importance(gguf, types, fitted, Path(options.imatrix).name)
        source_bytes = sum(info.size_bytes for info in gguf.tensors.values())
        about: dict[str, Any] = {
            "general.file_type": MIXTURES[options.mix or _nearest(tensors, types)]
        }
        if importance:
            about |= {"quantize.imatrix.file": Path(options.imatrix).name or MANUAL,
                      "quantize.imatrix.entries_count": len(importance)}  # fmt: skip

        def show(done_bytes: int) -> None:
            elapsed_s = clock() - started_s
            left = (
                f", about {whole_seconds(elapsed_s * (source_bytes - done_bytes) / done_bytes)} "
                f"left"
            )
            progress.show(f"quantized {size(done_bytes)} of {size(source_bytes)}{left}")

        try:
            written = quantise_file(
                gguf, out, types, about, importance, settings.threads or len(allowed_cpus()), show
            )
        finally:
            progress.clear()
    seconds = clock() - started_s
    if options.as_json:
        told = {
            "out": options.out,
            "type": options.mix,
            "budget": options.budget,
            "source_bytes": source_bytes,
            "bytes": written.n_bytes,
        }
        print(
            json_line({**told, "rmse": written.rmse, "seconds": seconds, "types": written.types}),
            flush=True,
        )
    else:
        if written.rmse:
            mean = f", mean error {written.rmse:.3g}"
        else:
            mean = ""
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(written.types.items()))
        what = (
            f"{size(source_bytes)} became {size(written.n_bytes)} in {whole_seconds(seconds)}{mean}"
        )
        print(f"{clean_line(options.out, 80)}: {what} ({kinds})", flush=True)
    return exit_codes.OK


def _nearest(tensors: Mapping[str, TypedShape], types: Mapping[str, str]) -> str:
    """Return a mixture of the type that most weights have."""
    from engine.quantize.mixtures import MIXTURES

    weights: Counter[str] = Counter()
    for name, kind in types.items():
        weights[kind] += math.prod(tensors[name].shape)
    return next(
        (mix for kind, _ in weights.most_common() for mix in MIXTURES if mix.startswith(kind)),
        "F16",
    )


def _kept(given: Sequence[str]) -> dict[str, str]:
    """Read ``TENSOR=TYPE``. Raises Refusal: it is no such pair, or the type cannot be made."""
    from engine.quantize.rows import WRITABLE

    kept = {}
    for pair in given:
        pattern, _, kind = pair.partition("=")
        if not pattern or kind.upper() not in WRITABLE:
            raise Refusal(
                f"jalopy quantize: --keep {clean_line(pair, 60)}: must be TENSOR=TYPE, of "
                f"{', '.join(WRITABLE)}"
            )
        kept[pattern] = kind.upper()
    return kept


def _note_source(gguf: GGUFFile, types: Mapping[str, str]) -> None:
    """Say once that what the source has lost stays lost, or that nothing changes."""
    if all(gguf.tensors[name].type_name == kind for name, kind in types.items()):
        problem = "gets another type: the file stays as large as it is"
        say(f"jalopy quantize: no tensor of {gguf.shown_name} {problem}")
    low = {
        gguf.tensors[name].type_name
        for name, kind in types.items()
        if gguf.tensors[name].type_name != kind
    }
    if low - set(SOURCES):
        kinds = ", ".join(sorted(low - set(SOURCES)))
        say(
            f"jalopy: the source is quantized already ({kinds}): "
            "one made of F16, BF16 or Q8_0 would be better"
        )


def _note_idle_keep(gguf: GGUFFile, types: Mapping[str, str], keep: Mapping[str, str]) -> None:
    """Say which --keep changed no tensor's type."""
    for pattern, kind in keep.items():
        names = [name for name in types if fnmatchcase(name, pattern)]
        if any(types[name] == kind for name in names):
            continue
        shown = f"jalopy quantize: --keep {clean_line(pattern, 60)}={kind} has no effect"
        if not names:
            advice = "jalopy inspect --tensors lists them"
            say(f"{shown}: {gguf.shown_name} has no tensor of that name ({advice})")
        else:
            say(f"{shown}: {clean_line(names[0], 60)} stays {types[names[0]]}")


def _note_importance(
    gguf: GGUFFile, types: Mapping[str, str], fitted: FittedImportance, file_name: str
) -> Mapping[str, Any]:
    """Say how much of the model a file of importance covers, and return the part that is used."""
    shown = f"jalopy quantize: {clean_line(file_name, 80)}"
    used = fitted.used(gguf, types)
    missing = fitted.missing(gguf, types)
    if not used:
        say(f"{shown} has no effect: no tensor gets a type that depends on it")
    elif missing:
        n_tensors = counted(len(used) + len(missing), "tensor")
        name = clean_line(missing[0], 60)
        say(f"{shown} covers {len(used)} of {n_tensors}; {name} is not among them")
    if fitted.n_foreign:
        counts = f"{fitted.n_foreign} of its {fitted.n_matrices} matrices"
        say(f"{shown}: {counts} are not in {gguf.shown_name} (of another model?)")
    return {name: fitted.columns[name] for name in used}
