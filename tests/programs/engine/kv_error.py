"""Loss of accuracy from the KV cache's type, next to llama.cpp's.

``python -m tests.programs.engine.kv_error MODEL... [--text FILE] [--tokens N] [--kv TYPE...] [--threads N]
[--peer-python PATH]``. Trained models only; random weights say nothing. A text is fed with a cache
of float16 and with each type; printed is how far the probabilities of the next token are from those
of float16 (KL: mean, its standard error, 99th percentile; how often the likeliest token is the
same). PATH is a Python that has llama-cpp-python, which does the same with the same tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from engine import Model
from tests.programs.engine.kv_error_peer import figures, log_softmax

ROOT = Path(__file__).resolve().parents[3]


def ours(model: Model, ids: list[int], types: list[str]) -> None:
    base = None
    for kv in ["f16", *types]:
        session = model.session(n_ctx=len(ids), kv=kv)
        rows = (row for block in session.score(ids) for row in block)
        if base is None:
            base = np.stack([log_softmax(row) for row in rows])
        else:
            print(f"{model.path.name:44} jalopy     {kv:10} {figures(base, rows)}", flush=True)
        session.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="what a type of the KV cache costs, against float16"
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--text", type=Path, default=ROOT / "engine" / "README.md")
    parser.add_argument("--tokens", type=int, default=768)
    parser.add_argument("--kv", nargs="+", default=["q8_0", "q4_0", "q8_0/q4_0"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", default="")
    arguments = parser.parse_args()
    for path in arguments.models:
        model = Model.open(path, threads=arguments.threads)
        ids = model.tokenizer.encode(arguments.text.read_text(encoding="utf-8"))[: arguments.tokens]
        ours(model, ids, arguments.kv)
        model.close()
        if arguments.peer_python:
            with tempfile.TemporaryDirectory() as folder:
                ids_file = Path(folder) / "ids.npy"
                np.save(ids_file, np.array(ids, np.int32))
                peer = [arguments.peer_python, str(Path(__file__).with_name("kv_error_peer.py"))]
                subprocess.run(
                    [*peer, path, str(ids_file), str(arguments.threads), *arguments.kv], check=True
                )


if __name__ == "__main__":
    main()
