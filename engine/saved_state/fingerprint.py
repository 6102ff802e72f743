"""Fingerprint of a model: a digest of metadata and samples of the weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from engine.gguf.contents import GGUFFile

PIECES = 32
"""Number of samples of each tensor, evenly spread. A changed run of more than a 31st of the tensor
cannot lie between two of them."""
PIECE_BYTES = 64


def fingerprint_of(gguf: GGUFFile) -> str:
    """Return the SHA-256, 64 hexadecimal digits, of sizes, headers and samples of every tensor.

    Headers are metadata and tensor tables, byte for byte. Samples are read in the order of the
    file, so that a disk seeks little. The whole file would take seconds for each gigabyte on old
    processors. The function reads the map: check first that the file is unchanged.
    """
    digest = hashlib.sha256()
    for number, file in enumerate(gguf.files):
        tensors = [tensor for tensor in gguf.tensors.values() if tensor.part == number]
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
                for offset in (
                    np.linspace(start, start + size_bytes - PIECE_BYTES, PIECES)
                    .astype(np.int64)
                    .tolist()
                ):
                    digest.update(view[offset : offset + PIECE_BYTES])
    return digest.hexdigest()
