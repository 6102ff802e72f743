"""From a plan to files: everything is looked at before a byte is asked for, and nothing gets its
name unchecked."""

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
"""Left free on the disk."""
_PIECE_BYTES = 1 << 18
_FRUIT_BYTES = 1 << 16
"""Bytes from which an attempt counts as progress; such attempts are repeated without a limit."""
_RATE_WINDOW_S = 10.0
_WRITE_ERRORS: dict[int | None, str] = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EFBIG: "the file is too large for this file system (FAT: at most 4 GB; use another disk)",
}
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class DownloadStopped(DownloadError):
    """The user stopped it; what came is kept."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: stopped; what came is kept, and the same again goes on from there",
                         exit_codes.INTERRUPTED)  # fmt: skip


@record
class DownloadProgress:
    """How far all files together are."""

    stage: str
    """"download", "check" what was there already, or "wait" before another attempt."""
    name: str
    done_bytes: int
    total_bytes: int
    rate_bps: float = 0.0
    """Bytes a second over the last seconds; 0 for unknown."""
    note: str = ""

    @property
    def left_s(self) -> float | None:
        """Time left at this rate; None for unknown."""
        if self.rate_bps > 0:
            return (self.total_bytes - self.done_bytes) / self.rate_bps
        return None


Report = Callable[[DownloadProgress], object]
"""Told of every piece; raises Stopped where no more is wanted."""


@record
class DownloadPlan:
    """Files to download and their place."""

    files: tuple[RemoteFile, ...]
    directory: Path
    here_bytes: int
    """Of it that are there already, whole files and parts."""
    free_bytes: int | None
    """Of the disk; None for unknown."""

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def left_bytes(self) -> int:
        """Still to come."""
        return self.total_bytes - self.here_bytes

    @property
    def is_begun(self) -> bool:
        """Whether some of it is there, but not all."""
        return 0 < self.here_bytes < self.total_bytes

    @property
    def is_too_large(self) -> bool:
        """Whether the disk has no room for what is to come."""
        if self.free_bytes is None or not self.left_bytes:
            return False
        return self.left_bytes + SPARE_DISK_BYTES > self.free_bytes

    def refuse_full_disk(self) -> None:
        """Raise where the disk has no room for what is to come."""
        if self.is_too_large:
            raise DownloadError(
                f"{clean_line(str(self.directory), 120)}: {size(self.left_bytes)} are still "
                f"to come, but only "
                f"{size(self.free_bytes or 0)} are free on that disk",
                exit_codes.IO_ERROR,
            )


def make_plan(files: tuple[RemoteFile, ...], directory: Path) -> DownloadPlan:
    """Look at the directory and the disk; nothing is created."""
    here = sum(
        file.size_bytes
        if _has_size(directory / file.name, file.size_bytes)
        else part_bytes(directory, file)
        for file in files
    )
    return DownloadPlan(files, directory, here, _free_bytes(directory))


def download(plan: DownloadPlan, web: Web, report: Report) -> list[Path]:
    """Download the files one by one; return where they are.

    Raises Stopped: parts are kept; DownloadError; OSError.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    done = 0
    paths = []
    for remote in plan.files:
        paths.append(_Download(remote, plan, done, web, report).run())
        done += remote.size_bytes
    return paths


class _Download:
    """One file."""

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
        """Whether the server is asked for the rest of the file: one that answered wrongly is asked
        for the whole."""
        self._n_restarts = 0
        """How often the server sent something else than is here."""

    def run(self) -> Path:
        final = self._plan.directory / self._remote.name
        if os.path.lexists(final):
            return self._existing(final)
        try:
            with PartFile(self._plan.directory, self._remote) as part:
                # minutes for a large file
                part.hash_existing(lambda done: self._show("check", done))
                self._fill(part)
                return part.finish()
        except OSError as error:
            reason = _WRITE_ERRORS.get(error.errno)
            if reason is None and error.filename is not None:
                raise  # it names itself what cannot be opened
            reason = reason or f"cannot be written ({error.strerror or error})"
            raise DownloadError(f"{self._remote.name}: {reason}; what came is kept") from None

    def _existing(self, final: Path) -> Path:
        """Accept a file of this name that is this very file."""
        if final.is_file() and final.stat().st_size == self._remote.size_bytes:
            digest = sha256_of(final, lambda done, total, left_s: self._show("check", done))
            if digest == self._remote.sha256:
                return final
        raise DownloadError(
            f"{clean_line(str(final), 200)}: is there already and is another file (move it away)"
        )

    def _fill(self, part: PartFile) -> None:
        """Ask for what is missing until nothing is; attempts that bring nothing new are counted."""
        fruitless = 0
        waited_s = 0.0
        most_bytes = part.size_bytes
        while part.left_bytes:
            n_restarts = self._n_restarts
            try:
                self._ask(part)
            except (ConnectionCut, StatusError) as error:
                if not part.left_bytes:
                    return  # it broke when everything had come
                self._show("wait", part.size_bytes, str(error))
                if self._n_restarts > n_restarts:
                    most_bytes = 0
                if part.size_bytes - most_bytes >= _FRUIT_BYTES:
                    fruitless = 0
                    waited_s = 0.0
                    self._may_resume = True
                else:
                    fruitless += 1
                most_bytes = max(most_bytes, part.size_bytes)
                pause_s = pause_before_retry(error, fruitless, waited_s)
                if isinstance(error, StatusError) and error.status == 416 and self._may_resume:
                    # it does not give the rest; perhaps it gives the whole
                    self._may_resume = False
                    pause_s = 0.0
                if pause_s is None:
                    raise
                waited_s += pause_s
                self._web.pause(pause_s)
                self._marks.clear()

    def _ask(self, part: PartFile) -> None:
        headers = {}
        if part.size_bytes and self._may_resume:
            headers["Range"] = f"bytes={part.size_bytes}-"
            if part.etag:
                headers["If-Range"] = part.etag
        with closing(self._web.get(self._remote.url, headers)) as response:
            self._check_answer(response, part)
            if response.status == 200:
                self._pass_over(response, part)
            while part.left_bytes:
                piece = response.read(_PIECE_BYTES)
                if not piece:
                    raise ConnectionCut(
                        f"{self._remote.name}: the connection ended before the file did"
                    )
                part.append(piece)
                self._show("download", part.size_bytes)
            if response.read(1):
                part.append(b"\0")  # refuses: the file is complete

    def _check_answer(self, response: Response, part: PartFile) -> None:
        """Refuse what cannot be the file, or the rest of it."""
        headers = response.headers
        name = self._remote.name
        if headers.get_content_type() == "text/html":
            raise DownloadError(f"{name}: what came is a web page, not a model (a login page in between?)",
                                exit_codes.BAD_DATA)  # fmt: skip
        self._check_link(response)
        expected = self._remote.size_bytes
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch((headers.get("Content-Range") or "").strip())
            if match is None or int(match[1]) != part.size_bytes or int(match[3]) != expected:
                self._may_resume = False
                raise ConnectionCut(
                    f"{name}: the server sent another part of the file than was asked for"
                )
            return
        if response.length not in (None, expected):
            sizes = f"{response.length} bytes instead of {expected}"
            raise DownloadError(
                f"{name}: the server has {sizes}: it is another file", exit_codes.BAD_DATA
            )

    def _pass_over(self, response: Response, part: PartFile) -> None:
        """The server sends the whole: what is here stays as far as it is the same, whatever else
        may come."""
        done = 0
        name = self._remote.name
        etag = _strong_etag(response.headers.get("ETag", ""))
        while done < part.size_bytes:
            piece = response.read(min(_PIECE_BYTES, part.size_bytes - done))
            if not piece:
                raise ConnectionCut(f"{name}: the connection ended before the file did")
            same = part.same_bytes(piece, done)
            done += same
            self._show("check", done)
            if same < len(piece):
                self._n_restarts += 1
                if self._n_restarts > MOST_RETRIES:
                    raise DownloadError(
                        f"{name}: the server sends something else each time; what came is kept"
                    )
                part.keep(done)
                part.append(piece[same:])
                break
        if part.etag != etag or not part.size_bytes:
            part.note_version(etag)

    def _check_link(self, response: Response) -> None:
        """Refuse at once what the hub itself calls another file; elsewhere a tag is no sha256."""
        if response.linked is not None:
            linked = response.linked["X-Linked-ETag"]
        else:
            linked = None
        stated = _strong_etag(linked or "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", stated) and stated != self._remote.sha256:
            raise DownloadError(f"{self._remote.name}: the hub sends another file than it described: try again",
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
    """Return a tag that If-Range may carry; weak ones promise nothing about bytes."""
    if re.fullmatch(r'"[!#-~]{1,200}"', text):
        return text
    return ""


def _has_size(path: Path, size_bytes: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size_bytes
    except OSError:
        return False


def _free_bytes(directory: Path) -> int | None:
    """Return what is free where the directory is, or will be."""
    for place in (directory, *directory.parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return None
