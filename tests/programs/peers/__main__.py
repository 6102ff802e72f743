"""``python -m tests.programs.peers --kind vllm --python PATH --model PATH``: the program against a real
server of others."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.programs.peers.checks import CHECKS, Desk
from tests.programs.peers.server import KINDS, PeerServer


def main() -> int:
    """Run the checks, each a line; the exit code is the number of those that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.peers", description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument(
        "--python", required=True, help="the Python of the environment that has the server"
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="a folder of safetensors (vllm) or a GGUF file"
    )
    parser.add_argument("--only", action="append", choices=[check.__name__ for check in CHECKS])
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds that one step may take"
    )
    parser.add_argument("--tokens", type=int, default=24, help="limit on a reply")
    options = parser.parse_args()
    n_failed = 0
    with tempfile.TemporaryDirectory() as root:
        for folder in ("server", "user"):
            (Path(root) / folder).mkdir()
        server = PeerServer(
            options.kind, options.python, options.model, Path(root) / "server", options.patience
        )
        try:
            server.start()
            desk = Desk(server, Path(root) / "user", options.patience, options.tokens)
            for check in CHECKS:
                if options.only and check.__name__ not in options.only:
                    continue
                try:
                    line = f"ok     {check.__name__}: {check(desk)}"
                except Exception as error:
                    n_failed += 1
                    line = f"FAILED {check.__name__}: {error}"
                print(line, flush=True)
        finally:
            server.kill()
    return n_failed


if __name__ == "__main__":
    sys.exit(main())
