"""Models and downloads for pictures: a list that was never looked for, a download that asks no
one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.machine.sensors.reply_history import Basis
from app.models.downloads.fetch import DownloadPlan, DownloadProgress
from app.models.downloads.hub import RemoteFile
from app.models.downloads.job import DownloadStage, JobState, PullJob
from app.models.downloads.pull import PlannedDownload
from app.models.downloads.shrink import ShrinkJob
from app.models.library.listing import ADVISED, ModelEntry, Outlook
from app.models.library.offers import MachineOffers, Offer, OfferKind
from app.models.library.scan import ModelScan, ScanResult
from app.tui.screens import models as models_screen
from tests.engine import tiny_gguf

GIB = 1 << 30
_HOME = Path("/home/me/Models")

_LLAMA = ModelEntry(
    path=_HOME / "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    title="Llama-3.2-3B-Instruct",
    place="your folders",
    size_bytes=2_019_377_696,
    n_parts=1,
    name="Llama 3.2 3B Instruct",
    architecture="llama",
    parameters=3_210_000_000,
    quantization="Q4_K_M",
    context_length=131_072,
    licence="llama3.2",
    good_at="conversation, summaries",
    outlook=Outlook("yes", 3 * GIB, 24_000, 5.1, 9.2, Basis.MEASURED, Basis.MEASURED),
)
_BIG = replace(
    _LLAMA,
    path=_HOME / "Mistral-Nemo-Instruct-2407-Q4_K_M.gguf",
    title="Mistral-Nemo-Instruct-2407",
    size_bytes=7_477_000_000,
    name="Mistral Nemo",
    parameters=12_200_000_000,
    licence="apache-2.0",
    good_at="",
    outlook=Outlook("no", 9 * GIB, 0, 0.4, 0.6),
)
_SEEING = replace(
    _LLAMA,
    path=_HOME / "gemma-3-4b-it-Q4_K_M.gguf",
    title="gemma-3-4b-it",
    size_bytes=2_489_000_000,
    name="Gemma 3 4B It",
    architecture="gemma3",
    parameters=3_880_000_000,
    licence="gemma",
    good_at="prose and translation in many languages",
    outlook=Outlook("yes", 3 * GIB, 30_000, 4.1, 8.0),
    encoder=str(_HOME / "mmproj-gemma-3-4b-it-F16.gguf"),
    encoder_file_bytes=851_000_000,
)
_FOREIGN = replace(
    _LLAMA,
    path=_HOME / "gemma-4-E4B-it-Q4_K_M.gguf",
    title="gemma-4-E4B-it",
    reason="gemma4 is not supported yet (Gemma 4); use Gemma 3",
    outlook=None,
)
_KNOWN = replace(
    _LLAMA,
    path=Path(),
    title="Qwen3 4B",
    place=ADVISED,
    is_advised=True,
    size_bytes=2_497_000_000,
    name="",
    architecture="qwen3",
    parameters=4_000_000_000,
    context_length=0,
    licence="apache-2.0",
    good_at="reasoning, code, many languages; optional thinking",
    outlook=Outlook("yes", 3 * GIB, 14_000, 4.0, 7.5),
    repository="Qwen/Qwen3-4B-GGUF",
)
_SMALL = replace(
    _KNOWN,
    title="Qwen3 0.6B",
    place="download",
    is_advised=False,
    size_bytes=367_000_000,
    outlook=Outlook("yes", GIB, 32_000, 27.0, 60.0),
    repository="Qwen/Qwen3-0.6B-GGUF",
    good_at="many languages for its size; optional thinking",
)
_BEST = replace(
    _KNOWN,
    title="Qwen3 8B",
    place="download",
    is_advised=False,
    size_bytes=5_006_000_000,
    outlook=Outlook("yes", 5 * GIB, 8_000, 2.1, 3.5),
    repository="Qwen/Qwen3-8B-GGUF",
)
OFFERS = MachineOffers(
    (
        Offer(OfferKind.SMALL, _SMALL, _SMALL.good_at),
        Offer(OfferKind.RECOMMENDED, _KNOWN, _KNOWN.good_at),
        Offer(OfferKind.BEST, _BEST, _BEST.good_at),
    ),
    12.1,
    5 * GIB,
)
FOUND = ScanResult(
    entries=(_LLAMA, _BIG, _SEEING, _FOREIGN, _KNOWN),
    n_files=4,
    looked_in=("your folders", "Ollama", "LM Studio", "Hugging Face"),
    advice="Qwen3 4B Q4_K_M, ~4.0 tok/s (estimated)",
    read_gbps=12.1,
    available_bytes=5 * GIB,
    is_done=True,
)
NOTHING = ScanResult(
    entries=(_KNOWN,),
    looked_in=FOUND.looked_in,
    advice="Qwen3 4B Q4_K_M, ~4.0 tok/s (estimated)",
    available_bytes=5 * GIB,
    is_done=True,
)

_FILE = RemoteFile(
    "Qwen3-4B-Q4_K_M.gguf", "https://hub.example/Qwen3-4B-Q4_K_M.gguf", _KNOWN.size_bytes, "0" * 64
)
PREPARED = PlannedDownload(
    "Qwen/Qwen3-4B-GGUF",
    "Qwen/Qwen3-4B-GGUF:Q4_K_M",
    "Q4_K_M",
    "recommended for this machine",
    DownloadPlan((_FILE,), _HOME, 0, 80 * GIB),
    _KNOWN.outlook,
    "apache-2.0",
)
_PROGRESS = DownloadProgress("download", _FILE.name, 800_000_000, _FILE.size_bytes, 2_400_000.0)
_SMALLER = PlannedDownload(
    _BIG.title,
    _BIG.title,
    "Q2_K",
    "made from Q4_K_M",
    DownloadPlan(
        (RemoteFile("Mistral-Nemo-Instruct-2407-Q2_K.gguf", "", 4_791_000_000, ""),),
        _HOME,
        0,
        80 * GIB,
    ),
    Outlook("yes", 5 * GIB, 6_000, 1.9, 2.4),
    takes=", about 10 minutes of work",
)


def stand_in(monkeypatch: pytest.MonkeyPatch, root: Path, found: ScanResult) -> None:
    """Find these models, and offer this download."""

    def start_scan(scan: ModelScan) -> ModelScan:
        scan.found = found
        return scan

    def start_job(job: PullJob) -> PullJob:
        job.state = JobState(
            DownloadStage.READY, _SMALLER if isinstance(job, ShrinkJob) else PREPARED
        )
        return job

    def proceed(job: PullJob) -> None:
        assert job.state.prepared is not None
        total_bytes = job.state.prepared.plan.total_bytes
        job.state = replace(
            job.state,
            stage=DownloadStage.DOWNLOADING,
            progress=replace(_PROGRESS, total_bytes=total_bytes),
        )

    monkeypatch.setattr("app.tui.screens.offers.find_offers", lambda settings: OFFERS)
    monkeypatch.setattr(ModelScan, "start", start_scan)
    monkeypatch.setattr(PullJob, "start", start_job)
    monkeypatch.setattr(PullJob, "proceed", proceed)
    report = models_screen.report_of_file

    def report_of_file(path: Any) -> list[str]:
        root.mkdir(parents=True, exist_ok=True)
        file = tiny_gguf.write(root / Path(path).name, "llama", "Q8_0")
        return [line.replace(str(file), str(path)) for line in report(file)]

    monkeypatch.setattr(models_screen, "report_of_file", report_of_file)
