"""Completions of what is typed: commands, their arguments, and paths of files. Not a widget."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import islice

from app.program.background import in_background
from app.text.clean_text import clean_line
from app.text.record import record
from app.tui.actions import commands_starting, find_command, split_command

MAX_NAMES = 200
"""Limit on the files and folders of a directory that are offered."""
MAX_DROPPED_FILES = 100
"""Limit on the files that are dropped on the terminal at a time."""
_MAX_PATH_CHARS = 4096
_THINKING_ARGUMENTS = ("on", "off", "auto", "low", "medium", "high")
_FILE_SUFFIXES = {"model": ".gguf", "lora": ".gguf", "schema": ".json"}
"""Suffix of the files that a command takes, by command."""
_MODEL_COMMANDS = ("model", "regen")
"""Commands that take the name of a model."""
_LAST_PATH = re.compile(r"""("[^"]*|'[^']*|\S*)$""")
"""The last of several paths."""
_REFERENCE = re.compile(r'(?<!\S)@("[^"\n]*|[^\s"]*)$')
_DROPPED_WORD = re.compile(r"""(?:\\.|'[^']*'|"[^"]*"|[^\s'"\\])+""")

Names = Callable[[], Iterable[str]]


@record
class Completion:
    """A text that the typed text can be completed to."""

    text: str
    usage: str
    """The completion as it is listed."""
    title: str = ""
    attaches: str = ""
    """Path of a file that is attached when this is chosen; "" for none."""


def complete_command(typed: str, names: Mapping[str, Names]) -> list[Completion]:
    """Return commands that the typed text begins, or arguments of a command.

    Args:
        names: functions that list the arguments of some commands.
    """
    actions = commands_starting(typed)
    if actions:
        return [
            Completion(
                f"/{action.command} " if action.argument else f"/{action.command}",
                action.command_line,
                action.title,
            )
            for action in actions
        ]
    command, argument = _split_argument(typed)
    list_names = {"think": lambda: _THINKING_ARGUMENTS, **names}.get(command)
    if list_names is None or " " in argument:
        return []
    return [
        Completion(f"/{command} {name}", name)
        for name in list_names()
        if name.startswith(argument) and name != argument
    ]


def complete_name(typed: str, models: Names) -> Future[list[Completion]] | None:
    """Begin to look for the models and paths that the typed text can become; None if it has no
    such name.

    Args:
        models: lists the names of models; called in another thread.
    """
    command, argument = _split_argument(typed)
    if "\n" in argument:
        return None
    if command in _MODEL_COMMANDS:
        return in_background(partial(_complete_model, command, argument, models), "models")
    if command in _FILE_SUFFIXES:
        list_paths = partial(_complete_path, f"/{command} ", argument, str, _FILE_SUFFIXES[command])
        return in_background(list_paths, "paths")
    if command == "read":
        path = _LAST_PATH.search(argument)
        if path:
            prefix = typed.removesuffix(path[0])
            list_paths = partial(_complete_path, prefix, path[0].lstrip("\"'"), _quoted)
            return in_background(list_paths, "paths")
    elif not command:
        reference = _REFERENCE.search(typed)
        if reference:
            prefix = typed[: reference.start()]
            return in_background(partial(_complete_reference, prefix, reference[1]), "paths")
    return None


def dropped_command(pasted: str) -> str:
    """Return the command for files that were dropped on the terminal; "" for other pastes.

    A terminal pastes the paths of dropped files. Nothing is opened or attached until the user sends
    the command.
    """
    paths = dropped_files(pasted)
    if len(paths) > 1:
        return f"/read {quoted_names(paths)}"
    if not paths:
        return ""
    if paths[0].lower().endswith(_FILE_SUFFIXES["model"]):
        return f"/model {paths[0]}"
    return f"/read {paths[0]}"


def dropped_files(pasted: str) -> list[str]:
    """Return the paths of files that a terminal pastes; empty for other text."""
    text = pasted.strip()
    max_chars = _MAX_PATH_CHARS * MAX_DROPPED_FILES
    if not text or len(text) > max_chars or text[0] not in "/'\"\\f":
        return []
    paths: list[str] = []
    for line in text.splitlines():
        path = _dropped_file(line.strip())
        if path:
            paths.append(path)
        else:
            paths += map(_dropped_file, _DROPPED_WORD.findall(line))
        if len(paths) > MAX_DROPPED_FILES or "" in paths:
            return []
    return paths


def quoted_names(paths: Iterable[str]) -> str:
    """Return paths as a command takes several: those with spaces in quotes."""
    import shlex  # not needed for the first frame

    return " ".join(map(shlex.quote, paths))


def _dropped_file(word: str) -> str:
    """Return the path of a file as a terminal pastes it; "" if it is none."""
    if not word or len(word) > _MAX_PATH_CHARS or not word.isprintable():
        return ""
    if word.startswith("file://"):
        from urllib.parse import unquote  # not needed for the first frame

        # The name of the host may come first.
        _, slash, path = word.removeprefix("file://").partition("/")
        path = slash + unquote(path)
    elif len(word) > 1 and word[0] in "'\"" and word.find(word[0], 1) == len(word) - 1:
        path = word[1:-1]
    else:
        path = re.sub(r"\\(.)", r"\1", word)
    is_file = os.path.isabs(path) and path.isprintable() and os.path.isfile(path)
    return path if is_file else ""


def _split_argument(typed: str) -> tuple[str, str]:
    """Return the command that an argument is typed for, and the argument; "" if there is none."""
    words = split_command(typed)
    if words is None or typed.endswith("\n"):
        return "", ""
    word, _ = words
    action = find_command(word)
    if action is None or not typed.startswith(f"/{word} "):
        return "", ""
    return action.command, typed[len(word) + 2 :].lstrip()


def _complete_model(command: str, argument: str, models: Names) -> list[Completion]:
    """Return the models whose names begin like an argument, and then model files."""
    prefix = f"/{command} "
    names = [name for name in models() if name.lower().startswith(argument.lower())]
    named = [Completion(prefix + name, name) for name in names if name != argument]
    return named + _complete_path(prefix, argument, str, _FILE_SUFFIXES["model"])


def _complete_path(
    prefix: str, path: str, write: Callable[[str], str], suffix: str = ""
) -> list[Completion]:
    return [
        Completion(prefix + write(match), clean_line(match, 200)) for match in _paths(path, suffix)
    ]


def _complete_reference(prefix: str, reference: str) -> list[Completion]:
    """Return files after an @ sign: a chosen file is attached, and its name stays in the text."""
    completions = []
    for path in _paths(reference.lstrip('"')):
        name = clean_line(path, 200)
        if path.endswith("/"):
            completions.append(Completion(f"{prefix}@{_quoted(path)}", name))
        else:
            text = f"{prefix}{os.path.basename(path)} "
            completions.append(Completion(text, name, attaches=path))
    return completions


def _quoted(path: str) -> str:
    """Return a path as it is typed among others; the quotes of a folder stay open."""
    if not re.search(r"[\s']", path):
        return path
    return f'"{path}' if path.endswith("/") else f'"{path}"'


def _paths(path: str, suffix: str = "") -> list[str]:
    """Return the folders and the files with a suffix that begin like a path."""
    folder, name = os.path.split(path)
    paths = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            for entry in islice(entries, 10 * MAX_NAMES):
                # Never fails, unlike ``entry.is_dir`` for a link in a circle.
                is_folder = os.path.isdir(entry)
                has_suffix = is_folder or entry.name.endswith(suffix)
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                is_match = entry.name.startswith(name) and entry.name.isprintable()
                if has_suffix and is_match and not is_hidden:
                    end = "/" if is_folder else ""
                    paths.append(os.path.join(folder, entry.name) + end)
    except (OSError, ValueError):
        return []
    return sorted(match for match in paths if match != path)[:MAX_NAMES]
