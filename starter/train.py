"""Train the starter model: ``python -m starter.train --run DIR``.

Training continues from the newest checkpoint in DIR, so it can be stopped at any time. SIGTERM and
Ctrl+C end it with a checkpoint after the current step; SIGKILL loses the steps since the last
checkpoint. The same arguments read the same text in the same order, whatever the time and speed.
Weights may differ in their last bits, since threads add gradients in any order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from starter.format import Shape
from starter.model import Starter
from starter.muon import Muon
from starter.tokens import load_vocabulary, samples, train_vocabulary

RISE_STEPS = 50
SHARD_CONVERSATIONS = 2_000
"""Conversations made at a time; each shard has a seed of its own."""
MICRO_BATCH_TOKENS = 512
"""Tokens of a micro-batch; small enough that all threads finish a step at about the same time."""
MANY_WORDINGS_SHARD = 48
FALLING_SHARD = 78
"""First shard that is read entirely while the rates fall, at the default number of tokens."""
POLISHING_RATE = 0.05
_PROGRESS = ("step", "tokens", "shard", "batch", "is_polishing")

STEPS_SORTED_TOGETHER = 16
"""Number of steps whose conversations are sorted by length together, to keep padding small."""

Sample = tuple[np.ndarray, np.ndarray]
Batch = tuple[Tensor, Tensor]


def main() -> None:
    """Train until the planned number of tokens, or until a signal stops it."""
    options = _arguments()
    torch.set_num_threads(1)  # each of our threads computes alone, see _share_of_step
    torch.manual_seed(options.seed)
    options.run.mkdir(parents=True, exist_ok=True)
    vocabulary = options.run / "tokenizer.json"
    if not vocabulary.exists():
        _replace(vocabulary, lambda path: train_vocabulary(options.seed).save(str(path)))
    Training(options, vocabulary).go()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", type=Path, required=True, help="folder of vocabulary, checkpoints and log"
    )
    parser.add_argument("--tokens", type=float, default=27e6, help="tokens to read in all")
    parser.add_argument(
        "--fall",
        type=float,
        default=0.3,
        help="share of the tokens while the rates go down to nothing",
    )
    parser.add_argument(
        "--polish",
        type=float,
        default=0.9e6,
        help="tokens after the fall, at low rates, with more endless material",
    )
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of one step")
    parser.add_argument(
        "--matrix-rate", type=float, default=0.02, help="highest learning rate of matrices (Muon)"
    )
    parser.add_argument(
        "--other-rate", type=float, default=2e-3, help="the same of embedding and norms (AdamW)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--feed-forward", type=int, default=Shape.feed_forward)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument(
        "--start-from", type=Path, help="take the weights of this checkpoint, not its progress"
    )
    return parser.parse_args()


class Training:
    """Training run: model, optimisers and progress."""

    def __init__(self, options: argparse.Namespace, vocabulary: Path) -> None:
        self.options = options
        self.tokenizer = load_vocabulary(vocabulary)
        self.shape = Shape(
            self.tokenizer.get_vocab_size(),
            width=options.width,
            heads=options.heads,
            kv_heads=options.heads // 2,
            layers=options.layers,
            feed_forward=options.feed_forward,
        )
        self.model = Starter(self.shape).to(options.device)
        matrices = [p for p in self.model.blk.parameters() if p.ndim == 2]
        other_params = [
            p for p in self.model.parameters() if not any(p is matrix for matrix in matrices)
        ]
        self.pool = ThreadPoolExecutor(options.threads)
        self.optimisers = (
            Muon(matrices, options.matrix_rate, run=self.pool.map),
            torch.optim.AdamW(
                other_params, options.other_rate, betas=(0.9, 0.98), weight_decay=0.0
            ),
        )
        self.replicas = [self.model, *(self._replica() for _ in range(options.threads - 1))]
        self.step = self.tokens = self.shard = self.batch = 0
        self.is_polishing = False
        """Whether the current shard began after the rates had fallen."""
        self.is_told_to_stop = False
        self._resume()

    def _replica(self) -> Starter:
        """Return a model that shares the weights but has its own gradients."""
        replica = deepcopy(self.model)
        for replica_param, shared_param in zip(
            replica.parameters(), self.model.parameters(), strict=True
        ):
            replica_param.data = shared_param.data
        return replica

    @property
    def newest(self) -> Path:
        """Path of the newest checkpoint."""
        return Path(self.options.run / "newest.pt")

    def go(self) -> None:
        """Train."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_stop)
        count = sum(p.numel() for p in self.model.parameters())
        print(f"{count / 1e6:.2f} million parameters, from step {self.step}", flush=True)
        while self.tokens < self._last_token and not self.is_told_to_stop:
            if not self.batch:
                self.is_polishing = self.tokens >= self.options.tokens
            for batch in self._batches(self.shard, skip=self.batch):
                self._one_step(batch)
                self.batch += 1
                if self.is_told_to_stop or self.tokens >= self._last_token:
                    break
            else:
                self.shard += 1
                self.batch = 0
        self.save(self.newest)

    @property
    def _last_token(self) -> float:
        return self.options.tokens + self.options.polish

    def _note_stop(self, *_: Any) -> None:
        self.is_told_to_stop = True

    def _batches(self, shard: int, skip: int) -> Iterator[list[Batch]]:
        """Cut a shard into steps of micro-batches; an incomplete step at its end is dropped."""
        seed = self.options.seed * 1_000_000 + shard
        chunk: list[Sample] = []
        size = 0
        for sample in samples(
            self.tokenizer, seed, SHARD_CONVERSATIONS, *_shares(shard, self.is_polishing)
        ):
            chunk.append(sample)
            size += len(sample[0])
            if size >= self.options.batch_tokens * STEPS_SORTED_TOGETHER:
                for batch in _steps(chunk, Random(seed), STEPS_SORTED_TOGETHER):
                    if skip:
                        skip -= 1
                    else:
                        yield batch
                chunk = []
                size = 0

    def _one_step(self, batch: list[Batch]) -> None:
        started_s = time.monotonic()
        learnt = sum(int(marks.sum()) for _, marks in batch)
        # The most expensive batches are last, since threads take from the end. A token costs twice
        # as much after a thousand tokens.
        micro_batches = sorted(
            batch, key=lambda samples: samples[0].numel() * (1024 + samples[0].shape[1])
        )
        losses = list(
            self.pool.map(
                lambda replica: self._share_of_step(replica, micro_batches, learnt), self.replicas
            )
        )
        for params in zip(*(replica.parameters() for replica in self.replicas), strict=True):
            total, *other_params = [param.grad for param in params if param.grad is not None]
            for gradient in other_params:
                total += gradient
            params[0].grad = total
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = self._rate()
        for optimiser, highest in zip(
            self.optimisers, (self.options.matrix_rate, self.options.other_rate), strict=True
        ):
            for group in optimiser.param_groups:
                group["lr"] = highest * rate
            optimiser.step()
        for replica in self.replicas:
            replica.zero_grad(set_to_none=True)
        self.step += 1
        read = sum(int((ids > 0).sum()) for ids, _ in batch)
        self.tokens += read
        self._note(sum(losses) / learnt, float(norm), rate, read / (time.monotonic() - started_s))

    def _share_of_step(self, replica: Starter, micro_batches: list[Batch], learnt: int) -> float:
        """Compute micro-batches until none is left; threads do not wait for each other."""
        total = 0.0
        while micro_batches:
            try:
                ids, marks = micro_batches.pop()
            except IndexError:
                break
            loss = replica.loss(ids.to(self.options.device), marks.to(self.options.device))
            (loss / learnt).backward()
            total += float(loss.detach())
        return total

    def _rate(self) -> float:
        """Return the share of the highest learning rate.

        It rises shortly, stays, falls linearly, and is low for polishing. The plateau does not
        depend on the planned number of tokens, so a run can be extended from there.
        """
        if self.tokens >= self.options.tokens:
            return POLISHING_RATE * max(0.0, (self._last_token - self.tokens) / self.options.polish)
        rise = min(1.0, (self.step + 1) / RISE_STEPS)
        remaining_share = 1 - self.tokens / self.options.tokens
        return rise * max(0.0, min(1.0, remaining_share / self.options.fall))

    def _note(self, loss: float, norm: float, rate: float, speed_tps: float) -> None:
        record = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(loss, 4),
            "norm": round(norm, 2),
            "rate": round(rate, 4),
            "tps": round(speed_tps),
        }
        with (self.options.run / "log.jsonl").open("a") as log:
            log.write(json.dumps(record) + "\n")
        if self.step % 10 == 0:
            print(record, flush=True)
        if self.step % self.options.every == 0:
            self.batch += 1  # this step is done when the checkpoint is read
            self.save(self.newest)
            if self._rate() == 1.0:
                self.save(self.options.run / "plateau.pt")
            self.batch -= 1

    def save(self, path: Path) -> None:
        """Write a checkpoint as a whole or not at all."""
        state = {
            "shape": asdict(self.shape),
            "model": self.model.state_dict(),
            "progress": {name: getattr(self, name) for name in _PROGRESS},
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        _replace(path, lambda beside: torch.save(state, beside))

    def _resume(self) -> None:
        source = self.newest if self.newest.exists() else self.options.start_from
        if source is None:
            return
        state = torch.load(source, map_location=self.options.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        if source == self.newest:
            for optimiser, optimiser_state in zip(
                self.optimisers, state["optimisers"], strict=True
            ):
                optimiser.load_state_dict(optimiser_state)
            for name, value in state["progress"].items():
                setattr(self, name, value)


def _shares(shard: int, is_polishing: bool) -> tuple[float, float, float, float]:
    """Return the shares of short and copying conversations, many wordings, and endless requests.

    Short conversations come first, then copying ones; many wordings follow once few are learnt.
    """
    short = 0.3
    if shard < 12:
        short = 0.9
    elif shard < 20:
        short = 0.6
    copying = 0.2
    if shard < 35:
        copying = 0.0
    elif shard < 47:
        copying = 0.6
    many_wordings = 0.0 if shard < MANY_WORDINGS_SHARD else 0.75
    endless = 0.6 if is_polishing else 0.2
    if shard < FALLING_SHARD:
        endless = 0.0
    return short, copying, many_wordings, endless


def _steps(chunk: list[Sample], rng: Random, n_steps: int) -> Iterator[list[Batch]]:
    """Distribute micro-batches of similar lengths, so that each step has short and long ones."""
    groups: list[list[Sample]] = [[]]
    for sample in sorted(chunk, key=lambda sample: len(sample[0])):
        if groups[-1] and (len(groups[-1]) + 1) * len(sample[0]) > MICRO_BATCH_TOKENS:
            groups.append([])
        groups[-1].append(sample)
    rng.shuffle(groups)
    for index in range(n_steps):
        yield [_stacked(samples) for samples in groups[index::n_steps]]


def _stacked(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    length = max(len(ids) for ids, _ in samples)
    ids = np.zeros((len(samples), length), np.int64)
    marks = np.zeros((len(samples), length), bool)
    for row, (sample_ids, sample_marks) in enumerate(samples):
        ids[row, : len(sample_ids)] = sample_ids
        marks[row, : len(sample_marks)] = sample_marks
    return torch.from_numpy(ids), torch.from_numpy(marks)


def _replace(path: Path, write: Any) -> None:
    beside = path.with_name(path.name + ".new")
    write(beside)
    os.replace(beside, path)


if __name__ == "__main__":
    main()
