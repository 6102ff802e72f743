"""The user's editor: edits a message in a private file.

The caller lends the terminal to the editor.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.tui.chat import draft as drafts

FALLBACKS = ("nano", "vim", "vi")
_MAX_BYTES = 4 * drafts.MAX_PASTE_CHARS
_FILE_NAME = "message.md"
_ENDING_PATIENCE_S = 0.3


def find_editor(environ: Mapping[str, str]) -> list[str]:
    """Return the command of the user's editor with its arguments; empty if there is none."""
    command = environ.get("VISUAL", "").strip() or environ.get("EDITOR", "").strip()
    if command:
        try:
            return shlex.split(command)
        except ValueError:
            return [command]
    path = environ.get("PATH")
    return next(([name] for name in FALLBACKS if shutil.which(name, path=path)), [])


async def edit_text(text: str, environ: Mapping[str, str]) -> str:
    """Let the user edit a text, and return the clean text when the editor ends.

    The file is deleted afterwards. If this is cancelled, the editor is ended.

    Raises:
        Refusal: the editor failed; the prompt stays as it is.
    """
    command = find_editor(environ)
    if not command:
        raise Refusal("no editor was found: set $EDITOR to the one you like")
    name = clean_line(command[0], 60)
    try:
        # A directory of mode 0700, because editors leave copies next to a file.
        with tempfile.TemporaryDirectory(prefix="jalopy-") as directory:
            path = Path(directory) / _FILE_NAME
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(text.encode("utf-8", "replace"))
            code = await _run([*command, str(path)])
            if code != 0:
                if code > 0:
                    ending = f"code {code}"
                else:
                    ending = f"signal {-code}"
                raise Refusal(f"{name} ended with {ending}: the prompt stays as it was")
            return _read_back(path)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        else:
            reason = str(error)
        raise Refusal(f"{name}: {clean_line(reason)} (see $VISUAL and $EDITOR)") from None


async def _run(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    except asyncio.CancelledError:  # the program ends: two cannot have the terminal
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _ENDING_PATIENCE_S)
        raise


def _read_back(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise Refusal(
            f"the text is larger than {_MAX_BYTES // 1_000_000} MB: the prompt stays as it was"
        )
    text = clean_text(raw.decode("utf-8", "replace").replace("\r\n", "\n"))
    return text.removesuffix("\n")  # the line break that editors put at the end
