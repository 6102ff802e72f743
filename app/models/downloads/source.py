"""Original models: the repository files that ``jalopy convert`` reads, in a directory of their
own.
"""

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
    r"chat_template\.jinja|chat_template\.json|modules\.json|model\.safetensors\.index\.json|"
    r"[0-9]_Pooling/config\.json"
)
_BLOB = re.compile(r"[0-9a-f]{40}")


@record
class SmallFile:
    """A file that the hub keeps next to its source code."""

    path: str
    url: str
    blob: str
    """Git's hash of the content."""


@record
class ModelSource:
    """A repository's files, before they are downloaded."""

    name: str
    plan: DownloadPlan
    small: tuple[SmallFile, ...]

    @property
    def directory(self) -> Path:
        """Directory of the files."""
        return self.plan.directory


def find_source(request_text: str, web: Web, parent: Path) -> ModelSource:
    """Request the files of ``OWNER/REPO`` or of a page's address; they go to a directory in
    ``parent``.

    Raises DownloadError: the repository is not available, or has no safetensors weights.
    """
    request = parse_request(request_text, hub.endpoint())
    if not request.repository or request.quantization or request.file_path:
        raise DownloadError(
            f"{request_text}: name a repository as OWNER/REPO, or a directory", exit_codes.USAGE
        )
    content, siblings, files_url = hub.ask(web, request.repository, request.revision)
    if content.get("disabled") is True or (content.get("gated") and not web.has_token):
        if content.get("disabled") is True:
            reason = "access to it is disabled"
        else:
            reason = "accept its terms, then set HF_TOKEN"
        raise DownloadError(f"{request.repository}: {reason}", exit_codes.UNSUPPORTED)
    top = [
        sibling
        for sibling in siblings
        if isinstance(sibling, dict) and "/" not in str(sibling.get("rfilename"))
    ]
    large = list(filter(None, (remote_file(sibling, files_url, _WEIGHTS) for sibling in top)))
    if not large:
        raise DownloadError(
            f"{request.repository}: has no safetensors weights (jalopy pull downloads GGUF files)",
            exit_codes.BAD_DATA,
        )
    small = []
    for sibling in siblings:
        if sibling in top:
            large_file = remote_file(sibling, files_url, _DESCRIPTIONS)
        else:
            large_file = None
        if large_file is not None:
            large.append(large_file)
        elif (small_file := _small_file(sibling, files_url)) is not None:
            small.append(small_file)
    directory = parent / request.repository.replace("/", "--")
    return ModelSource(request.repository, make_plan(tuple(large), directory), tuple(small))


def _small_file(sibling: Any, files_url: str) -> SmallFile | None:
    path, blob = (
        sibling.get(key) if isinstance(sibling, dict) else None for key in ("rfilename", "blobId")
    )
    if not isinstance(path, str) or not isinstance(blob, str):
        return None
    is_needed = _DESCRIPTIONS.fullmatch(path) and _BLOB.fullmatch(blob)
    if is_needed:
        return SmallFile(path, files_url + quote(path), blob)
    return None


def fetch_source(source: ModelSource, web: Web, report: Report) -> Path:
    """Download missing files and return the directory.

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
                f"{source.name}: {file.path} has another content than the hub describes (try again)"
            )
        target = source.directory / file.path
        target.parent.mkdir(exist_ok=True)
        replace_file(target, body)
    download(source.plan, web, report)
    return source.directory
