"""A target that fails in every way there is, so that tests can see each of them found."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.programs.fuzz.target import Fault, Target, Watch

WAYS = (b"crash", b"hang", b"memory", b"time", b"exception", b"fault")


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Do what the input says."""
    if data == b"crash":
        os.abort()
    if data == b"hang":
        time.sleep(3600)
    if data == b"fault":
        raise Fault("it did not hold")
    if data == b"exception":
        raise ValueError("no one expected this")
    with watch.bounded("the step", cpu_s=0.05 if data == b"time" else 60.0, memory_bytes=50 << 20):
        if data == b"memory":
            bytearray(b"x") * (200 << 20)
        until_s = time.process_time() + 0.2
        while data == b"time" and time.process_time() < until_s:
            pass
    return "fine"


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Return one of the ways to fail, or none."""
    return rng.choice((*WAYS, b"fine"))


TARGET = Target(lambda: [b"fine", *WAYS], mutate, run, hang_s=15.0)
