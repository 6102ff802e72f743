"""Rows of the model list: fit, measured or estimated speed, and cleaned text."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.machine.sensors.reply_history import Basis, KnownAs, PastReply, ReplyHistory
from app.models.library import list_rows as rows
from app.models.library.delete_model import delete_model, question, refusal
from app.models.library.encoders import encoder_bytes_of
from app.models.library.header import HeaderCache, read_header
from app.models.library.known_models import with_advice
from app.models.library.listing import Lister, ModelEntry, Outlook, list_models
from app.models.library.model_files import Place, find_files
from app.models.library.rates import TYPICAL_READ_GBPS, load_rates, rates_or_typical, remember_rates
from app.models.library.speed import ESTIMATE
from app.program.remote_model import RemoteModel
from app.text.glyphs import ASCII, BLOCKS
from engine.measure.fit import MachineMemory, MachineRates
from tests.engine import families, tiny_gguf
from tests.engine.vision import tiny_mmproj

GIB = 1 << 30
RATES = MachineRates(12.0, {"Q8_0": 10.0}, {"Q8_0": 40.0})


def lister(**changes: object) -> Lister:
    values = {
        "memory": MachineMemory(8 * GIB, 6 * GIB),
        "rates": RATES,
        "history": ReplyHistory(),
        **changes,
    }
    return Lister(**values)  # type: ignore[arg-type]


def entries(tmp_path: Path, **changes: object) -> list[ModelEntry]:
    return list_models([Place("here", tmp_path)], lister(**changes), cache_in(tmp_path))


def cache_in(tmp_path: Path) -> HeaderCache:
    return HeaderCache(tmp_path / "c" / "models.json")


def test_an_estimate_is_marked_and_a_measurement_is_not(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m-Q8_0.gguf", quant="Q8_0")
    (entry,) = entries(tmp_path)
    assert entry.title == "m"
    assert entry.outlook is not None
    assert not entry.outlook.is_measured
    assert ESTIMATE in rows.row(entry, 80)

    history = ReplyHistory()
    weights_bytes = sum(len(tensor.data) for tensor in tiny_gguf.model(quant="Q8_0").tensors)
    known_as = KnownAs("tiny llama Q8_0", "Q8_0", weights_bytes)
    for threads, tps in ((1, 3.0), (2, 5.0), (2, 7.0)):
        history.add(known_as.key("mmap", threads), PastReply(time.time(), 50, tps, 10 * tps, 9.0))
    (measured,) = entries(tmp_path, history=history)
    assert measured.outlook is not None
    assert (measured.outlook.decode_tps, measured.outlook.prefill_tps) == (6.0, 60.0)
    assert measured.outlook.is_measured
    assert ESTIMATE not in rows.row(measured, 80)
    assert "6.0" in rows.row(measured, 80)


def test_without_measurements_no_speed_is_claimed(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    (entry,) = entries(tmp_path, rates=MachineRates())
    assert entry.outlook is not None
    assert entry.outlook.decode_tps is None
    assert rows.row(entry, 80).split()[-2:] == ["-", "-"]


def test_memory_decides_what_fits(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf")
    verdicts = [
        entries(tmp_path, memory=MachineMemory(total, available))[0].outlook
        for total, available in ((8 * GIB, 6 * GIB), (8 * GIB, 1 << 20), (1 << 20, 1 << 20))
    ]
    assert [outlook.verdict for outlook in verdicts if outlook] == ["yes", "tight", "no"]
    assert [outlook.largest_ctx for outlook in verdicts if outlook] == [128, 0, 0]


def test_unusable_files_come_last_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"<html>")
    tiny_gguf.write(tmp_path / "b.gguf")
    usable, foreign = entries(tmp_path)
    assert (usable.title, foreign.title) == ("b", "a")
    assert not foreign.can_open
    assert "is a web page" in rows.row(foreign, 80)
    assert len(rows.row(foreign, 40)) <= 40


def test_a_model_that_sees_has_a_sign_and_names_its_encoder(tmp_path: Path) -> None:
    dim = tiny_mmproj.TEXT_WIDTH
    tiny_gguf.write(tmp_path / "eyes-F32.gguf", "qwen3", dim=dim)
    described = tiny_gguf.model("qwen3vl", dim=dim, head_dim=16)
    families.keyed(described, **{"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")})
    described.write(tmp_path / "seer-F32.gguf")
    encoder = tiny_mmproj.qwen3vl().write(tmp_path / "mmproj-seer-F16.gguf")
    seer, blind = sorted(entries(tmp_path), key=lambda entry: not entry.sees)
    assert (seer.title, blind.title) == ("seer", "eyes")
    assert (seer.encoder, seer.encoder_file_bytes) == (str(encoder), encoder.stat().st_size)
    read = read_header(encoder).encoder_bytes
    assert read == encoder_bytes_of(seer.path, "") == encoder_bytes_of(seer.path, str(encoder)) > 0
    assert encoder_bytes_of(seer.path, "off") == encoder_bytes_of(tmp_path / "no.gguf", "") == 0
    needs = read_header(seer.path).needs
    assert needs is not None
    assert seer.outlook is not None
    assert seer.outlook.needed_bytes == lister().outlook_of(needs).needed_bytes + read
    assert rows.row(seer, 80).startswith(f"seer {BLOCKS.eye} ")
    assert BLOCKS.eye not in rows.row(blind, 80)
    assert rows.title_cell(seer, 14, ASCII) == "seer sees".ljust(14)
    facts = dict(rows.labelled_facts(seer))
    assert facts["pictures"].startswith("sees pictures with mmproj-seer-F16.gguf (")
    assert seer.matches("sees")
    assert not blind.matches("sees")
    assert list_models([Place("here", tmp_path)], lister(), cached := cache_in(tmp_path))
    assert cached.n_read == 0


def test_a_model_is_deleted_with_its_own_encoder_only(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "mmproj.gguf"):
        (tmp_path / name).write_bytes(b"x")
    encoder = str(tmp_path / "mmproj.gguf")
    seer, other = (
        ModelEntry(
            tmp_path / name, name, "here", 2 << 30, encoder=encoder, encoder_file_bytes=5 << 20
        )
        for name in ("a.gguf", "b.gguf")
    )
    assert "encoder" not in question(seer, [seer, other])
    delete_model(seer, [seer, other])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.gguf", "mmproj.gguf"]
    text = question(other, [other])
    assert text.startswith("Delete b.gguf (2.0G) and its encoder for pictures (5.0M) from")
    delete_model(other, [other])
    assert list(tmp_path.iterdir()) == []

    for path in tiny_gguf.write_parts(tmp_path, "big", 3):
        entry = ModelEntry(path, "big", "here")
    delete_model(replace(entry, path=tmp_path / "big-00001-of-00003.gguf"), [])
    assert list(tmp_path.iterdir()) == []


def test_models_of_others_are_not_deleted(tmp_path: Path) -> None:
    entry = ModelEntry(tmp_path / "a.gguf", "a", "here")
    assert refusal(entry) == ""
    assert "belongs to Ollama" in refusal(replace(entry, place="Ollama"))
    assert "not downloaded" in refusal(replace(entry, repository="a/b"))
    assert "on the server" in refusal(replace(entry, served=RemoteModel("http://a/v1")))


def test_a_missing_encoder_of_a_known_model_is_named(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "Qwen3.5-4B-Q8_0.gguf", quant="Q8_0")
    (entry,) = with_advice(lister(), entries(tmp_path))
    assert entry.encoder_repository == "unsloth/Qwen3.5-4B-MTP-GGUF"
    text = dict(rows.labelled_facts(entry))["pictures"]
    assert text == f"its encoder for pictures is missing: jalopy pull {entry.encoder_repository}"
    (other,) = with_advice(lister(), [replace(entry, encoder_repository="", place="Ollama")])
    assert not other.encoder_repository


def test_a_model_in_several_files_is_one_row(tmp_path: Path) -> None:
    tiny_gguf.write_parts(tmp_path, "split", 3)
    (entry,) = entries(tmp_path)
    assert (entry.title, entry.n_parts, entry.can_open) == ("split", 3, True)
    assert "3 files" in " ".join(rows.details(entry))


def test_text_of_a_file_is_cleaned_in_rows(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.set("general.name", "evil\x1b]52;c;aGk=\x07")
    tiny.set("general.license", "free\x1b[2J\nmit")
    tiny.write(tmp_path / "na\x1b[31mme\n.gguf")
    (entry,) = entries(tmp_path)
    text = "".join([rows.row(entry, 120), *rows.details(entry)])
    assert "\x1b" not in text
    assert "\n" not in text
    assert "\x07" not in text


@pytest.mark.parametrize("columns", [40, 60, 66, 72, 80, 100, 120])
def test_every_row_has_the_requested_width(columns: int) -> None:
    outlook = Outlook("tight", 5 * GIB, 24_000, 1234.5, 98_765.0)
    entry = ModelEntry(
        Path("/m.gguf"), "x" * 60, "Hugging Face", 5 * GIB, 1, "", "llama", 8_030_000_000, "IQ4_XS",
        131_072, "",
        outlook=outlook,
    )  # fmt: skip
    assert len(rows.row(entry, columns)) <= max(columns, 40)
    assert len(rows.heading(columns)) <= max(columns, 40)


def test_the_filter_searches_the_whole_row(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "Some-Model.gguf", "qwen2", "Q8_0")
    (entry,) = entries(tmp_path)
    assert entry.matches("")
    assert entry.matches("some q8 QWEN2")
    assert not entry.matches("some q4")


def test_two_contexts_are_shown_if_the_whole_one_does_not_fit() -> None:
    assert rows.context(Outlook("yes", 1, 24_576), 131_072) == "24k/128k"
    assert rows.context(Outlook("yes", 1, 8192), 8192) == "8k"
    assert rows.context(Outlook("no", 1, 0), 8192) == "-/8k"


def test_the_best_measurement_of_a_machine_counts() -> None:
    assert load_rates(2) == MachineRates()
    remember_rates(2, MachineRates(10.0, {"Q4_K": 8.0}, {"Q4_K": 30.0}))
    remember_rates(2, MachineRates(9.0, {"Q4_K": 8.5, "Q6_K": 7.0}, {}))
    assert load_rates(2) == MachineRates(10.0, {"Q4_K": 8.5, "Q6_K": 7.0}, {"Q4_K": 30.0})
    assert load_rates(1) == load_rates(4) == load_rates(2), "the nearest measured count"
    remember_rates(4, MachineRates(20.0))
    assert (load_rates(3).read_gbps, load_rates(64).read_gbps) == (10.0, 20.0)


def test_without_a_measurement_estimates_are_typical() -> None:
    assert rates_or_typical(2) == MachineRates(TYPICAL_READ_GBPS)
    assert remember_rates(2, MachineRates(2.0, {"Q4_K": 1.0}), is_quiet=False) == MachineRates()
    assert rates_or_typical(2) == MachineRates(TYPICAL_READ_GBPS)
    remember_rates(2, MachineRates(5.0))
    assert rates_or_typical(2) == MachineRates(5.0)


def test_a_hundred_models_come_from_the_cache_the_second_time(tmp_path: Path) -> None:
    content = tiny_gguf.build()
    for n in range(100):
        (tmp_path / f"m{n:03}.gguf").write_bytes(content)
    cache = HeaderCache(tmp_path / "c" / "models.json")
    places = [Place("here", tmp_path)]
    assert len(list_models(places, lister(), cache)) == 100
    assert cache.n_read == 100
    second = HeaderCache(tmp_path / "c" / "models.json")
    assert len(list_models(places, lister(), second)) == 100
    assert second.n_read == 0
    assert len(find_files(places)) == 100


def test_estimates_and_measurements_are_written_alike() -> None:
    speeds = (0.4, 5.44, 26.4, 218.6, 1432.0, 15_321.0)
    assert [rows.speed(tps, Basis.ESTIMATED) for tps in speeds] == [
        "~0.40", "~5.4", "~26", "~220", "~1,400", "~15,000",
    ]  # fmt: skip
    assert [rows.speed(tps, Basis.MEASURED) for tps in speeds] == [
        "0.40", "5.4", "26.4", "219", "1,432", "15,321",
    ]  # fmt: skip


def test_facts_of_a_model_have_labels_and_nothing_twice(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "Some-Model.gguf", "qwen2", "Q8_0")
    (entry,) = entries(tmp_path)
    facts = rows.labelled_facts(entry, "far faster than you read")
    labels = [label for label, _ in facts]
    assert len(labels) == len(set(labels))
    assert labels[0] == "writes"
    assert labels[-1] == "file"
    assert " ".join(text for _, text in facts).count("fit") == 1, "memory"
