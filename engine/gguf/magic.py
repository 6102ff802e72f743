"""Recognition of file formats by their first bytes.

The module imports nothing heavy: it is used before the first frame.
"""

from __future__ import annotations

import os

from engine.errors import GGUFError, printable
from engine.gguf.file import ModelFile

START_BYTES = 64
"""Number of bytes that are needed to recognise every known format."""
_LEAST_TEXT_BYTES = 8
_NO_GGUF = "not a GGUF file (get a GGUF file)"
_OTHER_FORMATS = (
    (b"FUGG", "is a byte-swapped GGUF file, which is not supported"),
    (b"lmgg", "is in the GGML format of 2023 (get a GGUF file)"),
    (b"fmgg", "is in the GGMF format of 2023 (get a GGUF file)"),
    (b"tjgg", "is in the GGJT format of 2023 (get a GGUF file)"),
    (
        b"version https://git-lfs",
        "is a Git LFS pointer, not the model itself (fetch it with git lfs pull)",
    ),
    (b"PK\x03\x04", "is a zip archive or PyTorch checkpoint, not a GGUF file"),
    (b"\x1f\x8b", "is packed with gzip (unpack it first)"),
    (b"BZh", "is packed with bzip2 (unpack it first)"),
    (b"\xfd7zXZ", "is packed with xz (unpack it first)"),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd (unpack it first)"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive (unpack it first)"),
    (b"Rar!", "is a RAR archive (unpack it first)"),
    *((b"\x80" + bytes([version]), f"is a Python pickle, {_NO_GGUF}") for version in range(2, 6)),
    (b"\x89HDF", f"is in the HDF5 format of Keras, {_NO_GGUF}"),
    (b"%PDF", "is a PDF document, not a model"),
    (b"<?xml", "is an XML message of a server, not a model (download it again)"),
    (b"<", "is a web page, not a model (download it again)"),
)
_MAGIC_AT_4 = b"TFL3", f"is in the TFLite format, {_NO_GGUF}"


def glance(path: str | os.PathLike[str]) -> None:
    """Check that a path is a readable file that begins like GGUF.

    This takes about 1 ms; the rest of the file is not read.

    Raises:
        FileUnreadableError: The file is missing, not permitted, or not a regular file.
        GGUFError: The file is empty, or has another format.
    """
    file = ModelFile(path)
    try:
        refuse_other_formats(file.map[:START_BYTES], file.shown_name)
    finally:
        file.close()


def refuse_other_formats(start: bytes, name: str) -> None:
    """Raise an error if a file does not begin like GGUF.

    Args:
        name: Name that the message begins with.

    Raises:
        GGUFError: The file is not GGUF; the message names the format if it is known.
    """
    if start[:4] != b"GGUF":
        raise GGUFError(f"{name}: {_problem(start)}")


def other_format(start: bytes) -> str:
    """Return the problem with a file that begins with these bytes; "" if none is known.

    Only formats that contain no model are known.
    """
    if _is_safetensors(start):  # its first bytes, a length, may look like another format
        return ""
    text = start.lstrip(b"\xef\xbb\xbf \r\n\t")
    for magic, problem in _OTHER_FORMATS:
        if text.startswith(magic):
            return problem
    magic, problem = _MAGIC_AT_4
    if start[4:8] == magic:
        return problem
    return ""


def _is_safetensors(start: bytes) -> bool:
    """Return whether the bytes begin with a length below 4 GiB and JSON."""
    return start[4:9] == b"\0\0\0\0{"


def _problem(start: bytes) -> str:
    """Return the problem with a file that does not begin like GGUF."""
    if problem := other_format(start):
        return problem
    if _is_safetensors(start):
        return "is a safetensors file, not a GGUF file (jalopy convert makes one of its directory)"
    if b"GGUF".startswith(start):
        return "ends inside the magic number (truncated? download it again)"
    if not any(start):
        return "begins with zeros: its download has not ended, or failed (download it again)"
    if start.startswith((b"{", b"[")):
        return (
            f"is JSON, not a model: '{printable(start, 40)}' (an error of the server? download it "
            f"again)"
        )
    if _is_text(start):
        return (
            f"is a text, not a model: '{printable(start.strip(), 40)}' (an error of the server? "
            f"download it again)"
        )
    return f"is not a GGUF file: magic is '{printable(start[:4])}', not 'GGUF'"


def _is_text(start: bytes) -> bool:
    """Return whether a file begins with ASCII words."""
    return (
        len(start) >= _LEAST_TEXT_BYTES
        and start.isascii()
        and start.decode().replace("\n", " ").isprintable()
    )
