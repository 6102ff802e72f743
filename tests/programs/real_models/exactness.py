"""``python -m tests.programs.real_models.exactness MODEL... --peer-python PATH``: who is nearer to exact, we
or llama.cpp.

Both read the same tokens of a long text, in chunks as ``jalopy perplexity`` has them. With
``--exact`` they do it again with the file's weights written out as float32, where neither rounds
activations: what the file computes exactly. The text is a part of Python's own documentation, which
is there wherever Python is.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

from engine import Model
from engine.measure.perplexity import chunks_of, score

PEER = Path(__file__).with_name("exactness_peer.py")
N_TEXT_CHARS = 96_000
N_KEPT = 2
"""Chunks whose predictions are compared token by token."""


def long_text() -> str:
    """About 24,000 tokens of prose and code."""
    return "\n".join(topics[name] for name in sorted(topics))[:N_TEXT_CHARS]


@dataclass(frozen=True)
class Read:
    """Results of one engine: the loss of each token that counts, and the logits (n, vocab_size) of
    the first chunks."""

    losses: Any
    kept: Any

    @property
    def perplexity(self) -> float:
        """Perplexity of all tokens that count."""
        return float(np.exp(self.losses.mean()))

    def divergence(self, exact: Read) -> float:
        """Kullback-Leibler divergence from the exact predictions, in nats a token."""
        divergences = [
            divergence(row, expected) for row, expected in zip(self.kept, exact.kept, strict=True)
        ]
        return float(np.mean(divergences))


def divergence(row: Any, expected: Any) -> float:
    """Return the divergence of one prediction from another."""
    actual, exact = (logits.astype(np.float64) - logits.max() for logits in (row, expected))
    actual, exact = (logits - np.log(np.exp(logits).sum()) for logits in (actual, exact))
    return float((np.exp(exact) * (exact - actual)).sum())


@dataclass(frozen=True)
class Chunks:
    """Input of both engines: tokens, the first position of a chunk that counts, and threads."""

    ids: list[list[int]]
    first: int
    n_threads: int


def read_by_us(path: Path, chunks: Chunks, kv: str) -> Read:
    """Read the chunks with this engine."""
    model = Model.open(path, threads=chunks.n_threads)
    session = model.session(len(chunks.ids[0]), kv)
    losses = []
    kept_rows = []
    for number, chunk in enumerate(chunks.ids):
        session.truncate(0)
        targets = iter(chunk[chunks.first + 1 :])
        for rows in score(session, chunk[:-1], chunks.first):
            for row in rows:
                exact = row.astype(np.float64) - row.max()
                losses.append(np.log(np.exp(exact).sum()) - exact[next(targets)])
                if number < N_KEPT:
                    kept_rows.append(row.copy())
    session.close()
    model.close()
    return Read(np.array(losses), np.stack(kept_rows))


def read_by_peer(path: Path, chunks: Chunks, kv: str, python: str) -> Read:
    """Read the chunks with llama.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "chunks.npy")
        answer = Path(folder, "answer.npz")
        np.save(tokens, chunks.ids)
        options = [str(chunks.first), str(N_KEPT), kv, str(chunks.n_threads)]
        subprocess.run(
            [python, str(PEER), str(path), str(tokens), *options, str(answer)], check=True
        )
        arrays = np.load(answer)
        return Read(arrays["losses"], arrays["kept"])


def write_exact(path: Path, target: Path) -> None:
    """Write a model's file again, with float32 weights."""
    reader = GGUFReader(path)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in (
            "general.architecture",
            "general.file_type",
        ):
            value_type = field.types[0]
            item_type = field.types[-1] if value_type == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), value_type, item_type)
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(
            np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        )
    writer.close()


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--text", type=Path, help="another text; in one chunk with --whole")
    parser.add_argument(
        "--whole", action="store_true", help="one chunk, all of whose tokens count but the first"
    )
    parser.add_argument("--exact", action="store_true", help="also what the file computes exactly")
    parser.add_argument("--chunks", type=int, default=1 << 20, help="only so many")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    text = chosen.text.read_text() if chosen.text else long_text()
    print(
        f"text: {len(text):,} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()}",
        flush=True,
    )
    exact_names = (
        ("exact", "exact by llama.cpp", "ours from exact (KL)", "llama.cpp from exact")
        if chosen.exact
        else ()
    )
    names = "tokens", "ours", "llama.cpp", "one from the other (KL)", *exact_names
    print(f"| model | {' | '.join(names)} |\n|---|{'---:|' * len(names)}", flush=True)
    for path in chosen.models:
        model = Model.open(path, threads=1)
        ids = model.tokenizer.encode(text, special=False)
        chunks = chunks_of(ids, len(ids) if chosen.whole else 512, model.tokenizer)[: chosen.chunks]
        model.close()
        text_of_chunks = Chunks(chunks, 0 if chosen.whole else len(chunks[0]) // 2, chosen.threads)
        our_result = read_by_us(path, text_of_chunks, "f16")
        peer_result = read_by_peer(path, text_of_chunks, "f16", chosen.peer_python)
        figures = [
            f"{len(our_result.losses):,}",
            *(f"{result.perplexity:.4f}" for result in (our_result, peer_result)),
        ]
        figures.append(f"{our_result.divergence(peer_result):.6f}")
        if chosen.exact:
            with tempfile.TemporaryDirectory() as folder:
                exact_file = Path(folder, path.name)
                write_exact(path, exact_file)
                exact = read_by_us(exact_file, text_of_chunks, "f32")
                theirs_exact = read_by_peer(exact_file, text_of_chunks, "f32", chosen.peer_python)
            figures += [f"{result.perplexity:.4f}" for result in (exact, theirs_exact)]
            figures += [f"{result.divergence(exact):.6f}" for result in (our_result, peer_result)]
        print(f"| {path.stem} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
