"""``python -m tests.programs.engine.predictions [MODEL...] --peer-python PATH``: does a model's own
block (MTP) guess as in llama.cpp?

Each model reads a prompt of random tokens and then one token at a time; three guesses in a row are
taken before each. ``--draft`` names an assistant that guesses instead. Without a model: the tiny
models that the tests use; ``--golden`` then writes llama.cpp's numbers for the test suite. The exit
code is 0 only if all guesses are the same and the logits differ by an NMSE of at most 1e-6, or 1e-3
for Gemma 4, whose GELU llama.cpp reads from a table in half precision. The files must have float
weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from engine import Model, Session
from tests.engine.predicting import PREDICTING, assistant_of, assisted_model, described
from tests.engine.reference import Array

PEER = Path(__file__).with_name("predictions_peer.py")
GOLDEN = Path(__file__).parents[2] / "engine" / "golden" / "predictions.json"
BOUND = 1e-6
ASSISTED_BOUND = 1e-3
ASSISTED = "gemma4"
"""Name of the tiny model with an assistant."""
N_PROMPT = 24
N_STEPS = 12
N_GUESSES = 3
N_GOLDEN = 1
"""Number of last steps whose logits are written."""
DIGITS = 6


def prompt_ids(n_vocab: int) -> list[int]:
    """Return random token ids: those of the prompt, and those that follow it."""
    ids: list[int] = np.random.default_rng(3).integers(3, n_vocab, N_PROMPT + N_STEPS).tolist()
    return ids


def chain(session: Session, token: int) -> Array:
    """Return the logits of guesses in a row after a token: (``N_GUESSES``, vocab_size)."""
    rows = []
    following = [token]
    for _ in range(N_GUESSES):
        row = session.pipeline.draft(following, session.tokens, 2)
        assert row is not None
        rows.append(row.copy())
        following.append(int(row.argmax()))
    return np.stack(rows)


def our_logits(path: Path, assistant: Path | None = None) -> Array:
    """Return the logits of all guesses: (``N_STEPS``, ``N_GUESSES``, vocab_size)."""
    model = Model.open(path, threads=2, assistant=assistant)
    session = model.session(n_ctx=512, kv="f32")
    if session.pipeline.predictor is None:
        raise SystemExit(f"{path.name}: nothing to guess by ({' '.join(model.notices)})")
    ids = prompt_ids(model.config.vocab_size)
    session.feed(ids[:N_PROMPT])
    rows = []
    for token in ids[N_PROMPT:]:
        rows.append(chain(session, token))
        session.feed([token])
    model.close()
    return np.stack(rows)


def peer_logits(path: Path, python: str, n_vocab: int, assistant: Path | None) -> Array:
    """Return llama.cpp's logits of the same guesses."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        ids = ",".join(map(str, prompt_ids(n_vocab)))
        command = [python, str(PEER), str(path), ids, str(N_PROMPT), str(out)]
        if assistant is not None:
            command.append(str(assistant))
        subprocess.run(command, check=True, timeout=600)
        logits: Array = np.load(out)
    return logits


def compare(path: Path, python: str, assistant: Path | None = None) -> tuple[bool, Array]:
    """Print a line about one model; return whether it is good, and llama.cpp's logits."""
    ours = our_logits(path, assistant)
    theirs = peer_logits(path, python, ours.shape[-1], assistant)
    errors = ((ours - theirs) ** 2).mean(-1) / theirs.var(-1)
    n_same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    n_guesses = N_STEPS * N_GUESSES
    worst = ", ".join(f"{error:.1e}" for error in errors.max(0))
    print(f"{path.stem:28} {n_same} of {n_guesses} guesses the same; NMSE {worst}", flush=True)
    bound = BOUND if assistant is None else ASSISTED_BOUND
    return n_same == n_guesses and bool(errors.max() <= bound), theirs


def golden_of(logits: Array) -> dict[str, object]:
    """Return what the test suite compares: all guesses, and some logits."""
    rounded = [[[float(f"{x:.{DIGITS}g}") for x in row] for row in rows] for rows in logits]
    return {"guesses": logits.argmax(-1).tolist(), "logits": rounded[-N_GOLDEN:]}


def main() -> int:
    """Compare and print one line for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--peer-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--draft", type=Path, help="file of an assistant")
    parser.add_argument("--golden", action="store_true", help=f"write {GOLDEN.name}")
    chosen = parser.parse_args()
    are_good = []
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = chosen.models
        if not paths:
            paths = [described(name).write(Path(folder) / f"{name}.gguf") for name in PREDICTING]
            assisted = assisted_model()
            paths.append(assisted.write(Path(folder) / f"{ASSISTED}.gguf"))
            chosen.draft = assistant_of(assisted).write(Path(folder) / "assistant.gguf")
        for path in paths:
            assistant = chosen.draft if chosen.models or path.stem == ASSISTED else None
            is_good, logits = compare(path, chosen.peer_python, assistant)
            are_good.append(is_good)
            golden[path.stem] = golden_of(logits)
    if chosen.golden and not chosen.models:
        GOLDEN.write_text(json.dumps(golden) + "\n", encoding="utf-8")
    return int(not all(are_good))


if __name__ == "__main__":
    sys.exit(main())
