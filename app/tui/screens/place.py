"""A place in a document, where a reply is from, and what is around it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from app.documents.citations import Citation
from app.tui.bindings import bindings
from app.tui.drawing.lines import line
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle

_ROWS_ABOVE = 2
"""Of what comes before the place."""


class PlaceScreen(ModalScreen[None]):
    """Shows one of the places of a reply."""

    CSS_PATH = "place.tcss"
    BINDINGS = bindings("place")
    AUTO_FOCUS = "#place"

    def __init__(self, places: Sequence[Citation], keymap: Keymap) -> None:
        super().__init__()
        self._places = places
        self._keymap = keymap
        self._at = 0

    def compose(self) -> ComposeResult:
        """Lay out title, lines and keys."""
        yield ScreenTitle("Place")
        with VerticalScroll(id="place"):
            for part in ("before", "lines", "after"):
                yield Static(markup=False, id=f"place-{part}")
        yield KeyLine()

    def on_mount(self) -> None:
        """Show the first place."""
        self._show()

    def action_next(self) -> None:
        """Show the next place, after the last one the first."""
        self._at = (self._at + 1) % len(self._places)
        self._show()

    def _show(self) -> None:
        place = self._places[self._at]
        n = len(self._places)
        self.query_one(ScreenTitle).tell(
            place.shown, line(f"{self._at + 1} of {n}" if n > 1 else "")
        )
        width = len(str(place.first + len(place.lines) + len(place.after)))
        number = place.first - len(place.before)
        for part, lines in (
            ("before", place.before),
            ("lines", place.lines),
            ("after", place.after),
        ):
            if part == "lines":
                mark = "> "
            else:
                mark = "  "
            numbers = [
                f"{number + at:>{width}}  " if place.first else "" for at in range(len(lines))
            ]
            body = self.query_one(f"#place-{part}", Static)
            body.display = bool(lines)
            body.update(
                "\n".join(f"{mark}{one}{text}" for one, text in zip(numbers, lines, strict=True))
            )
            number += len(lines)
        self.call_after_refresh(self._scroll)
        words = {"next": "next place" if n > 1 else "", "leave": "back"}
        keys = [
            (self._keymap.first_key(f"place.{name}"), said) for name, said in words.items() if said
        ]
        self.query_one(KeyLine).tell([*keys, ("arrows, PgUp, PgDn", "scroll")])

    def _scroll(self) -> None:
        top = self.query_one("#place-lines").virtual_region.y - _ROWS_ABOVE
        self.query_one("#place").scroll_to(y=max(0, top), animate=False)

    action_leave = dismiss_once
