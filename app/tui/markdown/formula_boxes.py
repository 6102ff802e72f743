"""Boxes of text rows, from which formulas are composed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle, zip_longest

from rich.cells import cell_len

from app.text.record import record

_RELATION = re.compile(r"\s*([=<>≤≥≠≈≡∼≅∝∈∉⊂⊆⊃⊇→⇒⇔⟹⟸⟺⟶↦←≔×÷∧∨∩∪∣])\s*")
_SIGN = re.compile(r"(?<=[^\s(])\s*([±∓⋅])\s*")
_SUM = re.compile(r"(?<=[^\s=<>(,;])(?:\s+([+−])\s*|\s*([+−])\s+)(?=\S)")


@record
class Box:
    """Rows of text; ``base`` is the index of the row on the base line."""

    rows: tuple[str, ...] = ("",)
    base: int = 0

    @property
    def width(self) -> int:
        """Width of the widest row in cells."""
        return max(map(cell_len, self.rows))

    def with_script(self, text: str, *, is_below: bool) -> Box:
        """Return the box with a script at its first or last row."""
        index = 0
        if is_below:
            index = len(self.rows) - 1
        return Box(
            (*self.rows[:index], self.rows[index] + text, *self.rows[index + 1 :]), self.base
        )

    def stripped(self) -> Box:
        """Return a single row without spaces at its ends; other boxes stay unchanged."""
        if len(self.rows) == 1:
            return Box((self.rows[0].strip(),))
        return self


def spaced(text: str) -> str:
    """Put a space on each side of relations, and of plus and minus signs with a single space."""
    text = _RELATION.sub(r" \1 ", text)
    text = _SIGN.sub(r" \1 ", text)
    return _SUM.sub(lambda match: f" {match[1] or match[2]} ", text)


def joined(boxes: Sequence[Box]) -> Box:
    """Put boxes next to each other, with space around relations."""
    merged: list[Box] = []
    for box in boxes:
        if not (merged and len(box.rows) == len(merged[-1].rows) == 1):
            merged.append(box)
            continue
        text = merged[-1].rows[0]
        if not (text.endswith(" ") and box.rows[0] == " "):
            text += box.rows[0]
        merged[-1] = Box((text,))
    for index, box in enumerate(merged):
        if len(box.rows) == 1:
            merged[index] = Box((spaced(box.rows[0]),))
    return _side_by_side(merged or [Box()])


def _side_by_side(boxes: Sequence[Box]) -> Box:
    """Put boxes side by side with their base lines on the same row."""
    above = max(box.base for box in boxes)
    below = max(len(box.rows) - box.base for box in boxes)
    rows = []
    for row_index in range(-above, below):
        cells = []
        for box in boxes:
            text = ""
            if 0 <= box.base + row_index < len(box.rows):
                text = box.rows[box.base + row_index]
            cells.append(_padded(text, box.width, "l"))
        rows.append("".join(cells))
    return Box(tuple(rows), above)


def _padded(text: str, width: int, side: str) -> str:
    free = max(0, width - cell_len(text))
    if side == "r":
        n_left = free
    elif side == "c":
        n_left = free // 2
    else:
        n_left = 0
    return " " * n_left + text + " " * (free - n_left)


def stacked(cells: list[list[Box]], sides: str, separator: str) -> Box:
    """Arrange cells in columns; ``sides`` gives the alignments of the columns in turn."""
    columns = list(zip_longest(*cells, fillvalue=Box()))
    widths = [max(box.width for box in column) for column in columns]
    rows: list[str] = []
    for row in zip(*columns, strict=True):
        padded = [
            Box(
                tuple(
                    _padded(line, width, side if len(box.rows) == 1 else "l") for line in box.rows
                ),
                box.base,
            )
            for box, width, side in zip(row, widths, cycle(sides), strict=False)
        ]
        rows += _side_by_side(
            [part for box in padded for part in (Box((separator,)), box)][1:]
        ).rows
    return Box(tuple(rows), (len(rows) - 1) // 2)


def between_brackets(box: Box, left: str, right: str) -> Box:
    """Put tall brackets around a box; an empty string means no bracket."""
    n = len(box.rows)
    rows = tuple(
        (f"{_edge(left, number, n)} " if left else "")
        + row
        + (f" {_edge(right, number, n)}" if right else "")
        for number, row in enumerate(box.rows)
    )
    return Box(rows, box.base)


def _edge(edge: str, number: int, n_rows: int) -> str:
    if edge[1] in "⎨⎬" and number != (n_rows - 1) // 2 and 0 < number < n_rows - 1:
        return "⎪"
    if number == 0:
        return edge[0]
    if number == n_rows - 1:
        return edge[2]
    return edge[1]
