"""``jalopy inspect``: what is in a model file. Imports no numba unless the plan is asked for.

Every text of the file is cleaned on its way into the report, so that printing it is safe in either form.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from app import engine_access, exit_codes
from app.clean_text import clean_line
from app.figures import count, size
from app.json_line import json_line
from app.settings import Settings

_SHOWN_CHARS = 60
_JSON_CHARS = 65_536
_LONGEST_WHOLE = 16
_FIRST_ELEMENTS = 4


@dataclass(frozen=True)
class InspectOptions:
    """What the command line of ``inspect`` asks for."""

    model: str
    tensors: bool = False
    plan: bool = False
    as_json: bool = False


def inspect(options: InspectOptions, settings: Settings) -> int:
    """Check the file and print what it holds.

    Raises:
        EngineError: the file cannot be used.
    """
    checked = engine_access.validate_model(options.model)
    report = describe(checked, _JSON_CHARS if options.as_json else _SHOWN_CHARS)
    checked.gguf.close()
    if not options.tensors:
        del report["tensors"]
    if options.plan:
        report["plan"] = _plan(options.model, settings)
    if options.as_json:
        print(json_line(report, indent=1))
    else:
        print("\n".join(_lines(report)))
    sys.stdout.flush()
    return exit_codes.OK


def describe(checked: Any, longest: int = _SHOWN_CHARS) -> dict[str, Any]:
    """Return metadata, configuration, types and tensors of a checked file as clean, plain values.

    Args:
        checked: what ``engine.loader.validate`` returns.
        longest: most characters of one text.
    """
    gguf = checked.gguf
    return {
        "file": clean_line(str(gguf.path), 4096),
        "file_bytes": gguf.file_bytes,
        "gguf_version": gguf.version,
        "config": {key: _plain(value, longest) for key, value in _fields(checked.config).items()},
        "types": _sum_types(gguf.tensors.values()),
        "n_tensors": len(gguf.tensors),
        "vocab_size": checked.tokenizer.vocab_size,
        "metadata": {clean_line(key, 120): _plain(value, longest) for key, value in gguf.metadata.items()},
        "tensors": [_describe_tensor(tensor) for tensor in gguf.tensors.values()],
    }


def _plan(path: str, settings: Settings) -> list[dict[str, Any]]:
    model = engine_access.open_model(settings, path)
    rows = [{key: _plain(value, _SHOWN_CHARS) for key, value in row.items()} for row in model.describe_plan()]
    model.close()
    return rows


def _fields(config: Any) -> Mapping[str, Any]:
    return asdict(config) if is_dataclass(config) and not isinstance(config, type) else vars(config)


def _sum_types(tensors: Iterable[Any]) -> list[dict[str, Any]]:
    """Count tensors and bytes by type, the largest share first."""
    sums: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = sums.setdefault(tensor.type_name, {"type": tensor.type_name, "tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += tensor.size_bytes
    return sorted(sums.values(), key=lambda row: -int(row["bytes"]))


def _describe_tensor(tensor: Any) -> dict[str, Any]:
    return {
        "name": clean_line(tensor.name, 120),
        "type": tensor.type_name,
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
        "offset_bytes": tensor.offset_bytes,
    }


def _plain(value: Any, longest: int) -> Any:
    """Return a value that JSON can hold and a terminal can show; long arrays by their first elements."""
    if isinstance(value, (bool, int, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return clean_line(value.decode("utf-8", "replace"), longest)
    if isinstance(value, str):
        return clean_line(value, longest)
    if isinstance(value, Mapping):
        return {clean_line(str(key), 120): _plain(one, longest) for key, one in value.items()}
    if isinstance(value, (frozenset, set)):
        value = sorted(value)
    if isinstance(value, Sequence) or hasattr(value, "tolist"):
        return _plain_array(value, longest)
    return clean_line(str(value), longest)


def _plain_array(values: Any, longest: int) -> Any:
    length = len(values)
    shown = values if length <= _LONGEST_WHOLE else values[:_FIRST_ELEMENTS]
    elements = shown.tolist() if hasattr(shown, "tolist") else shown
    plain = [_plain(value, longest) for value in elements]
    return plain if length <= _LONGEST_WHOLE else {"first": plain, "length": length}


def _lines(report: Mapping[str, Any]) -> Iterable[str]:
    yield report["file"]
    types = ", ".join(f"{row['type']} ({row['tensors']} tensors, {size(row['bytes'])})" for row in report["types"])
    yield f"  GGUF version {report['gguf_version']}, {size(report['file_bytes'])}, {report['n_tensors']} tensors"
    yield f"  types: {types}"
    yield f"  vocabulary: {count(report['vocab_size'])} tokens"
    for title in ("config", "metadata"):
        yield f"{title}:"
        yield from _key_lines(report[title])
    if "tensors" in report:
        yield "tensors:"
        yield from _table(["name", "type", "shape", "bytes"], report["tensors"])
    if "plan" in report:
        yield "plan:"
        yield from _table(["phase", "op", "weights", "type", "shape", "bytes", "threads"], report["plan"])


def _key_lines(values: Mapping[str, Any]) -> Iterable[str]:
    width = max(map(len, values), default=0)
    for key, value in values.items():
        yield f"  {key:{width}}  {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"first", "length"}:
        return f"{count(value['length'])} elements: {', '.join(map(str, value['first']))}, ..."
    if isinstance(value, list):
        return " x ".join(map(str, value)) if all(isinstance(one, int) for one in value) else ", ".join(map(str, value))
    return "-" if value is None else str(value)


def _table(columns: list[str], rows: list[dict[str, Any]]) -> Iterable[str]:
    cells = [columns, *([_shown(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    for row in cells:
        yield "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
