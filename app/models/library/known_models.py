"""Well-known open models (``config/known_models.toml``), and which suit this machine. This is
advice, not a catalogue.

Nothing uses the network, and all figures are estimates from a model's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import Basis
from app.models.library.download_time import download_time
from app.models.library.listing import ADVISED, Lister, ModelEntry, list_models, make_lister
from app.models.library.model_files import OTHER_PROGRAMS, places
from app.models.library.speed import ESTIMATE, speed_figure, speed_text
from app.program.bundled_model import is_starter
from app.program.settings import Settings
from app.program.small_file import bundled_table
from app.text import figures
from app.text.record import record

if TYPE_CHECKING:
    from app.models.library.advice import Suggestion
    from engine.measure.fit import MachineMemory, MachineRates, ModelNeeds


_LEAST_SHARE = 0.85
"""Share of the installed memory that the system can use."""
_F16_BYTES = 2
_TYPE = re.compile(r"[-._](i?q[1-9]_\w+|b?f16|f32)$", re.IGNORECASE)
"""Type at the end of a file name."""
_REPOSITORY = re.compile(
    r"(?P<repository>[^/: ]+/(?P<name>[^/: ]+?)(?:-GGUF)?)(?::\S*)?", re.IGNORECASE
)


@record
class KnownModel:
    """A well-known model and its repository.

    Attributes:
        active: parameters used for a token by a mixture of experts; 0 for all.
        on_disk: parameters that stay on disk, because a token reads only a row of them.
        encoder: parameters of the encoder for pictures (mmproj) in the same repository, as f16;
        0 if the model cannot see.
        first_from_gib: memory of machines in GiB from which this model is the first choice; 0 for
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
    encoder: float = 0.0
    first_from_gib: int = 0
    is_checked: bool = True

    @property
    def encoder_file_bytes(self) -> int:
        """Estimated size of the encoder for pictures; 0 if the model cannot see."""
        return int(_F16_BYTES * self.encoder)

    @property
    def in_memory(self) -> float:
        """Number of parameters in memory."""
        return self.parameters - self.on_disk

    def needs(self, quantization: str, kv: str = "f16") -> ModelNeeds:
        """Estimate the needs in a type: memory for the whole model, speed for what a token
        reads.
        """
        from app.models.library.advice import needs_of_size

        needs = needs_of_size(self.in_memory, quantization, kv)
        if not self.active:
            return needs
        share = self.active / self.parameters
        n_bytes, products = (
            {kernel: int(share * n) for kernel, n in sizes.items()}
            for sizes in (needs.read_bytes, needs.products)
        )
        return replace(needs, read_bytes=n_bytes, products=products)


@cache
def known_models() -> tuple[KnownModel, ...]:
    """Return the models, smallest first."""
    return tuple(KnownModel(**row) for row in bundled_table("known_models.toml")["model"])


def title_of_repository(request: str) -> str:
    """Return the name of a model from a request to download it; the request if it has none.

    For example "Qwen3 4B" for "Qwen/Qwen3-4B-GGUF:Q4_K_M".
    """
    match = _REPOSITORY.fullmatch(request)
    if match is None:
        return request
    for model in known_models():
        if model.repository.lower() == match["repository"].lower():
            return model.name
    return match["name"]


def checked_on() -> str:
    """Return the day on which the list was last checked."""
    return str(bundled_table("known_models.toml")["checked"])


def best_known(memory: MachineMemory, rates: MachineRates) -> KnownModel | None:
    """Return the first choice that fits and keeps up with a reader, else the smallest; None without
    rates.
    """
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


def real_model_line(settings: Settings, get_key: str = "", models_key: str = "") -> str:
    """Return a line with a model that can answer what the starter cannot: one on this machine, or
    one to download.

    Args:
        get_key: key of the chat for downloading; without it the line names a command.
        models_key: key of the chat for the model list.
    """
    lister = make_lister(settings)
    here = [
        entry
        for entry in list_models(places(settings.model_directories), lister)
        if not is_starter(entry.path)
    ]
    if (best := _best_here(here)) is not None:
        if models_key:
            command = f"{models_key} or /model {best.title} opens it"
        else:
            command = f"`jalopy run {best.title}`"
        return f"A real model answers this: {best.title}, on this machine: {command}"
    offered = offers(lister, here)
    if not offered:
        return ""
    n_bytes = offered[0].download_bytes
    download_size = f"{ESTIMATE}{figures.size(n_bytes)}, {download_time(n_bytes)}"
    command = get_key or f"`jalopy pull {offered[0].repository}`"
    return f"A real model answers this: {offered[0].title}, {download_size}: {command}"


def _best_here(entries: Iterable[ModelEntry]) -> ModelEntry | None:
    """Return the largest model that keeps up with a reader, else the fastest; None if there is
    none.
    """
    from app.models.library import advice

    def worth(entry: ModelEntry) -> tuple[bool, float]:
        decode_tps = (entry.outlook.decode_tps if entry.outlook else None) or 0.0
        is_fast = decode_tps >= advice.READING_TPS
        return is_fast, entry.parameters if is_fast else decode_tps

    return max(
        (
            entry
            for entry in entries
            if entry.can_open and entry.outlook and entry.outlook.verdict != "no"
        ),
        key=worth,
        default=None,
    )


def known_rows(lister: Lister, models: Iterable[KnownModel] | None = None) -> list[ModelEntry]:
    """Return the known models that fit, in their best types, smallest first.

    Args:
        models: models to choose from; None for all that are known.
    """
    from app.models.library import advice

    best = best_known(lister.memory, lister.rates)
    rows = []
    for model in models or known_models():
        chosen = advice.best_type(model.in_memory, lister.memory, lister.rates)
        if chosen is None:
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
                is_advised=model is best,
                listed_on=checked_on() + ("" if model.is_checked else ", its name not looked up"),
                good_at=model.good_at,
                encoder_file_bytes=model.encoder_file_bytes,
                better=_better(
                    advice.better_quality(model.in_memory, lister.memory, lister.rates), chosen
                ),
            )
        )
    return rows


def offers(lister: Lister, here: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Return known models that fit and are not on this machine, in their best types: the first
    choice, then by size.
    """
    have = {name for entry in here for name in _plain_names(entry)}
    rows = [row for row in known_rows(lister) if _plain(row.title) not in have]
    return sorted(rows, key=lambda row: not row.is_advised)


def file_of(offer: ModelEntry, here: Iterable[ModelEntry]) -> ModelEntry | None:
    """Return the file of a known model on this machine; None if there is none."""
    name = _plain(offer.title)
    return next((entry for entry in here if entry.can_open and name in _plain_names(entry)), None)


def with_advice(lister: Lister, here: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Add what is known about the models on this machine: strengths, and which is the best."""
    rows = {_plain(row.title): row for row in known_rows(lister)}
    entries = []
    for entry in here:
        names = [name for name in _plain_names(entry) if name in rows]
        if names and entry.can_open:
            row = rows[names[0]]
            entry = replace(entry, good_at=row.good_at, is_advised=row.is_advised)
            may_download = row.sees and entry.place not in OTHER_PROGRAMS
            if may_download and not entry.sees:
                entry = replace(entry, encoder_repository=row.repository)
        entries.append(entry)
    return entries


def first_choice(lister: Lister) -> ModelEntry | None:
    """Return the known model that suits this machine best; None if that is not known.

    All screens and commands recommend this model.
    """
    return next((row for row in known_rows(lister) if row.is_advised), None)


def _better(suggestion: Suggestion | None, chosen: str) -> str:
    """Return a type with better answers and its cost; "" if there is none."""
    if suggestion is None or suggestion.quantization == chosen:
        return ""
    if suggestion.fit.decode_tps:
        tps = f", {speed_figure(suggestion.fit.decode_tps, Basis.ESTIMATED)} tok/s"
    else:
        tps = ""
    file_size = f"{ESTIMATE}{figures.size(suggestion.file_bytes)}"
    return f"better quality, slower: {suggestion.quantization} ({file_size}{tps})"


def advice_line(lister: Lister) -> str:
    """Return the first choice for this machine: "Qwen3.5 4B Q4_K_M, ~4.0 tok/s (estimated)"; "" if
    unknown.
    """
    best = first_choice(lister)
    if best is None:
        return ""
    return ", ".join(filter(None, (f"{best.title} {best.quantization}", _speed(best))))


def machine_line(
    settings: Settings, get_key: str, now_gbps: float = 0.0, is_quiet: bool = True
) -> str:
    """Return a line with the best memory speed and the model that suits it; "" before a
    measurement.

    Args:
        get_key: key that downloads the first choice.
        now_gbps: speed of a new measurement.
        is_quiet: whether other programs were quiet then.
    """
    from app.models.library.measure import busy_words

    lister = make_lister(settings)
    gbps = lister.read_gbps
    best = first_choice(lister)
    if not gbps or best is None:
        return ""
    words = busy_words(now_gbps, gbps, is_quiet)
    if words:
        busy = f" at best ({words})"
    else:
        busy = ""
    return (
        f"This machine reads memory at {gbps:.0f} GB/s{busy}. {best.title} suits it best: "
        f"{_speed(best)}; {get_key} gets it"
    )


def _speed(entry: ModelEntry) -> str:
    if entry.outlook is None or not entry.outlook.decode_tps:
        return ""
    return speed_text(entry.outlook.decode_tps, entry.outlook.basis)


def _plain_names(entry: ModelEntry) -> tuple[str, str]:
    return _plain(entry.name), _plain(_TYPE.sub("", entry.title))


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
