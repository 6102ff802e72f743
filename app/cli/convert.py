"""``jalopy convert``: convert a safetensors model to a GGUF file and check it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.cli.output import ProgressLine
from app.cli.output_file import check_output
from app.cli.verify import verify
from app.models.downloads import hub
from app.models.downloads.pull import progress_text
from app.models.downloads.source import fetch_source, find_source
from app.models.library.model_files import download_directory
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.program.web import Web
from app.text.clean_text import clean_line
from app.text.figures import counted, size, whole_seconds


def convert(
    settings: Settings,
    source: str,
    out: str = "",
    mix: str = "",
    force: bool = False,
    web: Web | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Convert a model, download it first if necessary, and verify the output file.

    Args:
        source: folder of the model, or OWNER/REPO.
        out: output file; "" for NAME-TYPE.gguf in the working directory.
        mix: type of the weights; "" for the type in the source.
        force: whether an existing output file may be replaced.

    Raises:
        EngineError: the folder does not hold a model that can be converted.
        Refusal: the output file exists, the type is unknown, or the download fails.
    """
    from engine.convert.convert import model_directory, prepare
    from engine.machine.host import allowed_cpus
    from engine.quantize.mixtures import MIXTURES

    if mix and mix not in MIXTURES:
        raise Refusal(
            f"jalopy convert: unknown type: {clean_line(mix, 40)} "
            f"(choose one of {', '.join(MIXTURES)})"
        )
    directory = Path(source)
    progress = ProgressLine()
    started_s = clock()
    if not directory.is_dir():
        directory = _download(source, settings, web or hub.connect(), progress)
    directory = model_directory(directory)
    conversion = prepare(directory, mix)
    path = Path(out or f"{conversion.name}-{conversion.mix}.gguf")
    label = clean_line(str(path), 120)
    advice = "already exists (--force replaces it, -o FILE names another file)"
    check_output("jalopy convert", path, _inputs(directory), advice, replaces=force)
    total_bytes = conversion.total_bytes
    print(
        f"{clean_line(conversion.name, 80)}: {conversion.architecture}, "
        f"{len(conversion.table)} tensors, {size(total_bytes)} as {conversion.mix}",
        flush=True,
    )
    if conversion.n_left_out:
        left_out = counted(conversion.n_left_out, "tensor")
        print(f"left out: {left_out} for pictures or audio (a file of its own has them: mmproj)")

    def show(done_bytes: int, name: str) -> None:
        remaining_s = (clock() - started_s) * (total_bytes - done_bytes) / max(1, done_bytes)
        progress.show(
            f"wrote {size(done_bytes)} of {size(total_bytes)}, {clean_line(name, 40)}, "
            f"about {whole_seconds(remaining_s)} left"
        )

    started_s = clock()
    try:
        conversion.write(path, show, settings.threads or len(allowed_cpus()))
    finally:
        progress.clear()
    print(f"{label}: written in {whole_seconds(clock() - started_s)}", flush=True)
    return verify(settings, str(path), runs=conversion.writes)


def _inputs(directory: Path) -> Iterator[Path]:
    """Yield the files in a model's folder and its subfolders, except GGUF files."""
    for pattern in ("*", "*/*"):
        for path in directory.glob(pattern):
            if path.suffix.lower() != ".gguf":
                yield path


def _download(source: str, settings: Settings, web: Web, progress: ProgressLine) -> Path:
    parent = download_directory(settings.model_directories)
    if (
        "/" not in source
        or Path(source).is_absolute()
        or source.startswith((".", "~"))
        or parent is None
    ):
        label = clean_line(source, 120)
        raise Refusal(
            f"jalopy convert: {label}: there is no such folder (name a folder, or OWNER/REPO)",
            exit_codes.UNREADABLE,
        )
    download = find_source(source, web, parent)
    folder = clean_line(str(download.directory), 160)
    print(f"{download.name}: {size(download.plan.left_bytes)} to {folder}", flush=True)
    try:
        return fetch_source(download, web, lambda state: progress.show(progress_text(state)))
    finally:
        progress.clear()
