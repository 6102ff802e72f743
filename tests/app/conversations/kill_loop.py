"""``python -m tests.app.conversations.kill_loop MODEL [--times N]``: kill ``jalopy run --session`` while it writes.

After each kill the disk must have the message, and all that was printed of the answer. The conversations lie in a
temporary directory. The exit code is 0 only if nothing was lost.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from app.conversations.conversation import Role
from app.conversations.store import Store


def lost(model: str, name: str, delay_s: float) -> str:
    """Ask in a conversation of this name, kill the program a while after its first piece; return what is missing."""
    command = [sys.executable, "-m", "app", "run", model, "Tell a long story.", "--session", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as process:
        assert process.stdout is not None
        printed = os.read(process.stdout.fileno(), 65536)  # waits for the first piece
        time.sleep(delay_s)
        process.kill()
        printed += process.stdout.read()
    store = Store()
    entry = store.find(name)
    messages = store.read(entry).conversation.messages if entry is not None else []
    shown = printed.decode("utf-8", "ignore").rstrip("\n")
    if not messages or messages[0].role is not Role.USER:
        return "the message"
    saved = messages[-1].text if messages[-1].role is Role.ASSISTANT else ""
    return "" if saved.startswith(shown.strip()) else f"{shown!r}, of which there is {saved!r}"


def main() -> int:
    """Kill it many times, at random moments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance, n_lost = random.Random(chosen.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            os.environ[name] = str(Path(folder, name))
        for n in range(chosen.times):
            missing = lost(chosen.model, f"kill {n}", chance.choice([0.0, 0.0, chance.uniform(0, 0.5)]))
            if missing:
                n_lost += 1
                print(f"kill {n}: not on the disk: {missing}", flush=True)
    print(f"{n_lost} of {chosen.times} kills lost something")
    return int(n_lost > 0)


if __name__ == "__main__":
    sys.exit(main())
