"""A smaller file of a model on this machine, made by a process of its own with a suitable type.

A screen treats it like a download: price, confirmation, progress, and a model at the end.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from app.models.downloads.fetch import DownloadProgress, DownloadStopped, make_plan
from app.models.downloads.hub import RemoteFile
from app.models.downloads.job import DownloadStage, PullJob
from app.models.downloads.pull import PlannedDownload
from app.models.library.advice import best_type, bits_per_weight, needs_of_size
from app.models.library.listing import Lister, ModelEntry, make_lister
from app.models.library.model_files import download_directory
from app.program import exit_codes, paths
from app.program.settings import Settings
from app.program.web_refusals import DownloadError
from app.text import figures
from app.text.clean_text import clean_line
from engine.machine.host import allowed_cpus

WEIGHTS_PER_CORE_S = 10e6
"""Weights that a current core quantises per second: half of the measured number."""
LEAST_GAIN = 0.9
"""Share of the file's size below which a smaller file is worthwhile."""
_LOOK_S = 0.5


class ShrinkJob(PullJob):
    """Creation of a smaller file."""

    heading = "Smaller file"
    begins = "make it"
    stops = "stop"
    kept = ""
    done = "made"
    not_done = "not made"
    word = "smaller file"

    def __init__(self, entry: ModelEntry, settings: Settings) -> None:
        super().__init__(entry.title, settings)
        self._entry = entry
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Stop or decline; nothing is left."""
        super().stop()
        if self._child is not None:
            self._child.terminate()

    def left(self) -> str:
        """Return a line about a file that the end of the program stopped."""
        return (
            f"the smaller file of {clean_line(self.request, 60)} was not finished and was deleted"
        )

    def _work(self) -> None:
        planned = smaller(self._entry, self._settings, make_lister(self._settings))
        if not self._ask(planned):
            return
        plan = planned.plan
        plan.refuse_full_disk()
        plan.directory.mkdir(parents=True, exist_ok=True)
        out = plan.directory / plan.files[0].name
        self._quantise(out, planned.quantization, plan.total_bytes)
        self._set_state(stage=DownloadStage.DONE, path=out)

    def _quantise(self, out: Path, quantization: str, total_bytes: int) -> None:
        command = [
            *paths.own_module("app"),
            "quantize",
            str(self._entry.path),
            str(out),
            "--type",
            quantization,
        ]
        if os.name == "posix":
            nice = ["nice"]
        else:
            nice = []
        child = subprocess.Popen(
            [*nice, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._child = child
        started_s = time.monotonic()
        while True:
            try:
                _, error_output = child.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                done = min(
                    total_bytes, max(map(_size, out.parent.glob(".jalopy-*.part")), default=0)
                )
                rate = done / (time.monotonic() - started_s)
                self._set_state(
                    progress=DownloadProgress("make", out.name, done, total_bytes, rate)
                )
            if self.is_stopped:  # it was stopped before the process started
                child.terminate()
        if self.is_stopped:
            raise DownloadStopped(out.name)
        if child.returncode != exit_codes.OK:
            line = error_output.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise DownloadError(
                clean_line(line or f"it ended with exit code {child.returncode}", 280),
                child.returncode,
            )


def smaller(entry: ModelEntry, settings: Settings, lister: Lister) -> PlannedDownload:
    """Choose the type for this machine. Raises DownloadError: no smaller type fits."""
    directory = download_directory(settings.model_directories)
    if directory is None:
        raise DownloadError(
            "there is no directory for models (name one: model_directories)", exit_codes.USAGE
        )
    from engine.quantize.mixtures import MIXTURES

    sizes = {
        quantization: int(entry.parameters * bits / 8)
        for quantization, bits in bits_per_weight().items()
        if quantization in MIXTURES
    }
    smaller_types = [
        quantization
        for quantization, n_bytes in sizes.items()
        if n_bytes < LEAST_GAIN * entry.size_bytes
    ]
    quantization = best_type(entry.parameters, lister.memory, lister.rates, smaller_types)
    if quantization is None:
        raise DownloadError(
            "no smaller type fits into memory (choose a smaller model)",
            exit_codes.NO_MEMORY,
        )
    name = f"{entry.path.stem.removesuffix(entry.quantization).rstrip('-._')}-{quantization}.gguf"
    if (directory / name).exists():
        raise DownloadError(f"{name} exists already", exit_codes.USAGE)
    plan = make_plan((RemoteFile(name, "", sizes[quantization], ""),), directory)
    outlook = lister.outlook_of(needs_of_size(entry.parameters, quantization, lister.kv_type))
    minutes = max(1, round(entry.parameters / WEIGHTS_PER_CORE_S / len(allowed_cpus()) / 60))
    takes = f", about {figures.counted(minutes, 'minute')} of work"
    return PlannedDownload(
        entry.title,
        f"{entry.title} {quantization}",
        quantization,
        f"made from {entry.quantization}",
        plan,
        outlook,
        takes=takes,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has just got its final name
        return 0
