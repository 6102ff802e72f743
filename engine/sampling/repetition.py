"""What makes repetition less likely: penalties for tokens that came up, and DRY, for going on with
a repetition."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.kernels.entries import run
from engine.kernels.records import PENALISE, REPEATS
from engine.sampling.settings import Sampling

Logits = np.ndarray[Any, np.dtype[np.float32]]
LOWEST = -1e30
"""Of a penalised logit: still a number."""
LARGEST_LOG = 88.0
"""Logarithm of the largest penalty of DRY, about that of the largest float32."""


class Repetition:
    """One reply's penalties.

    Args:
        sampling: the settings.
        vocab_size: length of the logits.
        piece: the bytes of a token's text, for DRY's breakers; None where texts are not known.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, piece: Callable[[int], bytes] | None
    ) -> None:
        s = self._settings = sampling
        changes = s.repeat_penalty != 1.0 or s.frequency_penalty != 0.0 or s.presence_penalty != 0.0
        self._penalises = changes and s.repeat_window > 0
        self._is_dry = s.dry_multiplier > 0.0 and s.dry_base >= 1.0
        self._counts = np.zeros(vocab_size if self.is_on else 0, np.int32)
        self._tokens = np.empty(0, np.int32)
        self._n = 0
        self._broken_at = -1
        """The last token whose text ends a breaker."""
        self._piece = piece
        self._breakers = [one.encode() for one in s.dry_breakers if one]
        self._reach = max(map(len, self._breakers), default=0)

    @property
    def is_on(self) -> bool:
        """Whether any logit may change."""
        return self._penalises or self._is_dry

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        """Lower the logits of what would repeat.

        Args:
            logits: (vocab_size,) float32, changed in place.
            tokens: ids of all tokens so far.
        """
        self._note(tokens)
        s = self._settings
        known = self._tokens[: self._n]
        if self._penalises:
            recent = known[-s.repeat_window :]
            run(
                "penalise",
                PENALISE,
                logits=logits,
                recent=recent,
                n=len(recent),
                counts=self._counts,
                n_vocab=len(logits),
                repeat=float(s.repeat_penalty),
                frequency=float(s.frequency_penalty),
                presence=float(s.presence_penalty),
            )
        if self._is_dry:
            self._apply_dry(logits, known)

    def _note(self, tokens: Sequence[int]) -> None:
        """Take the tokens that are new; all of them where they do not go on from the known ones."""
        n = len(tokens)
        if n < self._n or (self._n and tokens[self._n - 1] != self._tokens[self._n - 1]):
            self._n = 0
            self._broken_at = -1
        if n > len(self._tokens):
            grown = np.empty(max(1024, 2 * n), np.int32)
            grown[: self._n] = self._tokens[: self._n]
            self._tokens = grown
        self._tokens[self._n : n] = tokens[self._n :]
        before = self._n
        self._n = n
        if self._is_dry and self._breakers and self._piece is not None:
            ends = (at for at in range(n - 1, before - 1, -1) if self._ends_breaker(at))
            self._broken_at = next(ends, self._broken_at)

    def _apply_dry(self, logits: Logits, known: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Take base^(length - allowed) off each token that would make a repetition longer than
        allowed.

        Source: p-e-w 2024, "DRY"; as llama.cpp has it.
        """
        s = self._settings
        if s.dry_window:
            recent = known[-s.dry_window :]
        else:
            recent = known
        n = len(recent)
        limit = min(n, self._n - 1 - self._broken_at)
        if n <= s.dry_allowed_length or limit < s.dry_allowed_length:
            return
        lengths = np.empty(n, np.int32)
        found = np.empty(n, np.int32)
        words = run(
            "find repeats",
            REPEATS,
            recent=recent,
            n=n,
            limit=limit,
            least=s.dry_allowed_length,
            lengths=lengths,
            longest=self._counts,
            n_vocab=len(logits),
            found=found,
        )
        n_found = int(words[REPEATS.result // 8])
        ids = found[:n_found]
        exponents = self._counts[ids] - 1 - s.dry_allowed_length
        self._counts[ids] = 0
        if s.dry_base > 1.000001:
            most = int(LARGEST_LOG / np.log(s.dry_base))
        else:
            most = n
        penalties = s.dry_multiplier * np.power(
            s.dry_base, np.minimum(exponents, most), dtype=np.float64
        )
        is_breaker = np.fromiter(map(self._is_breaker, ids.tolist()), bool, n_found)
        logits[ids] = np.maximum(logits[ids] - np.where(is_breaker, 0.0, penalties), LOWEST)

    def _is_breaker(self, token: int) -> bool:
        """Whether a token's text holds a breaker."""
        if self._piece is None:
            return False
        text = self._piece(token)
        return any(one in text for one in self._breakers)

    def _ends_breaker(self, at: int) -> bool:
        """Whether a breaker ends in the text of the token there; it may have begun in those
        before."""
        assert self._piece is not None
        own = self._piece(int(self._tokens[at]))
        text = own
        earlier = at
        while earlier and len(text) - len(own) < self._reach - 1:
            earlier -= 1
            text = self._piece(int(self._tokens[earlier])) + text
            if at - earlier >= self._reach:  # tokens without text
                break
        n_before = len(text) - len(own)
        return any(one in text[max(0, n_before + 1 - len(one)) :] for one in self._breakers)
