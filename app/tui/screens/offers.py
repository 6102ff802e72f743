"""The dialog with models for this machine: a small one at once, the recommended one, and the best
that fits.

It uses no network: sizes are estimates, and the download dialog asks for the exact ones.
"""

from __future__ import annotations

import textwrap
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.backend.engine_thread import EngineThread
from app.models.library.advice import READING_TPS
from app.models.library.download_time import download_time
from app.models.library.listing import SEES, ModelEntry
from app.models.library.offers import MachineOffers, Offer, OfferKind, find_offers
from app.models.library.speed import ESTIMATE, speed_text
from app.program.background import in_background
from app.program.refusals import shown_line
from app.program.settings import Settings
from app.text import figures
from app.text.glyphs import choose_glyphs, cut
from app.tui.bindings import bindings
from app.tui.drawing.lines import Line, Span, SpanRole, apart, line, muted, strong
from app.tui.keymap import Keymap
from app.tui.textual_hacks import Options, dismiss_once
from app.tui.widgets.figure_lines import content_of
from app.tui.widgets.model_rows import pace

_POLL_PERIOD_S = 0.25
_MEASURING_POLLS = 40
"""Number of polls after which the offers are shown without the measurement."""
_KIND_COLUMNS = 16
_KINDS_FROM_COLUMNS = 58
"""Width from which the kind of an offer has a column of its own."""


class OffersScreen(ModalScreen[ModelEntry | Literal["list"] | None]):
    """Dialog dismissed with a model, with "list" for the list of all models, or with None."""

    CSS_PATH = "offers.tcss"
    BINDINGS = bindings("offers")
    AUTO_FOCUS = "OptionList"

    def __init__(self, settings: Settings, engine_thread: EngineThread, keymap: Keymap) -> None:
        super().__init__()
        self._settings = settings
        self._engine_thread = engine_thread
        self._keymap = keymap
        self._glyphs = choose_glyphs()
        self._search: Future[MachineOffers] | None = None
        self._measurement: Future[Any] | None = None
        self._n_polls = 0
        self._found: MachineOffers | None = None
        """Offers to choose from; None while they are searched or the machine is measured."""

    def compose(self) -> ComposeResult:
        """Lay out the offers, a note on their figures, and the keys."""
        with Vertical(id="offers") as box:
            box.border_title = "Get a model"
            yield Options(id="offers-rows", markup=False)
            yield Static("looking at this machine ...", markup=False, id="offers-note")
            yield Static(markup=False, id="offers-keys")

    def on_mount(self) -> None:
        """Search for the offers."""
        self._timer = self.set_interval(_POLL_PERIOD_S, self._poll)
        self._start_search()
        self._show()

    def on_resize(self) -> None:
        """Fit the offers to the new width, once the new layout is known."""
        self.call_after_refresh(self._show)

    def _start_search(self) -> None:
        self._search = in_background(partial(find_offers, self._settings), "offers")

    def _poll(self) -> None:
        if self._measurement is not None:
            self._n_polls += 1
            if self._measurement.done() or self._n_polls >= _MEASURING_POLLS:
                self._start_search()
                self._measurement = None
        if self._search is None or not self._search.done():
            return
        search, self._search = self._search, None
        if (error := search.exception()) is not None:
            self._timer.pause()
            self.query_one("#offers-note", Static).update(shown_line(error))
            return
        found = search.result()
        if not found.read_gbps and not self._n_polls and self._measure():
            return
        self._timer.pause()
        self._found = found
        self._show()

    def _measure(self) -> bool:
        """Measure this machine, unless the engine is busy; return whether it is measured."""
        if self._engine_thread.status.is_busy:
            return False
        self._measurement = Future()
        if not self._engine_thread.examine(self._measurement):
            self._measurement = None
            return False
        self.query_one("#offers-note", Static).update("measuring this machine, once ...")
        return True

    def _show(self) -> None:
        key = self._keymap.first_key
        leave = f"{key('offers.leave')} back"
        if self._found is None:
            self.query_one("#offers-keys", Static).update(leave)
            return
        rows = self.query_one(OptionList)
        highlighted = rows.highlighted
        width = max(1, self.query_one("#offers").size.width)
        rows.clear_options()
        rows.add_options([Option(self._row(offer, width)) for offer in self._found.offers])
        if highlighted is None:
            highlighted = _start_row(self._found)
        rows.highlighted = highlighted
        self.query_one("#offers-note", Static).update(_note(self._found))
        self._show_keys()

    @on(OptionList.OptionHighlighted)
    def _show_keys(self) -> None:
        """Say what Enter does with the highlighted offer."""
        key = self._keymap.first_key
        entry = self._highlighted()
        effects = [f"{key('offers.list')} all models", f"{key('offers.leave')} back"]
        if entry is not None:
            effect = "download"
            if entry.is_here:
                effect = "open"
            effects.insert(0, f"{key('offers.choose')} {effect}")
        self.query_one("#offers-keys", Static).update(" · ".join(effects))

    def _row(self, offer: Offer, width: int) -> Content:
        is_ansi = self.app.current_theme.ansi
        lines = offer_lines(offer, width)
        return Content("\n").join([content_of(row, is_ansi) for row in lines])

    def _highlighted(self) -> ModelEntry | None:
        index = self.query_one(OptionList).highlighted
        if self._found is None or index is None or index >= len(self._found.offers):
            return None
        return self._found.offers[index].entry

    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        """Choose the highlighted model."""
        entry = self._highlighted()
        if entry is not None:
            dismiss_once(self, entry)

    def action_list(self) -> None:
        """Go to the list of all models."""
        dismiss_once(self, "list")

    action_leave = dismiss_once


def _start_row(found: MachineOffers) -> int | None:
    """Return the row of the recommended model, else the first one; None if there are no rows."""
    for index, offer in enumerate(found.offers):
        if offer.kind is OfferKind.RECOMMENDED:
            return index
    if found.offers:
        return 0
    return None


def offer_lines(offer: Offer, width: int) -> list[Line]:
    """Return the lines of an offer: name and speed, size and time, strengths."""
    entry = offer.entry
    role = SpanRole.PLAIN
    if offer.kind is OfferKind.RECOMMENDED:
        role = SpanRole.GOOD
    speed = ""
    if entry.outlook is not None and entry.outlook.decode_tps:
        speed = speed_text(entry.outlook.decode_tps, entry.outlook.basis)
    n_bytes = entry.download_bytes
    size = f"{ESTIMATE}{figures.size(n_bytes)} · {download_time(n_bytes)}"
    if entry.is_here:
        size = f"{figures.size(entry.size_bytes)} · on this machine already"
    slow = ""
    if entry.outlook is not None and (entry.outlook.decode_tps or READING_TPS) < READING_TPS:
        slow = pace(entry.outlook)
    sees = SEES if entry.sees else ""
    words = " · ".join(filter(None, (offer.good_at, sees, slow)))
    if width < _KINDS_FROM_COLUMNS:
        texts = [speed, size, *textwrap.wrap(words, max(1, width - 1))]
        head = line(Span(f"{offer.kind.value}: ", role), strong(entry.title))
        return [head, *(line(muted(f" {cut(text, width - 1)}")) for text in texts if text)]
    kind = Span(f"{offer.kind.value:<{_KIND_COLUMNS}}", role)
    indent = " " * _KIND_COLUMNS
    texts = [size, *textwrap.wrap(words, width - _KIND_COLUMNS)]
    head = apart(line(kind, strong(entry.title)), line(strong(speed)), width)
    return [head, *(line(muted(f"{indent}{text}")) for text in texts)]


def _note(found: MachineOffers) -> str:
    """Return what the figures of the offers are based on."""
    free = f"{figures.size(found.free_bytes)} of memory free"
    if not found.offers:
        return f"No known model fits this machine: {free}."
    if found.read_gbps:
        return f"{free}, it reads {found.read_gbps:.1f} GB/s. Sizes are estimates."
    return (
        f"{free}. Sizes are estimates, and speeds are typical ones: this machine was too busy to "
        "be measured."
    )
