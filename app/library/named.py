"""A model by the name that lists show, wherever it is kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.program import exit_codes
from app.program.bundled_model import model_path
from app.program.refusals import Refusal
from app.text.clean_text import clean_line

if TYPE_CHECKING:
    from app.library.places import FoundFile

_MOST_NAMED = 5


def named_model(given: str, directories: Sequence[str]) -> Path:
    """Return the file that a user means: a path, or a name as lists show it, in full or as far as it is the only one.

    Args:
        directories: the setting ``model_directories``.

    Raises:
        Refusal: several models have a name that begins like this.
    """
    path = model_path(given)
    if os.path.lexists(path) or path.is_absolute() or given.startswith((".", "~")) or not given.strip():
        return path
    from app.library.header import HeaderCache  # the first frame of a path does without
    from app.library.listing import title_of
    from app.library.places import find_files, places

    wanted = given.strip().lower()
    found = find_files(places(directories))
    for fits in (_is_called, _begins):
        fitting = [file for file in found if fits(file, wanted)]
        if len(fitting) > 1:
            # The list shows names without their types, which only the headers tell.
            headers = HeaderCache()
            titles = {file.path: title_of(file, headers.header(file)) for file in fitting}
            exact = [file for file in fitting if titles[file.path].lower() == wanted]
            if len(exact) != 1:
                names = ", ".join(dict.fromkeys(clean_line(file.title, 60) for file in fitting[:_MOST_NAMED]))
                raise Refusal(f"{clean_line(given, 60)}: several models are called so: {names}", exit_codes.USAGE)
            fitting = exact
        if fitting:
            return fitting[0].path
    return path


def _is_called(file: FoundFile, wanted: str) -> bool:
    return wanted in (file.title.lower(), file.path.name.lower())


def _begins(file: FoundFile, wanted: str) -> bool:
    return file.title.lower().startswith(wanted)
