"""Choice of the model for a chat. It is checked before a screen opens, and remembered."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from app.backend.local import engine_access
from app.models.library.find_by_name import named_model
from app.models.library.model_files import newly_listed_directory
from app.program.bundled_model import is_starter, starter_file
from app.program.refusals import Refusal, exit_code_of, say
from app.program.settings import OFFER, Settings
from app.program.state import (
    load_state,
    remember_model,
    remember_offered_draft,
    remember_opened_model,
)
from app.text.clean_text import clean_line
from engine.errors import EngineError, printable

Check = Callable[[str], None]


def choose_model(
    requested: str | None, settings: Settings, check: Check = engine_access.check_model
) -> str | None:
    """Return the model to open: the requested one, that of the settings, the last one used, or the
    starter.

    A last model that cannot be used is skipped. Before a screen the check is short: opening finds
    further problems and shows them in the chat.

    Args:
        check: raises an error for a model that cannot be used.

    Raises EngineError: the requested model cannot be used; Refusal: several models have its name,
    or the model of the settings cannot be used.
    """
    if requested:
        path = str(named_model(requested, settings.model_directories))
        check(path)
        return path
    if settings.model:
        path = str(named_model(settings.model, settings.model_directories))
        try:
            check(path)
        except EngineError as error:  # the path comes from the settings: name both
            problem = str(error).removeprefix(f"{printable(os.path.basename(path))}: ")
            raise Refusal(
                f"setting `model`: {clean_line(path, 160)}: {problem}", error.exit_code
            ) from None
        return path
    starter = starter_file()
    return _last_model(check) or (str(starter) if starter else None)


def remember_opened(
    path: Path | str, directories: Sequence[str] = (), draft_model: str = ""
) -> str | None:
    """Remember an opened model, except the starter; return a line about a failure, a newly listed
    folder, or a small model that could guess for it.

    A model on a disk that is unplugged for a day stays the last model.
    """
    if is_starter(path):
        return None
    gained = newly_listed_directory(path, directories)  # before the model is remembered
    return remember_model(path) or gained or _offered_draft(path, draft_model)


def _offered_draft(path: Path | str, draft_model: str) -> str | None:
    """Return a line about a small model in a model's folder, the first time that it is there."""
    if draft_model != OFFER:
        return None
    found = engine_access.assistant_next_to(path)
    if found is None or not remember_offered_draft(found):
        return None
    return (
        f"{clean_line(found.name, 60)} can guess for this model: the answers are the same, often "
        f'sooner (draft_model = "auto" in /settings, or --draft auto)'
    )


def remember_listed(path: Path | str) -> None:
    """Remember a model opened without a chat, so that lists include it."""
    if os.path.isfile(path) and not is_starter(path):
        remember_opened_model(path)


def _last_model(check: Check) -> str | None:
    state, notice = load_state()
    if notice:
        say(f"jalopy: {notice}")
    if state.last_model is None or not os.path.isfile(state.last_model):
        return None
    try:
        check(state.last_model)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        say(f"jalopy: cannot open the last model: {error}")
        return None
    return state.last_model
