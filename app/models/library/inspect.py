"""``jalopy inspect``: content of a model file. It imports numba only for the plan.

Texts of the file are cleaned for the report, so that it is safe to print.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from app.backend.local import engine_access
from app.models.library.inspect_picture import PictureRequest, inspect_picture
from app.program import exit_codes
from app.program.makers import advice_of
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.clean_text import clean_line, screen_text
from app.text.figures import count, parameters, size
from app.text.json_line import json_line, plain_values
from engine.prompt.thinking import ThinkingMode

_SHOWN_CHARS = 60
_JSON_CHARS = 65_536
_LONGEST_WHOLE = 16
_FIRST_TEMPLATE_LINES = 8
_TEMPLATE_LINE_CHARS = 180
_FIRST_SPECIAL = 12


def inspect(
    settings: Settings,
    model: str,
    tensors: bool = False,
    plan: bool = False,
    template: bool = False,
    as_json: bool = False,
    image: str = "",
    mmproj: str = "",
    detail: str = "usual",
    rows: str = "",
) -> int:
    """Check a file and print its content, or what becomes of a picture.

    Args:
        template: whether to print the whole chat template and all special tokens.
        image, mmproj, detail, rows: as in ``PictureRequest``; without an image, the file's content
            is printed.

    Raises EngineError: the file cannot be used.
    """
    if image:
        return inspect_picture(
            settings, model, PictureRequest(image, mmproj, detail, rows), as_json
        )
    if mmproj or rows:
        raise Refusal("--mmproj and --rows need --image FILE")
    checked = engine_access.validate_model(model)
    report = describe(checked, _JSON_CHARS if as_json else _SHOWN_CHARS)
    checked.gguf.close()
    if not tensors:
        del report["tensors"]
    if plan:
        report["plan"] = _plan(model, settings)
    if as_json:
        print(json_line(report, indent=1))
    else:
        print("\n".join(report_lines(report, template)))
    sys.stdout.flush()
    return exit_codes.OK


def report_of_file(path: Path) -> list[str]:
    """Check a file and return a report with the whole template.

    Raises EngineError: the file cannot be used.
    """
    checked = engine_access.validate_model(path)
    with closing(checked.gguf):
        report = describe(checked)
    del report["tensors"]
    return list(report_lines(report, shows_template=True))


def describe(checked: Any, longest: int = _SHOWN_CHARS) -> dict[str, Any]:
    """Return everything but the weights as clean, plain values; texts are cut at ``longest``."""
    gguf = checked.gguf
    tensors = gguf.tensors.values()
    return {
        "file": clean_line(str(gguf.path), 4096),
        "file_bytes": gguf.file_bytes,
        "n_files": len(gguf.files),
        "gguf_version": gguf.version,
        "parameters": parameters_of(tensors),
        "config": plain_values(checked.config.summary(), longest, _LONGEST_WHOLE),
        "types": _sum_types(tensors),
        "layers": plain_values(layers_of(tensors), _SHOWN_CHARS),
        "rope": plain_values(
            rope_of(checked.config, gguf.metadata, gguf.tensors), longest, _LONGEST_WHOLE
        ),
        "tokenizer": plain_values(tokenizer_of(checked.tokenizer, gguf.metadata), _SHOWN_CHARS),
        "template": _template(gguf.metadata),
        "sampling": {
            name: {"value": value, "from": source.value}
            for name, (value, source) in advice_of(gguf.metadata, ThinkingMode()).items()
        },
        "n_tensors": len(gguf.tensors),
        "vocab_size": checked.tokenizer.vocab_size,
        "metadata": plain_values(gguf.metadata, longest, _LONGEST_WHOLE),
        "tensors": [
            {
                "name": clean_line(tensor.name, 120),
                "type": tensor.type_name,
                "shape": list(tensor.shape),
                "bytes": tensor.size_bytes,
                "offset_bytes": tensor.offset_bytes,
            }
            for tensor in tensors
        ],
    }


def _template(metadata: Mapping[str, Any]) -> str:
    from engine.prompt.chat_template import MAX_SOURCE_CHARS  # longer ones are not used

    text = metadata.get("tokenizer.chat_template")
    if not isinstance(text, str):
        text = ""
    if len(text) > MAX_SOURCE_CHARS:
        cut = f"\n… (cut here, of {count(len(text))} characters)"
    else:
        cut = ""
    return screen_text(text[:MAX_SOURCE_CHARS]) + cut


def _plan(path: str, settings: Settings) -> list[dict[str, Any]]:
    model = engine_access.open_model(settings, path)
    rows: list[dict[str, Any]] = plain_values(list(model.describe_plan()), _SHOWN_CHARS)
    model.close()
    return rows


def _sum_types(tensors: Iterable[Any]) -> list[dict[str, Any]]:
    """Count tensors and bytes by type, largest share first."""
    sums: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = sums.setdefault(
            tensor.type_name, {"type": tensor.type_name, "tensors": 0, "bytes": 0}
        )
        row["tensors"] += 1
        row["bytes"] += tensor.size_bytes
    return sorted(sums.values(), key=lambda row: -int(row["bytes"]))


def report_lines(report: Mapping[str, Any], shows_template: bool = False) -> Iterable[str]:
    """Return the lines of a report from ``describe``.

    Args:
        shows_template: whether to show the whole template and all special tokens.
    """
    yield report["file"]
    types = ", ".join(
        f"{row['type']} ({row['tensors']} tensors, {size(row['bytes'])})" for row in report["types"]
    )
    if report["n_files"] > 1:
        files = f" in {report['n_files']} files"
    else:
        files = ""
    version = f"GGUF version {report['gguf_version']}"
    yield f"  {version}, {size(report['file_bytes'])}{files}, {report['n_tensors']} tensors"
    yield f"  parameters: {parameters(report['parameters'])} ({count(report['parameters'])})"
    yield f"  types: {types}"
    yield f"  vocabulary: {count(report['vocab_size'])} tokens"
    yield "layers:"
    yield from _layer_lines(report["layers"])
    yield "rope and context:"
    yield from _key_lines(
        {key: value for key, value in report["rope"].items() if value not in (None, {})}
    )
    yield from _tokenizer_lines(report["tokenizer"], shows_template)
    yield from _template_lines(report["template"], shows_template)
    yield "recommended sampling:" if report["sampling"] else "recommended sampling: none"
    yield from _key_lines(
        {
            name: f"{advice['value']:g} ({advice['from']})"
            for name, advice in report["sampling"].items()
        }
    )
    for title in ("config", "metadata"):
        yield f"{title}:"
        yield from _key_lines(report[title])
    if "tensors" in report:
        yield "tensors:"
        yield from _table(["name", "type", "shape", "bytes"], report["tensors"])
    if "plan" in report:
        yield "plan:"
        yield from _table(
            ["phase", "op", "weights", "type", "shape", "bytes", "threads"], report["plan"]
        )


def _layer_lines(layers: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    groups = list(dict.fromkeys(group for row in layers for group in row["types"]))
    rows = [
        {
            "layers": row["layers"],
            "parameters": parameters(row["parameters"]),
            "bytes": size(row["bytes"]),
            **{group: row["types"].get(group, "") for group in groups},
        }
        for row in layers
    ]
    yield from _table(["layers", "parameters", "bytes", *groups], rows)


def _tokenizer_lines(tokenizer: Mapping[str, Any], is_whole: bool) -> Iterable[str]:
    yield "tokenizer:"
    special = tokenizer["special"]
    yield from _key_lines(
        {key: value for key, value in tokenizer.items() if key != "special" and value is not None}
    )
    if is_whole:
        shown_tokens = special
    else:
        shown_tokens = special[:_FIRST_SPECIAL]
    if shown_tokens:
        yield from _table(["id", "text", "roles"], list(shown_tokens))
    if len(special) > len(shown_tokens):
        yield f"  ... {len(special) - len(shown_tokens)} more (--template shows them)"


def _template_lines(template: str, is_whole: bool) -> Iterable[str]:
    # a tab becomes two characters
    if is_whole:
        most_chars = 2 * len(template)
    else:
        most_chars = _TEMPLATE_LINE_CHARS
    if template:
        lines = [clean_line(line, most_chars) for line in template.split("\n")]
    else:
        lines = []
    yield "chat template:" if lines else "chat template: none in the file"
    if is_whole:
        shown_lines = lines
    else:
        shown_lines = lines[:_FIRST_TEMPLATE_LINES]
    yield from (f"  {line}" for line in shown_lines)
    if len(lines) > len(shown_lines):
        yield f"  ... {len(lines) - len(shown_lines)} more lines (--template shows them)"


def _key_lines(values: Mapping[str, Any]) -> Iterable[str]:
    width = max(map(len, values), default=0)
    for key, value in values.items():
        yield f"  {key:{width}}  {_cell_text(value)}"


def _cell_text(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"first", "length"}:
        return f"{count(value['length'])} elements: {', '.join(map(str, value['first']))}, ..."
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return " x ".join(map(str, value))
        return ", ".join(map(str, value))
    if value is None:
        return "-"
    return str(value)


def _table(columns: list[str], rows: list[dict[str, Any]]) -> Iterable[str]:
    cells = [columns, *([_cell_text(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    for row in cells:
        yield (
            "  "
            + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )


_LAYER = re.compile(r"blk\.([0-9]{1,6})\.")
_PARTS = {"attn": "attention", "ffn": "feed-forward"}
_SPECIAL_KEY = re.compile(r"tokenizer\.ggml\.([a-z0-9_]{1,40})_token_id")
_MOST_CONTROL_TOKENS = 64


def parameters_of(tensors: Iterable[Any]) -> int:
    """Return the number of elements of all tensors."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def layers_of(tensors: Iterable[Any]) -> list[dict[str, Any]]:
    """Return sums for every layer and for tensors outside layers.

    Equal neighbours share a row, "0-15".
    """
    sums: dict[int, dict[str, Any]] = {}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        row = sums.setdefault(
            int(match[1]) if match else -1, {"parameters": 0, "bytes": 0, "types": {}}
        )
        row["parameters"] += math.prod(tensor.shape)
        row["bytes"] += tensor.size_bytes
        if len(tensor.shape) > 1:
            row["types"].setdefault(_part(tensor.name, match), {}).setdefault(
                tensor.type_name, None
            )
    rows: list[dict[str, Any]] = []
    first = 0
    for number in sorted(sums):
        types = {group: " ".join(names) for group, names in sums[number]["types"].items()}
        row = {**sums[number], "types": types}
        if number > 0 and number - 1 in sums and {**rows[-1], **row} == rows[-1]:
            rows[-1]["layers"] = f"{first}-{number}"
        else:
            first = number
            rows.append({"layers": "outside" if number < 0 else str(number), **row})
    return rows


def rope_of(
    config: Any, metadata: Mapping[str, Any], tensor_names: Iterable[str]
) -> dict[str, Any]:
    """Return the position settings: trained length, rotation, scaling."""
    start = f"{config.architecture}.rope.scaling."
    scaling = {
        key.rpartition(".")[2]: value for key, value in metadata.items() if key.startswith(start)
    }
    return {
        "context_length": config.context_length,
        "rope_theta": _one_or_all([rope.theta for rope in config.ropes]),
        "rope_dim": _one_or_all([rope.dim for rope in config.ropes]),
        "scaling": scaling,
        "has_factors": any(name.startswith("rope_") for name in tensor_names),
    }


def _one_or_all(values: list[Any]) -> Any:
    """Return the value shared by all layers, or the list of values; None if there is none."""
    different = list(dict.fromkeys(values))
    if len(different) == 1:
        return different[0]
    return different or None


def tokenizer_of(tokenizer: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer's type and its special tokens: id, text, roles."""
    control = set(tokenizer.control_texts.values())
    roles: dict[int, list[str]] = {}
    for key, value in metadata.items():
        match = _SPECIAL_KEY.fullmatch(key)
        if match and type(value) is int and 0 <= value < tokenizer.vocab_size:
            roles.setdefault(value, []).append(match[1])
    for token_id in tokenizer.end_ids:
        roles.setdefault(token_id, []).append("ends")
    ids = [*roles, *sorted(control - roles.keys())]
    return {
        "model": metadata.get("tokenizer.ggml.model"),
        "pre": metadata.get("tokenizer.ggml.pre"),
        "vocab_size": tokenizer.vocab_size,
        "adds_bos": tokenizer.add_bos,
        "n_control": len(tokenizer.control_texts),
        "special": [
            {
                "id": token_id,
                "text": tokenizer.token_text(token_id),
                "roles": ", ".join(roles.get(token_id, ["control"])),
            }
            for token_id in ids[:_MOST_CONTROL_TOKENS]
        ],
    }


def _part(name: str, match: re.Match[str] | None) -> str:
    if match is None:
        if name.startswith("output."):
            return "output head"
        return "embedding"
    word = name[match.end() :].partition("_")[0]
    return _PARTS.get(word, "other")
