"""Type 200 characters of a file, with a completion after each, and measure an editor's waits.

The file is a module of this project, so the right text is known. Requests are like those of
llama.vim: at most 256 lines before the cursor and 64 after it.

    python -m tests.programs.typing_session http://127.0.0.1:8080 [N_KEYS]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "engine" / "session.py"
N_LINES = 400
FIRST_LINE = 200
N_KEYS = 200
N_BEFORE = 256
N_AFTER = 64
PATIENCE_S = 120.0


def complete(address: str, before: str, line: str, after: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds of a completion, and its fields."""
    body = {
        "input_prefix": before,
        "input_suffix": after,
        "prompt": line,
        "n_predict": 128,
        "n_indent": len(line) - len(line.lstrip(" ")),
        "top_k": 40,
        "top_p": 0.9,
        "samplers": ["top_k", "top_p", "infill"],
        "t_max_predict_ms": 250,
        "response_fields": ["content", "timings/prompt_n", "timings/predicted_n"],
    }
    content = json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/infill", content)
    start_s = time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        fields = json.load(response)
    return time.monotonic() - start_s, fields


def main(address: str, n_keys: int = N_KEYS) -> None:
    """Type the text from a line on, and print what came."""
    lines = FILE.read_text().splitlines(keepends=True)[:N_LINES]
    typed = "".join(lines[FIRST_LINE:])
    after = "".join(lines[FIRST_LINE + 12 : FIRST_LINE + 12 + N_AFTER])
    seconds: list[float] = []
    n_read: list[int] = []
    n_right = 0
    for n_typed in range(n_keys):
        text = "".join(lines[:FIRST_LINE]) + typed[:n_typed]
        before, line_break, line = text.rpartition("\n")
        before = "".join((before + line_break).splitlines(keepends=True)[-N_BEFORE:])
        elapsed_s, fields = complete(address, before, line, after)
        rest = typed[n_typed:].partition("\n")[0]
        offered = fields["content"].partition("\n")[0]
        seconds.append(elapsed_s)
        n_read.append(fields["timings/prompt_n"])
        n_right += bool(offered.strip()) and rest.startswith(offered)

    print(f"seconds for a key: median {statistics.median(seconds):.2f}, worst {max(seconds):.2f}")
    print(f"after the first key: worst {max(seconds[1:]):.2f}")
    print(f"tokens read: median {statistics.median(n_read):.0f}, most {max(n_read[1:])}")
    print(f"completions that match the text: {n_right} of {n_keys}")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), *map(int, sys.argv[2:3]))
