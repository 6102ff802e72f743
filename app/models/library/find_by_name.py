"""A model by the name that lists show, wherever it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from app.program import exit_codes
from app.program.bundled_model import model_path
from app.program.refusals import Refusal
from app.text.clean_text import clean_line

if TYPE_CHECKING:
    from app.models.library.header import ModelHeader
    from app.models.library.model_files import StoredModel

_MOST_NAMED = 5


def named_model(given: str, directories: Sequence[str]) -> Path:
    """Return the file that a user means: a path, or a name as lists show it, in full or as far as
    it is the only one.

    Args:
        directories: the setting ``model_directories``.

    Raises:
        Refusal: several models have a name that begins like this.
    """
    path = model_path(given)
    if (
        os.path.lexists(path)
        or path.is_absolute()
        or given.startswith((".", "~"))
        or not given.strip()
    ):
        return path
    from app.models.library.header import HeaderCache  # the first frame of a path does without
    from app.models.library.listing import title_of
    from app.models.library.model_files import find_files, places

    headers = cache(HeaderCache)  # read where the names of files are not enough
    found = called(
        given, find_files(places(directories)), lambda file: title_of(file, headers().header(file))
    )
    if found is None:
        return path
    return found.path


def called(
    given: str, files: Sequence[StoredModel], title_of: Callable[[StoredModel], str]
) -> StoredModel | None:
    """Return the file that has a name, in full or as far as it is the only one; None where none
    has.

    Args:
        title_of: the name that lists show, which has no type of weights; only headers tell it.

    Raises:
        Refusal: several models have a name that begins like this.
    """
    wanted = given.strip().lower()
    for fits in (_is_called, _begins):
        fitting = [file for file in files if fits(file, wanted)]
        if len(fitting) > 1:
            exact = [file for file in fitting if title_of(file).lower() == wanted]
            if len(exact) != 1:
                names = ", ".join(
                    dict.fromkeys(clean_line(file.title, 60) for file in fitting[:_MOST_NAMED])
                )
                raise Refusal(
                    f"{clean_line(given, 60)}: several models are called so: {names}",
                    exit_codes.USAGE,
                )
            fitting = exact
        if fitting:
            return fitting[0]
    return None


def models_by_name(files: Iterable[StoredModel]) -> Mapping[str, tuple[StoredModel, ModelHeader]]:
    """Return the models that can be opened, each by the name that lists show: with its type where
    two have one.

    Of files that are called alike, the first one counts.
    """
    from app.models.library.header import HeaderCache
    from app.models.library.listing import read_models, title_of

    first = {file.title.lower(): file for file in reversed(list(files))}
    read = [
        (file, header)
        for file, header in read_models(reversed(first.values()), HeaderCache())
        if header.needs
    ]
    titles = [title_of(file, header).lower() for file, header in read]
    names = (
        title_of(file, header) if titles.count(title) == 1 else clean_line(file.title, 60)
        for title, (file, header) in zip(titles, read, strict=True)
    )
    return dict(zip(names, read, strict=True))


def _is_called(file: StoredModel, wanted: str) -> bool:
    return wanted in (file.title.lower(), file.path.name.lower())


def _begins(file: StoredModel, wanted: str) -> bool:
    return file.title.lower().startswith(wanted)
