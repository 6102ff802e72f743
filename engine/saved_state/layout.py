"""The file format of a segment: up to 64 positions of a saved prefix, as ``segments`` arranges them in a tree.

::

    header   256 bytes   which model, which kind of cache, key of the prefix before; ends with the SHA-256 of all that
    record   64 bytes    first position, number of positions, size and CRC-32 of the payload, digest
             token ids   int32, padded to 64 bytes
             payload     K and V of those positions, all layers, as the cache keeps them (``LayerMemory.copy_out``);
                         after the last of them perhaps the recurrent layers' state

The digest covers the header's, the record's fields and its token ids, the CRC covers the payload. CRC-32 of zlib was
chosen for its speed of 1.9 GB/s (Adler-32 1.6, SHA-256 0.9, BLAKE2b 0.5): 0.14 s for 2,000 tokens of an 8B model. A
64-bit hash of our own reaches 6.5, but would have to be compiled.

Numbers are little-endian; keys and values are in the machine's byte order, which the header states. The context size is
not stored: a state fits any context that holds its tokens. A segment of another model, cache or version has another
name, and its header differs in some byte: nothing in a header is parsed, it is compared with the one that is wanted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cache.layer_cache import POSITIONS
from engine.config import Attention, Rope

if TYPE_CHECKING:
    from engine.cache.rotation import Rotation
    from engine.config import ModelConfig
    from engine.session import Session

MAGIC, VERSION = b"JALOPYKV", 2
RECORD_POSITIONS = 64
"""Limit on the positions of one record, and so on the loss by a flipped bit; segments begin at multiples of it."""
HEADER_BYTES, HEADER_DIGEST_BYTES = 256, 32
NO_ATTENTION = Attention(0, 0, 0, 0, None, 0.0)
"""Described in the header of a model whose layers are all recurrent."""
_BYTE_ORDER = int.from_bytes(struct.pack("=I", 0x0A0B0C0D), "little")
_HEADER = struct.Struct("<8sIIIIIIIIII16s32s16sddIII16s")


@dataclass(frozen=True)
class StateHeader:
    """Model and memory layout of the keys and values. States with equal headers, except ``parent``, are compatible.

    ``parent`` is the key of the prefix before a segment, 16 bytes.

    Heads and rope are those of the first attention layer. The other layers are covered by the fingerprint, which
    includes the metadata, and by ``frequencies_digest``, which includes all rotations if they differ.
    """

    fingerprint: str
    kv_type: str
    n_layers: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rope_scaling_factor: float
    rope_dim: int
    pair_step: int
    pair_distance: int
    frequencies_digest: bytes
    layout_version: int
    parent: bytes

    @classmethod
    def of(cls, session: Session, parent: bytes) -> StateHeader:
        """Return the header for a session: heads and rope of the first attention layer, and the digests."""
        model, config = session.model, session.config
        attention = next(iter(config.attentions.values()), NO_ATTENTION)
        rope = attention.rope or Rope(0.0, 0, neighbours=False)
        rotation = session.rotations.get(rope)
        return cls(
            model.fingerprint,
            session.kv_type,
            config.n_layers,
            attention.n_kv_heads,
            attention.key_dim,
            config.vocab_size,
            rope.theta,
            rope.scaling_factor,
            rope.dim,
            rotation.pair_step if rotation else 0,
            rotation.pair_distance if rotation else 0,
            _rotations_digest(config, session.rotations),
            session.memory.layout_version,
            parent,
        )

    def to_bytes(self) -> bytes:
        """Return the header as 256 bytes, checksum included."""
        fields = _HEADER.pack(
            MAGIC, VERSION, HEADER_BYTES, _BYTE_ORDER, self.layout_version, self.n_layers, self.n_kv_heads,
            self.head_dim, self.vocab_size, RECORD_POSITIONS, POSITIONS, self.kv_type.encode(),
            bytes.fromhex(self.fingerprint), self.frequencies_digest, self.rope_theta, self.rope_scaling_factor,
            self.rope_dim, self.pair_step, self.pair_distance, self.parent,
        )  # fmt: skip
        padded = fields.ljust(HEADER_BYTES - HEADER_DIGEST_BYTES, b"\0")
        return padded + hashlib.sha256(padded).digest()


def _rotations_digest(config: ModelConfig, rotations: Mapping[Rope, Rotation]) -> bytes:
    """Digest of the rotations, 16 bytes: of one set of frequencies if all layers share it, else of every layer's."""
    turned = [rotations[one.rope] if one.rope is not None else None for one in config.attentions.values()]
    if len(set(turned)) == 1 and turned[0] is not None:
        return hashlib.sha256(turned[0].frequencies.astype("<f8").tobytes()).digest()[:16]
    digest = hashlib.sha256()
    for one in turned:
        pairs = (0, 0, 0) if one is None else (len(one.frequencies), one.pair_step, one.pair_distance)
        digest.update(struct.pack("<3I", *pairs))
        digest.update(b"" if one is None else one.frequencies.astype("<f8").tobytes())
    return digest.digest()[:16]
