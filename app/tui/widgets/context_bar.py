"""Bar of the context: system prompt, old turns, newest turn, free; in colour, shape and words."""

from __future__ import annotations

from textual.content import Content

from app.chat.status import EngineStatus
from app.text import figures
from app.text.record import record
from app.tui.drawing.gauges import cells_of

NEARLY_FULL = 0.9
"""From this share on the bar warns."""
BLOCKS = "█▓▒░"
ASCII = "#=+."
NAMES = ("system", "old", "new", "free")
_STYLES = ("$primary", "$secondary", "$success", "$text-muted")


@record
class ContextParts:
    """Tokens of each part; together they are the whole context."""

    system: int
    old: int
    new: int
    free: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The four, in the bar's order."""
        return self.system, self.old, self.new, self.free

    @property
    def total(self) -> int:
        """Tokens that the context holds."""
        return sum(self.counts)

    @property
    def used_share(self) -> float:
        """Share that is taken, 0 to 1."""
        return 1 - self.free / self.total if self.total else 0.0

    @property
    def is_nearly_full(self) -> bool:
        """Whether a reply may soon have no room."""
        return self.used_share >= NEARLY_FULL


def context_parts(status: EngineStatus) -> ContextParts:
    """Divide the context as the engine's thread has counted it."""
    used = min(status.context_used, status.n_ctx)
    starts = status.turn_starts or (used,)
    system, new_from = min(starts[0], used), min(starts[-1], used)
    return ContextParts(system, new_from - system, used - new_from, status.n_ctx - used)


def bar_text(parts: ContextParts, n_cells: int, glyphs: str = BLOCKS) -> str:
    """Draw the bar without colour."""
    return "".join(glyph * cells for glyph, cells in zip(glyphs, cells_of(parts.counts, n_cells), strict=True))


def context_text(parts: ContextParts, n_cells: int, glyphs: str = BLOCKS, with_names: bool = False) -> str:
    """Write bar, share and warning: "ctx ██▓▓▒░░░ 31 %"."""
    text = f"ctx {bar_text(parts, n_cells, glyphs)} {100 * parts.used_share:.0f} %"
    if parts.total and not parts.free:
        text += " full: the oldest turns go next"
    elif parts.is_nearly_full:
        text += f" nearly full: {figures.count(parts.free)} left"
    return f"{text} ({'·'.join(NAMES)})" if with_names else text


def coloured(line: str, context: str, parts: ContextParts, n_cells: int) -> Content:
    """Colour a line that holds the context's text: each part of the bar, and all of it where it warns."""
    content = Content(line)
    at = line.find(context)
    if at < 0:
        return content
    if parts.is_nearly_full:
        return content.stylize("bold $text-warning", at, at + len(context))
    start = at + len("ctx ")
    for style, cells in zip(_STYLES, cells_of(parts.counts, n_cells), strict=True):
        content = content.stylize(style, start, start + cells)
        start += cells
    return content
