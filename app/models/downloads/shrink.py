"""A smaller file of a model that is here: its type chosen for this machine, made by a process of
its own.

To a screen it is what a download is: a price, a yes, progress, and a model in the end.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from app.models.downloads.fetch import DownloadProgress, DownloadStopped, make_plan
from app.models.downloads.hub import RemoteFile
from app.models.downloads.job import PullJob, Stage
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
"""Weights that a core of today quantises in a second, and half of what it was measured to."""
LEAST_GAIN = 0.9
"""Share of the file's size from which on a smaller one is not worth its minutes."""
_LOOK_S = 0.5


class ShrinkJob(PullJob):
    """Makes one smaller file."""

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
        """Stop, or say no; nothing is left."""
        super().stop()
        if self._child is not None:
            self._child.terminate()

    def left(self) -> str:
        """Say that it ended with the program."""
        return (
            f"the smaller file of {clean_line(self.what, 60)} was not finished; nothing of it is "
            f"left"
        )

    def _work(self) -> None:
        prepared = smaller(self._entry, self._settings, make_lister(self._settings))
        if not self._ask(prepared):
            return
        plan = prepared.plan
        plan.refuse_full_disk()
        plan.directory.mkdir(parents=True, exist_ok=True)
        out = plan.directory / plan.files[0].name
        self._quantise(out, prepared.quantization, plan.total_bytes)
        self._note(stage=Stage.DONE, path=out)

    def _quantise(self, out: Path, kind: str, total_bytes: int) -> None:
        command = [
            *paths.own_module("app"),
            "quantize",
            str(self._entry.path),
            str(out),
            "--type",
            kind,
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
        begun_s = time.monotonic()
        while True:
            try:
                _, said = child.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                done = min(
                    total_bytes, max(map(_size, out.parent.glob(".jalopy-*.part")), default=0)
                )
                rate = done / (time.monotonic() - begun_s)
                self._note(progress=DownloadProgress("make", out.name, done, total_bytes, rate))
            if self.is_stopped:  # before it was known here
                child.terminate()
        if self.is_stopped:
            raise DownloadStopped(out.name)
        if child.returncode != exit_codes.OK:
            line = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise DownloadError(
                clean_line(line or f"it ended with exit code {child.returncode}", 280),
                child.returncode,
            )


def smaller(entry: ModelEntry, settings: Settings, lister: Lister) -> PlannedDownload:
    """Choose the type that suits this machine. Raises DownloadError: none that is smaller fits."""
    directory = download_directory(settings.model_directories)
    if directory is None:
        raise DownloadError(
            "there is no directory for models (name one: model_directories)", exit_codes.USAGE
        )
    from engine.quantize.mixtures import MIXTURES

    sizes = {
        kind: int(entry.parameters * bits / 8)
        for kind, bits in bits_per_weight().items()
        if kind in MIXTURES
    }
    among = [kind for kind, n_bytes in sizes.items() if n_bytes < LEAST_GAIN * entry.size_bytes]
    kind = best_type(entry.parameters, lister.memory, lister.rates, among)
    if kind is None:
        raise DownloadError(
            "no type that is smaller fits into memory here (a smaller model does)",
            exit_codes.NO_MEMORY,
        )
    name = f"{entry.path.stem.removesuffix(entry.quantization).rstrip('-._')}-{kind}.gguf"
    if (directory / name).exists():
        raise DownloadError(f"{name} is there already", exit_codes.USAGE)
    plan = make_plan((RemoteFile(name, "", sizes[kind], ""),), directory)
    outlook = lister.outlook_of(needs_of_size(entry.parameters, kind, lister.kv_type))
    minutes = max(1, round(entry.parameters / WEIGHTS_PER_CORE_S / len(allowed_cpus()) / 60))
    takes = f", about {figures.counted(minutes, 'minute')} of work"
    return PlannedDownload(
        entry.title,
        f"{entry.title} {kind}",
        kind,
        f"made from {entry.quantization}",
        plan,
        outlook,
        takes=takes,
    )


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except OSError:  # it got its name just now
        return 0
