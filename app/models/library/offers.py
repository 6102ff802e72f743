"""Offers for a machine: a small model at once, the recommended one, and the best that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from app.models.library.known_models import file_of, known_models, known_rows
from app.models.library.listing import Lister, ModelEntry, list_models, make_lister
from app.models.library.model_files import places
from app.program.settings import Settings
from app.text.record import record

SMALL_BYTES = 350 << 20
"""Size of the largest model that is offered as small."""
LEAST_TPS = 1.5
"""Least speed of the best model in tokens per second; others would be far slower than people
read."""


class OfferKind(str, Enum):
    """Kind of an offer; its value is the title."""

    SMALL = "small now"
    RECOMMENDED = "recommended"
    BEST = "best that fits"


@record
class Offer:
    """A model to download, or a file on this machine if it is there already."""

    kind: OfferKind
    entry: ModelEntry
    good_at: str = ""


@record
class MachineOffers:
    """Offers for this machine, the smallest first."""

    offers: tuple[Offer, ...] = ()
    read_gbps: float = 0.0
    """Measured read speed of memory; 0 if the speeds are typical ones."""
    free_bytes: int = 0


def find_offers(settings: Settings) -> MachineOffers:
    """Return the offers for this machine. Nothing uses the network."""
    lister = make_lister(settings)
    here = list_models(places(settings.model_directories), lister)
    offers = tuple(choose_offers(lister, here))
    return MachineOffers(offers, lister.read_gbps, lister.memory.available_bytes)


def choose_offers(lister: Lister, here: Iterable[ModelEntry]) -> list[Offer]:
    """Return at most an offer of each kind, and no model twice.

    Args:
        here: models on this machine, which are offered instead of downloads.
    """
    checked = [model for model in known_models() if model.is_checked]
    rows = known_rows(lister, checked)
    here = list(here)
    offers: list[Offer] = []
    for kind, row in _rows_by_kind(rows):
        if row.title not in [offer.entry.title for offer in offers]:
            offers.append(Offer(kind, row, row.good_at))
    offers.sort(key=lambda offer: offer.entry.parameters)
    return [
        Offer(offer.kind, file_of(offer.entry, here) or offer.entry, offer.good_at)
        for offer in offers
    ]


def _rows_by_kind(rows: Sequence[ModelEntry]) -> Iterable[tuple[OfferKind, ModelEntry]]:
    """Yield the recommended model first, so that another kind does not replace it."""
    recommended = [row for row in rows if row.is_advised]
    if recommended:
        yield OfferKind.RECOMMENDED, recommended[0]
    fitting = [row for row in rows if row.outlook is not None and row.outlook.verdict == "yes"]
    small = [row for row in fitting if row.download_bytes <= SMALL_BYTES]
    if small:
        yield OfferKind.SMALL, small[-1]
    least = max((row.parameters for row in recommended), default=0)
    best = [row for row in fitting if _tps(row) >= LEAST_TPS and row.parameters > least]
    if best:
        yield OfferKind.BEST, best[-1]


def _tps(row: ModelEntry) -> float:
    return (row.outlook.decode_tps if row.outlook is not None else None) or 0.0
