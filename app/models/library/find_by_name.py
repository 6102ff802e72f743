"""Models by the names that lists show."""

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


def named_model(text: str, directories: Sequence[str]) -> Path:
    """Return the file for a user's text: a path, or the name of a listed model, in full or as a
    unique prefix.

    Args:
        directories: the setting ``model_directories``.

    Raises:
        Refusal: several models match, or a name without a suffix is that of no model.
    """
    path = model_path(text)
    if (
        os.path.lexists(path)
        or path.is_absolute()
        or text.startswith((".", "~"))
        or not text.strip()
    ):
        return path
    from app.models.library.header import (
        HeaderCache,
    )  # not needed for a path, nor by the first frame
    from app.models.library.listing import title_of
    from app.models.library.model_files import find_files, places

    headers = cache(HeaderCache)  # only read if file names are not enough
    file = called(
        text, find_files(places(directories)), lambda file: title_of(file, headers().header(file))
    )
    if file is not None:
        return file.path
    if path.name != text.strip() or path.suffix:
        return path
    raise Refusal(
        f'no model is called "{clean_line(text, 60)}" (jalopy models lists them)',
        exit_codes.UNREADABLE,
    )


def called(
    text: str, files: Sequence[StoredModel], title_of: Callable[[StoredModel], str]
) -> StoredModel | None:
    """Return the file with a name, in full or as a unique prefix; None if there is none.

    Args:
        title_of: returns the listed name, which lacks the type of weights; it needs the header.

    Raises:
        Refusal: several models match.
    """
    key = text.strip().lower()
    for fits in (_is_called, _begins):
        matches = [file for file in files if fits(file, key)]
        if len(matches) > 1:
            exact = [file for file in matches if title_of(file).lower() == key]
            if len(exact) != 1:
                names = ", ".join(
                    dict.fromkeys(clean_line(file.title, 60) for file in matches[:_MOST_NAMED])
                )
                raise Refusal(
                    f'"{clean_line(text, 60)}" matches several models: {names}',
                    exit_codes.USAGE,
                )
            matches = exact
        if matches:
            return matches[0]
    return None


def models_by_name(files: Iterable[StoredModel]) -> Mapping[str, tuple[StoredModel, ModelHeader]]:
    """Return the models that can be opened by their listed names, with the type if two share a
    name.

    Of files with the same name, the first counts.
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


def _is_called(file: StoredModel, key: str) -> bool:
    return key in (file.title.lower(), file.path.name.lower())


def _begins(file: StoredModel, key: str) -> bool:
    return file.title.lower().startswith(key)
