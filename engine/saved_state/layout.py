"""The file: one header, then records that are only ever appended.

::

    header   256 bytes   which model, which kind of cache; ends with the SHA-256 of what stands before
    record   64 bytes    first position, number of positions, size and CRC-32 of the payload, chained digest
             token ids   int32, padded to 64 bytes
             payload     K and V of those positions, all layers, as the cache keeps them (``KVCache.copy_out``)
    record   ...

A record says: *what the records before said up to ``first``, then these positions.* So a conversation that grows
appends; one that was cut and goes on differently appends a record that begins at the cut, and what lay behind it is dead
without having been touched. Nothing is ever rewritten in place: a write that was interrupted leaves the state as it was
before, with a torn tail that the next reader stops at. Since K lies in tiles of eight positions, ``first`` is a multiple
of eight, and a tile that was not full is written again, whole, by the record that continues it.

The digest of a record covers the digest before it (the header's at first), its own fields and its token ids, the CRC
covers the payload: a record of another file, an older one, or one behind a damaged one is never taken for good. CRC-32
from zlib: 1.9 GB/s on the machine this was written on (Adler-32 1.6, SHA-256 0.9, BLAKE2b 0.5, a compiled 64-bit mix 6.5,
which would have to be compiled first): 0.14 s of 2,000 tokens of an 8B model.

Numbers are little-endian; keys and values are in the machine's order, which the header states. The size of the context is
no part of it: a state fits wherever its tokens do. In every version the first 16 bytes are magic, version and length of
the header, and the header ends with its SHA-256, so that a newer version is known from a damaged one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import EngineError
from engine.kv_cache import LAYOUT_VERSION, POSITIONS

if TYPE_CHECKING:
    from engine.kv_cache import KVCache
    from engine.session import Session

MAGIC, VERSION = b"JALOPYKV", 1
RECORD_MAGIC = b"KVrc"
RECORD_POSITIONS = 64
"""The most that one record holds: what a torn tail or a flipped bit can cost."""
ALIGNMENT = 64
HEADER_BYTES, RECORD_BYTES, DIGEST_BYTES, HEADER_DIGEST_BYTES = 256, 64, 16, 32
_BYTE_ORDER = int.from_bytes(struct.pack("=I", 0x0A0B0C0D), "little")
_START = struct.Struct("<8sII")
_HEADER = struct.Struct("<8sIIIIIIIIII16s32s16sddIII16s")
_RECORD = struct.Struct("<4sIQQI")


class StateRefusedError(EngineError):
    """A saved state cannot be used; one line says why.

    Attributes:
        is_newer: it was written by a newer version, which may still want it.
    """

    def __init__(self, message: str, is_newer: bool = False) -> None:
        super().__init__(message)
        self.is_newer = is_newer


@dataclass(frozen=True)
class StateSummary:
    """What a state file says about itself.

    Attributes:
        n_tokens: that its records claim; payloads are not looked at.
        n_bytes: of the file.
    """

    n_tokens: int
    n_bytes: int
    model_fingerprint: str
    kv_type: str


@dataclass(frozen=True)
class Header:
    """Whose keys and values these are, and how they lie. Two are interchangeable where all but ``file_id`` is equal."""

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
    def of(cls, session: Session, file_id: bytes) -> Header:
        """Describe what a session would write."""
        model, rotation = session.model, session.rotation
        config = model.config
        return cls(
            model.fingerprint,
            session.cache.kv_type.name,
            config.n_layers,
            config.n_kv_heads,
            config.head_dim,
            config.vocab_size,
            config.rope_theta,
            config.rope_scaling_factor,
            config.rope_dim,
            rotation.pair_step,
            rotation.pair_distance,
            hashlib.sha256(rotation.frequencies.astype("<f8").tobytes()).digest()[:16],
            LAYOUT_VERSION,
            file_id,
        )

    def to_bytes(self) -> bytes:
        """256 bytes, checksum included."""
        fields = _HEADER.pack(
            MAGIC, VERSION, HEADER_BYTES, _BYTE_ORDER, self.layout_version, self.n_layers, self.n_kv_heads,
            self.head_dim, self.vocab_size, RECORD_POSITIONS, POSITIONS, self.kv_type.encode(),
            bytes.fromhex(self.fingerprint), self.frequencies_digest, self.rope_theta, self.rope_scaling_factor,
            self.rope_dim, self.pair_step, self.pair_distance, self.file_id,
        )  # fmt: skip
        padded = fields.ljust(HEADER_BYTES - HEADER_DIGEST_BYTES, b"\0")
        return padded + hashlib.sha256(padded).digest()


def read_header(raw: bytes, name: str) -> Header:
    """Check and read the first bytes of a file.

    Args:
        raw: up to ``HEADER_BYTES``, or as many as the file has.
        name: of the file, fit for a message.

    Raises:
        StateRefusedError: not a state, damaged, of a newer version or of another kind of machine.
    """
    if len(raw) < _START.size or not raw.startswith(MAGIC):
        raise StateRefusedError(f"{name}: is not a saved state")
    _, version, header_bytes = _START.unpack_from(raw)
    if version != VERSION and len(raw) >= header_bytes >= HEADER_BYTES and _sound(raw[:header_bytes]):
        raise StateRefusedError(f"{name}: was saved by another version (format {version})", version > VERSION)
    if version != VERSION or header_bytes != HEADER_BYTES or len(raw) < HEADER_BYTES or not _sound(raw[:HEADER_BYTES]):
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
    return Header(
        fingerprint.hex(), kv_type.rstrip(b"\0").decode("ascii", "replace"), n_layers, n_kv_heads, head_dim, vocab_size,
        rope_theta, rope_scaling_factor, rope_dim, pair_step, pair_distance, frequencies_digest, layout_version, file_id,
    )  # fmt: skip


def _sound(header: bytes) -> bool:
    checked, digest = header[:-HEADER_DIGEST_BYTES], header[-HEADER_DIGEST_BYTES:]
    return hashlib.sha256(checked).digest() == digest


def refuse_other(found: Header, wanted: Header, name: str) -> None:
    """Compare a file's header with what a session would write.

    Raises:
        StateRefusedError: it was saved under conditions in which its keys and values mean something else.
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


@dataclass(frozen=True)
class Record:
    """Positions ``first`` to ``last`` and where their payload lies.

    Attributes:
        token_ids: (last - first,) int32.
        digest: chained; what the next record's covers.
        start, payload_at: in bytes from the start of the file.
    """

    first: int
    token_ids: np.ndarray[tuple[int], np.dtype[np.int32]]
    payload_bytes: int
    payload_crc: int
    digest: bytes
    start: int
    payload_at: int

    @property
    def last(self) -> int:
        """The position behind its last one."""
        return self.first + len(self.token_ids)

    @property
    def end(self) -> int:
        """Where the next record begins, in bytes from the start of the file."""
        return self.payload_at + self.payload_bytes


def head_bytes(count: int) -> int:
    """Bytes of a record before its payload."""
    return RECORD_BYTES + (4 * count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def payload_bytes(cache: KVCache, count: int) -> int:
    """Bytes of so many positions from a tile's first one on."""
    return (count + POSITIONS - 1) // POSITIONS * cache.tile_bytes


def file_bytes(cache: KVCache, n_tokens: int) -> int:
    """Bytes of a file that holds so many tokens and nothing dead."""
    n_full, rest = divmod(n_tokens, RECORD_POSITIONS)
    each = head_bytes(RECORD_POSITIONS) + payload_bytes(cache, RECORD_POSITIONS)
    return HEADER_BYTES + n_full * each + (head_bytes(rest) + payload_bytes(cache, rest) if rest else 0)


def record_head(first: int, token_ids: list[int], n_payload: int, crc: int, before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a record before its payload, and its digest."""
    fields = _RECORD.pack(RECORD_MAGIC, len(token_ids), first, n_payload, crc)
    ids = struct.pack(f"<{len(token_ids)}i", *token_ids)
    digest = _digest(before, fields, ids)
    head = fields + digest
    return head.ljust(RECORD_BYTES, b"\0") + ids.ljust(head_bytes(len(token_ids)) - RECORD_BYTES, b"\0"), digest


def parse_record(raw: bytes, start: int, before: bytes) -> Record | None:
    """Read a record's head; None where there is none or it does not belong behind the one before.

    Args:
        raw: from ``start`` on, at least ``head_bytes(RECORD_POSITIONS)`` or as much as the file has.
        before: the digest it must be chained to.
    """
    if len(raw) < RECORD_BYTES:
        return None
    magic, count, first, n_payload, crc = _RECORD.unpack_from(raw)
    if magic != RECORD_MAGIC or not 1 <= count <= RECORD_POSITIONS or len(raw) < head_bytes(count):
        return None
    fields, ids = raw[: _RECORD.size], raw[RECORD_BYTES : RECORD_BYTES + 4 * count]
    digest = raw[_RECORD.size : _RECORD.size + DIGEST_BYTES]
    padding = raw[_RECORD.size + DIGEST_BYTES : RECORD_BYTES] + raw[RECORD_BYTES + 4 * count : head_bytes(count)]
    if digest != _digest(before, fields, ids) or any(padding):
        return None
    token_ids = np.frombuffer(ids, "<i4").astype(np.int32)
    return Record(first, token_ids, n_payload, crc, digest, start, start + head_bytes(count))


def _digest(before: bytes, fields: bytes, ids: bytes) -> bytes:
    return hashlib.blake2b(before + fields + ids, digest_size=DIGEST_BYTES).digest()
