"""``jalopy models``: list the models on this machine, which fit, and how fast they are."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from app.backend.work_thread import start_work_thread
from app.cli.output import ProgressLine
from app.machine.sensors.tuning_conditions import look_at_load
from app.models.library import list_rows as rows
from app.models.library.known_models import advice_line, offers
from app.models.library.listing import SEES, Lister, ModelEntry, list_models, make_lister
from app.models.library.model_files import Place, places
from app.models.library.rates import known_read_gbps, rates_or_typical, usual_threads
from app.models.library.speed import ESTIMATE
from app.program import exit_codes
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import counted, size
from app.text.glyphs import choose_glyphs
from app.text.json_line import json_line
from engine.measure.fit import MachineRates

MAX_COLUMNS = 120
LOOK_S = 0.3
"""Seconds that the load of other programs is watched before a measurement."""


def models(
    settings: Settings, words: Sequence[str] = (), measure: bool = False, as_json: bool = False
) -> int:
    """Print the models whose rows contain all ``words``.

    Args:
        measure: whether the speed of this machine is measured again.
    """
    folders = places(settings.model_directories)
    lister = make_lister(settings, rates_for(settings, measure))
    entries = list_models(folders, lister)
    query = " ".join(words)
    matches = [entry for entry in entries if entry.matches(query)]
    if as_json:
        print(json_line(_values(matches, lister, folders), indent=1), flush=True)
    elif entries and not matches:
        number = counted(len(entries), "model")
        print(f"No model matches: {clean_line(query)} (searched {number})", flush=True)
    else:
        print("\n".join(_lines(matches, lister, folders, query)), flush=True)
    return exit_codes.OK


def rates_for(settings: Settings, again: bool = False) -> MachineRates:
    """Return the speed of this machine, measured now if it is idle and was never measured.

    The measurement takes a few seconds.

    Args:
        again: whether it is measured even if it is known.
    """
    threads = usual_threads(settings)
    if not again and (known_read_gbps(threads) or not look_at_load(LOOK_S).is_quiet):
        return rates_or_typical(threads)
    from app.models.library.measure import COMMON_TYPE, measure

    engine = start_work_thread()
    progress = ProgressLine()
    progress.show("measuring this machine (once)")
    counts = settings.threads, settings.prefill_threads
    _, rates = engine.run(lambda: measure(*counts, [COMMON_TYPE], progress.show_opening))
    progress.clear()
    if rates.read_gbps:
        return rates
    return rates_or_typical(threads)


def _lines(
    entries: Sequence[ModelEntry], lister: Lister, folders: Sequence[Place], words: str = ""
) -> list[str]:
    columns = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    labels = ", ".join(dict.fromkeys(clean_line(place.label, 60) for place in folders))
    advice = _advice(entries, lister)
    if not entries:
        return [
            "No models found.",
            *advice,
            f"Looked in: {labels}",
            "`jalopy pull OWNER/REPO` downloads a model. model_directories in your settings adds "
            "folders.",
        ]
    if lister.read_gbps:
        speed = f", memory speed {lister.read_gbps:.1f} GB/s"
        legend = rows.LEGEND
    else:
        speed = ""
        legend = rows.NO_RATES
    free = size(lister.memory.available_bytes)
    heading = f"{counted(len(entries), 'model')}; {free} of memory free{speed}"

    downloadable = []
    if not words:
        downloadable = _downloadable(entries, lister)

    footer = []
    eye = f"{choose_glyphs().eye}: {SEES}"
    for line in (f"writes, reads: tok/s; {legend}", eye, *advice, f"Looked in: {labels}"):
        footer += textwrap.wrap(line, columns)
    return [heading, "", *rows.table(entries, columns), *downloadable, "", *footer]


def _downloadable(entries: Sequence[ModelEntry], lister: Lister) -> list[str]:
    """Return rows of known models that fit and can be downloaded."""
    eye = choose_glyphs().eye
    lines = []
    for offer in offers(lister, entries):
        if offer.outlook:
            speed = rows.speed(offer.outlook.decode_tps, offer.outlook.basis)
        else:
            speed = "-"
        lines.append(
            f"{speed:>6}  {offer.quantization:<7} {ESTIMATE}{size(offer.download_bytes):<6} "
            f"{offer.repository} {eye if offer.sees else ''}".rstrip()
        )
    if lines:
        return [
            "",
            "Models to download that fit (tok/s, type, size, name for jalopy pull):",
            *lines,
        ]
    return []


def _advice(entries: Sequence[ModelEntry], lister: Lister) -> list[str]:
    """Return a line about the model that suits this machine best."""
    line = advice_line(lister)
    if not line:
        return []
    best = next((offer for offer in offers(lister, entries) if offer.is_advised), None)
    if best is None:
        return [f"Recommended for this machine: {line}"]
    return [f"Recommended for this machine: {line}; `jalopy pull {best.repository}` downloads it"]


def _values(
    entries: Sequence[ModelEntry], lister: Lister, folders: Sequence[Place]
) -> dict[str, Any]:
    return {
        "models": [{**asdict(entry), "path": str(entry.path)} for entry in entries],
        "offers": [{**asdict(offer), "path": None} for offer in offers(lister, entries)],
        "advice": advice_line(lister),
        "available_bytes": lister.memory.available_bytes,
        "read_gbps": lister.read_gbps or None,
        "looked_in": [str(place.path) for place in folders],
    }
