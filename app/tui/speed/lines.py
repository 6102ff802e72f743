"""Lines of figures as plain values: spans of text, each with a role that a widget may colour. Shape says it first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from app.text import figures
from app.text.glyphs import Glyphs


class Role(str, Enum):
    """Kind of a span, by which it is coloured."""

    PLAIN = "plain"
    MUTED = "muted"
    HEADING = "heading"
    BAR = "bar"
    GOOD = "good"
    WARNING = "warning"


class Span(NamedTuple):
    """A run of text in one role."""

    text: str
    role: Role = Role.PLAIN


Line = tuple[Span, ...]
EMPTY: Line = ()


def line(*parts: str | Span) -> Line:
    """Return a line of texts and spans."""
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts)


def muted(text: str) -> Span:
    """A label or a unit."""
    return Span(text, Role.MUTED)


def heading(text: str) -> Span:
    """The title of a section."""
    return Span(text, Role.HEADING)


def warning(text: str) -> Span:
    """Text that deserves attention."""
    return Span(text, Role.WARNING)


def text_of(one: Line) -> str:
    """Return the text alone."""
    return "".join(span.text for span in one)


def rate(tps: float, width: int = 5) -> str:
    """Write a rate in a fixed width; "-" for unknown."""
    return f"{figures.rate(tps) if tps > 0 else '-':>{width}}"


def milliseconds(tps: float, width: int = 5) -> str:
    """Write the time of a token in a fixed width."""
    if tps <= 0:
        return f"{'-':>{width}}"
    ms = 1000 / tps
    return f"{ms:{width}.1f}" if ms < 99.95 else f"{ms:{width}.0f}"


def percent(share: float, width: int = 3) -> str:
    """Write a share in a fixed width, with its sign behind a space."""
    return f"{100 * share:{width}.0f} %"


def size(n_bytes: int | None, width: int = 4) -> str:
    """Write a size in a fixed width; "-" for unknown."""
    return f"{figures.size(n_bytes) if n_bytes is not None else '-':>{width}}"


def in_bytes(n_bytes: float) -> str:
    """Write a size with the unit in full: "112KB", "640B"."""
    return figures.size(n_bytes).removesuffix("B") + "B"


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Draw a share as a bar of full and empty cells."""
    filled = min(width, max(0, round(width * share)))
    return glyphs.full * filled + glyphs.empty * (width - filled)


def solid(share: float, width: int, glyphs: Glyphs) -> str:
    """Draw a share as a bar that ends where it ends, padded with blanks; more than nothing is one cell."""
    filled = min(width, max(1 if share > 0.002 else 0, round(width * share)))
    return (glyphs.full * filled).ljust(width)


def spread(parts: Sequence[str], width: int, between: str) -> list[str]:
    """Put texts into as few lines as they need, whole."""
    lines: list[str] = []
    for part in filter(None, parts):
        if lines and len(lines[-1]) + len(between) + len(part) <= width:
            lines[-1] += between + part
        else:
            lines.append(part)
    return lines


def clipped(lines: Iterable[Line], width: int) -> list[Line]:
    """Cut every line at a width."""
    return [_clip(one, width) for one in lines]


def _clip(one: Line, width: int) -> Line:
    kept: list[Span] = []
    for span in one:
        if width <= 0:
            break
        kept.append(Span(span.text[:width], span.role))
        width -= len(span.text)
    return tuple(kept)
