"""List of known models: its data are valid, estimates are marked, and only fitting models are
offered."""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path

import pytest

from app.machine.doctor import examine, report
from app.machine.sensors.reply_history import ReplyHistory
from app.models.downloads.pull import parse_request
from app.models.library import advice
from app.models.library import list_rows as rows
from app.models.library.known_models import (
    advice_line,
    best_known,
    checked_on,
    first_choice,
    known_models,
    machine_line,
    offers,
    real_model_line,
    with_advice,
)
from app.models.library.listing import Lister, ModelEntry, Outlook
from app.models.library.measure import EngineReadings
from app.models.library.offers import OfferKind, choose_offers
from app.models.library.speed import ESTIMATE, speed_text
from app.program.settings import built_in_settings
from engine.measure.fit import MachineMemory, MachineRates
from engine.models import ARCHITECTURES
from engine.vision.families import FAMILIES, load_family

GIB = 1 << 30


def lister(available: float, read_gbps: float | None = 12.0) -> Lister:
    memory = MachineMemory(8 * GIB, int(available * GIB))
    return Lister(memory, MachineRates(read_gbps), ReplyHistory())


def row(title: str, parameters: int, decode_tps: float, verdict: str = "yes") -> ModelEntry:
    outlook = Outlook(verdict, 0, 0, decode_tps)
    return ModelEntry(Path(title), title, "here", parameters=parameters, outlook=outlook)


def test_the_list_is_valid_and_has_a_date() -> None:
    datetime.date.fromisoformat(checked_on())
    sizes = [model.parameters for model in known_models()]
    assert sizes == sorted(sizes)
    for model in known_models():
        assert (
            parse_request(model.repository, "https://huggingface.co").repository == model.repository
        )
        assert re.fullmatch(r"[a-z0-9.-]+", model.licence)
        assert 1e8 <= model.parameters <= 1e11
        assert model.architecture in ARCHITECTURES
        assert 10 <= len(model.good_at) <= 56
        assert len(model.name) <= 25
        assert len(model.repository) + len(model.licence) <= 62


def test_models_that_see_are_named_with_their_encoder() -> None:
    seeing = {model.name: model for model in known_models() if model.encoder}
    assert {"Qwen3.5 4B", "Gemma 3 4B Instruct", "Gemma 4 E2B", "LFM2.5-VL 450M"} <= set(seeing)
    assert "Gemma 3 1B Instruct" not in seeing
    architectures = {name for family in FAMILIES for name in load_family(family).architectures}
    assert {model.architecture for model in seeing.values()} <= architectures
    for row in offers(lister(6.0), []):
        assert row.sees == (row.title in seeing)
        assert row.download_bytes == row.size_bytes + row.encoder_file_bytes


def test_families_of_this_year_are_in_the_list() -> None:
    listed = {model.architecture for model in known_models()}
    assert listed >= {
        "gemma3",
        "gemma4",
        "granite",
        "smollm3",
        "olmo2",
        "phi3",
        "mistral3",
        "exaone4",
        "qwen3",
    }
    assert listed >= {"llama", "lfm2", "lfm2moe", "qwen35", "nemotron_h", "nemotron_h_moe"}
    names = [model.name for model in known_models()]
    assert len(set(names)) == len({model.repository for model in known_models()}) == len(names)


def test_the_sizes_in_the_names_match_the_data() -> None:
    for model in known_models():
        match = re.search(r"(\d+(?:\.\d+)?)(B|M)\b", model.name)
        assert match is not None
        expected = float(match[1]) * (1e9 if match[2] == "B" else 1e6)
        assert model.in_memory == pytest.approx(
            expected, rel=0.5
        )  # makers do not count the embedding


def test_a_mixture_of_experts_reads_only_some_weights_per_token() -> None:
    by_name = {model.name: model for model in known_models()}
    mixture = by_name["gpt-oss 20B"]
    dense = by_name["Qwen3 14B"]
    assert mixture.needs("Q4_K_M").weights_bytes > dense.needs("Q4_K_M").weights_bytes
    assert 3 * sum(mixture.needs("Q4_K_M").read_bytes.values()) < sum(
        dense.needs("Q4_K_M").read_bytes.values()
    )
    assert {model.architecture for model in known_models() if model.active} == {
        "gpt-oss",
        "lfm2moe",
        "gemma4",
        "nemotron_h_moe",
    }


def test_tables_on_disk_take_disk_space_but_no_memory() -> None:
    by_name = {model.name: model for model in known_models()}
    small = by_name["Gemma 4 E4B"]
    dense = by_name["Qwen3 8B"]
    assert small.needs("Q4_K_M").weights_bytes < 0.7 * dense.needs("Q4_K_M").weights_bytes
    entry = next(offer for offer in offers(lister(7), []) if offer.title == small.name)
    assert entry.size_bytes > 1.4 * small.needs(entry.quantization).weights_bytes
    assert "not looked up" in rows.details(entry)[1]


def test_the_starter_suggests_a_model_to_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.models.library.known_models.make_lister", lambda settings: lister(6))
    monkeypatch.setattr("app.models.library.known_models.list_models", lambda *_: [])
    first = offers(lister(6), ())[0]
    line = real_model_line(built_in_settings(), "F7")
    assert re.fullmatch(
        rf"A real model .*{re.escape(first.title)}, ~[\d.]+[MG], about \d+ min at 25 Mbit/s: F7",
        line,
    )
    assert real_model_line(built_in_settings()).endswith(f"`jalopy pull {first.repository}`")


def test_a_suggested_model_on_disk_is_opened_not_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = [
        row(title, parameters, tps)
        for title, parameters, tps in (("a", 1, 90.0), ("b", 3, 20.0), ("c", 9, 1.0))
    ]
    here += [dataclasses.replace(row("d", 9, 50.0), reason="damaged"), row("e", 9, 50.0, "no")]
    monkeypatch.setattr("app.models.library.known_models.make_lister", lambda settings: lister(6))
    monkeypatch.setattr("app.models.library.known_models.list_models", lambda *_: here)
    line = real_model_line(built_in_settings(), "F7", "F3")
    assert line == "A real model answers this: b, on this machine: F3 or /model b opens it"
    assert real_model_line(built_in_settings()).endswith("on this machine: `jalopy run b`")
    here[:] = [row("c", 9, 1.0), row("d", 8, 2.0)]
    assert "this: d, on" in real_model_line(built_in_settings())


def test_only_fitting_models_are_offered_the_advised_first() -> None:
    rows_8 = offers(lister(6), [])
    assert {entry.outlook.verdict for entry in rows_8 if entry.outlook is not None} == {
        "yes",
        "tight",
    }
    assert rows_8[0].place == "advised"
    assert [entry.place for entry in rows_8[1:]] == ["download"] * (len(rows_8) - 1)
    assert len(offers(lister(1), [])) < len(rows_8)
    assert offers(lister(0.1), []) == []


def test_a_model_on_disk_is_not_offered() -> None:
    first = offers(lister(6), [])[0]
    assert first.title not in [entry.title for entry in offers(lister(6), [first])]


def test_a_file_of_the_first_choice_is_marked() -> None:
    best = first_choice(lister(6))
    assert best is not None
    file = dataclasses.replace(row(best.title.replace(" ", "-"), 1, 9.0), place="your folders")
    other = row("other", 1, 9.0)
    marked, unmarked = with_advice(lister(6), [file, other])
    assert marked == dataclasses.replace(file, good_at=best.good_at, is_advised=True)
    assert unmarked == other


def test_an_offer_is_an_estimate_with_a_command() -> None:
    entry = offers(lister(6), [])[0]
    assert ":" not in entry.repository  # the repository may not have the best type
    assert f"{ESTIMATE}" in rows.row(entry, 80)
    assert rows.details(entry)[0] == f"not downloaded: jalopy pull {entry.repository}"
    assert f"list of {checked_on()}" in rows.details(entry)[1]
    assert "recommended for this machine" in rows.details(entry)[1]
    assert f"good at: {entry.good_at}" in rows.details(entry)[1]
    assert entry.matches(entry.architecture)
    assert entry.matches(entry.good_at.split()[0])
    assert "recommended for this machine" not in "".join(rows.details(offers(lister(6), [])[1]))
    assert not entry.can_open


def test_the_advice_names_the_first_choice_with_type_and_speed() -> None:
    best = first_choice(lister(6))
    assert best is not None
    assert best.place == "advised"
    line = advice_line(lister(6))
    expected = rf"{re.escape(best.title)} {best.quantization}, ~[\d.]+ tok/s \(estimated\)"
    assert re.fullmatch(expected, line)
    assert advice_line(lister(6, None)) == ""
    assert all(entry.place == "download" for entry in offers(lister(6, None), []))
    assert advice_line(lister(0.1)) == ""


def test_all_advice_is_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = dataclasses.replace(lister(6), read_gbps=12.0)
    monkeypatch.setattr("app.models.library.known_models.make_lister", lambda settings: facts)
    best = first_choice(facts)
    assert best is not None
    assert best.outlook is not None
    assert best.outlook.decode_tps is not None
    speed = speed_text(best.outlook.decode_tps, best.outlook.basis)
    assert advice_line(facts) == f"{best.title} {best.quantization}, {speed}"
    assert machine_line(built_in_settings(), "F7").endswith(
        f"{best.title} suits it best: {speed}; F7 gets it"
    )
    examination = examine.Examination(
        EngineReadings(),
        facts.rates,
        facts.memory,
        None,
        None,
        None,
        tuple(advice.suggestions(facts.memory, facts.rates)),
    )
    lines = report.advice_lines(examination)
    assert f" >  recommended: {best.title} {best.quantization}, {speed}" in lines
    recommended = [
        offer for offer in choose_offers(facts, []) if offer.kind is OfferKind.RECOMMENDED
    ]
    assert [offer.entry for offer in recommended] == [best]


def test_a_faster_machine_gets_a_larger_model() -> None:
    slow = best_known(MachineMemory(8 * GIB, 6 * GIB), MachineRates(5.0))
    fast = best_known(MachineMemory(8 * GIB, 6 * GIB), MachineRates(60.0))
    assert slow is not None
    assert fast is not None
    assert slow.parameters < fast.parameters


def test_the_best_of_the_available_types_is_chosen() -> None:
    memory = MachineMemory(8 * GIB, 6 * GIB)
    rates = MachineRates(12.0)
    assert advice.best_type(3.2e9, memory, rates, ["Q2_K", "Q4_K_M", "IQ9_ODD"]) == "Q4_K_M"
    assert advice.best_type(3.2e9, memory, rates, ["IQ9_ODD"]) is None
    assert advice.best_type(70e9, memory, rates) is None
