"""Recognises a file's format by its first bytes. Imports nothing heavy: it is called before the first frame."""

from __future__ import annotations

import os

from engine.errors import GGUFError, shown
from engine.gguf.file import ModelFile

START_BYTES = 64
"""Bytes needed to recognise every known format."""
_OTHER_FORMATS = (
    (b"FUGG", "is a byte-swapped GGUF file, which is not supported"),
    (b"lmgg", "is in the GGML format of 2023 (get a GGUF file)"),
    (b"fmgg", "is in the GGMF format of 2023 (get a GGUF file)"),
    (b"tjgg", "is in the GGJT format of 2023 (get a GGUF file)"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the model itself (fetch it with git lfs pull)"),
    (b"PK\x03\x04", "is a zip archive or PyTorch checkpoint, not a GGUF file"),
    (b"<", "is a web page, not a model (download it again)"),
)


def glance(path: str | os.PathLike[str]) -> None:
    """Check that a path is a readable file that starts as GGUF; takes about 1 ms, the rest is not read.

    Raises:
        FileUnreadableError: missing, no permission, or not a regular file.
        GGUFError: empty, or of another format.
    """
    file = ModelFile(path)
    try:
        refuse_other_formats(file.map[:START_BYTES], file.shown_name)
    finally:
        file.close()


def refuse_other_formats(start: bytes, name: str) -> None:
    """Refuse a file by its first bytes.

    Args:
        name: begins the message.

    Raises:
        GGUFError: it is not GGUF; the message names the format if it is a known one.
    """
    if start[:4] != b"GGUF":
        raise GGUFError(f"{name}: {_other_format(start)}")


def _other_format(start: bytes) -> str:
    for magic, what in _OTHER_FORMATS:
        if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(magic):
            return what
    if start[8:9] == b"{":
        return "is a safetensors file, not a GGUF file (get a GGUF file)"
    if b"GGUF".startswith(start):
        return "ends inside the magic number (truncated? download it again)"
    return f"is not a GGUF file: magic is '{shown(start[:4])}', not 'GGUF'"
