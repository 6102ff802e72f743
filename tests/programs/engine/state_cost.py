"""Cost and gain of keeping a conversation's state:
``python -m tests.programs.engine.state_cost MODEL... [--tokens N]``.

For each model: the prompt is computed, a reply written without and with a writer next to it, the
file is restored into an empty session, and the next tokens are compared. The segments lie in a
temporary directory (``TMPDIR``), and the restore reads them from the system's file cache, as at a
restart soon after.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from engine import Model, Sampling, Session
from engine.saved_state import StateWriter, restore_state


def reply_ms(session: Session, n: int, saving: StateWriter | None) -> list[float]:
    """Milliseconds of every token of a reply."""
    times = []
    before_s = time.perf_counter()
    for _ in session.generate(Sampling(temperature=1.0, seed=3), n):
        if saving is not None:
            saving.notify()
        now_s = time.perf_counter()
        times.append(1000 * (now_s - before_s))
        before_s = now_s
    return times


def shown(times: list[float]) -> str:
    return (
        f"median {statistics.median(times):.1f} ms, most {max(times):.1f} ms, "
        f"{1000 / statistics.mean(times):.2f} tok/s"
    )


def measure(path: Path, kv: str, n_tokens: int, n_reply: int, directory: Path) -> None:
    model = Model.open(path)
    started_s = time.perf_counter()
    _ = model.fingerprint
    fingerprint_ms = 1000 * (time.perf_counter() - started_s)
    session = model.session(n_ctx=n_tokens + 2 * n_reply + 8, kv=kv)
    folder = directory / "states"
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, n_tokens).tolist()
    session.feed(ids[:64])
    session.truncate(0)
    started_s = time.perf_counter()
    session.feed(ids)
    prefill_s = time.perf_counter() - started_s
    alone = reply_ms(session, n_reply, None)
    session.truncate(n_tokens)
    session.prefill(session.tokens)
    saving = StateWriter(session, folder)
    started_s = time.perf_counter()
    saving.notify()
    saved = saving.flush(600)
    save_s = time.perf_counter() - started_s
    n_bytes = saving.written_bytes
    saving_ms = reply_ms(session, n_reply, saving)
    started_s = time.perf_counter()
    saved = saving.flush(600) and saved
    flush_ms = 1000 * (time.perf_counter() - started_s)
    tokens = session.tokens
    problem = saving.problem
    saving.close()
    expected = session.feed([1])
    session.close()
    fresh = model.session(n_ctx=len(tokens) + 8, kv=kv)
    restored = restore_state(fresh, folder, tokens)
    is_equal = fresh.tokens == tokens and bool((fresh.feed([1]) == expected).all())
    size = f"{n_bytes / 1e6:.1f} MB, {n_bytes / n_tokens / 1e3:.1f} kB a token"
    save_ms = 1e3 * save_s / n_tokens
    print(f"\n{path.name}, {kv} cache, {n_tokens} tokens, {model.threads} threads")
    print(f"  fingerprint        {fingerprint_ms:.0f} ms")
    print(f"  segments           {size}; saved: {saved} {problem or ''}")
    print(f"  saving it at once  {save_s:.2f} s with fsync, {save_ms:.3f} ms a token")
    print(f"  reply alone        {shown(alone)}")
    print(f"  reply being saved  {shown(saving_ms)}; flush at its end {flush_ms:.0f} ms")
    print(
        f"  restored           {restored.tokens} tokens in {restored.seconds:.3f} s; "
        f"equal logits then: {is_equal}"
    )
    print(
        f"  computed again     {prefill_s:.1f} s, {prefill_s / max(1e-9, restored.seconds):.0f} "
        "times as long"
    )
    fresh.close()
    model.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="what keeping a conversation's state costs and saves"
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--reply", type=int, default=128)
    parser.add_argument("--kv", default="f16")
    arguments = parser.parse_args()
    for path in arguments.models:
        with tempfile.TemporaryDirectory() as directory:
            measure(path, arguments.kv, arguments.tokens, arguments.reply, Path(directory))


if __name__ == "__main__":
    main()
