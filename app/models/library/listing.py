"""Every model on this machine with what can be said of it: found, read, compared with memory and
measurements.

Nothing is measured, nothing is loaded, and all text that comes out is clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import ReplyHistory, Speeds, identity_of
from app.models.library.header import HeaderCache, ModelHeader, read_header
from app.models.library.model_files import Place, StoredModel, find_files
from app.models.library.rates import known_read_gbps, rates_or_typical, usual_threads
from app.program import paths
from app.program.background import in_background
from app.program.remote_model import ModelPlace, RemoteModel
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from engine.measure.fit import MachineMemory, MachineRates, ModelNeeds


ADVISED = "advised"
"""The place of the one that is not here and suits this machine best."""
_LONGEST_TITLE = 60
_LONGEST_REASON = 200


@record
class Outlook:
    """Whether a model fits here and how fast it would be."""

    verdict: str
    """"yes", "tight" (with other programs closed) or "no"."""
    needed_bytes: int
    largest_ctx: int
    """Tokens that have room now; 0 for none."""
    decode_tps: float | None = None
    prefill_tps: float | None = None
    """Tokens a second; None where nothing is known."""
    is_measured: bool = False
    """These are the model's own earlier replies on this machine, and not an estimate."""


@record
class ModelEntry:
    """One row of a list of models; all text in it is clean."""

    path: Path
    title: str
    """What to call it: Ollama's name, or the file's without suffix and type."""
    place: str
    size_bytes: int = 0
    n_parts: int = 1
    name: str = ""
    """What the file calls itself."""
    architecture: str = ""
    parameters: int = 0
    quantization: str = ""
    context_length: int = 0
    licence: str = ""
    type_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of the tensors by their types, the largest part first."""
    reason: str = ""
    """Why it cannot be opened; "" where nothing is against it."""
    outlook: Outlook | None = None
    """None where it cannot be opened."""
    repository: str = ""
    """Where it can be downloaded, if it is not here; its size and outlook are estimates then."""
    listed_on: str = ""
    """The day the list of those was last checked."""
    good_at: str = ""
    better: str = ""
    """Which type of it gives better answers, and what that costs."""
    served: RemoteModel | None = None
    """In place of the path where a server computes it; None for a file."""

    @property
    def model(self) -> ModelPlace:
        """The file, or the model of a server, that is opened."""
        return self.served or self.path

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine."""
        return not self.repository

    @property
    def can_open(self) -> bool:
        """Whether it is here and nothing is known against opening it."""
        return self.is_here and not self.reason

    @property
    def is_short_of_memory(self) -> bool:
        """Whether it is a file here that would open, and memory is short for it."""
        short = self.outlook is not None and self.outlook.verdict != "yes"
        return short and self.served is None and self.can_open and self.parameters > 0

    def matches(self, words: str) -> bool:
        """Whether every word typed is somewhere in the row."""
        said = (
            self.title,
            self.name,
            self.architecture,
            self.quantization,
            self.place,
            self.licence,
            self.good_at,
        )
        row = " ".join(said).lower()
        return all(word in row for word in words.lower().split())


@record
class Lister:
    """Inputs of every row."""

    memory: MachineMemory
    rates: MachineRates
    history: ReplyHistory
    kv_type: str = "f16"
    weights_mode: str = "mmap"
    read_gbps: float = 0.0
    """The best speed at which memory was read, whatever ``rates`` suppose; 0 where that was never
    measured."""

    def entry(self, file: StoredModel, header: ModelHeader) -> ModelEntry:
        """Make one row."""
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
        )

    def outlook(self, header: ModelHeader) -> Outlook | None:
        """Compare a model with the machine; None for one that cannot be opened."""
        if header.needs is None:
            return None
        needs = replace(header.needs, memory=header.memory.get(self.kv_type, header.needs.memory))
        identity = identity_of(
            header.name, header.quantization, header.needs.weights_bytes, self.weights_mode
        )
        return self.outlook_of(needs, self.history.usual(identity))

    def outlook_of(self, needs: ModelNeeds, usual: Speeds | None = None) -> Outlook:
        """Compare with the machine what a model needs.

        ``usual``: median speeds of its earlier replies.
        """
        from engine.measure.fit import fit

        found = fit(needs, self.memory, self.rates)
        decode_tps = found.decode_tps
        prefill_tps = found.prefill_tps
        if usual is not None:
            decode_tps = usual.decode_tps
            prefill_tps = usual.prefill_tps or prefill_tps
        return Outlook(
            found.verdict,
            found.needed_bytes,
            found.largest_ctx,
            decode_tps,
            prefill_tps,
            usual is not None,
        )


def make_lister(settings: Settings, rates: MachineRates | None = None) -> Lister:
    """Look at this machine's memory as it is now, at speeds of earlier replies, and at its rates or
    typical ones."""
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
        settings.weights_or_default,
        gbps,
    )


def list_models(
    places: Sequence[Place], lister: Lister, cache: HeaderCache | None = None
) -> list[ModelEntry]:
    """Return a row for every model found, those that can be opened first."""
    read = read_models(find_files(places), cache or HeaderCache())
    return in_order(lister.entry(file, header) for file, header in read)


def read_models(
    files: Iterable[StoredModel], cache: HeaderCache, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[tuple[StoredModel, ModelHeader]]:
    """Read one header after the other, so that rows can be shown as they come; at the end keep what
    was read.

    One after the other, because getting over a vocabulary takes no longer than reading it from a
    disk, and disks that turn are slower with several files at once.
    """
    try:
        for file in files:
            if not is_wanted():
                return
            yield file, cache.header(file)
    finally:
        cache.save()


def in_order(entries: Iterable[ModelEntry]) -> list[ModelEntry]:
    """Put what can be opened before what cannot; by place otherwise, as found."""
    return sorted(entries, key=lambda entry: not entry.can_open)


def title_of(file: StoredModel, header: ModelHeader) -> str:
    """Return what lists call a file, clean: its name without the type, which has a column of its
    own."""
    name = file.title
    for between in "-._":
        ending = f"{between}{header.quantization}".lower()
        if header.quantization and name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
            break
    return clean_line(name, _LONGEST_TITLE)


def look_up(path: Path, settings: Settings) -> Future[Outlook | None]:
    """Begin to read a file's header; the answer is None where it cannot be opened, as the one who
    opens it will say."""

    def read() -> Outlook | None:
        # it is a figure next to a question, which is asked without it too
        with suppress(Exception):
            return make_lister(settings).outlook(read_header(path))
        return None

    return in_background(read, "outlook")
