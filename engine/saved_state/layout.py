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

Earlier versions kept a file per conversation (``FILE_VERSION``), which is still read: one header, then records that
were only ever appended, each digest covering the one before. There a record means *the positions of earlier records up
to ``first``, then these positions*: one that begins earlier than the last one ended replaces what came after, and
``first`` is a multiple of eight.

Numbers are little-endian; keys and values are in the machine's byte order, which the header states. The context size is
not stored: a state fits any context that holds its tokens. In every version the first 16 bytes are magic, version and
length of the header, and the header ends with its SHA-256, so that newer versions and damage can be told apart.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cache.layer_cache import POSITIONS
from engine.config import Attention, Rope
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.cache.rotation import Rotation
    from engine.config import ModelConfig
    from engine.session import Session

MAGIC, FILE_VERSION, SEGMENT_VERSION = b"JALOPYKV", 1, 2
RECORD_POSITIONS = 64
"""Limit on the positions of one record, and so on the loss by a flipped bit; segments begin at multiples of it."""
HEADER_BYTES, HEADER_DIGEST_BYTES = 256, 32
LONGEST_HEADER_BYTES = 4096
"""Bytes read to recognise a file of a newer version, whose header may be longer."""
NO_ATTENTION = Attention(0, 0, 0, 0, None, 0.0)
"""Described in the header of a model whose layers are all recurrent."""
_BYTE_ORDER = int.from_bytes(struct.pack("=I", 0x0A0B0C0D), "little")
_START = struct.Struct("<8sII")
_HEADER = struct.Struct("<8sIIIIIIIIII16s32s16sddIII16s")


class StateRefusedError(EngineError):
    """A saved state cannot be used; one line says why.

    Attributes:
        is_newer: whether a newer version wrote it, which may still use it.
    """

    def __init__(self, message: str, is_newer: bool = False) -> None:
        super().__init__(message)
        self.is_newer = is_newer


@dataclass(frozen=True)
class StateHeader:
    """Model and memory layout of the keys and values. States with equal headers, except ``file_id``, are compatible.

    ``file_id`` is the key of the prefix before a segment, and a random number in files of earlier versions.

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
    file_id: bytes

    @classmethod
    def of(cls, session: Session, file_id: bytes) -> StateHeader:
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
            file_id,
        )

    def to_bytes(self, version: int = SEGMENT_VERSION) -> bytes:
        """Return the header as 256 bytes, checksum included."""
        fields = _HEADER.pack(
            MAGIC, version, HEADER_BYTES, _BYTE_ORDER, self.layout_version, self.n_layers, self.n_kv_heads,
            self.head_dim, self.vocab_size, RECORD_POSITIONS, POSITIONS, self.kv_type.encode(),
            bytes.fromhex(self.fingerprint), self.frequencies_digest, self.rope_theta, self.rope_scaling_factor,
            self.rope_dim, self.pair_step, self.pair_distance, self.file_id,
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


def read_header(raw: bytes, name: str) -> StateHeader:
    """Check and read the first bytes of a file of an earlier version.

    Args:
        raw: the file's first ``LONGEST_HEADER_BYTES``, or all of a shorter file.
        name: the file's name, escaped for a one-line message.

    Raises:
        StateRefusedError: not a state, damaged, of another version, or of another byte order.
    """
    if len(raw) < _START.size or not raw.startswith(MAGIC):
        raise StateRefusedError(f"{name}: is not a saved state")
    _, version, header_bytes = _START.unpack_from(raw)
    if version != FILE_VERSION and len(raw) >= header_bytes >= HEADER_BYTES and _sound(raw[:header_bytes]):
        raise StateRefusedError(f"{name}: was saved by another version (format {version})", version > FILE_VERSION)
    if (
        version != FILE_VERSION
        or header_bytes != HEADER_BYTES
        or len(raw) < HEADER_BYTES
        or not _sound(raw[:HEADER_BYTES])
    ):
        raise StateRefusedError(f"{name}: is damaged in its header")
    (
        _, _, _, byte_order, layout_version, n_layers, n_kv_heads, head_dim, vocab_size, record_positions, positions,
        kv_type, fingerprint, frequencies_digest, rope_theta, rope_scaling_factor, rope_dim, pair_step, pair_distance,
        file_id,
    ) = _HEADER.unpack_from(raw)  # fmt: skip
    if byte_order != _BYTE_ORDER:
        raise StateRefusedError(f"{name}: was saved on a machine with another byte order")
    if (record_positions, positions) != (RECORD_POSITIONS, POSITIONS):
        raise StateRefusedError(f"{name}: was saved by another version of the engine")
    kv_name = kv_type.rstrip(b"\0").decode("ascii", "replace")
    return StateHeader(
        fingerprint.hex(), kv_name, n_layers, n_kv_heads, head_dim, vocab_size, rope_theta, rope_scaling_factor,
        rope_dim, pair_step, pair_distance, frequencies_digest, layout_version, file_id,
    )  # fmt: skip


def _sound(header: bytes) -> bool:
    checked, digest = header[:-HEADER_DIGEST_BYTES], header[-HEADER_DIGEST_BYTES:]
    return hashlib.sha256(checked).digest() == digest


def refuse_other(found: StateHeader, wanted: StateHeader, name: str) -> None:
    """Compare a file's header with what a session would write.

    Raises:
        StateRefusedError: its keys and values do not fit this session.
    """
    if found.layout_version != wanted.layout_version:
        raise StateRefusedError(f"{name}: was saved by another version of the engine")
    if found.kv_type != wanted.kv_type:
        raise StateRefusedError(f"{name}: was saved with a KV cache of another type than {wanted.kv_type}")
    if found.fingerprint != wanted.fingerprint:
        raise StateRefusedError(f"{name}: was saved with another model or other weights")
    rope = "rope_theta", "rope_scaling_factor", "rope_dim", "pair_step", "pair_distance", "frequencies_digest"
    if any(getattr(found, field) != getattr(wanted, field) for field in rope):
        raise StateRefusedError(f"{name}: was saved with other rope parameters")
    shape = "n_layers", "n_kv_heads", "head_dim", "vocab_size"
    if any(getattr(found, field) != getattr(wanted, field) for field in shape):
        raise StateRefusedError(f"{name}: was saved with a model of another shape")
