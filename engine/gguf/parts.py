"""A model in several files, ``NAME-00001-of-00003.gguf`` and so on, joined into one table of
tensors.

The first part carries the metadata, every part its own tensors and the keys ``split.no`` and
``split.count``. Names of parts derive from the first part's own name, never from a file's content,
so that no file can point elsewhere.

Source: llama-gguf-split,
https://github.com/ggml-org/llama.cpp/blob/c392e5094deaf2d1a7c18683214f007fad3fe42b/examples/gguf-split/gguf-split.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import EngineError, FileUnreadableError, GGUFError, shown
from engine.gguf.contents import GGUFFile, TensorInfo

MOST_PARTS = 999
_PART_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL
)


@dataclass(frozen=True)
class PartName:
    """A part's place, read from its file name.

    Attributes:
        stem: the file name before the numbers.
        number: of this part, 1 to ``count``.
        count: number of parts, at most ``MOST_PARTS``.
    """

    stem: str
    number: int
    count: int

    def of(self, number: int) -> str:
        """Return the file name of another part of the same model."""
        return f"{self.stem}-{number:05}-of-{self.count:05}.gguf"


def part_name(file_name: str) -> PartName | None:
    """Parse a file name; None if it is not the name of a part; ``file_name``: without directory."""
    match = _PART_NAME.fullmatch(file_name)
    if match is None:
        return None
    number = int(match["number"])
    count = int(match["count"])
    if not 1 <= number <= count <= MOST_PARTS:
        return None
    return PartName(match["stem"], number, count)


def read_parts(first: GGUFFile, n_parts: int, read_one: Callable[[Path], GGUFFile]) -> GGUFFile:
    """Open the other parts of a model whose first one is open, and join the tables.

    Args:
        first: the open first part; closed if an error is raised.
        n_parts: its ``split.count``, more than 1.
        read_one: opens and checks one file.

    Raises:
        EngineError: a part is missing, belongs elsewhere, or repeats a tensor; the message names
            the part.
    """
    opened = [first]
    try:
        name = _checked_name(first, n_parts)
        _check_number(first, 1, n_parts)
        for number in range(2, n_parts + 1):
            opened.append(_open_part(first, name.of(number), read_one))
            _check_number(opened[-1], number, n_parts)
        tensors = _join(opened)
    except BaseException:
        for part in opened:
            part.close()
        raise
    metadata = {key: value for key, value in first.metadata.items() if not key.startswith("split.")}
    return replace(
        first,
        metadata=metadata,
        tensors=tensors,
        more_files=tuple(part.file for part in opened[1:]),
    )


def _checked_name(first: GGUFFile, n_parts: int) -> PartName:
    name = part_name(first.path.name)
    if name is None or name.count != n_parts:
        if n_parts <= MOST_PARTS:
            wanted = f"NAME-00001-of-{n_parts:05}.gguf"
        else:
            wanted = f"at most {MOST_PARTS} parts"
        raise _fail(
            first,
            f"split.count is {n_parts}, which the file's name does not say (expected: {wanted})",
        )
    if name.number != 1:
        raise _fail(
            first, f"is part {name.number} of {n_parts} of a model (open {shown(name.of(1))})"
        )
    return name


def _open_part(first: GGUFFile, file_name: str, read_one: Callable[[Path], GGUFFile]) -> GGUFFile:
    try:
        return read_one(first.path.with_name(file_name))
    except FileUnreadableError as error:
        raise FileUnreadableError(
            f"{error}: a part of the same model as {first.shown_name}"
        ) from None


def _check_number(part: GGUFFile, number: int, n_parts: int) -> None:
    for key, wanted in (("split.no", number - 1), ("split.count", n_parts)):
        value = part.metadata.get(key)
        if value is not None or number > 1:
            found = (
                value if type(value) is int else ("missing" if value is None else "not an integer")
            )
            if found != wanted:
                raise _fail(
                    part, f"{key} is {found}: must be {wanted} (get all parts of the model again)"
                )


def _join(parts: list[GGUFFile]) -> dict[str, TensorInfo]:
    joined: dict[str, TensorInfo] = {}
    for index, part in enumerate(parts):
        for name, tensor in part.tensors.items():
            if name in joined:
                raise _fail(part, f"tensor {name} is in another part too")
            joined[name] = replace(tensor, part=index)
    declared: Any = parts[0].metadata.get("split.tensors.count", len(joined))
    if type(declared) is not int or declared != len(joined):
        raise _fail(
            parts[0], f"split.tensors.count is not the {len(joined)} tensors that the parts have"
        )
    return joined


def _fail(part: GGUFFile, problem: str) -> EngineError:
    return GGUFError(f"{part.shown_name}: {problem}")
