"""Loss of accuracy from dropped tokens:
``python -m tests.programs.engine.shift_error MODEL... [--texts N] [--kv TYPE...]``.

Trained models only; random weights say nothing. Each text is sampled from the model itself. Its
beginning is kept (the system prompt's place), a part after that is dropped, and the rest is
followed by a quarter of a context of tokens that are fed, not chosen. Compared are

- ``fresh``: what is kept, computed again;
- ``shifted``: ``Session.shift``, that is moved and turned in the cache;
- ``rolling``: the same window at the end of a text of four contexts, a quarter dropped whenever the
  context was full;
- ``all``: nothing dropped at all.

Printed for the tokens that follow: perplexity, and how far the probabilities of the next token are
from ``fresh`` (KL, mean and 99th percentile; how often the likeliest token is the same).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine import EngineError, Model, Sampling, Session

Array = np.ndarray[Any, np.dtype[np.float64]]
KEEP = 8
FOLLOW_SHARE = 0.25
DROP_SHARES = (0.25, 0.6)
CONTEXTS = 4


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def begin_id(session: Session) -> int:
    bos_id = session.model.tokenizer.bos_id
    return 1 if bos_id is None else bos_id


def sampled(session: Session, n: int, seed: int) -> list[int]:
    """Texts of the model's own, n tokens; where one ends, or half a context is full, the next
    begins."""
    begin = begin_id(session)
    stream: list[int] = []
    while len(stream) < n:
        session.prefill([begin])
        seed += 1
        ids = [
            piece.token_id
            for piece in session.generate(Sampling(temperature=0.9, seed=seed), session.n_ctx // 2)
        ]
        stream += [begin, *ids]
    return stream[:n]


def followed(session: Session, follow: Sequence[int]) -> Array:
    """Log probabilities of the next token at each position of what follows: (n, vocab_size)."""
    return log_softmax(session.feed(follow, all_logits=True).astype(np.float64))


def fresh(session: Session, history: list[int], text: list[int], n_drop: int) -> None:
    session.feed(text[:KEEP] + text[KEEP + n_drop :])


def shifted(session: Session, history: list[int], text: list[int], n_drop: int) -> None:
    session.feed(text)
    session.shift(KEEP, n_drop)


def rolling(session: Session, history: list[int], text: list[int], n_drop: int) -> None:
    stream = text[:KEEP] + history + text[KEEP:]
    room = len(text)
    for start in range(0, len(stream), KEEP):
        piece = stream[start : start + KEEP]
        if session.length + len(piece) > room:
            session.shift(KEEP, room // 4)
        session.feed(piece)
    session.shift(KEEP, session.length - (len(text) - n_drop))


def everything(session: Session, history: list[int], text: list[int], n_drop: int) -> None:
    session.feed(text)


WAYS: dict[str, Callable[[Session, list[int], list[int], int], None]] = {
    "fresh": fresh,
    "shifted": shifted,
    "rolling": rolling,
    "all": everything,
}


def compare(model: Model, kv: str, n_texts: int, drop_share: float) -> None:
    session = model.session(n_ctx=model.config.context_length, kv=kv)
    n_ctx = session.n_ctx
    n_follow = int(FOLLOW_SHARE * n_ctx)
    n_drop = int(drop_share * n_ctx)
    losses: dict[str, list[Array]] = {method: [] for method in WAYS}
    divergences: dict[str, list[Array]] = {method: [] for method in WAYS}
    agreements: dict[str, list[Array]] = {method: [] for method in WAYS}
    for seed in range(n_texts):
        ids = sampled(session, CONTEXTS * n_ctx, 1000 * seed)
        history = ids[: (CONTEXTS - 1) * n_ctx]
        ids = ids[(CONTEXTS - 1) * n_ctx :]
        text = ids[: n_ctx - n_follow]
        follow = ids[n_ctx - n_follow :]
        reference: Array | None = None
        for method, fill in WAYS.items():
            session.truncate(0)
            fill(session, history, text, n_drop)
            if session.length != len(text) - (0 if method == "all" else n_drop):
                raise AssertionError(f"{method} holds {session.length} tokens")
            logits = followed(session, follow)[:-1]
            reference = logits if reference is None else reference
            # that a text ends was our choice, not the model's
            chosen = np.array(follow[1:]) != begin_id(session)
            losses[method].append(-logits[np.arange(len(follow) - 1), follow[1:]][chosen])
            divergences[method].append((np.exp(reference) * (reference - logits)).sum(-1))
            agreements[method].append(reference.argmax(-1) == logits.argmax(-1))
    print(
        f"\n{model.path.name}, {kv} cache, context {n_ctx}, {n_drop} of {n_ctx - n_follow} "
        f"dropped, {n_texts} texts"
    )
    print(f"{'':10} {'perplexity':>10} {'KL mean':>10} {'KL 99 %':>10} {'same token':>10}")
    for method in WAYS:
        kl = np.concatenate(divergences[method])
        loss = np.concatenate(losses[method])
        agree = 100 * np.concatenate(agreements[method]).mean()
        print(
            f"{method:10} {np.exp(loss.mean()):10.4f} {kl.mean():10.2e} {np.quantile(kl, 0.99):10.2e} "
            f"{agree:9.2f}%"
        )
    session.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="what Session.shift costs, against computing the kept text again"
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--kv", nargs="+", default=["f32", "f16", "q8_0"])
    arguments = parser.parse_args()
    for path in arguments.models:
        model = Model.open(path, threads=2)
        for kv in arguments.kv:
            for drop_share in DROP_SHARES:
                try:
                    compare(model, kv, arguments.texts, drop_share)
                except EngineError as error:
                    print(f"\n{model.path.name}, {kv} cache: {error}")
                    break
        model.close()


if __name__ == "__main__":
    main()
