"""``jalopy convert``: a model as it was trained, made into a GGUF file and checked. No Textual."""

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
from app.text.figures import size, whole_seconds


def convert(
    settings: Settings,
    source: str,
    out: str = "",
    mix: str = "",
    force: bool = False,
    web: Web | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Download the model if it is a repository's, convert it, and look at what came of it as
    ``verify`` does.

    Args:
        source: a directory, or OWNER/REPO.
        out: the file; "" for the model's name in the working directory.
        mix: of the weights; "" for the type that they have.

    Raises:
        EngineError: the directory is no model that can be converted.
        Refusal: the file is there, a type is unknown, or the model cannot be had.
    """
    from engine.convert.convert import model_directory, prepare
    from engine.machine.host import allowed_cpus
    from engine.quantize.mixtures import MIXTURES

    if mix and mix not in MIXTURES:
        raise Refusal(
            f"jalopy convert: {clean_line(mix, 40)}: no type (choose one of {', '.join(MIXTURES)})"
        )
    directory = Path(source)
    progress = ProgressLine()
    started_s = clock()
    if not directory.is_dir():
        directory = _downloaded(source, settings, web or hub.connect(), progress)
    directory = model_directory(directory)
    found = prepare(directory, mix)
    path = Path(out or f"{found.name}-{found.mix}.gguf")
    shown = clean_line(str(path), 120)
    advice = "is there already (--force replaces it, -o FILE names another)"
    check_output("jalopy convert", path, _inputs(directory), advice, replaces=force)
    about = (
        f"{found.architecture}, {len(found.table)} tensors, {size(found.total_bytes)} as "
        f"{found.mix}"
    )
    print(f"{clean_line(found.name, 80)}: {about}", flush=True)

    def show(done_bytes: int, name: str) -> None:
        left_s = (clock() - started_s) * (found.total_bytes - done_bytes) / max(1, done_bytes)
        done = f"{size(done_bytes)} of {size(found.total_bytes)}"
        progress.show(f"written {done}, {clean_line(name, 40)}, about {whole_seconds(left_s)} left")

    started_s = clock()
    try:
        found.write(path, show, settings.threads or len(allowed_cpus()))
    finally:
        progress.clear()
    print(f"{shown}: written in {whole_seconds(clock() - started_s)}", flush=True)
    return verify(settings, str(path), runs=found.writes)


def _inputs(directory: Path) -> Iterator[Path]:
    """Yield the files in a model's directory and its folders.

    GGUF files are left out: they are not read.
    """
    for pattern in ("*", "*/*"):
        for path in directory.glob(pattern):
            if path.suffix.lower() != ".gguf":
                yield path


def _downloaded(source: str, settings: Settings, web: Web, progress: ProgressLine) -> Path:
    parent = download_directory(settings.model_directories)
    if (
        "/" not in source
        or Path(source).is_absolute()
        or source.startswith((".", "~"))
        or parent is None
    ):
        shown = clean_line(source, 120)
        raise Refusal(
            f"jalopy convert: {shown}: no such directory (name one, or OWNER/REPO)",
            exit_codes.UNREADABLE,
        )
    wanted = find_source(source, web, parent)
    print(
        (
            f"{wanted.name}: {size(wanted.plan.left_bytes)} to "
            f"{clean_line(str(wanted.directory), 160)}"
        ),
        flush=True,
    )
    try:
        return fetch_source(wanted, web, lambda now: progress.show(progress_text(now)))
    finally:
        progress.clear()
