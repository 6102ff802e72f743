"""``jalopy pull``: show what a download costs, then download with rate and time left."""

from __future__ import annotations

import time
from pathlib import Path

from app.cli.output import ProgressLine
from app.models.downloads import hub
from app.models.downloads.pull import (
    WITHOUT_HUB,
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

    Args:
        what: OWNER/REPO, OWNER/REPO:TYPE, pypi:NAME==VERSION, or a URL.
        anyway: whether a model that is not supported or does not fit is downloaded.

    Raises:
        Refusal: the model cannot or should not be downloaded.
        OSError: the file cannot be written.
    """
    web = web or hub.connect(pause=_pause)
    target = _directory(directory)
    try:
        download = prepare(what, settings, web, given_sha256(sha256, "pull"), target)
    except DownloadError as error:
        if error.is_hub_away:
            sentence = str(error)
            if not sentence.endswith("?"):
                sentence += "."
            error.args = (f"{sentence} {WITHOUT_HUB}", *error.args[1:])
        raise
    print("\n".join(price_lines(download)), flush=True)
    if download.here is not None:
        print(f"Already downloaded: {clean_line(str(download.here), 300)}", flush=True)
        return exit_codes.OK
    if download.trouble and not anyway:
        line = f"not downloaded: {download.trouble} (--anyway downloads it nevertheless)"
        raise DownloadError(line, exit_codes.UNSUPPORTED)
    download.plan.refuse_full_disk()
    if dry_run:
        return exit_codes.OK
    return _download(download, web, is_listed=target is None)


def _directory(name: str) -> Path | None:
    try:
        if name:
            return Path(name).expanduser().absolute()
        return None
    except RuntimeError:
        label = clean_line(name, 200)
        raise Refusal(
            f"jalopy pull: --to {label}: there is no such home folder (write the full path)"
        ) from None


def _pause(pause_s: float) -> None:
    """Wait before the next attempt, with a progress line."""
    progress = ProgressLine()
    progress.show(f"trying again in {whole_seconds(pause_s)}")
    time.sleep(pause_s)
    progress.clear()


def _download(download: PlannedDownload, web: Web, is_listed: bool) -> int:
    progress = ProgressLine()
    try:
        result = carry_out(download, web, lambda state: progress.show(progress_text(state)))
    except KeyboardInterrupt:
        progress.clear()
        print("Stopped. Run the same command again to continue the download.", flush=True)
        return exit_codes.INTERRUPTED
    finally:
        progress.clear()
    path = clean_line(str(result.path), 300)
    if download.model is None:
        print(f"Downloaded and checked: {path}", flush=True)
    if download.encoder is not None:
        encoder_path = download.plan.directory / download.encoder.name
        print(f"Downloaded and checked: {clean_line(str(encoder_path), 300)}", flush=True)
    if result.header.reason:
        print(f"Jalopy cannot open it: {clean_line(result.header.reason, 200)}", flush=True)
        return exit_codes.BAD_DATA
    if result.encoder_trouble:
        print(f"It will not see pictures: {result.encoder_trouble}", flush=True)
    hint = ""
    if is_listed:
        hint = ", or press F3 in the chat"
    print(f"To open it: jalopy {path}{hint}", flush=True)
    return exit_codes.OK
