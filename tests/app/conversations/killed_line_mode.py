"""Line mode over a scripted engine in a separate process that the tests kill. Reads stdin.

Arguments: the model's name and, optionally, the number of tokens after which the first reply halts.
"""

from __future__ import annotations

import builtins
import sys
import time
from dataclasses import replace

from app.cli import line_mode as plain
from app.cli.dispatch import guard
from app.program.settings import built_in_settings
from app.session import headless as talk
from tests.app.fake_engine import FakeSession, Gate, Script
from tests.app.scripted_access import use_script

REPLY = ["one", " two", " three", " four", " five", " six"]
TOKEN_S = 0.02


class _SlowSession(FakeSession):
    def generate(self, *arguments, **options):
        for generated in super().generate(*arguments, **options):
            time.sleep(TOKEN_S)
            yield generated


def main(model: str, halts_after: str = "") -> int:
    """Run the line mode until the input ends."""
    from tests.app import fake_engine

    script = Script(replies=[REPLY])
    if halts_after:
        script.token_gate = Gate()
        script.token_gate.allow(int(halts_after))
    fake_engine.FakeSession = _SlowSession
    # Saving must not fail because the disk is busy.
    talk.SAVING_PATIENCE_S = talk.HURRIED_PATIENCE_S = 60.0
    use_script(builtins, script)
    return plain.chat(model, replace(built_in_settings(), resume="last"), script.clock)


if __name__ == "__main__":
    sys.exit(guard(lambda: main(*sys.argv[1:])))
