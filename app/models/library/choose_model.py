"""The model that a chat starts with: chosen, checked before any screen opens, and remembered."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from app.backend.local import engine_access
from app.models.library.find_by_name import named_model
from app.models.library.model_files import newly_listed_directory
from app.program.bundled_model import is_starter, starter_file
from app.program.refusals import Refusal, exit_code_of, say
from app.program.settings import Settings
from app.program.state import load_state, remember_model, remember_opened_model
from app.text.clean_text import clean_line
from engine.errors import EngineError, shown

Check = Callable[[str], None]


def choose_model(
    given: str | None, settings: Settings, check: Check = engine_access.check_model
) -> str | None:
    """Return the model to open: the one given, that of the settings, the last one used, or the one
    that is bundled.

    What was used last counts only while its file can be used. ``check`` raises for one that cannot
    be. Before a screen a glance is enough: what opening finds wrong is then shown in the chat, and
    the first frame need not wait for it.

    Raises EngineError: the given model cannot be used; Refusal: several have its name, or that of
    the settings cannot.
    """
    if given:
        path = str(named_model(given, settings.model_directories))
        check(path)
        return path
    if settings.model:
        path = str(named_model(settings.model, settings.model_directories))
        try:
            check(path)
        except EngineError as error:  # no one has just typed setting and path: both are named
            problem = str(error).removeprefix(f"{shown(os.path.basename(path))}: ")
            raise Refusal(
                f"the setting model: {clean_line(path, 160)}: {problem}", error.exit_code
            ) from None
        return path
    starter = starter_file()
    return _last_model(check) or (str(starter) if starter else None)


def remember_opened(path: Path | str, directories: Sequence[str] = ()) -> str | None:
    """Note which model was opened, but for the starter; return a line where that failed, or lists
    gain a folder by it.

    A file that is away for a day, on a disk that is not plugged in, is the last model again when it
    is back.
    """
    if is_starter(path):
        return None
    gained = newly_listed_directory(path, directories)  # as long as it is not remembered
    return remember_model(path) or gained


def remember_listed(path: Path | str) -> None:
    """Note a model that was opened without a chat, so that lists have it; losing that is no one's
    worry."""
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
        say(f"jalopy: the last model is not opened: {error}")
        return None
    return state.last_model
