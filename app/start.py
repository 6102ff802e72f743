"""Which model a chat begins with, and that its file is sound before any screen opens."""

import os
from pathlib import Path

from app import engine_access
from app.refusals import exit_code_of, say
from app.settings import Settings
from app.state import load_state


def choose_model(given: str | None, settings: Settings) -> str | None:
    """Return the model to open: the one given, the one of the settings, or the last one used if it still can be.

    Returns:
        A path whose file has passed every check, or None.

    Raises:
        EngineError: the given model, or the one of the settings, cannot be used.
    """
    wanted = given or settings.model
    if not wanted:
        return _last_model()
    path = str(Path(wanted).expanduser())
    _check(path)
    return path


def _last_model() -> str | None:
    state, notice = load_state()
    if notice:
        say(f"jalopy: {notice}")
    if state.last_model is None or not os.path.isfile(state.last_model):
        return None
    try:
        _check(state.last_model)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        say(f"jalopy: the last model is not opened: {error}")
        return None
    return state.last_model


def _check(path: str) -> None:
    engine_access.validate_model(path).gguf.close()
