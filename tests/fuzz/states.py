"""Damaged saved states: what comes back is bit for bit what was saved for the tokens it claims, or it is refused.

An input is a letter, a number and a file. ``D``: the file of an earlier version, damaged by accident, checksums as they
fell. ``S``: one segment of a tree, the number says which, its neighbours sound. ``F``, ``G``: the same, forged, with
sound checksums over any fields; whoever can do that can write any keys and values, so refusals and crashes are judged.
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

from engine.saved_state import StateRefusedError, StateWriter, restore_state, stored_in
from engine.saved_state.layout import HEADER_BYTES, HEADER_DIGEST_BYTES, RECORD_POSITIONS
from engine.saved_state.record import RECORD_BYTES, Record, head_bytes, parse_record, record_head
from tests.engine.saved_state.earlier_file import STEPS, write_earlier
from tests.engine.scripted_session import ScriptedSession
from tests.fuzz.mutation import edge, mutate_bytes
from tests.fuzz.target import Fault, Target, Watch, require_clean_line

FORGED = {b"D": b"F", b"S": b"G", b"F": b"F", b"G": b"G"}
_CPU_S, _MEMORY_BYTES = 2.0, 64 << 20
_SAVING_PATIENCE_S = 120.0
_MOST_BYTES = 1 << 20
_STEPS = (((0, 20),), STEPS, ((0, 64), (64, 64), (8, 9), (16, 3)))
"""Steps of each earlier file: (tokens kept, tokens added), saved after each step."""


@lru_cache(maxsize=1)
def saved() -> tuple[list[bytes], list[list[int]]]:
    """Sound files of earlier versions, and everything that was ever saved in one of them."""
    files, histories = [], []
    for number, steps in enumerate(_STEPS):
        with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name:
            path = Path(name) / "kv.state"
            histories += write_earlier(path, ScriptedSession(), steps, number)
            files.append(path.read_bytes())
    return files, histories


@lru_cache(maxsize=1)
def grown() -> tuple[list[tuple[str, bytes]], list[int]]:
    """Names and contents of a tree's segments, and the tokens of the longest way through it."""
    with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name:
        for tokens in ([*range(70), *range(30)], list(range(150))):
            session: Any = ScriptedSession()
            session.feed(tokens)
            writer = StateWriter(session, Path(name))
            assert writer.flush(_SAVING_PATIENCE_S)
            writer.close()
        found = sorted(stored_in(Path(name)), key=lambda one: one.segment.last)
        return [(one.path.name, one.path.read_bytes()) for one in found], tokens


def seeds() -> list[bytes]:
    """The sound files."""
    segments = [b"S%d" % number + raw for number, (_, raw) in enumerate(grown()[0])]
    return [b"D0" + file for file in saved()[0]] + segments


def mutate(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Damage bytes, or move, copy and forge records."""
    kind, number, raw = data[:1], data[1:2], data[2:]
    choice = rng.randrange(6)
    if choice == 0:
        sound = [other[2:] for other in others if other[:1] in b"DS"]
        return data[:2] + mutate_bytes(rng, raw, sound)[:_MOST_BYTES]
    if choice == 1:
        return data[:2] + mutate_bytes(rng, raw, (), within=HEADER_BYTES + RECORD_BYTES)
    if choice in (2, 3):
        other = rng.choice(others)
        is_forged = other[:1] in b"FG"  # what takes from a forged file is one
        return ((FORGED[kind] if is_forged else kind) + number + _shuffled(rng, raw, other[2:]))[:_MOST_BYTES]
    return FORGED[kind] + number + (_forged_header(rng, raw) if choice == 4 else _forged_record(rng, raw))


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
    """Restore into empty sessions, and go on from there."""
    is_tree, is_forged = data[:1] in b"SG", data[:1] in b"FG"
    where = _plant(data, place) if is_tree else place / "kv.state"
    if not is_tree:
        where.write_bytes(data[2:])
    outcomes = []
    for wanted in [grown()[1]] if is_tree else saved()[1][-1:] + saved()[1][:1]:
        session: Any = ScriptedSession()
        with watch.bounded("restoring", _CPU_S, _MEMORY_BYTES):
            outcomes.append(_restored(session, where, wanted))
        if session.length > session.n_ctx or session.tokens != wanted[: session.length]:
            raise Fault(f"{session.length} tokens came back, not those wanted")
        if not is_forged and (wrong := session.wrong_positions()):
            raise Fault(f"keys and values of other tokens at positions {wrong[:10]}")
    if is_tree and not is_forged and zlib.crc32(data) % 4 == 0:
        _go_on(session, where)
    return ("forged: " if is_forged else "") + ", ".join(outcomes)


def _plant(data: bytes, place: Path) -> Path:
    """Lay out the tree with one file replaced."""
    where = place / "tree"
    where.mkdir(mode=0o700, exist_ok=True)
    files = grown()[0]
    for number, (name, raw) in enumerate(files):
        is_meant = number == data[1] % len(files)
        (where / name).write_bytes(data[2:] if is_meant else raw)
        (where / name).chmod(0o600)
    return where


def _restored(session: Any, where: Path, wanted: list[int]) -> str:
    try:
        restored = restore_state(session, where, wanted)
    except StateRefusedError as error:
        if session.length:
            raise Fault(f"refused, but {session.length} tokens stayed in the session") from error
        return require_clean_line(str(error))
    if restored.tokens != session.length:
        raise Fault(f"says {restored.tokens} tokens, holds {session.length}")
    return "restored" + (" in part" if restored.lost else "") if session.length else "nothing"


def _go_on(session: Any, where: Path) -> None:
    """Save what came back and more; all of it must come back then."""
    session.feed([1, 2, 3])
    writer = StateWriter(session, where)
    if not writer.flush(_SAVING_PATIENCE_S):
        raise Fault(f"cannot be gone on with: {writer.problem}")
    writer.close()
    again: Any = ScriptedSession()
    restore_state(again, where, session.tokens)
    if again.wrong_positions():
        raise Fault("keys and values of other tokens after the damage")
    if again.tokens != session.tokens:  # damage of the right size is found only where it is read
        restore_state(again := ScriptedSession(), where, session.tokens)  # type: ignore[arg-type]
        if again.wrong_positions():
            raise Fault("keys and values of other tokens once the damage is gone")


TARGET = Target(seeds, mutate, run, source=("engine/saved_state",))
