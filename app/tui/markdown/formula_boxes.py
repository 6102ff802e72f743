"""Boxes of rows, of which a formula is put together."""

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
    """Rows of text; ``base`` is the one on the line."""

    rows: tuple[str, ...] = ("",)
    base: int = 0

    @property
    def width(self) -> int:
        """Cells of the widest row."""
        return max(map(cell_len, self.rows))

    def with_script(self, text: str, *, is_below: bool) -> Box:
        """The same with a script at its first or last row."""
        if is_below:
            at = len(self.rows) - 1
        else:
            at = 0
        return Box((*self.rows[:at], self.rows[at] + text, *self.rows[at + 1 :]), self.base)

    def stripped(self) -> Box:
        """The same without space at the ends of a single row."""
        if len(self.rows) == 1:
            return Box((self.rows[0].strip(),))
        return self


def spaced(text: str) -> str:
    """Put one space on each side of relations, and of sums that have one on one side."""
    text = _RELATION.sub(r" \1 ", text)
    text = _SIGN.sub(r" \1 ", text)
    return _SUM.sub(lambda found: f" {found[1] or found[2]} ", text)


def joined(parts: Sequence[Box]) -> Box:
    """Put boxes next to each other, with space around relations."""
    merged: list[Box] = []
    for part in parts:
        if merged and len(part.rows) == len(merged[-1].rows) == 1:
            before = merged[-1].rows[0]
            after = part.rows[0]
            merged[-1] = Box((before + ("" if before.endswith(" ") and after == " " else after),))
        else:
            merged.append(part)
    return _side_by_side(
        [Box((spaced(box.rows[0]),)) if len(box.rows) == 1 else box for box in merged] or [Box()]
    )


def _side_by_side(parts: Sequence[Box]) -> Box:
    """Put boxes next to each other, their base lines on one row."""
    above = max(box.base for box in parts)
    below = max(len(box.rows) - box.base for box in parts)
    rows = []
    for number in range(-above, below):
        cells = [
            box.rows[box.base + number] if 0 <= box.base + number < len(box.rows) else ""
            for box in parts
        ]
        rows.append(
            "".join(_padded(cell, box.width, "l") for cell, box in zip(cells, parts, strict=True))
        )
    return Box(tuple(rows), above)


def _padded(text: str, width: int, side: str) -> str:
    free = max(0, width - cell_len(text))
    if side == "r":
        left = free
    elif side == "c":
        left = free // 2
    else:
        left = 0
    return " " * left + text + " " * (free - left)


def stacked(cells: list[list[Box]], sides: str, between: str) -> Box:
    """Rows of cells in columns; ``sides`` says in turn where they are aligned."""
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
        rows += _side_by_side([part for box in padded for part in (Box((between,)), box)][1:]).rows
    return Box(tuple(rows), (len(rows) - 1) // 2)


def between_brackets(box: Box, left: str, right: str) -> Box:
    """Put tall brackets around a box; "" for none."""
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
