"""Damaged saved states: what comes back is bit for bit what was saved for the tokens it claims.

An input is a letter, a number and a file. ``S``: one segment of a tree, the number says which, its
neighbours sound; checksums as they fell. ``G``: the same, forged: other tokens or another payload,
with sound checksums; a forger can write any keys and values, so only crashes, time and memory are
judged.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from engine.saved_state import StateWriter, restore_state, stored_in
from engine.saved_state.segments import Segment, head_bytes
from tests.engine.scripted_session import ScriptedSession
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch

_CPU_S = 2.0
_MEMORY_BYTES = 64 << 20
_SAVING_PATIENCE_S = 120.0
_MOST_BYTES = 1 << 20


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
        stored = sorted(stored_in(Path(name)), key=lambda file: file.segment.last)
        return [(file.path.name, file.path.read_bytes()) for file in stored], tokens


def seeds() -> list[bytes]:
    """The sound files."""
    return [b"S%d" % number + raw for number, (_, raw) in enumerate(grown()[0])]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Damage bytes, take a part of another segment, or forge what a segment says."""
    start = data[:2]
    raw = data[2:]
    choice = rng.randrange(5)
    if choice == 0:
        return (
            start
            + mutate_bytes(rng, raw, [donor[2:] for donor in inputs if donor[:1] == b"S"])[
                :_MOST_BYTES
            ]
        )
    if choice == 1:
        return start + mutate_bytes(rng, raw, (), within=head_bytes(64))
    if choice in (2, 3):
        donor = rng.choice(inputs)
        first_byte = max(
            start[:1], donor[:1], key=b"SG".index
        )  # what takes from a forged file is one
        cut = rng.choice((head_bytes(0), head_bytes(64), rng.randrange(len(raw) + 1)))
        return (first_byte + start[1:] + rng.choice((raw[:cut] + donor[2:][cut:], donor[2:])))[
            :_MOST_BYTES
        ]
    return b"G" + start[1:] + _forged(rng, start[1], raw)


def _forged(rng: Random, number: int, raw: bytes) -> bytes:
    """The segment of a number with other tokens or another payload, and a sound digest."""
    segment = Segment.of_name(grown()[0][number % len(grown()[0])][0])
    assert segment is not None
    n = segment.last - segment.first
    payload = raw[segment.head_bytes :]
    ids = bytearray(raw[head_bytes(0) : segment.head_bytes].ljust(4 * n, b"\0"))
    if rng.random() < 0.5:
        offset = 4 * rng.randrange(n)
        wrong = rng.choice((-1, 299, 300, (1 << 31) - 1, -(1 << 31)))
        ids[offset : offset + 4] = wrong.to_bytes(4, "little", signed=True)
    else:
        payload = payload[: rng.randrange(len(payload) + 1)]
    checksum = zlib.crc32(payload) if rng.random() < 0.9 else rng.getrandbits(32)
    return (
        segment.digest(checksum, bytes(ids)) + checksum.to_bytes(4, "little") + bytes(ids) + payload
    )


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Restore into an empty session, and go on from there."""
    is_forged = data[:1] == b"G"
    where = _plant(data, folder)
    tokens = grown()[1]
    session: Any = ScriptedSession()
    with watch.bounded("restoring", _CPU_S, _MEMORY_BYTES):
        restored = restore_state(session, where, tokens)
    if restored.tokens != session.length:
        raise Fault(f"says {restored.tokens} tokens, holds {session.length}")
    if session.length > session.n_ctx or session.tokens != tokens[: session.length]:
        raise Fault(f"{session.length} tokens came back, not those wanted")
    if not is_forged and (wrong := session.wrong_positions()):
        raise Fault(f"keys and values of other tokens at positions {wrong[:10]}")
    if not is_forged and zlib.crc32(data) % 4 == 0:
        _go_on(session, where)
    outcome = "restored" + (" in part" if restored.lost else "") if session.length else "nothing"
    return ("forged: " if is_forged else "") + outcome


def _plant(data: bytes, folder: Path) -> Path:
    """Lay out the tree with one file replaced."""
    where = folder / "tree"
    where.mkdir(mode=0o700, exist_ok=True)
    files = grown()[0]
    for number, (name, raw) in enumerate(files):
        is_meant = number == data[1] % len(files)
        (where / name).write_bytes(data[2:] if is_meant else raw)
        (where / name).chmod(0o600)
    return where


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
