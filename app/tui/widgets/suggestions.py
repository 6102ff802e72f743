"""Completions of the typed command, listed above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from app.tui.completing import Offered

MOST_ROWS = 12
_LOW_ROWS = 3
_LOW_SCREEN_ROWS = 12
_LEAST_TITLE_COLUMNS = 24


def suggestion_lines(offered: Sequence[Offered], columns: int, key: str, at: int, n_rows: int) -> list[str]:
    """Write what is offered in two columns and ``n_rows`` lines at most, with the key at the one that is chosen."""
    n_shown = n_rows if len(offered) <= n_rows else n_rows - 1
    first = min(max(0, at - n_shown + 1), max(0, len(offered) - n_shown))
    shown = offered[first : first + n_shown]
    widest = min(max((len(one.usage) for one in shown), default=0), max(1, columns - _LEAST_TITLE_COLUMNS))
    lines = [f"{one.usage:<{widest}}  {one.title}".rstrip() for one in shown]
    if lines and key and len(completes := f"{lines[at - first]}  ({key})") <= columns:
        lines[at - first] = completes
    if len(offered) > n_shown:
        lines.append(f"{at + 1} of {len(offered)}: Up and Down choose")
    return [line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..." for line in lines]


class Suggestions(Static):
    """Shown only while a command is being typed; the marked line is what the key completes to."""

    def __init__(self, key: str, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._key = key
        self.display = False
        self._shown: tuple[Sequence[Offered], int] = ((), 0)

    def on_resize(self) -> None:
        """Write the lines for the new width."""
        self.show(*self._shown)

    def show(self, offered: Sequence[Offered], at: int) -> None:
        """List what is offered, the chosen one marked."""
        self._shown = offered, at
        self.display = bool(offered)
        if not offered:
            return
        n_rows = _LOW_ROWS if self.app.size.height < _LOW_SCREEN_ROWS else MOST_ROWS
        lines = suggestion_lines(offered, self.app.size.width - 2, self._key, at, n_rows)
        marked = next((n for n, line in enumerate(lines) if line.endswith(f"({self._key})")), 0)
        rows = [Content(f" {line}").stylize("bold" if n == marked else "") for n, line in enumerate(lines)]
        self.update(Content("\n").join(rows))
