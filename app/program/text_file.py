"""Text files that the user attaches to a message: read within bounds, cleaned, and set off from what is typed."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text

MAX_FILE_BYTES = 1 << 20
"""About a quarter of a million tokens: more than a context on the machines this is made for."""

_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


def read_text_file(path: Path) -> str:
    """Return a file's text, cleaned.

    Raises:
        Refusal: it is not a regular file, cannot be read, is too large, empty or not text.
    """
    shown = clean_line(str(path), 200)
    try:
        # A named pipe would wait for its other end.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refusal(f"{shown}: is not a file (name a text file)")
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not a path"
        raise Refusal(f"{shown}: {reason} (name a text file)") from error
    if len(raw) > MAX_FILE_BYTES:
        raise Refusal(f"{shown}: is larger than 1 MiB, which no context here holds (cut it first)")
    text = clean_text(_decode(raw, shown)).strip("\n")
    if not text.strip():
        raise Refusal(f"{shown}: is empty")
    return text


def attached(name: str, text: str) -> str:
    """Return a file as it stands in a message: its name, then its text between fences longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{clean_line(name, 80)}:\n{fence}\n{text}\n{fence}\n"


def _decode(raw: bytes, shown: str) -> str:
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if raw.startswith(mark)), "utf-8")
    if encoding != "utf-16" and b"\0" in raw:
        raise Refusal(f"{shown}: is not a text file")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        # Old files are mostly in Latin-1, where every byte is a character.
        return raw.decode("latin-1" if encoding == "utf-8" else encoding, errors="replace")
