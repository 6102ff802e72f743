"""The manual: one page for each topic, for ``jalopy help TOPIC`` and ``/help TOPIC``.

A page is a text file. Its first line is ``# Title: what the page is about``, and ``## `` begins a
section. Lines that begin with two spaces are examples and tables, which stay as they are; all
other lines are paragraphs, which are wrapped to the width of the reader's screen.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from app.program import paths
from app.program.refusals import Refusal
from app.program.small_file import read_text
from app.text.clean_text import clean_line
from app.text.record import record

MOST_COLUMNS = 88
"""Limit on the width of a page: longer lines are tiring to read."""
_INDENT = "  "
_FOLDER = Path(__file__).resolve().parents[1] / "manual"
_COLUMN_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Gap between two columns of a table."""
_GROUPS = {
    "Chat": (
        "messages",
        "conversations",
        "documents",
        "pictures",
        "thinking",
        "generation",
        "tools",
    ),
    "Models": ("models", "formats", "quantize", "convert"),
    "Speed": ("threads", "speed", "words"),
    "Other machines and programs": ("serve", "editors", "server"),
    "Jalopy itself": ("settings", "files"),
}
"""Topics in the order of the start page."""
_START = """\
# Jalopy's manual

  jalopy help TOPIC   shows a page here
  /help TOPIC         shows it in the chat; /help manual shows this page
  jalopy --help       lists the commands and options
  F1                  lists the keys and commands of the chat
"""


@record
class PageLine:
    """A line of a page as it is shown."""

    text: str
    is_heading: bool = False


def topics() -> list[str]:
    """Return the names of all topics."""
    return sorted(path.stem for path in _FOLDER.glob("*.txt"))


def page(topic: str) -> str:
    """Return the text of a topic's page, or of the start page for "manual".

    Raises Refusal: there is no such topic.
    """
    names = topics()
    if topic.lower() == "manual":
        return start_page()
    if topic.lower() not in names:
        matches = difflib.get_close_matches(topic.lower(), names, n=1, cutoff=0.0)
        if matches:
            nearest = f" (nearest: {matches[0]})"
        else:
            nearest = ""
        raise Refusal(
            f"the manual has no topic {clean_line(topic, 40)!r}{nearest}; "
            f"it has: {', '.join(names)}"
        )
    text = read_text(_FOLDER / f"{topic.lower()}.txt", "manual page").rstrip()
    # a module import would delay the first frame
    from app.program.installing import (
        install_command,
    )

    text = text.replace("{install keyring}", install_command("keyring"))
    return text.replace("{files}", paths.file_table())


def start_page() -> str:
    """Return the text of the page that lists all topics."""
    width = max(map(len, topics()))
    lines = [_START]
    for title, names in _GROUPS.items():
        lines += [f"## {title}", ""]
        lines += [f"{_INDENT}{name:<{width}}   {_purpose(name)}" for name in names]
        lines.append("")
    return "\n".join(lines).rstrip()


def _purpose(topic: str) -> str:
    """Return what a page is about, from its title."""
    title = read_text(_FOLDER / f"{topic}.txt", "manual page").partition("\n")[0]
    return title.partition(": ")[2]


def lay_out(text: str, columns: int) -> list[PageLine]:
    """Return the lines of a page for a screen of this width."""
    columns = max(20, min(columns, MOST_COLUMNS))
    lines: list[PageLine] = []
    paragraph: list[str] = []
    for row in [*text.splitlines(), ""]:
        if row and not row.startswith(("#", _INDENT)):
            paragraph.append(row)
            continue
        lines += [PageLine(part) for part in _wrap(" ".join(paragraph), columns)]
        paragraph = []
        if row.startswith("#"):
            heading = textwrap.wrap(row.lstrip("#").strip(), columns)
            lines += [PageLine(part, is_heading=True) for part in heading]
        elif row:
            lines += [PageLine(part) for part in _fit_row(_INDENT + row, columns)]
        is_apart = row.startswith("# ") or not (row or lines[-1].is_heading)
        if is_apart and lines[-1].text:
            lines.append(PageLine(""))
    return lines[:-1]


def _wrap(paragraph: str, columns: int) -> list[str]:
    return textwrap.wrap(
        paragraph,
        columns,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fit_row(row: str, columns: int) -> Iterator[str]:
    """Yield a row of an example or a table. If a table's row is too long, its last column is
    wrapped."""
    gap = _COLUMN_GAP.search(row)
    if len(row) <= columns or gap is None or gap.end() > columns // 2:
        yield row
        return
    first, *others = textwrap.wrap(row[gap.end() :], columns - gap.end()) or [""]
    yield row[: gap.end()] + first
    for part in others:
        yield " " * gap.end() + part
