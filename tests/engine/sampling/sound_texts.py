"""Repetitive but sound texts, which a loop guard must not end."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

N_CODE_BYTES = 1_000_000
_VALUES = [0, 0, 1, "", "yes", "no", 0.5]


def tables() -> Iterator[str]:
    """Yield data, drawings and logs."""
    random = Random(4)
    choose = random.choice
    yield "\n".join(",".join(str(choose(_VALUES)) for _ in range(8)) for _ in range(300))
    yield "id,name,active\n" + "\n".join(f"{i},user{i},true" for i in range(300))
    yield "".join(
        f"| {' | '.join(choose(['yes', 'no', '-', 'n/a']) for _ in range(7))} |\n"
        for _ in range(200)
    )
    yield "| --- " * 40 + "|\n" + "|  |  |  |\n" * 30
    yield (
        json.dumps([0] * 300)
        + json.dumps([None] * 25)
        + json.dumps([{"x": 0, "y": 0}] * 8, indent=1)
    )
    yield json.dumps([{"name": choose("abc"), "value": random.randrange(3)} for _ in range(500)])
    yield "\n".join(f"{16 * i:08x}  {'00 ' * 16} |{'.' * 16}|" for i in range(300))
    yield base64.encodebytes(bytes(600)).decode()
    yield "\n".join(" " * (40 - i) + "*" * (2 * i + 1) for i in range(40)) + "\n" + "=" * 300
    yield ("#" * 60 + "\n") * 10
    yield "\n".join(
        f"INSERT INTO tea VALUES ({i}, '{choose(['green', 'black'])}', NULL, NULL);"
        for i in range(200)
    )
    yield (
        "INSERT INTO days (n, open) VALUES\n"
        + ",\n".join(f"  ({i}, TRUE)" for i in range(200))
        + ";"
    )
    yield "\n".join(f"12:{i // 60:02}:{i % 60:02} INFO server: GET /health 200" for i in range(300))
    yield "\n".join("".join(choose(" .#") * 3 for _ in range(20)) for _ in range(60))
    yield "\n".join("+" + "---+" * 8 + "\n|" + "   |" * 8 for _ in range(8)) + "\n+" + "---+" * 8


def code() -> Iterator[str]:
    """Yield a megabyte of Python's own sources."""
    n_left = N_CODE_BYTES
    for file in sorted(Path(os.__file__).parent.glob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        yield text
        n_left -= len(text)
        if n_left <= 0:
            return
