"""``python -m tests.programs.real_models.record FOLDER --peer-python PATH``: record what llama.cpp makes of
the models.

What is recorded is ``recorded.json`` next to this file: tokens of texts, renderings of
conversations (by Jinja, as transformers do it), the first greedy tokens as far as each is clearly
the likeliest, and the perplexity of ``text.txt``. It needs a Python with llama-cpp-python and
Jinja; the recording in use was made by llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

from tests.programs.engine.same_tokens import LEFT_OUT, random_text
from tests.programs.real_models.models import REAL_MODELS

RECORDED = Path(__file__).with_name("recorded.json")
TEXT = Path(__file__).with_name("text.txt")
PEER = Path(__file__).with_name("record_peer.py")
N_TEXTS = 60
LEAST_MARGIN = 0.7
"""Smallest lead of the likeliest token, in logits, at which two engines that round differently
must choose alike."""
LEAST_TOKENS = 3
PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7,",
    "def add(a, b):\n    return",
    "Monday, Tuesday, Wednesday,",
)
CONVERSATIONS = (
    ({"role": "user", "content": "What is the capital of France? Answer with one word."},),
    (
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Name three colours."},
        {"role": "assistant", "content": "Red, green and blue."},
        {"role": "user", "content": "Say the first one again.\n"},
    ),
)


def main() -> None:
    """Ask llama.cpp about each model, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    chance = random.Random(44)
    texts = [text for text in (random_text(chance) for _ in range(N_TEXTS)) if LEFT_OUT not in text]
    questions = {
        "texts": ["\x04\x06\x13\x14\x16\x1d", "a\x04b", *texts],
        "prompts": PROMPTS,
        "conversations": CONVERSATIONS,
        "text": TEXT.read_text(),
        "least_margin": LEAST_MARGIN,
        "least_tokens": LEAST_TOKENS,
        "threads": chosen.threads,
    }
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory() as work:
        question = Path(work, "asked.json")
        answer = Path(work, "told.json")
        question.write_text(json.dumps(questions))
        for model in REAL_MODELS:
            path = chosen.folder / model.file_name
            subprocess.run(
                [chosen.peer_python, str(PEER), str(path), str(question), str(answer)], check=True
            )
            recorded[model.name] = json.loads(answer.read_text())
            print(f"{model.name}: perplexity {recorded[model.name]['perplexity']}", flush=True)
            RECORDED.write_text(json.dumps(recorded, indent=0) + "\n")


if __name__ == "__main__":
    main()
