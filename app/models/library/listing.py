"""Lists of all models on this machine, with headers, memory needs and speeds.

Nothing is measured or loaded, and all texts are clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import Basis, ReplyHistory
from app.models.library.encoders import EncoderFinder, encoder_bytes_of
from app.models.library.header import HeaderCache, ModelHeader, read_header
from app.models.library.model_files import Place, StoredModel, find_files
from app.models.library.rates import known_read_gbps, rates_or_typical, usual_threads
from app.models.library.speed import speed_of
from app.program import paths
from app.program.background import in_background
from app.program.remote_model import ModelPlace, RemoteModel
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from engine.measure.fit import MachineMemory, MachineRates, ModelNeeds


ADVISED = "advised"
"""Location of the model that suits this machine best and is not downloaded."""
SEES = "sees pictures"
"""Words of rows and filters for models that read pictures."""
_LONGEST_TITLE = 60
_LONGEST_REASON = 200


@record
class Outlook:
    """Whether a model fits this machine, and how fast it would be."""

    verdict: str
    """Verdict: "yes", "tight" (with other programs closed) or "no"."""
    needed_bytes: int
    largest_ctx: int
    """Tokens of context that fit now; 0 if none."""
    decode_tps: float | None = None
    prefill_tps: float | None = None
    """Tokens per second; None if unknown."""
    basis: Basis = Basis.ESTIMATED
    prefill_basis: Basis = Basis.ESTIMATED

    @property
    def is_measured(self) -> bool:
        """Whether the speed of writing was measured with this model here."""
        return self.basis is not Basis.ESTIMATED


@record
class ModelEntry:
    """Row of a model list; all texts are clean."""

    path: Path
    title: str
    """Title: Ollama's name, or the file name without suffix and type."""
    place: str
    size_bytes: int = 0
    n_parts: int = 1
    name: str = ""
    """Name in the file."""
    architecture: str = ""
    parameters: int = 0
    quantization: str = ""
    context_length: int = 0
    licence: str = ""
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of tensors by type, largest first."""
    reason: str = ""
    """Reason why it cannot be opened; "" if it can."""
    outlook: Outlook | None = None
    """Fit and speed; None if it cannot be opened."""
    repository: str = ""
    """Repository to download from; "" for models on this machine. Size and outlook are estimates
    then.
    """
    listed_on: str = ""
    """Day on which the list of known models was checked."""
    good_at: str = ""
    better: str = ""
    """Type with better answers, and its cost."""
    served: RemoteModel | None = None
    """Model of a server; None for a file."""
    is_advised: bool = False
    """Whether it suits this machine best, wherever it is."""
    encoder: str = ""
    """Path of the encoder for pictures (mmproj) in the model's folder; "" if there is none."""
    encoder_file_bytes: int = 0
    """Size of the encoder; for models to download an estimate. 0 if the model cannot see."""
    encoder_repository: str = ""
    """Repository with the encoder that a model on this machine lacks; "" if it lacks none."""

    @property
    def model(self) -> ModelPlace:
        """The file, or the model of a server."""
        return self.served or self.path

    @property
    def sees(self) -> bool:
        """Whether the model reads pictures, once it is downloaded."""
        return self.encoder_file_bytes > 0

    @property
    def download_bytes(self) -> int:
        """Size of the model and its encoder."""
        return self.size_bytes + self.encoder_file_bytes

    @property
    def is_here(self) -> bool:
        """Whether the model is on this machine."""
        return not self.repository

    @property
    def can_open(self) -> bool:
        """Whether the model is on this machine and can be opened, as far as is known."""
        return self.is_here and not self.reason

    @property
    def is_short_of_memory(self) -> bool:
        """Whether the model can be opened but memory is short."""
        short = self.outlook is not None and self.outlook.verdict != "yes"
        return short and self.served is None and self.can_open and self.parameters > 0

    def matches(self, words: str) -> bool:
        """Whether the row contains every typed word."""
        texts = (
            self.title,
            self.name,
            self.architecture,
            self.quantization,
            self.place,
            self.licence,
            self.good_at,
            SEES if self.sees else "",
        )
        row = " ".join(texts).lower()
        return all(word in row for word in words.lower().split())


@record
class Lister:
    """Facts about this machine for the rows of a list."""

    memory: MachineMemory
    rates: MachineRates
    history: ReplyHistory
    kv_type: str = "f16"
    read_gbps: float = 0.0
    """Best measured read speed of memory; 0 if it was never measured."""

    def entry(
        self, file: StoredModel, header: ModelHeader, encoder: StoredModel | None = None
    ) -> ModelEntry:
        """Return the row of a file, with its encoder for pictures if there is one."""
        return ModelEntry(
            path=file.path,
            title=title_of(file, header),
            place=clean_line(file.place, 40),
            size_bytes=file.size_bytes,
            n_parts=file.n_parts,
            name=clean_line(header.name, _LONGEST_TITLE),
            architecture=clean_line(header.architecture, 24),
            parameters=header.parameters,
            quantization=clean_line(header.quantization, 12),
            context_length=header.context_length,
            licence=clean_line(header.licence, 40),
            type_bytes={
                clean_line(name, 12): n_bytes for name, n_bytes in header.type_bytes.items()
            },
            reason=clean_line(header.reason, _LONGEST_REASON),
            outlook=self.outlook(header),
            encoder=str(encoder.path) if encoder is not None else "",
            encoder_file_bytes=encoder.size_bytes if encoder is not None else 0,
        )

    def outlook(self, header: ModelHeader) -> Outlook | None:
        """Compare a model with this machine; None if it cannot be opened."""
        if header.needs is None:
            return None
        memory = header.memory.get(self.kv_type, header.needs.memory)
        return self.outlook_of(replace(header.needs, memory=memory))

    def outlook_of(self, needs: ModelNeeds) -> Outlook:
        """Compare needs with this machine."""
        from engine.measure.fit import fit

        fit_result = fit(needs, self.memory, self.rates)
        speed = speed_of(needs, fit_result, self.history)
        return Outlook(
            fit_result.verdict,
            fit_result.needed_bytes,
            fit_result.largest_ctx,
            speed.decode_tps,
            speed.prefill_tps,
            speed.basis,
            speed.prefill_basis,
        )


def make_lister(settings: Settings, rates: MachineRates | None = None) -> Lister:
    """Return the facts: memory now, speeds of earlier replies, and measured or typical rates."""
    from app.models.library.measure import memory_for_models

    threads = usual_threads(settings)
    history = ReplyHistory(paths.speeds_file())
    rates = rates or rates_or_typical(threads)
    gbps = known_read_gbps(threads)
    return Lister(
        memory_for_models(),
        rates,
        history,
        settings.kv_type_or_default,
        gbps,
    )


def list_models(
    places: Sequence[Place], lister: Lister, cache: HeaderCache | None = None
) -> list[ModelEntry]:
    """Return a row for every model, those that can be opened first."""
    headers = cache or HeaderCache()
    encoders = EncoderFinder(headers)
    rows = []
    for file, header in read_models(find_files(places), headers):
        encoder = encoders.find(file, header)
        rows.append(lister.entry(file, encoders.counted(header, encoder), encoder))
    return in_order(rows)


def read_models(
    files: Iterable[StoredModel], cache: HeaderCache, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[tuple[StoredModel, ModelHeader]]:
    """Yield files with their headers one after the other, and save new headers at the end.

    Reading in parallel would not be faster: disks are the limit, and turning disks become slower.
    """
    try:
        for file in files:
            if not is_wanted():
                return
            yield file, cache.header(file)
    finally:
        cache.save()


def in_order(entries: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Sort models that can be opened first; otherwise keep the order."""
    return sorted(entries, key=lambda entry: not entry.can_open)


def title_of(file: StoredModel, header: ModelHeader) -> str:
    """Return the listed title of a file: its clean name without the type, which has its own
    column.
    """
    name = file.title
    for separator in "-._":
        ending = f"{separator}{header.quantization}".lower()
        if header.quantization and name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
            break
    return clean_line(name, _LONGEST_TITLE)


def look_up(path: Path, settings: Settings) -> Future[Outlook | None]:
    """Read a header in the background; the result is None if the model cannot be opened."""

    def read() -> Outlook | None:
        # the chat works without this figure
        with suppress(Exception):
            header = read_header(path)
            if header.needs is None:
                return None
            encoder_bytes = encoder_bytes_of(path, settings.pictures.mmproj)
            needs = replace(header.needs, encoder_bytes=encoder_bytes)
            return make_lister(settings).outlook(replace(header, needs=needs))
        return None

    return in_background(read, "outlook")
