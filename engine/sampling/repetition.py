"""Penalties that make repetition less likely: for tokens that occurred, and DRY, for continuing a
repetition."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.kernels.entries import run_entry
from engine.kernels.records import PENALISE, REPEATS
from engine.sampling.settings import Sampling

Logits = np.ndarray[Any, np.dtype[np.float32]]
LOWEST_LOGIT = -1e30
"""Lowest logit after a penalty; it must stay finite."""
LARGEST_LOG = 88.0
"""Logarithm of the largest DRY penalty, about that of the largest float32."""


class RepetitionPenalties:
    """Penalties of one reply.

    Args:
        sampling: settings.
        vocab_size: length of the logits.
        token_bytes: returns the bytes of a token's text, for DRY's breakers; None if texts are not
            known.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, token_bytes: Callable[[int], bytes] | None
    ) -> None:
        s = sampling
        self._settings = s
        has_penalty = (
            s.repeat_penalty != 1.0 or s.frequency_penalty != 0.0 or s.presence_penalty != 0.0
        )
        self._penalises = has_penalty and s.repeat_window > 0
        self._is_dry = s.dry_multiplier > 0.0 and s.dry_base >= 1.0
        self._counts = np.zeros(vocab_size if self.is_on else 0, np.int32)
        self._tokens = np.empty(0, np.int32)
        self._n_tokens = 0
        self._has_pictures = False
        """Whether some ids are those of rows of pictures, negative numbers."""
        self._last_breaker = -1
        """Position of the last token whose text ends a breaker."""
        self._token_bytes = token_bytes
        self._breakers = [text.encode() for text in s.dry_breakers if text]
        self._longest_breaker = max(map(len, self._breakers), default=0)

    @property
    def is_on(self) -> bool:
        """Whether any logit may change."""
        return self._penalises or self._is_dry

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        """Lower the logits of tokens that would repeat something.

        Args:
            logits: (vocab_size,) float32, changed in place.
            tokens: ids of all tokens so far.
        """
        self._update_tokens(tokens)
        s = self._settings
        tokens_so_far = self._tokens[: self._n_tokens]
        if self._has_pictures:
            tokens_so_far = tokens_so_far[tokens_so_far >= 0]
        if self._penalises:
            recent = tokens_so_far[-s.repeat_window :]
            run_entry(
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
            self._apply_dry(logits, tokens_so_far)

    def _update_tokens(self, tokens: Sequence[int]) -> None:
        """Append the new tokens; start again if they do not continue the known ones."""
        n = len(tokens)
        n_known = self._n_tokens
        if n < n_known or (n_known and tokens[n_known - 1] != self._tokens[n_known - 1]):
            n_known = 0
            self._last_breaker = -1
        if n > len(self._tokens):
            grown = np.empty(max(1024, 2 * n), np.int32)
            grown[:n_known] = self._tokens[:n_known]
            self._tokens = grown
        self._tokens[n_known:n] = tokens[n_known:]
        self._n_tokens = n
        self._has_pictures |= bool((self._tokens[n_known:n] < 0).any())

        if self._is_dry and self._breakers and self._token_bytes is not None:
            for index in range(n - 1, n_known - 1, -1):
                if self._ends_breaker(index):
                    self._last_breaker = index
                    break

    def _apply_dry(
        self, logits: Logits, tokens_so_far: np.ndarray[Any, np.dtype[np.int32]]
    ) -> None:
        """Take base^(length - allowed length) off the logit of each token that would continue a
        repetition of that length.

        Source: p-e-w 2024, "DRY", as llama.cpp implements it.
        """
        s = self._settings
        recent = tokens_so_far[-s.dry_window :] if s.dry_window else tokens_so_far
        n = len(recent)
        limit = min(n, self._n_tokens - 1 - self._last_breaker)
        if n <= s.dry_allowed_length or limit < s.dry_allowed_length:
            return

        lengths = np.empty(n, np.int32)
        repeated_ids = np.empty(n, np.int32)
        words = run_entry(
            "find repeats",
            REPEATS,
            recent=recent,
            n=n,
            limit=limit,
            min_length=s.dry_allowed_length,
            lengths=lengths,
            longest=self._counts,
            n_vocab=len(logits),
            repeats=repeated_ids,
        )
        ids = repeated_ids[: int(words[REPEATS.result // 8])]
        exponents = self._counts[ids] - 1 - s.dry_allowed_length
        self._counts[ids] = 0

        max_exponent = n
        if s.dry_base > 1.000001:
            max_exponent = int(LARGEST_LOG / np.log(s.dry_base))
        penalties = s.dry_multiplier * np.power(
            s.dry_base, np.minimum(exponents, max_exponent), dtype=np.float64
        )
        is_breaker = np.fromiter(map(self._is_breaker, ids.tolist()), bool, len(ids))
        logits[ids] = np.maximum(logits[ids] - np.where(is_breaker, 0.0, penalties), LOWEST_LOGIT)

    def _is_breaker(self, token: int) -> bool:
        """Whether a token's text contains a breaker."""
        if self._token_bytes is None:
            return False
        text = self._token_bytes(token)
        return any(breaker in text for breaker in self._breakers)

    def _ends_breaker(self, index: int) -> bool:
        """Whether a breaker ends in the text of a token. It may begin in earlier tokens."""
        assert self._token_bytes is not None
        token_text = self._token_bytes(int(self._tokens[index]))
        text = token_text
        first = index
        while first and len(text) - len(token_text) < self._longest_breaker - 1:
            first -= 1
            text = self._token_bytes(int(self._tokens[first])) + text
            if index - first >= self._longest_breaker:  # tokens without text
                break
        n_before = len(text) - len(token_text)
        return any(
            breaker in text[max(0, n_before + 1 - len(breaker)) :] for breaker in self._breakers
        )
