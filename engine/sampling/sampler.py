"""Sampler of one reply: chooses the next token from the logits."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from engine.errors import BrokenModelError
from engine.kernels.entries import run_entry
from engine.kernels.records import DRAW, LOGITS
from engine.sampling.infill import InfillSampler
from engine.sampling.repetition import RepetitionPenalties
from engine.sampling.settings import FORBIDDEN_BIAS, Sampling


class Sampler:
    """Applies the settings of a reply; holds the random state and scratch arrays.

    Args:
        sampling: settings.
        vocab_size: length of the logits.
        end_ids: ids of the tokens that end a reply, for ``ignore_eos``.
        token_bytes: returns the bytes of a token's text, for ``dry_breakers``.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        end_ids: Collection[int] = (),
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        s = sampling
        self._settings = s
        if s.seed is None:
            seed = secrets.randbits(64)
        else:
            seed = s.seed & (2**64 - 1)
        self._state = np.array([seed], np.uint64)
        self._repetition = RepetitionPenalties(s, vocab_size, token_bytes)
        biases = [*s.logit_bias, *((token, FORBIDDEN_BIAS) for token in end_ids if s.ignore_eos)]
        biases = [(token, bias) for token, bias in biases if token < vocab_size]
        self._biased_ids = np.array([token for token, _ in biases], np.int64)
        self._biases = np.array([bias for _, bias in biases], np.float32)
        self._infill: InfillSampler | None = None
        if s.infill and end_ids and token_bytes is not None:
            self._infill = InfillSampler(s, end_ids, token_bytes, seed)
        self._is_greedy = s.temperature == 0.0 and s.typical_p >= 1.0 and s.xtc_probability == 0.0
        self._top_k = min(s.top_k or vocab_size, vocab_size)
        n_scratch = 0 if self._is_greedy else vocab_size + 8
        self._floats = np.empty((3, n_scratch), np.float32)
        self._ints = np.empty((2, n_scratch), np.int32)
        self._logits = np.empty(vocab_size, np.float32)
        self._mass = np.empty(256)

    def choose(self, logits: np.ndarray[Any, np.dtype[np.float32]], tokens: Sequence[int]) -> int:
        """Choose a token id.

        Args:
            logits: (vocab_size,) float32; it does not change.
            tokens: ids of all tokens so far, for the penalties.

        Returns:
            A token id, 0 to vocab_size - 1.

        Raises:
            BrokenModelError: a logit is NaN or infinite.
        """
        s = self._settings
        if len(self._biased_ids) or (self._repetition.is_on and len(tokens)):
            np.copyto(self._logits, logits)
            logits = self._logits
            np.add.at(logits, self._biased_ids, self._biases)
            if self._repetition.is_on:
                self._repetition.apply(logits, tokens)
        if self._infill is not None:
            if not np.isfinite(logits).all():
                raise _broken_model()
            return self._infill.choose(logits)
        if self._is_greedy:
            words = run_entry("largest logit", LOGITS, logits=logits, n=len(logits))
            token = int(words[LOGITS.result // 8])
        else:
            words = run_entry(
                "draw",
                DRAW,
                logits=logits,
                n=len(logits),
                temperature=float(s.temperature),
                top_k=self._top_k,
                top_p=float(s.top_p),
                min_p=float(s.min_p),
                top_n_sigma=float(s.top_n_sigma),
                typical_p=float(s.typical_p),
                xtc_probability=float(s.xtc_probability),
                xtc_threshold=float(s.xtc_threshold),
                state=self._state,
                floats=self._floats,
                ints=self._ints,
                mass=self._mass,
            )
            token = int(words[DRAW.result // 8])
        if token < 0:
            raise _broken_model()
        return token


def _broken_model() -> BrokenModelError:
    return BrokenModelError(
        "the model computed NaN or infinity: its weights are damaged (verify the file)"
    )
