"""A smaller file of a local model: the choice of its type, and the process that makes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.machine.sensors.reply_history import ReplyHistory
from app.models.downloads import shrink
from app.models.downloads.background import BackgroundDownload
from app.models.downloads.job import DownloadStage
from app.models.downloads.shrink import ShrinkJob, smaller
from app.models.library.listing import Lister, ModelEntry, Outlook
from app.program.settings import Settings, built_in_settings
from app.program.web_refusals import DownloadError
from engine import read_gguf
from engine.measure.fit import MachineMemory, MachineRates
from tests.engine import tiny_gguf

GIB = 1 << 30


def wait_until(is_so: Callable[[], bool], patience_s: float = 400.0) -> None:
    give_up_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def entry(path: Path, **fields: object) -> ModelEntry:
    values = {"size_bytes": 8 * GIB, "parameters": 8_000_000_000, "quantization": "Q8_0", **fields}
    outlook = Outlook("no", 9 * GIB, 0)
    return ModelEntry(path, "Mistral", "here", outlook=outlook, **values)  # type: ignore[arg-type]


def lister(available_bytes: int) -> Lister:
    memory = MachineMemory(16 * GIB, available_bytes)
    return Lister(memory, MachineRates(12.0), ReplyHistory(None))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(built_in_settings(), model_directories=(str(tmp_path / "models"),))


def test_a_smaller_file_is_offered_only_if_memory_is_short(tmp_path: Path) -> None:
    short = entry(tmp_path / "m.gguf")
    assert short.is_short_of_memory
    assert not replace(short, outlook=Outlook("yes", GIB, 0)).is_short_of_memory
    assert not replace(short, reason="not supported").is_short_of_memory
    assert not replace(short, repository="a/b").is_short_of_memory


def test_the_type_that_fits_is_named_with_its_cost(tmp_path: Path, settings: Settings) -> None:
    plan = smaller(entry(tmp_path / "m-Q8_0.gguf"), settings, lister(7 * GIB))
    assert (plan.title, plan.quantization, plan.why) == ("Mistral", "Q4_K_M", "made from Q8_0")
    assert plan.plan.files[0].name == "m-Q4_K_M.gguf"
    assert 4 * GIB < plan.plan.total_bytes < 5 * GIB
    assert plan.takes.endswith("of work")
    assert plan.outlook is not None
    assert plan.outlook.verdict == "yes"
    assert (
        smaller(entry(tmp_path / "m-Q8_0.gguf"), settings, lister(9 * GIB // 2)).quantization
        == "Q2_K"
    )


def test_it_is_refused_if_none_fits_or_one_exists(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(DownloadError, match="no smaller type fits into memory"):
        smaller(entry(tmp_path / "m.gguf"), settings, lister(GIB))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/m-Q4_K_M.gguf").touch()
    with pytest.raises(DownloadError, match=r"m-Q4_K_M\.gguf exists already"):
        smaller(entry(tmp_path / "m.gguf"), settings, lister(7 * GIB))


@pytest.fixture
def job(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> ShrinkJob:
    monkeypatch.setattr(shrink, "make_lister", lambda settings: lister(7 * GIB))
    source = tiny_gguf.model(quant="F32", dim=128).write(tmp_path / "m.gguf")
    return ShrinkJob(entry(source), settings).start()


@pytest.mark.slow
def test_a_separate_process_makes_the_file(job: ShrinkJob, tmp_path: Path) -> None:
    background = BackgroundDownload()
    background.take(job)
    wait_until(lambda: job.state.stage is DownloadStage.READY)
    job.proceed()
    wait_until(lambda: job.state.is_over)
    assert job.state.path == tmp_path / "models/m-Q4_K_M.gguf", job.state.trouble
    assert read_gguf(job.state.path).metadata["general.file_type"] == 15
    assert background.take_ending() == ("Mistral Q4_K_M made", False)


@pytest.mark.slow
def test_a_stopped_job_leaves_no_file_and_a_failed_one_says_why(
    job: ShrinkJob, tmp_path: Path
) -> None:
    wait_until(lambda: job.state.stage is DownloadStage.READY)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    job.proceed()
    wait_until(lambda: job.state.is_over)
    assert job.state.stage is DownloadStage.FAILED
    assert "m.gguf: " in job.state.trouble
    again = ShrinkJob(job._entry, job._settings).start()
    wait_until(lambda: again.state.stage is DownloadStage.READY)
    again.proceed()
    wait_until(lambda: again._child is not None)
    again.stop()
    wait_until(lambda: again.state.stage is DownloadStage.STOPPED)
    assert list((tmp_path / "models").iterdir()) == []
