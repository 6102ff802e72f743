"""Writers that are killed:
``python -m tests.engine.doomed_writer DIRECTORY [--kills N] [--seed N]``.

Children save a conversation that grows, is cut and grows on, until SIGKILL ends each after a few
milliseconds; the next goes on with what it left. After every one each prefix that is there must
restore to exactly its keys and values. Ends with 1 where it does not, and where no kill left
anything to look at.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from engine.saved_state import StateWriter, drop_stored, restore_state, stored_in, writer
from tests.engine.saved_state.stored_prefixes import prefixes_in
from tests.engine.scripted_session import ScriptedSession

WRONG = 3
MOST_BYTES = 1 << 20
"""Limit on the bytes that the writers leave; older states are dropped after each writer."""


def restored(folder: Path) -> Any:
    """Return a session with the longest saved prefix; exit with ``WRONG`` if its bytes differ from
    what its header promises."""
    for tokens in prefixes_in(folder, ScriptedSession(n_ctx=400)):
        session: Any = ScriptedSession(n_ctx=400)
        if tokens and restore_state(session, folder, tokens).tokens != len(tokens):
            sys.exit(f"of {len(tokens)} tokens {session.length} came back")
        if session.wrong_positions():
            sys.exit(f"wrong keys and values at {session.wrong_positions()} of {session.length}")
    return session


def converse(path: Path, seed: int, started_pipe: int, saves_first: bool) -> None:
    """Save a growing conversation until the process is killed; write a byte to ``started_pipe`` at
    the first save."""
    choose = random.Random(seed)
    session = restored(path)
    saving = StateWriter(session, path)
    session.feed([choose.randrange(300)])
    saving.notify()
    if saves_first:
        saving.flush(60)
    os.write(started_pipe, b".")
    while True:
        if session.length > 300 or choose.random() < 0.15:
            session.truncate(choose.randrange(0, session.length + 1))
        session.feed([choose.randrange(300) for _ in range(choose.randrange(1, 40))])
        saving.notify()
        if choose.random() < 0.3:
            saving.flush(5)
        if saving.problem:
            os.write(2, f"problem: {saving.problem}\n".encode())
            os._exit(WRONG)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="kill writers of saved states and look at what they leave"
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    writer.QUIET_S = 0.002
    writer.RESERVE_BYTES = 0
    path = arguments.directory / "states"
    choose = random.Random(arguments.seed)
    lengths = []
    for number in range(arguments.kills):
        started_pipe, begins = os.pipe()
        child = os.fork()
        if child == 0:
            # Every third one has a file whatever comes: on a busy machine the others may be killed
            # too early for that.
            converse(path, arguments.seed * 1000 + number, begins, number % 3 == 2)
        os.close(begins)
        os.read(started_pipe, 1)
        os.close(started_pipe)
        time.sleep(choose.uniform(0.002, 0.08))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            sys.exit(f"a child ended by itself after {number} kills")
        lengths.append(restored(path).length)
        drop_stored(stored_in(path), sum(stored.n_bytes for stored in stored_in(path)) - MOST_BYTES)
    n_states = sum(length > 0 for length in lengths)
    if not n_states:
        sys.exit("no kill left a state")
    print(
        f"{arguments.kills} kills, {n_states} times a state, up to {max(lengths)} tokens; "
        "none of them wrong"
    )


if __name__ == "__main__":
    main()
