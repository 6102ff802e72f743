"""Chooses the next token from the logits: the chain that applies the settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from engine.errors import BrokenModelError
from engine.kernels.entries import run
from engine.kernels.records import DRAW, LOGITS
from engine.sampling.repetition import Repetition
from engine.sampling.settings import FORBIDDEN, Sampling


class Sampler:
    """One reply's chain: holds the random state and the scratch arrays.

    Args:
        sampling: the settings.
        vocab_size: length of the logits.
        ends: ids of the tokens that end a reply, for ``ignore_eos``.
        piece: the bytes of a token's text, for ``dry_breakers``.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        ends: Collection[int] = (),
        piece: Callable[[int], bytes] | None = None,
    ) -> None:
        s = self._settings = sampling
        if s.seed is None:
            seed = secrets.randbits(64)
        else:
            seed = s.seed & (2**64 - 1)
        self._state = np.array([seed], np.uint64)
        self._repetition = Repetition(s, vocab_size, piece)
        biases = [*s.logit_bias, *((token, FORBIDDEN) for token in ends if s.ignore_eos)]
        known = [(token, bias) for token, bias in biases if token < vocab_size]
        self._biased = np.array([token for token, _ in known], np.int64)
        self._biases = np.array([bias for _, bias in known], np.float32)
        self._is_greedy = s.temperature == 0.0 and s.typical_p >= 1.0 and s.xtc_probability == 0.0
        self._top_k = min(s.top_k or vocab_size, vocab_size)
        if self._is_greedy:
            room = 0
        else:
            room = vocab_size + 8
        self._floats = np.empty((3, room), np.float32)
        self._ints = np.empty((2, room), np.int32)
        self._logits = np.empty(vocab_size, np.float32)
        self._mass = np.empty(256)

    def choose(self, logits: np.ndarray[Any, np.dtype[np.float32]], tokens: Sequence[int]) -> int:
        """Choose a token id.

        Args:
            logits: (vocab_size,) float32, not changed.
            tokens: ids of all tokens so far, for the penalties.

        Returns:
            A token id, 0 to vocab_size - 1.

        Raises:
            BrokenModelError: a logit is NaN or infinite.
        """
        s = self._settings
        if len(self._biased) or (self._repetition.is_on and len(tokens)):
            np.copyto(self._logits, logits)
            logits = self._logits
            np.add.at(logits, self._biased, self._biases)
            if self._repetition.is_on:
                self._repetition.apply(logits, tokens)
        if self._is_greedy:
            found = run("largest logit", LOGITS, logits=logits, n=len(logits))[LOGITS.result // 8]
        else:
            found = run(
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
            )[DRAW.result // 8]
        token = int(found)
        if token < 0:
            raise BrokenModelError(
                "the model computed NaN or infinity: its weights are damaged (verify the file)"
            )
        return token
