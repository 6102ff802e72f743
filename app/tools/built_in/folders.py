"""Files in the folders that the user allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from app.documents.read import ReadingProgress, read_documents
from app.program.paths import expanded
from app.text.clean_text import clean_line
from app.text.figures import size
from app.tools.built_in.tool import BuiltInTool, Stopped, ToolFailure, text_parameters
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.transport import StoppedError

MAX_FILE_BYTES = 20 << 20
MAX_LISTED = 200
_MAX_ENTRIES = 5000
_LINES_PER_CALL = 400
_NO_FOLDER = "No folder is allowed. The user can allow one with /tools allow FOLDER."

Folders = Callable[[], Sequence[str]]
"""Returns the allowed folders as the user wrote them."""


def allowed_file(folders: Sequence[str], name: str) -> Path:
    """Return the real path of a file or folder, after all links, if it is in an allowed folder.

    Args:
        folders: Allowed folders.
        name: A full path, or one from an allowed folder.

    Raises:
        ToolFailure: It is somewhere else, hidden, or not there.
    """
    roots = _roots(folders)
    if not roots:
        raise ToolFailure(_NO_FOLDER)
    named_path = expanded(name)
    candidates = [named_path] if named_path.is_absolute() else [root / named_path for root in roots]
    is_elsewhere = False
    for candidate in candidates:
        try:
            path = Path(os.path.realpath(candidate, strict=True))
        except (OSError, ValueError):
            continue
        names = [path.relative_to(root).parts for root in roots if path.is_relative_to(root)]
        if not names:
            is_elsewhere = True
        elif all(any(part.startswith(".") for part in parts) for parts in names):
            raise ToolFailure("Hidden files are not read.")
        else:
            return path
    shown = clean_line(name, 100)
    if is_elsewhere or (named_path.is_absolute() and not _is_inside(named_path, roots)):
        raise ToolFailure(f"{shown} is not in a folder that the user allowed.")
    raise ToolFailure(f"{shown} does not exist. list_files shows what is there.")


def _is_inside(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _roots(folders: Sequence[str]) -> list[Path]:
    roots = []
    for folder in folders:
        path = Path(os.path.realpath(expanded(folder)))
        if path.is_dir():
            roots.append(path)
    return roots


def read_file(folders: Sequence[str], name: str, first_line: int, is_stopped: Stopped) -> str:
    """Return the text of a file, from a line on.

    Raises:
        ToolFailure: It may not be read, or has no text.
        StoppedError: The user stops it.
    """
    path = allowed_file(folders, name)
    if not path.is_file():
        raise ToolFailure(f"{clean_line(name, 100)} is not a file. list_files lists a folder.")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ToolFailure(f"The file is larger than {size(MAX_FILE_BYTES)}.")

    def follow(progress: ReadingProgress) -> bool:
        return not is_stopped()

    reading = read_documents([str(path)], follow=follow)
    if reading.is_stopped:
        raise StoppedError
    if not reading.documents:
        raise ToolFailure("; ".join(reading.troubles) or "The file has no text.")
    document = reading.documents[0]
    if document.is_picture:
        raise ToolFailure("This is a picture. The user can attach it to a message.")
    lines = document.text.split("\n")
    start = max(1, first_line)
    text = "\n".join(lines[start - 1 : start - 1 + _LINES_PER_CALL])
    n_more = len(lines) - (start - 1 + _LINES_PER_CALL)
    if n_more > 0:
        text += f"\n[{n_more} more lines: first_line {start + _LINES_PER_CALL} continues]"
    return text


def list_files(folders: Sequence[str], name: str) -> str:
    """Return the names in a folder; without a name those in all allowed folders."""
    roots = _roots(folders)
    if not roots:
        raise ToolFailure(_NO_FOLDER)
    paths = [allowed_file(folders, name)] if name.strip() not in ("", ".", "/") else roots
    lines: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise ToolFailure(f"{clean_line(name, 100)} is not a folder.")
        lines.append(f"{clean_line(str(path), 200)}:")
        lines += sorted(islice(_entries(path), _MAX_ENTRIES))
    n_more = len(lines) - MAX_LISTED
    if n_more > 0:
        lines[MAX_LISTED:] = [f"[{n_more} more]"]
    return "\n".join(lines)


def _entries(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = clean_line(entry.name, 200)
                if entry.name.startswith(".") or name != entry.name or entry.is_symlink():
                    continue
                if entry.is_dir():
                    yield f"{name}/"
                elif entry.is_file():
                    yield f"{name} ({size(entry.stat().st_size)})"
    except OSError as error:
        raise ToolFailure(f"The folder cannot be read: {error.strerror}.") from None


def folder_tools(folders: Folders, is_stopped: Stopped) -> list[BuiltInTool]:
    """Return the tools for files in the allowed folders."""

    def read(arguments: Mapping[str, Any]) -> str:
        first_line = arguments.get("first_line")
        if not isinstance(first_line, int):
            first_line = 1
        return read_file(folders(), str(arguments["path"]), first_line, is_stopped)

    def listed(arguments: Mapping[str, Any]) -> str:
        return list_files(folders(), str(arguments.get("folder") or ""))

    reading = text_parameters({"path": "Name of the file, as list_files shows it"})
    reading["properties"]["first_line"] = {
        "type": "integer",
        "description": "Line to begin with, from 1",
    }
    names = clean_line(", ".join(folders()), 300)
    return [
        BuiltInTool(
            ServedTool("read_file", f"Returns the text of a file of the user in {names}.", reading),
            read,
        ),
        BuiltInTool(
            ServedTool(
                "list_files",
                f"Lists the user's files in {names}.",
                text_parameters({}, {"folder": "A folder in it; empty for all"}),
            ),
            listed,
        ),
    ]
