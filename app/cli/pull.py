"""``jalopy pull``: what would be downloaded, then the download with rate and time left.

No Textual.
"""

from __future__ import annotations

import time
from pathlib import Path

from app.cli.output import ProgressLine
from app.models.downloads import hub
from app.models.downloads.pull import (
    PlannedDownload,
    carry_out,
    prepare,
    price_lines,
    progress_text,
)
from app.models.library.sha256 import given_sha256
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.program.web import Web
from app.program.web_refusals import DownloadError
from app.text.clean_text import clean_line
from app.text.figures import whole_seconds


def pull(
    settings: Settings,
    what: str,
    sha256: str = "",
    directory: str = "",
    dry_run: bool = False,
    anyway: bool = False,
    web: Web | None = None,
) -> int:
    """Download a model.

    Raises Refusal: it cannot be had, or should not be; one line; OSError: it cannot be written.
    """
    web = web or hub.connect(pause=_pause)
    target = _directory(directory)
    prepared = prepare(what, settings, web, given_sha256(sha256, "pull"), target)
    print("\n".join(price_lines(prepared)), flush=True)
    if prepared.here is not None:
        print(f"It is here already: {clean_line(str(prepared.here), 300)}", flush=True)
        return exit_codes.OK
    if prepared.trouble and not anyway:
        line = f"not downloaded: {prepared.trouble} (--anyway downloads it all the same)"
        raise DownloadError(line, exit_codes.UNSUPPORTED)
    prepared.plan.refuse_full_disk()
    if dry_run:
        return exit_codes.OK
    return _download(prepared, web, is_listed=target is None)


def _directory(wanted: str) -> Path | None:
    try:
        if wanted:
            return Path(wanted).expanduser().absolute()
        return None
    except RuntimeError:
        shown = clean_line(wanted, 200)
        raise Refusal(
            f"jalopy pull: --to {shown}: there is no such home directory (name it whole)"
        ) from None


def _pause(pause_s: float) -> None:
    """Wait visibly."""
    progress = ProgressLine()
    progress.show(f"waiting {whole_seconds(pause_s)}, then again")
    time.sleep(pause_s)
    progress.clear()


def _download(prepared: PlannedDownload, web: Web, is_listed: bool) -> int:
    progress = ProgressLine()
    try:
        path, header = carry_out(prepared, web, lambda now: progress.show(progress_text(now)))
    except KeyboardInterrupt:
        progress.clear()
        print("Stopped. What came is kept: the same command goes on from there.", flush=True)
        return exit_codes.INTERRUPTED
    finally:
        progress.clear()
    print(f"Here and checked: {clean_line(str(path), 300)}", flush=True)
    if header.reason:
        print(f"It cannot be opened: {clean_line(header.reason, 200)}", flush=True)
        return exit_codes.BAD_DATA
    print(
        f"jalopy {clean_line(str(path), 300)} opens it{'; in the chat, F3' if is_listed else ''}",
        flush=True,
    )
    return exit_codes.OK
