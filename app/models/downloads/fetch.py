"""Downloads by plan: everything is checked before the first byte, and no file gets its name
unchecked.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from app.models.downloads.hub import RemoteFile
from app.models.downloads.part_file import PartFile, part_bytes
from app.models.library.sha256 import sha256_of
from app.program import exit_codes
from app.program.web import Response, Web
from app.program.web_refusals import (
    MOST_RETRIES,
    ConnectionCut,
    DownloadError,
    StatusError,
    pause_before_retry,
)
from app.text.clean_text import clean_line
from app.text.figures import size
from app.text.record import record

SPARE_DISK_BYTES = 64 << 20
"""Space that stays free on the disk."""
_PIECE_BYTES = 1 << 18
_FRUIT_BYTES = 1 << 16
"""Bytes from which an attempt counts as progress. Such attempts may be repeated without limit."""
_RATE_WINDOW_S = 10.0
_WRITE_ERRORS: dict[int | None, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EFBIG: "the file is too large for this file system (FAT: at most 4 GB; use another disk)",
}
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class DownloadStopped(DownloadError):
    """The user stopped the download; its part is kept."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: paused; download it again to continue",
                         exit_codes.INTERRUPTED)  # fmt: skip


@record
class DownloadProgress:
    """Progress of all files together."""

    stage: str
    """DownloadStage: "download", "check" of existing bytes, or "wait" before another attempt."""
    name: str
    done_bytes: int
    total_bytes: int
    rate_bps: float = 0.0
    """Bytes per second over the last seconds; 0 if unknown."""
    note: str = ""

    @property
    def left_s(self) -> float | None:
        """Seconds left at this rate; None if unknown."""
        if self.rate_bps > 0:
            return (self.total_bytes - self.done_bytes) / self.rate_bps
        return None


Report = Callable[[DownloadProgress], object]
"""Function that is called for every piece. It raises DownloadStopped to stop."""


@record
class DownloadPlan:
    """Files to download and their place."""

    files: tuple[RemoteFile, ...]
    directory: Path
    here_bytes: int
    """Bytes on the disk already, in whole files and parts."""
    free_bytes: int | None
    """Free bytes of the disk; None if unknown."""

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def left_bytes(self) -> int:
        """Bytes left to download."""
        return self.total_bytes - self.here_bytes

    @property
    def is_begun(self) -> bool:
        """Whether a part of the files is on the disk."""
        return 0 < self.here_bytes < self.total_bytes

    @property
    def is_too_large(self) -> bool:
        """Whether the disk lacks space."""
        if self.free_bytes is None or not self.left_bytes:
            return False
        return self.left_bytes + SPARE_DISK_BYTES > self.free_bytes

    def refuse_full_disk(self) -> None:
        """Raise DownloadError if the disk lacks space."""
        if self.is_too_large:
            raise DownloadError(
                f"{clean_line(str(self.directory), 120)}: {size(self.left_bytes)} are "
                f"missing, but only "
                f"{size(self.free_bytes or 0)} are free on this disk",
                exit_codes.IO_ERROR,
            )


def make_plan(files: tuple[RemoteFile, ...], directory: Path) -> DownloadPlan:
    """Return the plan for a directory; nothing is created."""
    here_bytes = sum(
        file.size_bytes
        if _has_size(directory / file.name, file.size_bytes)
        else part_bytes(directory, file)
        for file in files
    )
    return DownloadPlan(files, directory, here_bytes, _free_bytes(directory))


def download(plan: DownloadPlan, web: Web, report: Report) -> list[Path]:
    """Download the files one by one and return their paths.

    Raises DownloadStopped: parts are kept; DownloadError; OSError.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    done = 0
    paths = []
    for remote in plan.files:
        paths.append(_Download(remote, plan, done, web, report).run())
        done += remote.size_bytes
    return paths


class _Download:
    """Download of one file."""

    def __init__(
        self, remote: RemoteFile, plan: DownloadPlan, before_bytes: int, web: Web, report: Report
    ) -> None:
        self._remote = remote
        self._plan = plan
        self._web = web
        self._before_bytes = before_bytes
        self._report = report
        self._marks: deque[tuple[float, int]] = deque()
        self._may_resume = True
        """Whether to ask for the rest only. After a wrong answer the whole file is requested."""
        self._n_restarts = 0
        """Number of times that the server sent other bytes than those on disk."""

    def run(self) -> Path:
        final = self._plan.directory / self._remote.name
        if os.path.lexists(final):
            return self._existing(final)
        try:
            with PartFile(self._plan.directory, self._remote) as part_file:
                # this takes minutes for a large file
                part_file.hash_existing(lambda done: self._show("check", done))
                self._fill(part_file)
                return part_file.finish()
        except OSError as error:
            reason = _WRITE_ERRORS.get(error.errno)
            if reason is None and error.filename is not None:
                raise  # the error names the file itself
            reason = reason or f"cannot be written ({error.strerror or error})"
            raise DownloadError(f"{self._remote.name}: {reason}; the part is kept") from None

    def _existing(self, final: Path) -> Path:
        """Return an existing file of this name if its content is right."""
        if final.is_file() and final.stat().st_size == self._remote.size_bytes:
            digest = sha256_of(final, lambda done, total, left_s: self._show("check", done))
            if digest == self._remote.sha256:
                return final
        raise DownloadError(
            f"{clean_line(str(final), 200)}: another file has this name (move it away)"
        )

    def _fill(self, part_file: PartFile) -> None:
        """Request the missing bytes until the file is complete; fruitless attempts are limited."""
        fruitless = 0
        waited_s = 0.0
        most_bytes = part_file.size_bytes
        while part_file.left_bytes:
            n_restarts = self._n_restarts
            try:
                self._ask(part_file)
            except (ConnectionCut, StatusError) as error:
                if not part_file.left_bytes:
                    return  # the connection broke after the last byte
                self._show("wait", part_file.size_bytes, str(error))
                if self._n_restarts > n_restarts:
                    most_bytes = 0
                if part_file.size_bytes - most_bytes >= _FRUIT_BYTES:
                    fruitless = 0
                    waited_s = 0.0
                    self._may_resume = True
                else:
                    fruitless += 1
                most_bytes = max(most_bytes, part_file.size_bytes)
                pause_s = pause_before_retry(error, fruitless, waited_s)
                if isinstance(error, StatusError) and error.status == 416 and self._may_resume:
                    # the server refuses the rest, but may send the whole file
                    self._may_resume = False
                    pause_s = 0.0
                if pause_s is None:
                    raise
                waited_s += pause_s
                self._web.pause(pause_s)
                self._marks.clear()

    def _ask(self, part_file: PartFile) -> None:
        headers = {}
        if part_file.size_bytes and self._may_resume:
            headers["Range"] = f"bytes={part_file.size_bytes}-"
            if part_file.etag:
                headers["If-Range"] = part_file.etag
        with closing(self._web.get(self._remote.url, headers)) as response:
            self._check_answer(response, part_file)
            if response.status == 200:
                self._pass_over(response, part_file)
            while part_file.left_bytes:
                piece = response.read(_PIECE_BYTES)
                if not piece:
                    raise ConnectionCut(
                        f"{self._remote.name}: the connection ended before the file did"
                    )
                part_file.append(piece)
                self._show("download", part_file.size_bytes)
            if response.read(1):
                part_file.append(b"\0")  # this raises: the file is complete

    def _check_answer(self, response: Response, part_file: PartFile) -> None:
        """Refuse a response that cannot be the file, or its rest."""
        headers = response.headers
        name = self._remote.name
        if headers.get_content_type() == "text/html":
            raise DownloadError(
                f"{name}: received a web page instead of a model (perhaps a login page)",
                exit_codes.BAD_DATA,
            )
        self._check_link(response)
        expected = self._remote.size_bytes
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch((headers.get("Content-Range") or "").strip())
            if match is None or int(match[1]) != part_file.size_bytes or int(match[3]) != expected:
                self._may_resume = False
                raise ConnectionCut(f"{name}: the server sent the wrong part of the file")
            return
        if response.length not in (None, expected):
            sizes = f"{response.length} bytes instead of {expected}"
            raise DownloadError(
                f"{name}: the server has {sizes}: the file has changed", exit_codes.BAD_DATA
            )

    def _pass_over(self, response: Response, part_file: PartFile) -> None:
        """Read a response that starts from the beginning, and keep the bytes on disk that are
        equal.
        """
        done = 0
        name = self._remote.name
        etag = _strong_etag(response.headers.get("ETag", ""))
        while done < part_file.size_bytes:
            piece = response.read(min(_PIECE_BYTES, part_file.size_bytes - done))
            if not piece:
                raise ConnectionCut(f"{name}: the connection ended before the file did")
            n_equal = part_file.same_bytes(piece, done)
            done += n_equal
            self._show("check", done)
            if n_equal < len(piece):
                self._n_restarts += 1
                if self._n_restarts > MOST_RETRIES:
                    raise DownloadError(
                        f"{name}: the server sends different bytes each time; the part is kept"
                    )
                part_file.keep(done)
                part_file.append(piece[n_equal:])
                break
        if part_file.etag != etag or not part_file.size_bytes:
            part_file.note_version(etag)

    def _check_link(self, response: Response) -> None:
        """Refuse a file that the hub's redirect calls another one.

        Other servers' tags are not sha256.
        """
        if response.linked is not None:
            linked = response.linked["X-Linked-ETag"]
        else:
            linked = None
        stated = _strong_etag(linked or "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", stated) and stated != self._remote.sha256:
            raise DownloadError(f"{self._remote.name}: the hub sends a different file (try again)",
                                exit_codes.BAD_DATA)  # fmt: skip

    def _show(self, stage: str, done_bytes: int, note: str = "") -> None:
        now_s = time.monotonic()
        if stage == "download":
            self._marks.append((now_s, done_bytes))
            while len(self._marks) > 2 and now_s - self._marks[0][0] > _RATE_WINDOW_S:
                self._marks.popleft()
        if self._marks:
            first_s, first_bytes = self._marks[0]
        else:
            first_s, first_bytes = (now_s, done_bytes)
        if now_s > first_s and stage == "download":
            rate_bps = (done_bytes - first_bytes) / (now_s - first_s)
        else:
            rate_bps = 0.0
        done = self._before_bytes + done_bytes
        self._report(
            DownloadProgress(
                stage, self._remote.name, done, self._plan.total_bytes, max(0.0, rate_bps), note
            )
        )


def _strong_etag(text: str) -> str:
    """Return a tag for If-Range; "" for a weak tag, which does not guarantee the bytes."""
    if re.fullmatch(r'"[!#-~]{1,200}"', text):
        return text
    return ""


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size_bytes
    except OSError:
        return False


def _free_bytes(directory: Path) -> int | None:
    """Return the free bytes of the disk of a directory, which need not exist."""
    for folder in (directory, *directory.parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return None
