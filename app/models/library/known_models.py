"""Well-known open models (``config/known_models.toml``) and which of them suit this machine:
advice, never a catalogue.

Nothing is asked of any network, and every figure is an estimate from a model's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.library.listing import ADVISED, Lister, ModelEntry, list_models, make_lister
from app.models.library.model_files import places
from app.models.library.rates import known_read_gbps
from app.program.bundled_model import is_starter
from app.program.settings import Settings
from app.program.small_file import bundled_table
from app.text import figures
from app.text.record import record

if TYPE_CHECKING:
    from app.models.library.advice import Suggestion
    from engine.measure.fit import MachineMemory, MachineRates, ModelNeeds


_LEAST_SHARE = 0.85
"""Of the memory that is sold, what a system sees of it."""
_SMALL = "1B"
"""A size that most machines can compare themselves by."""
_TYPE = re.compile(r"[-._](i?q[1-9]_\w+|b?f16|f32)$", re.IGNORECASE)
"""At the end of a file's name."""


@record
class KnownModel:
    """One model and the repository that holds it.

    Attributes:
        active: parameters that a token reads of a mixture of experts; 0 for all.
        on_disk: parameters that take no memory, since a token reads a row of them.
        first_from_gib: memory of a machine, in GiB, from which it is the one to begin with; 0 for
            none.
        is_checked: whether the repository's name was compared with the hub.
    """

    name: str
    repository: str
    parameters: float
    licence: str
    architecture: str
    good_at: str
    active: float = 0.0
    on_disk: float = 0.0
    first_from_gib: int = 0
    is_checked: bool = True

    @property
    def in_memory(self) -> float:
        """Parameters that are brought into memory."""
        return self.parameters - self.on_disk

    def needs(self, quantization: str, kv: str = "f16") -> ModelNeeds:
        """Estimate what the model needs in a type: memory for all of it, and speed by what a token
        reads."""
        from app.models.library.advice import needs_of_size

        needs = needs_of_size(self.in_memory, quantization, kv)
        if not self.active:
            return needs
        share = self.active / self.parameters
        n_bytes, products = (
            {kernel: int(share * n) for kernel, n in one.items()}
            for one in (needs.read_bytes, needs.products)
        )
        return replace(needs, read_bytes=n_bytes, products=products)


@cache
def known_models() -> tuple[KnownModel, ...]:
    """Return the models, the smallest first."""
    return tuple(KnownModel(**row) for row in bundled_table("known_models.toml")["model"])


def checked_on() -> str:
    """Return the day the list was last compared with public documents."""
    return str(bundled_table("known_models.toml")["checked"])


def best_known(memory: MachineMemory, rates: MachineRates) -> KnownModel | None:
    """Return the model to begin with that fits and keeps up with a reader, else the smallest; None
    without a rate."""
    from app.models.library import advice
    from engine.measure.fit import fit

    fitting = []
    for model in known_models():
        if not model.first_from_gib or memory.total_bytes < _LEAST_SHARE * (
            model.first_from_gib << 30
        ):
            continue
        chosen = advice.best_type(model.in_memory, memory, rates)
        if chosen is not None:
            decode_tps = fit(model.needs(chosen), memory, rates, advice.CHAT_CONTEXT).decode_tps
            if decode_tps is not None:
                fitting.append((model, decode_tps))
    fast = [model for model, decode_tps in fitting if decode_tps >= advice.READING_TPS]
    if fast:
        return fast[-1]
    if fitting:
        return fitting[0][0]
    return None


def advised_model(settings: Settings) -> KnownModel:
    """Return the model to begin with on this machine, by what was measured of it, else by typical
    figures."""
    lister = make_lister(settings)
    return best_known(lister.memory, lister.rates) or known_models()[0]


def real_model_line(settings: Settings, get_key: str = "", models_key: str = "") -> str:
    """Name a model that fits this machine and answers what the starter cannot: one that is here,
    else one to get.

    The keys are those of the chat; without them the commands of a shell are named.
    """
    lister = make_lister(settings)
    here = [
        one
        for one in list_models(places(settings.model_directories), lister)
        if not is_starter(one.path)
    ]
    if (best := _best_here(here)) is not None:
        if models_key:
            how = f"{models_key} or /model {best.title} opens it"
        else:
            how = f"`jalopy run {best.title}`"
        return f"A real model answers this: {best.title}, which is here: {how}"
    offered = offers(lister, here)
    if not offered:
        return ""
    how_long = (
        f"{figures.size(offered[0].size_bytes)}, {figures.time_on_a_line(offered[0].size_bytes)}"
    )
    how = get_key or f"`jalopy pull {offered[0].repository}`"
    return f"A real model answers this: {offered[0].title}, {how_long}: {how}"


def _best_here(here: Iterable[ModelEntry]) -> ModelEntry | None:
    """Return the largest of those that fit and keep up with a reader, else the fastest; None
    without any."""
    from app.models.library import advice

    def worth(one: ModelEntry) -> tuple[bool, float]:
        decode_tps = (one.outlook.decode_tps if one.outlook else None) or 0.0
        is_fast = decode_tps >= advice.READING_TPS
        return is_fast, one.parameters if is_fast else decode_tps

    return max(
        (one for one in here if one.can_open and one.outlook and one.outlook.verdict != "no"),
        key=worth,
        default=None,
    )


def offers(lister: Lister, here: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Return rows for known models that are not here and fit, in their best types: the advised one,
    then by size."""
    from app.models.library import advice

    have = {_plain(entry.name) for entry in here} | {
        _plain(_TYPE.sub("", entry.title)) for entry in here
    }
    best = best_known(lister.memory, lister.rates)
    rows = []
    for model in sorted(known_models(), key=lambda one: (one is not best, one.parameters)):
        chosen = advice.best_type(model.in_memory, lister.memory, lister.rates)
        if chosen is None or _plain(model.name) in have:
            continue
        needs = model.needs(chosen, lister.kv_type)
        rows.append(
            ModelEntry(
                path=Path(),
                title=model.name,
                place=ADVISED if model is best else "download",
                size_bytes=int(needs.weights_bytes * model.parameters / model.in_memory),
                architecture=model.architecture,
                parameters=int(model.parameters),
                quantization=chosen,
                licence=model.licence,
                outlook=lister.outlook_of(needs),
                repository=model.repository,  # without the type: not every repository has it
                listed_on=checked_on() + ("" if model.is_checked else ", its name not looked up"),
                good_at=model.good_at,
                better=_better(
                    advice.better_quality(model.in_memory, lister.memory, lister.rates), chosen
                ),
            )
        )
    return rows


def _better(found: Suggestion | None, chosen: str) -> str:
    """Say which type gives better answers, and what that costs; "" for none."""
    if found is None or found.quantization == chosen:
        return ""
    if found.fit.decode_tps:
        tps = f", about {figures.rate(found.fit.decode_tps)} tok/s"
    else:
        tps = ""
    return f"better quality, slower: {found.quantization} ({figures.size(found.file_bytes)}{tps})"


def advice_line(lister: Lister) -> str:
    """Say in a line what suits this machine: "(5.1G free, 12 GB/s): 3B Q4_K_M, about 5.0 tok/s"; ""
    for nothing."""
    from app.models.library import advice

    best = advice.best_suggestion(advice.suggestions(lister.memory, lister.rates))
    if best is None:
        return ""
    if lister.rates.read_gbps:
        speed = f", {lister.rates.read_gbps:.0f} GB/s"
    else:
        speed = ""
    if best.fit.decode_tps:
        tps = f", about {figures.rate(best.fit.decode_tps)} tok/s"
    else:
        tps = ""
    return (
        f"({figures.size(lister.memory.available_bytes)} free{speed}): {best.size} "
        f"{best.quantization}{tps}"
    )


def machine_line(threads: int, get_key: str, now_gbps: float = 0.0, is_quiet: bool = True) -> str:
    """Say how fast memory is here at best, and what sizes suit that; "" while it is not measured.

    ``get_key`` gets the advised model; ``now_gbps``: a measurement just made, in a quiet time if
    ``is_quiet``.
    """
    from app.models.library import advice
    from app.models.library.measure import busy_words, memory_for_models
    from engine.measure.fit import MachineRates

    gbps = known_read_gbps(threads)
    memory = memory_for_models()
    rates = MachineRates(gbps or None)
    found = advice.suggestions(memory, rates)
    best = advice.best_suggestion(found)
    if not gbps or best is None:
        return ""
    shown = list(dict.fromkeys([*[one for one in found if one.size == _SMALL], best]))
    speeds = ", ".join(
        f"~{figures.rate(one.fit.decode_tps or 0)} tok/s with {one.size}" for one in shown
    )
    words = busy_words(now_gbps, gbps, is_quiet)
    if words:
        busy = f" at best ({words})"
    else:
        busy = ""
    known = best_known(memory, rates)
    if known is not None:
        get = f"; {get_key} gets {known.name}"
    else:
        get = ""
    return (
        f"This machine reads memory at {gbps:.0f} GB/s{busy}: {speeds}. Models up to {best.size} "
        f"are comfortable{get}"
    )


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
