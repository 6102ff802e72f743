"""What is to be expected of one file that somebody named, looked up in a thread of its own."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app.library.header import read_header
from app.library.listing import Outlook, make_lister
from app.library.rates import load_rates, usual_threads
from app.program.background import in_background

if TYPE_CHECKING:
    from app.program.settings import Settings


def look_up(path: Path, settings: Settings) -> Future[Outlook | None]:
    """Begin to read a file's header; the answer is None where it cannot be opened, which whoever opens it will say."""

    def read() -> Outlook | None:
        with suppress(Exception):  # it is a figure beside a question, which is asked without it too
            return outlook_of(path, settings)
        return None

    return in_background(read, "outlook")


def outlook_of(path: Path, settings: Settings) -> Outlook | None:
    """Return whether a file fits and how fast it would be; None where it cannot be opened."""
    lister = make_lister(load_rates(usual_threads(settings)), settings.kv_type_or_default, settings.weights_or_default)
    return lister.outlook(read_header(path))
