"""Changes single settings in the user's file: comments, order and everything else in it stay as
they are.

A file that cannot be read as settings is never replaced.
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

_NO_PLACE = "no directory for your settings file can be written"


def changed(settings: Settings, key: str, value: object) -> Settings:
    """Check a value as the file's are, write it, and return the settings that the file gives now.

    None takes the key out of the file: the default holds again; ``settings``: in effect, they say
    what may be written. Raises Refusal: the value is not allowed, or the file cannot be used or
    written; it is as it was.
    """
    if key == "tools.servers":  # tables, which nothing typed here can express
        raise SettingsError(
            f"{key} is for an editor to change, in your settings file (jalopy help tools)"
        )
    if value is not None:
        override(settings, key, value, key)
    path = paths.config_file()
    if path is None:
        raise Refusal(_NO_PLACE)
    load_settings()  # a file with something wrong in it is for its owner to mend
    text = _rewritten(path, key, value)
    checked = settings_of(text, str(path))
    wanted = value_of(
        built_in_settings() if value is None else override(checked, key, value, key), key
    )
    if value_of(checked, key) != wanted:
        raise SettingsError(f"{path}: {key} cannot be changed here (an editor can)")
    try:
        # Where a link leads to it, its place is somewhere else: among somebody's other files of
        # that kind.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(target, text.encode("utf-8"))
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror} (nothing was changed)") from None
    return checked


def _rewritten(path: Path, key: str, value: object) -> str:
    """Return the file's text with one value changed."""
    import tomlkit  # when something is written: no start waits for it
    from tomlkit.exceptions import TOMLKitError

    table_name, _, name = key.rpartition(".")
    try:
        document = tomlkit.parse(read_text(path, "settings file") if is_present(path) else "")
        holder: Any = document
        # [server], another name for [serve]
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
        raise SettingsError(f"{path}: cannot be changed here: {error} (an editor can)") from None
