"""Search for models in a thread, for a screen that polls the result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.models.library.encoders import EncoderFinder
from app.models.library.header import HeaderCache, ModelHeader
from app.models.library.known_models import advice_line, offers, with_advice
from app.models.library.listing import ModelEntry, in_order, make_lister, read_models
from app.models.library.model_files import file_at, find_files, places
from app.program.background import in_background
from app.program.refusals import bug_line
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.record import record

_SHOW_PERIOD_S = 0.3


@record
class ScanResult:
    """Result so far."""

    entries: tuple[ModelEntry, ...] = ()
    """Models on this machine, then models to download; without header data until headers are
    read.
    """
    n_files: int = 0
    """Number of model files; 0 while they are searched."""
    n_read: int = 0
    looked_in: tuple[str, ...] = ()
    advice: str = ""
    """Advice for this machine in a line."""
    read_gbps: float | None = None
    available_bytes: int = 0
    is_done: bool = False
    trouble: str = ""
    """Reason for an early end; "" if there is none."""


class ModelScan:
    """A search for all models.

    Args:
        also: further files, with a name for their location.
    """

    def __init__(self, settings: Settings, also: Mapping[Path, str] | None = None) -> None:
        self._settings = settings
        self._also = also or {}
        self._is_wanted = True
        self.found = ScanResult()

    def start(self) -> ModelScan:
        """Start the search; ``found`` has the result at any time."""
        in_background(self._run, "models")
        return self

    def cancel(self) -> None:
        """Stop after the current file."""
        self._is_wanted = False

    def _run(self) -> None:
        try:
            self._look()
        except Exception as error:
            self.found = ScanResult(
                self.found.entries, is_done=True, trouble=clean_line(bug_line(error), 200)
            )

    def _look(self) -> None:
        settings = self._settings
        lister = make_lister(settings)
        looked_in = places(settings.model_directories)
        files = find_files(looked_in)
        known = {file.path.resolve() for file in files}
        elsewhere = (
            file_at(path, place)
            for path, place in self._also.items()
            if path.resolve() not in known
        )
        files = [*(file for file in elsewhere if file is not None), *files]
        here = [lister.entry(file, ModelHeader()) for file in files]

        first_result = ScanResult(
            n_files=len(files),
            looked_in=tuple(dict.fromkeys(clean_line(place.label, 60) for place in looked_in)),
            advice=advice_line(lister),
            read_gbps=lister.read_gbps or None,
            available_bytes=lister.memory.available_bytes,
        )

        def show(n_read: int, is_done: bool = False) -> None:
            rows = in_order(here)
            if is_done:
                entries = (*with_advice(lister, rows), *offers(lister, rows))
            else:
                entries = tuple(rows)
            self.found = replace(first_result, entries=entries, n_read=n_read, is_done=is_done)

        show(0)
        shown_s = time.monotonic()
        headers = HeaderCache()
        encoders = EncoderFinder(headers)
        for index, (file, header) in enumerate(
            read_models(files, headers, lambda: self._is_wanted)
        ):
            encoder = encoders.find(file, header)
            here[index] = lister.entry(file, encoders.counted(header, encoder), encoder)
            if time.monotonic() - shown_s > _SHOW_PERIOD_S:
                shown_s = time.monotonic()
                show(index + 1)
        if self._is_wanted:
            show(len(files), is_done=True)
