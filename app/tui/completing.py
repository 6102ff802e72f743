"""Completions of the text behind a slash: commands, and the names and paths that some of them take. No widget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice

from app.program.background import in_background
from app.text.clean_text import clean_line
from app.text.record import record
from app.tui.actions import ACTIONS, commands_starting, find_command, split_command

MOST_NAMES = 200
"""Limit on the files and folders of a directory that are offered."""
_THINKING = ("on", "off", "auto", "low", "medium", "high")
_FILES = {"read": "", "model": ".gguf", "schema": ".json"}
"""Commands that take a path, and how the name of the file ends."""

Names = Callable[[], Iterable[str]]


@record
class Offered:
    """One thing that what is typed could become."""

    text: str
    """The whole of it."""
    usage: str
    """How it is listed."""
    title: str = ""
    """Its effect, in one line."""


def offered_at_once(typed: str, names: Mapping[str, Names]) -> list[Offered]:
    """Return commands, or the names that a command takes.

    Args:
        names: what may stand behind a command, by its name.
    """
    matching = commands_starting(typed)
    if matching:
        return [
            Offered(
                f"/{one.command}{' ' if one.takes_argument else ''}",
                f"/{one.command} {one.argument}".rstrip(),
                one.title,
            )
            for one in matching
        ]
    command, argument = _command_of(typed)
    known = {"think": lambda: _THINKING, **names}
    if command not in known or " " in argument:
        return []
    fitting = [name for name in known[command]() if name.startswith(argument) and name != argument]
    return [Offered(f"/{command} {name}", name) for name in fitting]


def offered_paths(typed: str) -> Future[list[Offered]] | None:
    """Begin to look for the files that a path could become; None where no path is typed."""
    command, argument = _command_of(typed)
    if command not in _FILES or "\n" in argument:
        return None
    return in_background(partial(_paths, command, argument), "paths")


def _command_of(typed: str) -> tuple[str, str]:
    """Return the command that an argument is typed for, by its name; "" without one."""
    split = split_command(typed)
    action = find_command(split[0]) if split and not typed.endswith("\n") else None
    if split is None or action is None or not typed.startswith(f"/{split[0]} "):
        return "", ""
    return action.command, typed[len(split[0]) + 2 :].lstrip()


def _paths(command: str, argument: str) -> list[Offered]:
    """List what begins like the path: folders, and files of the kind that the command takes."""
    folder, name = os.path.split(argument)
    found = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            for entry in islice(entries, 10 * MOST_NAMES):
                is_folder = entry.is_dir()
                is_wanted = is_folder or entry.name.endswith(_FILES[command])
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if is_wanted and not is_hidden and entry.name.startswith(name) and entry.name.isprintable():
                    found.append(os.path.join(folder, entry.name) + ("/" if is_folder else ""))
    except (OSError, ValueError):
        return []
    fitting = sorted(path for path in found if path != argument)[:MOST_NAMES]
    return [Offered(f"/{command} {path}", clean_line(path, 200)) for path in fitting]


def sends_alone(offered: Offered) -> bool:
    """Whether the completed text is a whole command."""
    return any(offered.text == f"/{one.command}" for one in ACTIONS.values() if one.command)
