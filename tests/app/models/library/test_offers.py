"""Tests of the offers for a machine: a small, the recommended and the best model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.machine.sensors.reply_history import ReplyHistory
from app.models.downloads.fetch import DownloadProgress
from app.models.downloads.meter import SpeedMeter
from app.models.library.download_time import download_time
from app.models.library.listing import Lister, ModelEntry
from app.models.library.offers import SMALL_BYTES, OfferKind, choose_offers
from app.program.state import load_state, remember_download_speed
from engine.measure.fit import MachineMemory, MachineRates

GIB = 1 << 30
MIB = 1 << 20


def lister(gib: float, read_gbps: float) -> Lister:
    memory = MachineMemory(int(gib * GIB), int(gib * GIB * 3 / 4))
    return Lister(memory, MachineRates(read_gbps), ReplyHistory())


@pytest.mark.parametrize(("gib", "read_gbps"), [(4, 8.0), (8, 12.0), (16, 40.0), (64, 200.0)])
def test_the_offers_are_small_recommended_and_best(gib: float, read_gbps: float) -> None:
    offers = choose_offers(lister(gib, read_gbps), [])
    kinds = [offer.kind for offer in offers]
    assert kinds[:2] == [OfferKind.SMALL, OfferKind.RECOMMENDED]
    sizes = [offer.entry.parameters for offer in offers]
    assert sizes == sorted(set(sizes))
    assert offers[0].entry.size_bytes <= SMALL_BYTES
    for offer in offers:
        assert offer.entry.outlook is not None
        assert offer.entry.outlook.decode_tps
        assert "not looked up" not in offer.entry.listed_on
        assert "/" in offer.entry.repository


def test_the_best_that_fits_is_larger_than_the_recommended() -> None:
    small, recommended, best = choose_offers(lister(8, 16.0), [])
    assert small.entry.title == "Qwen3 0.6B"
    assert recommended.entry.title == "Qwen3.5 4B"
    assert best.kind is OfferKind.BEST
    assert best.entry.outlook is not None
    assert best.entry.outlook.verdict == "yes"
    assert (best.entry.outlook.decode_tps or 0) >= 1.5


def test_no_model_is_offered_twice() -> None:
    for gib in (1.0, 1.5, 2.0, 3.0):
        offers = choose_offers(lister(gib, 8.0), [])
        titles = [offer.entry.title for offer in offers]
        assert len(set(titles)) == len(titles)
        assert OfferKind.RECOMMENDED in [offer.kind for offer in offers]
    assert choose_offers(lister(0.1, 8.0), []) == []


def test_a_model_on_this_machine_is_offered_as_its_file() -> None:
    facts = lister(8, 16.0)
    recommended = choose_offers(facts, [])[1]
    path = Path("/models/qwen.gguf")
    file = ModelEntry(path, "Qwen3.5-4B", "here", 3 * GIB, outlook=recommended.entry.outlook)
    offer = choose_offers(facts, [file])[1]
    assert (offer.kind, offer.entry) == (OfferKind.RECOMMENDED, file)
    assert offer.good_at == recommended.good_at
    damaged = dataclasses.replace(file, reason="damaged")
    assert choose_offers(facts, [damaged])[1] == recommended


def test_the_time_follows_the_speed_of_the_last_download() -> None:
    assert download_time(2_500_000_000) == "about 13 min at 25 Mbit/s"
    remember_download_speed(2.9 * MIB)
    assert download_time(290 * MIB) == "about 1 min 40 s at 2.9M/s, as measured"
    assert download_time(2900 * MIB) == "about 17 min at 2.9M/s, as measured"
    assert download_time(29000 * MIB) == "about 2 h 46 min at 2.9M/s, as measured"


def test_a_download_remembers_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("app.models.downloads.meter.time.monotonic", lambda: now_s)
    shown: list[DownloadProgress] = []
    meter = SpeedMeter(shown.append)
    meter.report(DownloadProgress("check", "a", 90 * MIB, 100 * MIB))
    meter.report(DownloadProgress("download", "a", 90 * MIB, 100 * MIB))
    now_s = 0.5
    meter.report(DownloadProgress("download", "a", 95 * MIB, 100 * MIB))
    meter.remember()
    assert load_state()[0].download_bps == 0
    now_s = 4.0
    meter.report(DownloadProgress("download", "a", 98 * MIB, 100 * MIB))
    meter.remember()
    assert load_state()[0].download_bps == pytest.approx(2 * MIB)
    assert len(shown) == 4
