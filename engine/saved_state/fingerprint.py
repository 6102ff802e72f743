"""Identifies the model of a state by metadata and samples of the weights, independent of file name
and date."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.gguf.contents import GGUFFile

PIECES = 32
"""Samples of each tensor, evenly spread: an edit of more than a 31st of one in a run cannot be
between them."""
PIECE_BYTES = 64


def fingerprint_of(gguf: GGUFFile) -> str:
    """Return the SHA-256, 64 hexadecimal digits, of sizes, headers and samples of every tensor.

    Headers are metadata and tensor tables, byte for byte. Samples are read in the order of the
    file, so that a disk seeks as little as it can; all of the file would take seconds for each
    gigabyte on old processors. Reads the map: check first that the file is unchanged.
    """
    digest = hashlib.sha256()
    for part, file in enumerate(gguf.files):
        tensors = [tensor for tensor in gguf.tensors.values() if tensor.part == part]
        header_bytes = min((tensor.offset_bytes for tensor in tensors), default=file.size_bytes)
        digest.update(file.size_bytes.to_bytes(8, "little"))
        with memoryview(file.map) as view:
            digest.update(view[:header_bytes])
            for tensor in sorted(tensors, key=lambda tensor: tensor.offset_bytes):
                start = tensor.offset_bytes
                size_bytes = tensor.size_bytes
                if size_bytes <= PIECES * PIECE_BYTES:
                    digest.update(view[start : start + size_bytes])
                    continue
                for at in (
                    np.linspace(start, start + size_bytes - PIECE_BYTES, PIECES)
                    .astype(np.int64)
                    .tolist()
                ):
                    digest.update(view[at : at + PIECE_BYTES])
    return digest.hexdigest()
