"""Changes to single settings in the user's file.

Comments, order and everything else stay. A file with errors is never replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import (
    Settings,
    SettingsError,
    built_in_settings,
    load_settings,
    override,
    settings_of,
    value_of,
)
from app.program.small_file import is_present, read_text, replace_file

_NO_PLACE = "the directory of your settings file is not writable"


def changed(settings: Settings, key: str, value: object) -> Settings:
    """Write a checked value to the settings file and return the new settings.

    Args:
        settings: the settings in effect.
        value: new value; None removes the key, so that the default applies.

    Raises Refusal: the value is not allowed, or the file cannot be used; the file is unchanged.
    """
    if key == "tools.servers":  # tables cannot be typed in the chat
        raise SettingsError(
            f"{key} can only be changed with an editor, in your settings file (jalopy help tools)"
        )
    if value is not None:
        override(settings, key, value, key)
    path = paths.config_file()
    if path is None:
        raise Refusal(_NO_PLACE)
    load_settings()  # a file with errors is for its owner to correct
    text = _rewritten(path, key, value)
    checked = settings_of(text, str(path))
    new_value = value_of(
        built_in_settings() if value is None else override(checked, key, value, key), key
    )
    if value_of(checked, key) != new_value:
        raise SettingsError(f"{path}: {key} cannot be changed here (use an editor)")
    try:
        # A linked file may belong to another program's directory.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(target, text.encode("utf-8"))
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror} (nothing was changed)") from None
    return checked


def _rewritten(path: Path, key: str, value: object) -> str:
    """Return the file's text with one value changed."""
    import tomlkit  # only needed for writing, so no start waits for it
    from tomlkit.exceptions import TOMLKitError

    table_name, _, name = key.rpartition(".")
    try:
        document = tomlkit.parse(read_text(path, "settings file") if is_present(path) else "")
        holder: Any = document
        # [server] is another name for [serve]
        if not table_name and isinstance(document.get(name), dict):
            raise ValueError(f"{name} is a table in it")
        if table_name:
            if value is None and table_name not in document:
                return tomlkit.dumps(document)
            holder = document.setdefault(table_name, tomlkit.table())
        if value is None:
            holder.pop(name, None)
        else:
            if isinstance(value, tuple):
                holder[name] = list(value)
            else:
                holder[name] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be changed here: {error} (use an editor)") from None
