"""A model as it was trained: the files of a repository that ``jalopy convert`` reads, into a
directory of its own."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.models.downloads import hub
from app.models.downloads.fetch import DownloadPlan, Report, download, make_plan
from app.models.downloads.hub import remote_file
from app.models.downloads.pull import parse_request
from app.program import exit_codes
from app.program.small_file import replace_file
from app.program.web import Web
from app.program.web_refusals import DownloadError
from app.text.record import record

_WEIGHTS = re.compile(r"model[A-Za-z0-9._-]*\.safetensors")
_DESCRIPTIONS = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer\.model|tokenizer_config\.json|"
    r"chat_template\.jinja|chat_template\.json|modules\.json|model\.safetensors\.index\.json|[0-9]_Pooling/config\.json"
)
_BLOB = re.compile(r"[0-9a-f]{40}")


@record
class SmallFile:
    """A file that the hub keeps next to its source code."""

    path: str
    url: str
    blob: str
    """Git's name of its content."""


@record
class ModelSource:
    """A repository's files, before they are downloaded."""

    name: str
    plan: DownloadPlan
    small: tuple[SmallFile, ...]

    @property
    def directory(self) -> Path:
        """Where they go."""
        return self.plan.directory


def find_source(what: str, web: Web, parent: Path) -> ModelSource:
    """Ask the hub for the files of ``OWNER/REPO``, or of its page's address; they go to a directory
    in ``parent``.

    Raises DownloadError: it cannot be had, or has no weights in safetensors.
    """
    wanted = parse_request(what, hub.endpoint())
    if not wanted.repository or wanted.quantization or wanted.file_path:
        raise DownloadError(
            f"{what}: name a repository as OWNER/REPO, or a directory", exit_codes.USAGE
        )
    content, siblings, place = hub.ask(web, wanted.repository, wanted.revision)
    if content.get("disabled") is True or (content.get("gated") and not web.has_token):
        if content.get("disabled") is True:
            why = "access to it is disabled"
        else:
            why = "accept its terms, then set HF_TOKEN"
        raise DownloadError(f"{wanted.repository}: {why}", exit_codes.UNSUPPORTED)
    top = [
        one for one in siblings if isinstance(one, dict) and "/" not in str(one.get("rfilename"))
    ]
    large = list(filter(None, (remote_file(one, place, _WEIGHTS) for one in top)))
    if not large:
        raise DownloadError(f"{wanted.repository}: has no weights in safetensors (jalopy pull gets GGUF files)",
                            exit_codes.BAD_DATA)  # fmt: skip
    small = []
    for one in siblings:
        if one in top:
            kept = remote_file(one, place, _DESCRIPTIONS)
        else:
            kept = None
        if kept is not None:
            large.append(kept)
        elif (found := _small_file(one, place)) is not None:
            small.append(found)
    directory = parent / wanted.repository.replace("/", "--")
    return ModelSource(wanted.repository, make_plan(tuple(large), directory), tuple(small))


def _small_file(sibling: Any, place: str) -> SmallFile | None:
    path, blob = (
        sibling.get(key) if isinstance(sibling, dict) else None for key in ("rfilename", "blobId")
    )
    if not isinstance(path, str) or not isinstance(blob, str):
        return None
    is_wanted = _DESCRIPTIONS.fullmatch(path) and _BLOB.fullmatch(blob)
    if is_wanted:
        return SmallFile(path, place + quote(path), blob)
    return None


def fetch_source(source: ModelSource, web: Web, report: Report) -> Path:
    """Download what is not there yet, and return the directory.

    Raises DownloadError; OSError: it cannot be written.
    """
    source.plan.refuse_full_disk()
    source.directory.mkdir(parents=True, exist_ok=True)
    for file in source.small:
        body = web.get_body(file.url)
        if (
            hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
            != file.blob
        ):
            raise DownloadError(
                f"{source.name}: {file.path} is not the file that the hub describes (try again)"
            )
        target = source.directory / file.path
        target.parent.mkdir(exist_ok=True)
        replace_file(target, body)
    download(source.plan, web, report)
    return source.directory
