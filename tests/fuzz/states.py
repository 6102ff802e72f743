"""Damaged saved KV states: what comes back is bit for bit what was saved for the tokens it claims, or it is refused.

An input is one letter and a state file. ``D``: damaged by accident, checksums as they fell. ``F``: forged, with sound
checksums over any fields; whoever can do that can write any keys and values, so only refusals and crashes are judged.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from engine.saved_state import StateRefusedError, StateWriter, read_summary, restore_state
from engine.saved_state.appending import StateFile
from engine.saved_state.layout import HEADER_BYTES, HEADER_DIGEST_BYTES, RECORD_POSITIONS, Header
from engine.saved_state.record import RECORD_BYTES, Record, head_bytes, parse_record, record_head
from tests.engine.scripted_session import ScriptedSession
from tests.fuzz.mutation import edge, mutate_bytes
from tests.fuzz.target import Fault, Target, Watch, require_clean_line

DAMAGED, FORGED = b"D", b"F"
_CPU_S, _MEMORY_BYTES = 2.0, 64 << 20
_SAVING_PATIENCE_S = 120.0
_MOST_BYTES = 1 << 20
_STEPS = (((0, 20),), ((0, 70), (70, 13), (40, 20), (60, 90)), ((0, 64), (64, 64), (8, 9), (16, 3)))
"""Steps of each state: (tokens kept, tokens added), saved after each step."""


@lru_cache(maxsize=1)
def saved() -> tuple[list[bytes], list[list[int]]]:
    """Sound files, and everything that was ever saved in one of them."""
    files, histories = [], []
    for number, steps in enumerate(_STEPS):
        with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name:
            path = Path(name) / "kv.state"
            histories += _write(path, number, steps)
            files.append(path.read_bytes())
    return files, histories


def _write(path: Path, number: int, steps: Sequence[tuple[int, int]]) -> list[list[int]]:
    import numpy as np

    session: Any = ScriptedSession()
    file = StateFile.create(path, Header.of(session, bytes([number]) * 16))
    buffer, histories = np.empty(session.memory.copied_bytes(0, RECORD_POSITIONS), np.uint8), []
    for cut, n in steps:
        session.truncate(cut)
        start = session.length
        session.feed([(3 * i + n + number) % 300 for i in range(n)])
        for first in range(start // 8 * 8, session.length, RECORD_POSITIONS):
            last = min(session.length, first + RECORD_POSITIONS)
            payload = buffer.data[: session.memory.copy_out(first, last, buffer)]
            file.append(first, session.tokens[first:last], payload, zlib.crc32(payload))
        histories.append(session.tokens)
    file.publish()
    file.close()
    return histories


def seeds() -> list[bytes]:
    """The sound files."""
    return [DAMAGED + file for file in saved()[0]]


def mutate(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage bytes, or move, copy and forge records."""
    kind, raw = data[:1], data[1:]
    choice = rng.randrange(6)
    if choice == 0:
        sound = [other[1:] for other in others if other[:1] == DAMAGED]
        return kind + mutate_bytes(rng, raw, sound)[:_MOST_BYTES]
    if choice == 1:
        return kind + mutate_bytes(rng, raw, (), within=HEADER_BYTES + RECORD_BYTES)
    if choice in (2, 3):
        other = rng.choice(others)
        is_forged = FORGED in (kind, other[:1])  # what takes from a forged file is one
        return ((FORGED if is_forged else DAMAGED) + _shuffled(rng, raw, other[1:]))[:_MOST_BYTES]
    return FORGED + (_forged_header(rng, raw) if choice == 4 else _forged_record(rng, raw))


def _records(raw: bytes) -> list[Record]:
    """The sound records at the beginning."""
    records, at, digest = [], HEADER_BYTES, raw[HEADER_BYTES - HEADER_DIGEST_BYTES : HEADER_BYTES]
    while (record := parse_record(raw[at : at + head_bytes(RECORD_POSITIONS)], at, digest)) is not None:
        if record.end > len(raw):
            break
        records.append(record)
        at, digest = record.end, record.digest
    return records


def _shuffled(rng: Random, raw: bytes, other: bytes) -> bytes:
    """Leave records out, double them, swap them, and take some of another file."""
    pieces = [raw[record.start : record.end] for record in _records(raw)]
    foreign = [other[record.start : record.end] for record in _records(other)]
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(pieces) + 1)
        action = rng.randrange(4)
        if action == 0:
            del pieces[at : at + 1]
        elif action == 1:
            pieces[at:at] = pieces[at : at + 1]
        elif action == 2 and foreign:
            pieces.insert(at, rng.choice(foreign))
        else:
            rng.shuffle(pieces)
    header = rng.choice((raw, raw, other))[:HEADER_BYTES]
    return header + b"".join(pieces)


def _forged_header(rng: Random, raw: bytes) -> bytes:
    length = HEADER_BYTES - HEADER_DIGEST_BYTES
    start = mutate_bytes(rng, raw[:length], ())[:length].ljust(length, b"\0")
    return start + hashlib.sha256(start).digest() + raw[HEADER_BYTES:]


def _forged_record(rng: Random, raw: bytes) -> bytes:
    """Records with any fields, chained soundly."""
    records = _records(raw)
    out, digest = bytearray(raw[:HEADER_BYTES]), raw[HEADER_BYTES - HEADER_DIGEST_BYTES : HEADER_BYTES]
    for record in records:
        token_ids, first, n_payload, crc = record.token_ids.tolist(), record.first, record.payload_bytes, 0
        payload = raw[record.payload_at : record.end]
        choice = rng.randrange(8)
        if choice == 0:
            token_ids[rng.randrange(len(token_ids))] = rng.choice((-1, 299, 300, (1 << 31) - 1, -(1 << 31)))
        elif choice == 1:
            first = edge(rng) % (1 << 64)
        elif choice == 2:
            n_payload = edge(rng) % (1 << 64)
        elif choice == 3:
            payload = payload[: rng.randrange(len(payload) + 1)]
        elif choice == 4:
            token_ids = token_ids[: rng.randrange(len(token_ids)) + 1]
        crc = zlib.crc32(payload) if rng.random() < 0.9 else rng.getrandbits(32)
        try:
            head, digest = record_head(first, token_ids, n_payload, crc, digest)
        except struct.error:
            continue
        out += head + payload
    return bytes(out)


def run(data: bytes, place: Path, watch: Watch) -> str:
    """Restore the file into an empty session, and go on with it."""
    path = place / "kv.state"
    path.write_bytes(data[1:])
    session: Any = ScriptedSession()
    with watch.bounded("restoring", _CPU_S, _MEMORY_BYTES):
        outcome = _restored(session, path)
    _summarised(path)
    if session.length > session.n_ctx:
        raise Fault(f"{session.length} tokens came back into a context of {session.n_ctx}")
    if data[:1] != DAMAGED:
        return f"forged: {outcome}"
    _require_saved(session)
    if session.length and zlib.crc32(data) % 4 == 0:
        _go_on(session, path)
    return outcome


def _restored(session: Any, path: Path) -> str:
    try:
        restored = restore_state(session, path)
    except StateRefusedError as error:
        if session.length:
            raise Fault(f"refused, but {session.length} tokens stayed in the session") from error
        return require_clean_line(str(error))
    if restored.tokens != session.length:
        raise Fault(f"says {restored.tokens} tokens, holds {session.length}")
    return "restored" + (" in part" if restored.lost else "") if session.length else "nothing"


def _summarised(path: Path) -> None:
    try:
        read_summary(path)
    except StateRefusedError as error:
        require_clean_line(str(error))


def _require_saved(session: Any) -> None:
    tokens = session.tokens
    if not any(history[: len(tokens)] == tokens for history in saved()[1]):
        raise Fault(f"{len(tokens)} tokens came back that were never saved together: {tokens[:20]}")
    if wrong := session.wrong_positions():
        raise Fault(f"keys and values of other tokens at positions {wrong[:10]}")


def _go_on(session: Any, path: Path) -> None:
    """Save more behind what came back; all of it must come back then."""
    session.feed([1, 2, 3])
    writer = StateWriter(session, path)
    if not writer.flush(_SAVING_PATIENCE_S):
        raise Fault(f"cannot be gone on with: {writer.problem}")
    writer.close()
    again: Any = ScriptedSession()
    restore_state(again, path)
    if again.tokens != session.tokens or again.wrong_positions():
        raise Fault(f"of {session.length} tokens that were saved behind the damage {again.length} came back")


TARGET = Target(seeds, mutate, run, source=("engine/saved_state",))
