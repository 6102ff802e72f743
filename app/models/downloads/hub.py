"""Hugging Face's hub: files of a repository, with sizes and sha256.

One request returns everything: ``/api/models/OWNER/REPO/revision/REV?blobs=true``. The response is
not trusted: names that could leave the target directory, wrong sizes and files without a hash are
ignored.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.models.library.model_files import hugging_face_home
from app.program import exit_codes
from app.program.small_file import read_bounded
from app.program.web import Web, split_address, table_in
from app.program.web_refusals import DownloadError
from app.text.clean_text import clean_line
from app.text.record import record

DEFAULT_ENDPOINT = "https://huggingface.co"
SAFE_NAME = re.compile(r"[A-Za-z0-9._-]+\.gguf")
MOST_NAME_BYTES = 235
"""Limit on a file name. Of 255 bytes, `.NAME.part.json.` needs its characters and eight more."""
_SAFE_DIRECTORY = re.compile(r"[A-Za-z0-9._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
LARGEST_FILE_BYTES = 1 << 50
_MOST_FILES = 10_000


@record
class RemoteFile:
    """A file that can be downloaded and checked."""

    name: str
    """Name that is safe for a local file."""
    url: str
    """Address of this version of the file."""
    size_bytes: int
    sha256: str

    @property
    def magic(self) -> bytes:
        """First bytes that the file must have: of a model, an archive, or any."""
        return {".gguf": b"GGUF", ".whl": b"PK"}.get(self.name[self.name.rfind(".") :], b"")


@record
class Repository:
    """A repository of the hub."""

    name: str
    files: tuple[RemoteFile, ...]
    """GGUF files that can be checked, sorted by name."""
    parameters: int = 0
    """Number of parameters; 0 if unknown."""
    architecture: str = ""
    """Architecture according to the hub; "" if unknown."""
    licence: str = ""
    """Clean name of the licence; "" if unknown."""
    is_gated: bool = False
    """Whether users must accept terms."""
    is_disabled: bool = False
    """Whether the hub has disabled access."""


def endpoint() -> str:
    """Return the address of the hub, or of the mirror in HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def token() -> str:
    """Return the token from HF_TOKEN or Hugging Face's token file; "" if there is none."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return _sound_token(os.environ[name])
    token_path = os.environ.get("HF_TOKEN_PATH")
    directory = hugging_face_home()
    if token_path:
        path = Path(token_path)
    elif directory:
        path = directory / "token"
    else:
        path = None
    if path is None:
        return ""
    try:
        return _sound_token((read_bounded(path, 4096) or b"").decode("ascii"))
    except (OSError, ValueError):
        return ""


def connect(**options: Any) -> Web:
    """Return a client that sends the token only to the hub."""
    return Web(token(), split_address(endpoint()).netloc, **options)


def read_repository(
    web: Web, name: str, revision: str = "main", base: str | None = None
) -> Repository:
    """Ask the hub for a repository's files.

    Raises DownloadError: it cannot be had, or the answer is none.
    """
    content, siblings, files_url = ask(web, name, revision, base)
    files = filter(None, (remote_file(sibling, files_url, SAFE_NAME) for sibling in siblings))
    gguf = table_in(content, "gguf")
    licence = table_in(content, "cardData").get("license")
    total = gguf.get("total")
    architecture = gguf.get("architecture")
    return Repository(
        name,
        tuple(sorted(files, key=lambda file: file.name)),
        parameters=total if type(total) is int and 0 < total < 1 << 50 else 0,
        architecture=architecture if isinstance(architecture, str) else "",
        licence=clean_line(licence, 40) if isinstance(licence, str) else "",
        is_gated=bool(content.get("gated")),
        is_disabled=content.get("disabled") is True,
    )


def ask(
    web: Web, name: str, revision: str, base: str | None = None
) -> tuple[dict[str, Any], list[Any], str]:
    """Return a repository's description, its file list, and the base address of its files.

    Raises DownloadError: it is not available, or the response is not valid.
    """
    base = base or endpoint()
    body = web.get_body(
        f"{base}/api/models/{quote(name)}/revision/{quote(revision, safe='')}?blobs=true"
    )
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise DownloadError(
            f"{name}: the response is not from the hub (perhaps a login page)"
        ) from None
    if isinstance(content, dict):
        siblings = content.get("siblings")
    else:
        siblings = None
    if not isinstance(siblings, list):
        raise DownloadError(f"{name}: the hub lists no files", exit_codes.BAD_DATA)
    commit = content.get("sha")
    if isinstance(commit, str) and _COMMIT.fullmatch(commit):
        version = commit
    else:
        version = revision
    return (
        content,
        siblings[:_MOST_FILES],
        f"{base}/{quote(name)}/resolve/{quote(version, safe='')}/",
    )


def remote_file(sibling: Any, base: str, names: re.Pattern[str]) -> RemoteFile | None:
    """Return an entry of the file list as a downloadable file; None if it is not one or has another
    name.
    """
    if isinstance(sibling, dict):
        path = sibling.get("rfilename")
    else:
        path = None
    lfs = table_in(sibling, "lfs")
    if not isinstance(path, str):
        return None
    *directories, name = path.split("/")
    sha256 = lfs.get("sha256") or lfs.get("oid")
    size_bytes = lfs.get("size", sibling.get("size"))
    is_sound = (
        is_safe_name(name, names)
        and all(
            _SAFE_DIRECTORY.fullmatch(folder) and folder not in (".", "..")
            for folder in directories
        )
        and isinstance(sha256, str)
        and _SHA256.fullmatch(sha256) is not None
        and type(size_bytes) is int
        and 0 < size_bytes < LARGEST_FILE_BYTES
    )
    if is_sound:
        return RemoteFile(name, base + quote(path), size_bytes, str(sha256))
    return None


def is_safe_name(name: str, names: re.Pattern[str] = SAFE_NAME) -> bool:
    """Whether a foreign name is safe for a local file."""
    return (
        bool(names.fullmatch(name))
        and not name.startswith(("-", "."))
        and len(name) <= MOST_NAME_BYTES
    )


def _sound_token(text: str) -> str:
    text = text.strip()
    if re.fullmatch(r"[!-~]{1,200}", text):
        return text
    return ""
