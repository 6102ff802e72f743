"""Source of a download: a repository with or without a type, or an address; and its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.downloads.fetch import make_plan
from app.downloads.hub import RemoteFile, Repository, is_safe_name
from app.downloads.refusal import DownloadError
from app.downloads.web import split_address
from app.library.listing import Lister
from app.program import exit_codes
from app.text.clean_text import clean_line
from app.text.record import record
from engine import part_name

_REPOSITORY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<type>[A-Za-z0-9_]+))?"
)
_HUB_PAGE = re.compile(r"/(?P<name>[^/]+/[^/]+)(?:/tree/(?P<revision>[^/]+))?/?")
_HUB_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/(?:resolve|blob|raw)/(?P<revision>[^/]+)/(?P<path>.+)")
_TYPE = re.compile(
    r"(?<![A-Za-z0-9])([IT]?Q[1-9]_[A-Z0-9]+(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MOST_NAMED = 12
HUB_ADDRESSES = ("https://huggingface.co", "https://hf.co")
"""Hosts of addresses that people copy; with HF_ENDPOINT set, they are looked up there too."""


@record
class Wanted:
    """The request."""

    repository: str = ""
    """OWNER/REPO; "" for an address elsewhere."""
    quantization: str = ""
    """In capitals; "" lets advice choose."""
    file_path: str = ""
    """Of one file of the repository."""
    revision: str = "main"
    url: str = ""
    """Of a file elsewhere."""


@record
class Choice:
    """One model of a repository: a file, or several that are one."""

    quantization: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def parse_wanted(text: str, hub: str) -> Wanted:
    """Read what the user typed. Raises DownloadError: it is neither a repository nor an address of a GGUF file."""
    if "://" not in text:
        match = _REPOSITORY.fullmatch(text)
        if match is None:
            raise DownloadError(f"{text}: name a repository as OWNER/REPO or OWNER/REPO:Q4_K_M, or give an address",
                                exit_codes.USAGE)  # fmt: skip
        return Wanted(match["name"], (match["type"] or "").upper())
    parts = split_address(text)
    if f"{parts.scheme}://{parts.netloc}" in (hub, *HUB_ADDRESSES):
        return _wanted_of_hub(text, parts.path)
    name = unquote(parts.path).rpartition("/")[2]
    if not is_safe_name(name):
        raise DownloadError(f"{text}: does not end in a file name like NAME.gguf", exit_codes.USAGE)
    return Wanted(url=text)


def _wanted_of_hub(text: str, path: str) -> Wanted:
    """Read the path of a repository's page or of one of its files; a revision may hold slashes, written as %2F."""
    page, file = _HUB_PAGE.fullmatch(path), _HUB_FILE.fullmatch(path)
    match = file or page
    if match is None or not _REPOSITORY.fullmatch(unquote(match["name"])):
        raise DownloadError(f"{text}: is no repository or file of the hub (name OWNER/REPO, or copy a file's address)",
                            exit_codes.USAGE)  # fmt: skip
    file_path = unquote(file["path"]) if file else ""
    return Wanted(unquote(match["name"]), file_path=file_path, revision=unquote(match["revision"] or "main"))


def choices_of(repository: Repository) -> list[Choice]:
    """Group a repository's files into models; incomplete sets of parts and what is no language model are left out."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in repository.files:
        if not re.search(r"mmproj|imatrix", file.name, re.IGNORECASE):
            part = part_name(file.name)
            name = f"{part.stem}/{part.count}" if part else file.name
            groups.setdefault(f"{file.url.rpartition('/')[0]}/{name}", []).append(file)
    choices = []
    for files in groups.values():
        first = part_name(files[0].name)
        is_complete = first is None or [part_name(file.name) for file in files] == [
            part_name(first.of(number)) for number in range(1, first.count + 1)
        ]
        if is_complete:
            choices.append(Choice(type_of(files[0].name), tuple(files)))
    return choices


def type_of(file_name: str) -> str:
    """Return the type a file's name ends with, in capitals; "" for none."""
    found = _TYPE.findall(file_name)
    return found[-1].upper().replace("FP16", "F16") if found else ""


def choose(repository: Repository, wanted: Wanted, lister: Lister, directory: Path) -> tuple[Choice, str]:
    """Return the model to download and why it is this one.

    Advice follows the memory that is free just now; who goes on with a download, of which a part is in the directory,
    means the same model. Raises DownloadError: no file matches, or none fits into memory.
    """
    choices = choices_of(repository)
    if not choices:
        raise DownloadError(f"{repository.name}: has no GGUF file that could be checked (another repository has them?)",
                            exit_codes.BAD_DATA)  # fmt: skip
    named = [one for one in choices if one.quantization == wanted.quantization]
    if wanted.file_path:
        end = f"/{wanted.file_path}"
        named = [one for one in choices if any(unquote(urlsplit(file.url).path).endswith(end) for file in one.files)]
    if name := wanted.file_path or wanted.quantization:
        if not named:
            there = _named(choices)
            raise DownloadError(f"{repository.name}: has no {name}; there are {there}", exit_codes.UNREADABLE)
        return named[0], "as named"
    if len(choices) == 1:
        return choices[0], "the only one there"
    begun = [one for one in choices if make_plan(one.files, directory).is_begun]
    if len(begun) == 1:
        return begun[0], "begun earlier"
    return _advised(choices, repository, lister)


def parameters_of(repository: Repository, choice: Choice) -> float:
    """Return the model's parameters: as the hub says, else by size and type."""
    from app.library.advice import bits_per_weight

    if repository.parameters:
        return float(repository.parameters)
    return 8 * choice.size_bytes / bits_per_weight().get(choice.quantization, 5.0)


def _advised(choices: Sequence[Choice], repository: Repository, lister: Lister) -> tuple[Choice, str]:
    from app.library.advice import best_type

    parameters = parameters_of(repository, choices[0])
    best = best_type(parameters, lister.memory, lister.rates, [one.quantization for one in choices])
    found = next((one for one in choices if one.quantization == best), None)
    if found is None:
        raise DownloadError(
            f"{repository.name}: nothing in it fits into this machine's free memory; there are {_named(choices)} "
            f"(name one to take it all the same: {repository.name}:TYPE)",
            exit_codes.NO_MEMORY,
        )
    return found, "what suits this machine"


def _named(choices: Iterable[Choice]) -> str:
    names = sorted({one.quantization or one.files[0].name for one in choices})
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return clean_line(", ".join(names[:_MOST_NAMED]) + more, 200)
