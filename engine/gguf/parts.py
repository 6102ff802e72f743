"""Models in several files, ``NAME-00001-of-00003.gguf`` and so on, as a single table of tensors.

The first file has the metadata; each file has its own tensors and the keys ``split.no`` and
``split.count``. The names of the other files derive from the name of the first, never from the
content of a file: no file can point to an unrelated path.

Source: llama-gguf-split, examples/gguf-split/gguf-split.cpp of
https://github.com/ggml-org/llama.cpp/tree/c392e5094deaf2d1a7c18683214f007fad3fe42b
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import EngineError, FileUnreadableError, GGUFError, printable
from engine.gguf.contents import GGUFFile, TensorInfo

MOST_PARTS = 999
_PART_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL
)


@dataclass(frozen=True)
class PartName:
    """File name of a part of a model.

    Attributes:
        stem: File name before the numbers.
        number: Number of this part, 1 to ``count``.
        count: Number of parts, at most ``MOST_PARTS``.
    """

    stem: str
    number: int
    count: int

    def of(self, number: int) -> str:
        """Return the file name of another part of the same model."""
        return f"{self.stem}-{number:05}-of-{self.count:05}.gguf"


def part_name(file_name: str) -> PartName | None:
    """Parse a file name without directory; return None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(file_name)
    if match is None:
        return None
    number = int(match["number"])
    count = int(match["count"])
    if not 1 <= number <= count <= MOST_PARTS:
        return None
    return PartName(match["stem"], number, count)


def read_parts(first: GGUFFile, n_parts: int, read_one: Callable[[Path], GGUFFile]) -> GGUFFile:
    """Open the other files of a model whose first file is open, and merge the tables.

    Args:
        first: Open first file; closed if an error is raised.
        n_parts: Value of its ``split.count``, more than 1.
        read_one: Function that opens and checks a file.

    Raises:
        EngineError: A file is missing, belongs to another model, or repeats a tensor; the
            message names the file.
    """
    opened = [first]
    try:
        name = _checked_name(first, n_parts)
        _check_number(first, 1, n_parts)
        for number in range(2, n_parts + 1):
            opened.append(_open_part(first, name.of(number), read_one))
            _check_number(opened[-1], number, n_parts)
        tensors = _merge_tables(opened)
    except BaseException:
        for gguf in opened:
            gguf.close()
        raise
    metadata = {key: value for key, value in first.metadata.items() if not key.startswith("split.")}
    return replace(
        first,
        metadata=metadata,
        tensors=tensors,
        more_files=tuple(gguf.file for gguf in opened[1:]),
    )


def _checked_name(first: GGUFFile, n_parts: int) -> PartName:
    name = part_name(first.path.name)
    if name is None or name.count != n_parts:
        if n_parts <= MOST_PARTS:
            expected = f"NAME-00001-of-{n_parts:05}.gguf"
        else:
            expected = f"at most {MOST_PARTS} parts"
        raise _fail(
            first,
            f"split.count is {n_parts}, which the file's name does not say (expected: {expected})",
        )
    if name.number != 1:
        raise _fail(
            first, f"is part {name.number} of {n_parts} of a model (open {printable(name.of(1))})"
        )
    return name


def _open_part(first: GGUFFile, file_name: str, read_one: Callable[[Path], GGUFFile]) -> GGUFFile:
    try:
        return read_one(first.path.with_name(file_name))
    except FileUnreadableError as error:
        raise FileUnreadableError(
            f"{error}: a part of the same model as {first.shown_name}"
        ) from None


def _check_number(gguf: GGUFFile, number: int, n_parts: int) -> None:
    for key, expected in (("split.no", number - 1), ("split.count", n_parts)):
        value = gguf.metadata.get(key)
        if value is not None or number > 1:
            actual = (
                value if type(value) is int else ("missing" if value is None else "not an integer")
            )
            if actual != expected:
                raise _fail(
                    gguf,
                    f"{key} is {actual}: must be {expected} (get all parts of the model again)",
                )


def _merge_tables(ggufs: list[GGUFFile]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index, gguf in enumerate(ggufs):
        for name, tensor in gguf.tensors.items():
            if name in tensors:
                raise _fail(gguf, f"tensor {name} is in another part too")
            tensors[name] = replace(tensor, part=index)
    declared: Any = ggufs[0].metadata.get("split.tensors.count", len(tensors))
    if type(declared) is not int or declared != len(tensors):
        raise _fail(
            ggufs[0], f"split.tensors.count is not the {len(tensors)} tensors that the parts have"
        )
    return tensors


def _fail(gguf: GGUFFile, problem: str) -> EngineError:
    return GGUFError(f"{gguf.shown_name}: {problem}")
