"""Jalopy's half of a comparison: one job as JSON on standard input, one answer as JSON on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from app.chat import opening as engine_access
from app.cli.bench import versions
from app.cli.compare.peer_side import measure
from app.program import exit_codes
from app.program.refusals import exit_code_of, say
from app.program.settings import built_in_settings, override


def main() -> int:
    """Do the job on standard input."""
    job = json.load(sys.stdin)
    try:
        print(json.dumps(answer(job)))
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        say(str(error))
        return code
    return exit_codes.OK


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Measure, and continue the prompt greedily. Raises EngineError: the model cannot be used."""
    settings = built_in_settings()
    wanted = {"threads": job["threads"], "prefill_threads": job["threads"], "weights": job.get("weights", "mmap")}
    for key, value in wanted.items():
        settings = override(settings, key, value, key)
    model = engine_access.open_model(settings, job["model"])
    session = _Fed(model.session(job["n_ctx"], "f16"))
    read_tps, write_tps = measure(session, job)  # the peer's own loop, over our session
    tokens, margins = _greedy(session, job["greedy_prompt"], job["n_greedy"])
    return {
        "prefill_tps": read_tps,
        "decode_tps": write_tps,
        "greedy": tokens,
        "margins": margins,
        "version": versions(),
        "level": engine_access.cpu_level(),
    }


class _Fed:
    """A session with the two methods that the measuring loop calls."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.logits: Any = None

    def clear(self) -> None:
        self._session.truncate(0)

    def feed(self, tokens: list[int], start: int) -> None:
        self.logits = self._session.feed(tokens)


def _greedy(session: _Fed, prompt: list[int], n_tokens: int) -> tuple[list[int], list[float]]:
    """Return the tokens, and by how much each was ahead of the second likeliest, in spreads of the logits."""
    session.clear()
    session.feed(prompt, 0)
    tokens: list[int] = []
    margins: list[float] = []
    while len(tokens) < n_tokens:
        second, first = session.logits.argsort()[-2:]
        tokens.append(int(first))
        margins.append(float((session.logits[first] - session.logits[second]) / session.logits.std()))
        session.feed(tokens[-1:], 0)
    return tokens, margins


if __name__ == "__main__":
    sys.exit(main())
