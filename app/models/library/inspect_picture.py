"""``jalopy inspect MODEL --image FILE``: size, parts, tokens and time of a picture."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.program.small_file import replace_file
from app.text.clean_text import clean_line
from app.text.figures import count
from app.text.json_line import json_line
from app.text.record import record

if TYPE_CHECKING:
    from engine.vision.encoder import PictureEncoder
    from engine.vision.rows import PreparedPicture

NUMPY_FILE = ".npy"


@record
class PictureRequest:
    """Picture to inspect, from the command line.

    Attributes:
        image: path of the picture.
        mmproj: path of the encoder; empty for the one next to the model.
        detail: ``low``, ``usual`` or ``high``.
        rows: path of the file for the embeddings; empty for none.
    """

    image: str
    mmproj: str
    detail: str
    rows: str


def inspect_picture(
    settings: Settings, model: str, request: PictureRequest, as_json: bool = False
) -> int:
    """Print what becomes of a picture, and write its embeddings if they are wanted.

    Raises:
        Refusal: an option is wrong, or there is no encoder.
        EngineError: a file cannot be used.
    """
    if request.rows and not request.rows.endswith(NUMPY_FILE):
        raise Refusal(f"--rows {clean_line(request.rows, 200)}: must end with {NUMPY_FILE}")
    with _opened(settings, model, request.mmproj) as encoder:
        picture = encoder.prepare_file(request.image, request.detail)
        report = _report(request, encoder, picture)
        if request.rows:
            report |= _write_rows(encoder, picture, Path(request.rows))
        else:
            report["expected_seconds"] = encoder.expected_seconds(picture)
    if as_json:
        print(json_line(report, indent=1))
    else:
        print("\n".join(_lines(report)))
    sys.stdout.flush()
    return exit_codes.OK


@contextmanager
def _opened(settings: Settings, model: str, mmproj: str) -> Iterator[PictureEncoder]:
    """Open the encoder for a model; the model may also be the encoder itself."""
    from engine import Crew, EngineError, PictureEncoder, find_mmproj, read_gguf
    from engine.machine import host
    from engine.vision.mmproj import ARCHITECTURE

    path = mmproj
    gguf = read_gguf(model, keeps_strings=False)
    is_encoder = gguf.metadata.get("general.architecture") == ARCHITECTURE
    gguf.close()
    config = None
    if is_encoder:
        path = model
    else:
        config = _model_config(model)
        path = mmproj or str(find_mmproj(model, config) or "")
    if not path:
        raise EngineError(
            f"{clean_line(Path(model).name, 60)}: no mmproj file next to it fits (name one with "
            f"--mmproj, or use a model that sees)"
        )
    crew = Crew()
    n_threads = settings.prefill_threads or settings.threads or host.cores().default_threads
    try:
        encoder = PictureEncoder.open(path, crew, n_threads)
        try:
            if config is not None:
                encoder.check_fits(config, Path(model).name)
            yield encoder
        finally:
            encoder.close()
    finally:
        crew.close()


def _model_config(model: str) -> Any:
    from app.backend.local import engine_access

    checked = engine_access.validate_model(model)
    checked.gguf.close()
    return checked.config


def _report(
    request: PictureRequest, encoder: PictureEncoder, picture: PreparedPicture
) -> dict[str, Any]:
    parts = [
        {
            "text_before": part.text_before,
            "width": part.pixels.shape[1],
            "height": part.pixels.shape[0],
            "rows": part.grid.n_rows,
            "columns": part.grid.n_columns,
            "tokens": part.grid.n,
        }
        for part in picture.parts
    ]
    return {
        "image": clean_line(request.image, 4096),
        "width": picture.width,
        "height": picture.height,
        "encoder": clean_line(str(encoder.path), 4096),
        "projector": encoder.config.projector,
        "family": encoder.family.title,
        "detail": request.detail,
        "parts": parts,
        "text_after": picture.text_after,
        "tokens": picture.n_rows,
        "digest": picture.digest,
    }


def _write_rows(encoder: PictureEncoder, picture: PreparedPicture, path: Path) -> dict[str, Any]:
    """Encode a picture and write its embeddings, those of all parts after each other."""
    import numpy as np

    start_s = time.perf_counter()
    rows = np.concatenate(encoder.encode(picture).rows)
    seconds = time.perf_counter() - start_s
    content = io.BytesIO()
    np.save(content, rows)
    try:
        replace_file(path, content.getvalue())
    except OSError as error:
        raise Refusal(f"{clean_line(str(path), 200)}: {error.strerror}") from None
    return {"seconds": seconds, "rows": clean_line(str(path), 4096), "shape": list(rows.shape)}


def _lines(report: Mapping[str, Any]) -> Iterable[str]:
    yield f"{report['image']}: {_size(report)}"
    yield f"  encoder: {Path(report['encoder']).name} ({report['family']})"
    yield f"  detail: {report['detail']}"
    parts = report["parts"]
    if len(parts) == 1:
        part = parts[0]
        yield f"  resized to {_size(part)}: {_tokens(part)}"
    else:
        yield f"  {count(len(parts))} parts:"
        for _, group in groupby(parts, key=lambda part: (part["width"], part["height"])):
            same = list(group)
            yield f"    {len(same)} of {_size(same[0])}: {_tokens(same[0])} each"
    yield f"  tokens: {count(report['tokens'])}, without markers"
    if "seconds" in report:
        yield f"  encoded in {report['seconds']:.1f} s"
        shape = " x ".join(count(n) for n in report["shape"])
        yield f"  rows: {report['rows']} ({shape} float32)"
    else:
        yield f"  expected wait: about {report['expected_seconds']:.1f} s"


def _size(item: Mapping[str, Any]) -> str:
    return f"{count(item['width'])} x {count(item['height'])}"


def _tokens(part: Mapping[str, Any]) -> str:
    return f"{count(part['tokens'])} tokens ({part['columns']} x {part['rows']})"
