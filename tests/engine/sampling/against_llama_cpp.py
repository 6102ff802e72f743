"""``python -m tests.engine.sampling.against_llama_cpp MODEL --peer-python PATH``: do we draw as llama.cpp would?

For each chain of the tests and for given logits and a text of the model's own tokens, llama.cpp says what is left and
with which probability; ours draws, and a chi-square test compares. The model gives its vocabulary alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from engine import Sampling
from engine.sampling.sampler import Sampler
from engine.tokenizer import Tokenizer
from tests.engine.sampling.chain_twin import CHAINS, chi_square, model_like

PEER = Path(__file__).with_name("llama_cpp_chain.py")
TEXT = 'He said: "one two three four". She said: "five six".\nAnd one two three four, and one two three'
FARTHEST = 4.0
"""Standard deviations of the chi-square statistic."""


def cases_of(n_vocab: int, tokens: list[int]) -> dict[str, tuple[Sampling, np.ndarray]]:
    """Each chain with logits in which the text's tokens are likely, and two large vocabularies."""
    cases = {}
    for name, chain in CHAINS.items():
        certain = {**chain, "xtc_probability": 1.0} if "xtc_probability" in chain else chain
        sampling = Sampling(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, **certain})
        logits = model_like(n_vocab)
        logits[list(set(tokens))] += 6.0
        cases[name] = sampling, logits
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--draws", type=int, default=20_000)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.open(arguments.model)
    tokens = tokenizer.encode(TEXT, bos=False)
    cases = cases_of(tokenizer.vocab_size, tokens)
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "cases.json", Path(folder) / "found.json"
        asked = [
            {"logits": logits.tolist(), "tokens": tokens, "settings": asdict(sampling)}
            for sampling, logits in cases.values()
        ]
        given.write_text(json.dumps(asked), encoding="utf-8")
        subprocess.run([arguments.peer_python, PEER, arguments.model, given, found], check=True, stderr=subprocess.PIPE)
        theirs = [{int(k): p for k, p in one.items()} for one in json.loads(found.read_text(encoding="utf-8"))]
    n_bad = 0
    for (name, (sampling, logits)), expected in zip(cases.items(), theirs, strict=True):
        sampler = Sampler(sampling, len(logits), (), tokenizer.spelled_bytes)
        drawn, counts = np.unique([sampler.choose(logits, tokens) for _ in range(arguments.draws)], return_counts=True)
        strange = set(drawn.tolist()) - expected.keys()
        off = chi_square(
            {token: n for token, n in zip(drawn.tolist(), counts.tolist(), strict=True) if token in expected}, expected
        )
        is_bad = bool(strange) or off > FARTHEST
        n_bad += is_bad
        print(f"{name:<24} {len(expected):>7} left  {off:>6.2f} sd  {len(strange)} strange{'  BAD' if is_bad else ''}")
    return n_bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
