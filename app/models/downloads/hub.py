"""Hugging Face's hub: which files a repository has, how large they are and what their sha256 is.

One request answers all of it: ``/api/models/OWNER/REPO/revision/REV?blobs=true``. What comes back
is checked like a model file: names that could leave the target directory, sizes that are none and
files without a hash do not exist here.
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
"""Of 255: the note next to its part, while it is replaced, is called `.NAME.part.json.` and eight
letters more."""
_SAFE_DIRECTORY = re.compile(r"[A-Za-z0-9._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
LARGEST_FILE_BYTES = 1 << 50
_MOST_FILES = 10_000


@record
class RemoteFile:
    """A file that can be downloaded and checked."""

    name: str
    """Fit to be a file's name here."""
    url: str
    """Of this very version."""
    size_bytes: int
    sha256: str

    @property
    def magic(self) -> bytes:
        """First bytes of what it must be: a model, an archive that holds one, or anything."""
        return {".gguf": b"GGUF", ".whl": b"PK"}.get(self.name[self.name.rfind(".") :], b"")


@record
class Repository:
    """A repository as the hub describes it."""

    name: str
    files: tuple[RemoteFile, ...]
    """The GGUF files that can be checked, by name."""
    parameters: int = 0
    """Of the model; 0 for unknown."""
    architecture: str = ""
    """As the hub read it from the files; "" for unknown."""
    licence: str = ""
    """Clean; "" for unknown."""
    is_gated: bool = False
    """Its files are for those who accepted its terms."""
    is_disabled: bool = False
    """No one gets them."""


def endpoint() -> str:
    """Return the hub's address, or that of its mirror that HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def token() -> str:
    """Return the user's token from HF_TOKEN, or from the file where Hugging Face's programs keep
    it; "" for none."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return _sound_token(os.environ[name])
    given = os.environ.get("HF_TOKEN_PATH")
    directory = hugging_face_home()
    if given:
        path = Path(given)
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
    """Return a client that shows the token to the hub and to no one else."""
    return Web(token(), split_address(endpoint()).netloc, **options)


def read_repository(
    web: Web, name: str, revision: str = "main", base: str | None = None
) -> Repository:
    """Ask the hub for a repository's files.

    Raises DownloadError: it cannot be had, or the answer is none.
    """
    content, siblings, place = ask(web, name, revision, base)
    files = filter(None, (remote_file(one, place, SAFE_NAME) for one in siblings))
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
    """Return what the hub says of a repository, its list of files, and the address under which they
    are.

    Raises DownloadError: it cannot be had, or the answer is none.
    """
    base = base or endpoint()
    body = web.get_body(
        f"{base}/api/models/{quote(name)}/revision/{quote(revision, safe='')}?blobs=true"
    )
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise DownloadError(
            f"{name}: the hub's answer is not what a hub says (a login page in between?)"
        ) from None
    if isinstance(content, dict):
        siblings = content.get("siblings")
    else:
        siblings = None
    if not isinstance(siblings, list):
        raise DownloadError(f"{name}: the hub's answer lists no files", exit_codes.BAD_DATA)
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
    """Return a file of a list that can be downloaded and checked, if its name is one of
    ``names``."""
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
        and all(_SAFE_DIRECTORY.fullmatch(one) and one not in (".", "..") for one in directories)
        and isinstance(sha256, str)
        and _SHA256.fullmatch(sha256) is not None
        and type(size_bytes) is int
        and 0 < size_bytes < LARGEST_FILE_BYTES
    )
    if is_sound:
        return RemoteFile(name, base + quote(path), size_bytes, str(sha256))
    return None


def is_safe_name(name: str, names: re.Pattern[str] = SAFE_NAME) -> bool:
    """Whether a name from elsewhere may become a file's name here."""
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
