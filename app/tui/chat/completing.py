"""Completions of the text after a slash: commands, and the names and paths that some of them take.

No widget.
"""

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

MOST_NAMES = 200
"""Limit on the files and folders of a directory that are offered."""
_THINKING = ("on", "off", "auto", "low", "medium", "high")
_FILES = {"model": ".gguf", "lora": ".gguf", "schema": ".json"}
"""Commands that take one path, and how the name of the file ends."""
_LONGEST_PATH = 4096
MOST_DROPPED = 100
"""Limit on files that are dropped at a time."""
_READ_WORD = re.compile(r"""("[^"]*|'[^']*|\S*)$""")
"""The last of several paths."""
_REFERENCE = re.compile(r'(?<!\S)@("[^"\n]*|[^\s"]*)$')

Names = Callable[[], Iterable[str]]


@record
class Completion:
    """One thing that what is typed could become."""

    text: str
    usage: str
    title: str = ""
    attaches: str = ""
    """The file that goes with the message where this is chosen."""


def offered_at_once(typed: str, names: Mapping[str, Names]) -> list[Completion]:
    """Return commands, or the names that a command takes: those of some commands are given."""
    matching = commands_starting(typed)
    if matching:
        return [
            Completion(f"/{one.command}{' ' if one.argument else ''}", one.command_line, one.title)
            for one in matching
        ]
    command, argument = _command_of(typed)
    known = {"think": lambda: _THINKING, **names}
    if command not in known or " " in argument:
        return []
    fitting = [name for name in known[command]() if name.startswith(argument) and name != argument]
    return [Completion(f"/{command} {name}", name) for name in fitting]


def offered_paths(typed: str) -> Future[list[Completion]] | None:
    """Begin to look for the files that a path could become; None where no path is typed."""
    command, argument = _command_of(typed)
    if "\n" not in argument and command in _FILES:
        look = partial(_files, f"/{command} ", argument, str, _FILES[command])
    elif "\n" not in argument and command == "read" and (word := _READ_WORD.search(argument)):
        look = partial(_files, typed.removesuffix(word[0]), word[0].lstrip("\"'"), _quoted)
    elif not command and (word := _REFERENCE.search(typed)):
        look = partial(_references, typed[: word.start()], word[1])
    else:
        return None
    return in_background(look, "paths")


def dropped_command(pasted: str) -> str:
    """Return the command for a file that was dropped on the terminal, which pastes its path; "" for
    any other text.

    Nothing happens until the user sends the command: it is the question whether to open or attach
    the file.
    """
    paths = dropped_files(pasted)
    if len(paths) > 1:
        return f"/read {quoted_names(paths)}"
    if not paths:
        return ""
    if paths[0].lower().endswith(_FILES["model"]):
        command = "model"
    else:
        command = "read"
    return f"/{command} {paths[0]}"


def dropped_files(pasted: str) -> list[str]:
    """Return the files whose paths a terminal pastes, in a line or one a line.

    Empty for other text.
    """
    text = pasted.strip()
    if not text or len(text) > _LONGEST_PATH * MOST_DROPPED or text[0] not in "/'\"\\f":
        return []
    paths: list[str] = []
    for line in text.splitlines():
        path = _dropped_file(line.strip())
        if path:
            paths += [path]
        else:
            paths += map(_dropped_file, _dropped_words(line))
        if len(paths) > MOST_DROPPED or "" in paths:
            return []
    return paths


def quoted_names(paths: Iterable[str]) -> str:
    """Write paths as a command takes several: those with spaces in quotes."""
    import shlex  # the first frame does without

    return " ".join(map(shlex.quote, paths))


def _dropped_words(line: str) -> list[str]:
    """Return the words of a line as a shell sees them; backslashes and quotes are kept."""
    return _DROPPED_WORD.findall(line)


_DROPPED_WORD = re.compile(r"""(?:\\.|'[^']*'|"[^"]*"|[^\s'"\\])+""")


def _dropped_file(word: str) -> str:
    """Return the path of a file as a terminal pastes it; "" if it is none."""
    if not word or len(word) > _LONGEST_PATH or not word.isprintable():
        return ""
    if word.startswith("file://"):
        from urllib.parse import unquote  # the first frame does without

        # before it may be the host's name
        _, slash, rest = word.removeprefix("file://").partition("/")
        path = slash + unquote(rest)
    elif len(word) > 1 and word[0] in "'\"" and word.find(word[0], 1) == len(word) - 1:
        path = word[1:-1]
    else:
        path = re.sub(r"\\(.)", r"\1", word)
    is_file = os.path.isabs(path) and path.isprintable() and os.path.isfile(path)
    if is_file:
        return path
    return ""


def _command_of(typed: str) -> tuple[str, str]:
    """Return the command that an argument is typed for, by its name; "" without one."""
    split = split_command(typed)
    if split and not typed.endswith("\n"):
        action = find_command(split[0])
    else:
        action = None
    if split is None or action is None or not typed.startswith(f"/{split[0]} "):
        return "", ""
    return action.command, typed[len(split[0]) + 2 :].lstrip()


def _files(
    before: str, word: str, write: Callable[[str], str], suffix: str = ""
) -> list[Completion]:
    return [
        Completion(before + write(path), clean_line(path, 200)) for path in _paths(word, suffix)
    ]


def _references(before: str, word: str) -> list[Completion]:
    """Files after an @ sign: one that is chosen is attached, and its name stays in the sentence."""
    offered = []
    for path in _paths(word.lstrip('"')):
        is_folder = path.endswith("/")
        if is_folder:
            text = f"@{_quoted(path)}"
        else:
            text = f"{os.path.basename(path)} "
        offered.append(
            Completion(before + text, clean_line(path, 200), attaches="" if is_folder else path)
        )
    return offered


def _quoted(path: str) -> str:
    """Return a path as it is typed among others; the quotes of a folder are open for what is in
    it."""
    if not re.search(r"[\s']", path):
        return path
    return f'"{path}' + ("" if path.endswith("/") else '"')


def _paths(argument: str, suffix: str = "") -> list[str]:
    """List what begins like the path: folders, and files of the kind that is wanted."""
    folder, name = os.path.split(argument)
    found = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            for entry in islice(entries, 10 * MOST_NAMES):
                # never fails, as ``entry.is_dir`` does for a link in a circle
                is_folder = os.path.isdir(entry)
                is_wanted = is_folder or entry.name.endswith(suffix)
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if (
                    is_wanted
                    and not is_hidden
                    and entry.name.startswith(name)
                    and entry.name.isprintable()
                ):
                    found.append(os.path.join(folder, entry.name) + ("/" if is_folder else ""))
    except (OSError, ValueError):
        return []
    return sorted(path for path in found if path != argument)[:MOST_NAMES]
