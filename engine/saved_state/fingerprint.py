"""Which model a state belongs to: metadata and samples of the weights, whatever the file's name and date."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.gguf.read import GGUFFile

SAMPLE_BYTES = 2048
"""Of every tensor, from its middle: fine-tunings that touch only some layers, or only some matrices, show."""


def fingerprint_of(gguf: GGUFFile) -> str:
    """SHA-256 over sizes, headers (metadata and tensor tables, byte for byte) and a sample of every tensor.

    The file must not have been changed since it was opened: its map is read.
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
