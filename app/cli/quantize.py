"""``jalopy quantize``: make a smaller file of a model, with types of fewer bits."""

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
"""Types that lose so little that they are good sources."""


@record
class QuantizeOptions:
    """Arguments of ``quantize`` that are not settings."""

    model: str
    out: str
    mix: str = ""
    budget: int = 0
    """Limit on the output file in bytes, instead of ``mix``; 0 for none."""
    imatrix: str = ""
    keep: Sequence[str] = ()
    force: bool = False
    as_json: bool = False


def quantize(
    options: QuantizeOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Write the smaller file and print its size, types and error.

    Raises:
        EngineError: the model or its importance matrix cannot be used, or the file cannot be
            result.
        Refusal: a type is unknown, or the output file exists.
    """
    from engine import read_gguf, read_imatrix
    from engine.machine.host import allowed_cpus
    from engine.quantize.file import quantise_file
    from engine.quantize.importance import fit_importance
    from engine.quantize.mixtures import MIXTURES, TypedShape, mixture

    out = Path(options.out)
    keep = _parse_keep(options.keep)
    started_s = clock()
    if not options.budget and options.mix not in MIXTURES:
        if options.mix:
            problem = f"unknown type: {clean_line(options.mix, 40)}"
        else:
            problem = "give --type or --budget"
        raise Refusal(f"jalopy quantize: {problem} (types: {', '.join(MIXTURES)})")
    progress = ProgressLine()
    with closing(read_gguf(options.model, keeps_strings=False)) as gguf:
        inputs = [file.path for file in gguf.files]
        if options.imatrix:
            inputs.append(Path(options.imatrix))
        advice = "already exists (--force replaces it)"
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
            chosen_types, importance = types_within(
                options.model, options.budget, importance, keep, settings, progress
            )
            types = {
                name: chosen_types.get(name, tensor.type_name) for name, tensor in tensors.items()
            }
        else:
            types = mixture(gguf.metadata, tensors, options.mix, bool(importance), keep)
        _say_source(gguf, types)
        _say_unused_keep(gguf, types, keep)
        if fitted is not None:
            _say_coverage(gguf, types, fitted, Path(options.imatrix).name)
            importance = {name: fitted.columns[name] for name in fitted.used(gguf, types)}
        source_bytes = sum(info.size_bytes for info in gguf.tensors.values())
        metadata: dict[str, Any] = {
            "general.file_type": MIXTURES[options.mix or _nearest(tensors, types)]
        }
        if importance:
            metadata |= {"quantize.imatrix.file": Path(options.imatrix).name or MANUAL,
                      "quantize.imatrix.entries_count": len(importance)}  # fmt: skip

        def show(done_bytes: int) -> None:
            remaining_s = (clock() - started_s) * (source_bytes - done_bytes) / done_bytes
            progress.show(
                f"quantized {size(done_bytes)} of {size(source_bytes)}, "
                f"about {whole_seconds(remaining_s)} left"
            )

        try:
            result = quantise_file(
                gguf,
                out,
                types,
                metadata,
                importance,
                settings.threads or len(allowed_cpus()),
                show,
            )
        finally:
            progress.clear()
    seconds = clock() - started_s
    if options.as_json:
        values = {
            "out": options.out,
            "type": options.mix,
            "budget": options.budget,
            "source_bytes": source_bytes,
            "bytes": result.n_bytes,
            "rmse": result.rmse,
            "seconds": seconds,
            "types": result.types,
        }
        print(json_line(values), flush=True)
    else:
        error = ""
        if result.rmse:
            error = f", mean error {result.rmse:.3g}"
        counts = ", ".join(f"{n} {type_name}" for type_name, n in sorted(result.types.items()))
        print(
            f"{clean_line(options.out, 80)}: {size(result.n_bytes)} (was {size(source_bytes)}) "
            f"in {whole_seconds(seconds)}{error} ({counts})",
            flush=True,
        )
    return exit_codes.OK


def _nearest(tensors: Mapping[str, TypedShape], types: Mapping[str, str]) -> str:
    """Return the mixture named after the type that most weights have."""
    from engine.quantize.mixtures import MIXTURES

    weights: Counter[str] = Counter()
    for name, type_name in types.items():
        weights[type_name] += math.prod(tensors[name].shape)
    for type_name, _ in weights.most_common():
        for mix in MIXTURES:
            if mix.startswith(type_name):
                return mix
    return "F16"


def _parse_keep(pairs: Sequence[str]) -> dict[str, str]:
    """Return the types by tensor pattern from ``TENSOR=TYPE`` pairs.

    Raises:
        Refusal: a pair has another form, or its type cannot be written.
    """
    from engine.quantize.rows import WRITABLE

    keep = {}
    for pair in pairs:
        pattern, _, type_name = pair.partition("=")
        if not pattern or type_name.upper() not in WRITABLE:
            raise Refusal(
                f"jalopy quantize: --keep {clean_line(pair, 60)}: must be TENSOR=TYPE "
                f"(types: {', '.join(WRITABLE)})"
            )
        keep[pattern] = type_name.upper()
    return keep


def _say_source(gguf: GGUFFile, types: Mapping[str, str]) -> None:
    """Say that nothing changes, or that the source is already quantized."""
    changed = {
        gguf.tensors[name].type_name
        for name, type_name in types.items()
        if gguf.tensors[name].type_name != type_name
    }
    if not changed:
        say(
            f"jalopy quantize: no tensor of {gguf.shown_name} changes its type, so the file stays "
            "as large as it is"
        )
    if changed - set(SOURCES):
        type_names = ", ".join(sorted(changed - set(SOURCES)))
        say(
            f"jalopy quantize: the source is already quantized ({type_names}); "
            "an F16, BF16 or Q8_0 source gives a better file"
        )


def _say_unused_keep(gguf: GGUFFile, types: Mapping[str, str], keep: Mapping[str, str]) -> None:
    """Say which --keep options have no effect."""
    for pattern, type_name in keep.items():
        names = [name for name in types if fnmatchcase(name, pattern)]
        if any(types[name] == type_name for name in names):
            continue
        label = f"jalopy quantize: --keep {clean_line(pattern, 60)}={type_name} has no effect"
        if not names:
            advice = "jalopy inspect --tensors lists the names"
            say(f"{label}: {gguf.shown_name} has no such tensor ({advice})")
        else:
            say(f"{label}: {clean_line(names[0], 60)} stays {types[names[0]]}")


def _say_coverage(
    gguf: GGUFFile, types: Mapping[str, str], fitted: FittedImportance, file_name: str
) -> None:
    """Say if an importance matrix does not cover all tensors that need it."""
    label = f"jalopy quantize: {clean_line(file_name, 80)}"
    used = fitted.used(gguf, types)
    missing = fitted.missing(gguf, types)
    if not used:
        say(f"{label} has no effect: no tensor gets a type that uses it")
    elif missing:
        n_tensors = counted(len(used) + len(missing), "tensor")
        name = clean_line(missing[0], 60)
        say(f"{label} covers {len(used)} of {n_tensors}; {name} is missing")
    if fitted.n_foreign:
        say(
            f"{label}: {fitted.n_foreign} of its {fitted.n_matrices} matrices are not in "
            f"{gguf.shown_name} (is it from another model?)"
        )
