"""``jalopy models``: what is on this machine, what fits, and how fast it would be. No Textual."""

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
from app.models.library.listing import ADVISED, Lister, ModelEntry, list_models, make_lister
from app.models.library.model_files import Place, places
from app.models.library.rates import known_read_gbps, rates_or_typical, usual_threads
from app.program import exit_codes
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import counted, size
from app.text.json_line import json_line
from engine.measure.fit import MachineRates

MOST_COLUMNS = 120
LOOK_S = 0.3
"""How long the load of other programs is watched before anything is measured."""


def models(
    settings: Settings, words: Sequence[str] = (), measure: bool = False, as_json: bool = False
) -> int:
    """Find, read, compare and print."""
    looked_in = places(settings.model_directories)
    lister = make_lister(settings, rates_for(settings, measure))
    here = list_models(looked_in, lister)
    wanted = " ".join(words)
    found = [entry for entry in here if entry.matches(wanted)]
    if as_json:
        print(json_line(_values(found, lister, looked_in), indent=1), flush=True)
    elif here and not found:
        print(f"No match among {counted(len(here), 'model')} for: {clean_line(wanted)}", flush=True)
    else:
        print("\n".join(_lines(found, lister, looked_in, wanted)), flush=True)
    return exit_codes.OK


def rates_for(settings: Settings, again: bool = False) -> MachineRates:
    """Return what this machine was measured to do; measure it in the first quiet time, which takes
    a few seconds."""
    threads = usual_threads(settings)
    if not again and (known_read_gbps(threads) or not look_at_load(LOOK_S).is_quiet):
        return rates_or_typical(threads)
    from app.models.library.measure import COMMON_TYPE, measure

    engine = start_work_thread()
    progress = ProgressLine()
    progress.show("measuring this machine, once")
    counts = settings.threads, settings.prefill_threads
    _, rates = engine.run(lambda: measure(*counts, [COMMON_TYPE], progress.show_opening))
    progress.clear()
    if rates.read_gbps:
        return rates
    return rates_or_typical(threads)


def _lines(
    found: Sequence[ModelEntry], lister: Lister, looked_in: Sequence[Place], words: str = ""
) -> list[str]:
    columns = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
    where = ", ".join(dict.fromkeys(clean_line(place.label, 60) for place in looked_in))
    advice = _advice(found, lister)
    if not found:
        return [
            "No model was found.",
            *advice,
            f"Looked in: {where}",
            (
                "`jalopy pull OWNER/REPO` downloads one; model_directories in your settings names "
                "more places."
            ),
        ]
    if lister.read_gbps:
        speed = f", memory reads {lister.read_gbps:.1f} GB/s"
    else:
        speed = ""
    head = (
        f"{counted(len(found), 'model')}; {size(lister.memory.available_bytes)} of memory "
        f"free{speed}"
    )
    if lister.read_gbps:
        legend = rows.LEGEND
    else:
        legend = rows.NO_RATES
    foot = [f"writes, reads: tok/s; {legend}", *advice, f"Looked in: {where}"]
    if words:
        known = []
    else:
        known = _known(found, lister)
    folded = [part for line in foot for part in textwrap.wrap(line, columns)]
    return [head, "", *rows.table(found, columns), *known, "", *folded]


def _known(found: Sequence[ModelEntry], lister: Lister) -> list[str]:
    """List known models that fit and can be downloaded, by the whole names that ``jalopy pull``
    takes."""
    lines = []
    for one in offers(lister, found):
        if one.outlook:
            writes = rows.speed(one.outlook, one.outlook.decode_tps)
        else:
            writes = "-"
        lines.append(
            f"{writes:>6}  {one.quantization:<7} {rows.ESTIMATE}{size(one.size_bytes):<6} "
            f"{one.repository}"
        )
    if lines:
        return ["", "Fit and can be downloaded (tok/s, type, size, jalopy pull ...):", *lines]
    return []


def _advice(found: Sequence[ModelEntry], lister: Lister) -> list[str]:
    """Say what suits this machine now, and the one known model that does and is not here."""
    line = advice_line(lister)
    best = next((offer for offer in offers(lister, found) if offer.place == ADVISED), None)
    if best is not None:
        pull = f"; `jalopy pull {best.repository}` gets {best.title}"
    else:
        pull = ""
    if line:
        return [f"Suits this machine {line}{pull}"]
    return []


def _values(
    found: Sequence[ModelEntry], lister: Lister, looked_in: Sequence[Place]
) -> dict[str, Any]:
    return {
        "models": [{**asdict(entry), "path": str(entry.path)} for entry in found],
        "offers": [{**asdict(offer), "path": None} for offer in offers(lister, found)],
        "advice": advice_line(lister),
        "available_bytes": lister.memory.available_bytes,
        "read_gbps": lister.read_gbps or None,
        "looked_in": [str(place.path) for place in looked_in],
    }
