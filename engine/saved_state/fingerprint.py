"""Identifies the model of a state by metadata and samples of the weights, independent of file name and date."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.gguf.read import GGUFFile

SAMPLE_BYTES = 2048
"""Bytes hashed of every tensor, from its middle: detects fine-tuning of only some layers or matrices."""


def fingerprint_of(gguf: GGUFFile) -> str:
    """Return the SHA-256, 64 hexadecimal digits, of sizes, headers and a sample of every tensor.

    Headers are metadata and tensor tables, byte for byte. Reads the map: check first that the file is unchanged.
    """
    digest = hashlib.sha256()
    for part, file in enumerate(gguf.files):
        tensors = [tensor for tensor in gguf.tensors.values() if tensor.part == part]
        header_bytes = min((tensor.offset_bytes for tensor in tensors), default=file.size_bytes)
        digest.update(file.size_bytes.to_bytes(8, "little"))
        with memoryview(file.map) as view:
            digest.update(view[:header_bytes])
            for tensor in sorted(tensors, key=lambda tensor: tensor.offset_bytes):
                length = min(SAMPLE_BYTES, tensor.size_bytes)
                start = tensor.offset_bytes + (tensor.size_bytes - length) // 2
                digest.update(view[start : start + length])
    return digest.hexdigest()
