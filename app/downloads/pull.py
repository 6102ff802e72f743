"""From what the user typed to a plan with its price, and from there to files: what the command and the screen share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.downloads import hub
from app.downloads.fetch import DownloadPlan, Progress, Report, download, make_plan
from app.downloads.hub import RemoteFile, Repository
from app.downloads.refusal import DownloadError
from app.downloads.source import Choice, Wanted, choose, parameters_of, parse_wanted, type_of
from app.downloads.web import Web
from app.library.header import ModelHeader, read_header
from app.library.listing import Lister, Outlook, make_lister
from app.library.places import download_directory, find_files, places
from app.library.rows import outlook_text
from app.library.sha256 import stated_sha256
from app.program import exit_codes
from app.program.settings import Settings
from app.text import figures
from app.text.clean_text import clean_line
from app.text.record import record


@record
class Prepared:
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
    here: Path | None = None
    """A file with the same hash that lies on this machine already."""


def prepare(text: str, settings: Settings, web: Web, sha256: str = "", directory: Path | None = None) -> Prepared:
    """Find out what that means, how large it is, and whether this machine has room for it; downloads nothing.

    ``sha256``: what the one file must have, "" for what the hub states; ``directory``: by default that of the settings.
    Raises DownloadError: it means nothing, or cannot be had.
    """
    wanted = parse_wanted(text, hub.endpoint())
    target = directory or download_directory(settings.model_directories)
    if target is None:
        raise DownloadError("there is no directory for downloads (name one: --to DIR)", exit_codes.USAGE)
    if wanted.url:
        return _prepare_address(wanted, web, sha256, target)
    lister = make_lister(settings)
    repository = hub.read_repository(web, wanted.repository, wanted.revision)
    choice, why = choose(repository, wanted, lister, target)
    if sha256:
        _require_hash(choice, sha256)
    outlook = _outlook(repository, choice, lister)
    is_open = repository.is_gated and web.has_token
    is_exact = wanted.file_path or wanted.revision != "main"
    return Prepared(
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


def carry_out(prepared: Prepared, web: Web, report: Report) -> tuple[Path, ModelHeader]:
    """Download, as ``fetch.download`` does, and return the first file with what its header says."""
    prepared.plan.refuse_full_disk()
    first = download(prepared.plan, web, report)[0]
    return first, read_header(first)


def price_lines(prepared: Prepared) -> list[str]:
    """Write what will happen, before it does."""
    plan = prepared.plan
    n_files = f" in {len(plan.files)} files" if len(plan.files) > 1 else ""
    what = f"{prepared.title} {prepared.quantization}".strip()
    free = f", {figures.size(plan.free_bytes)} free there" if plan.free_bytes is not None else ""
    outlook = outlook_text(prepared.outlook, names_context=False)
    lines = (
        f"{what} ({prepared.why}): {figures.size(plan.total_bytes)}{n_files}",
        f"{figures.size(plan.here_bytes)} of it are here already" if plan.here_bytes else "",
        f"goes to {clean_line(str(plan.directory), 200)}{free}",
        f"on this machine: {outlook}" if outlook else "",
        f"licence: {prepared.licence}" if prepared.licence else "",
        prepared.gate,
    )
    return [line for line in lines if line]


def _prepare_address(wanted: Wanted, web: Web, sha256: str, directory: Path) -> Prepared:
    if not sha256:
        raise DownloadError("nothing states a hash for this address: give the one it should have with --sha256 HEX",
                            exit_codes.USAGE)  # fmt: skip
    response = web.with_retries(lambda: web.get(wanted.url))
    size_bytes = response.length or 0
    is_page = response.headers.get_content_type() == "text/html"
    response.close()
    if is_page or not 0 < size_bytes < 1 << 50:
        problem = "is a web page, not a model" if is_page else "does not say how large it is"
        raise DownloadError(f"{wanted.url}: {problem}", exit_codes.BAD_DATA)
    name = unquote(urlsplit(wanted.url).path).rpartition("/")[2]
    file = RemoteFile(name, wanted.url, size_bytes, sha256)
    return Prepared(clean_line(name, 100), wanted.url, type_of(name), "as named", make_plan((file,), directory))


def _require_hash(choice: Choice, sha256: str) -> None:
    """Refuse what the hub says is another file than the user wants."""
    file, n_files = choice.files[0], len(choice.files)
    name = clean_line(file.name, 80)
    if n_files > 1:
        raise DownloadError(f"{name}: this model is in {n_files} files, and --sha256 is of one (leave it out)",
                            exit_codes.USAGE)  # fmt: skip
    if file.sha256 != sha256:
        raise DownloadError(f"{name}: is not the file of --sha256: its hash on the hub is {file.sha256}",
                            exit_codes.BAD_DATA)  # fmt: skip


def _outlook(repository: Repository, choice: Choice, lister: Lister) -> Outlook | None:
    """Estimate by size and type; the size is the real one."""
    from app.library.advice import bits_per_weight, needs_of_size

    if choice.quantization not in bits_per_weight():
        return None
    needs = needs_of_size(parameters_of(repository, choice), choice.quantization, lister.kv_type)
    return lister.outlook_of(replace(needs, weights_bytes=choice.size_bytes))


def _trouble(repository: Repository, outlook: Outlook | None, has_token: bool) -> str:
    from engine.models import ARCHITECTURES, why_refused

    if repository.is_disabled:
        return "access to it is disabled on the hub"
    if repository.is_gated and not has_token:
        return "it is gated: accept its terms on its page first, then set HF_TOKEN"
    if repository.architecture and repository.architecture not in ARCHITECTURES:
        name = repository.architecture
        return f"its architecture {clean_line(name, 30)} is {why_refused(name)}"
    if outlook is not None and outlook.verdict == "no":
        return f"it needs {figures.size(outlook.needed_bytes)} of memory, more than this machine has"
    return ""


def _here(choice: Choice, directories: Sequence[str]) -> Path | None:
    """Look for the same content in stores that name files by their hash."""
    if len(choice.files) != 1:
        return None
    wanted = choice.files[0]
    found = find_files(places(directories))
    same = (file.path for file in found if file.size_bytes == wanted.size_bytes)
    return next((path for path in same if stated_sha256(path) == wanted.sha256), None)


def progress_text(now: Progress) -> str:
    """Write how far it is: "1.2G of 2.0G · 5.1M/s · about 2 min 40 s left"."""
    if now.stage == "wait":
        return f"waiting, then again: {now.note}"
    done = f"{figures.size(now.done_bytes)} of {figures.size(now.total_bytes)}"
    if now.stage == "check":
        return f"checking what is here: {done}"
    rate = f" · {figures.size(now.rate_bps)}/s" if now.rate_bps else ""
    left = f" · about {figures.whole_seconds(now.left_s)} left" if now.left_s is not None else ""
    return f"{done}{rate}{left}"
