"""Choosing the next token from the logits: the settings, and the chain that applies them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import BrokenModelError, EngineError


@dataclass(frozen=True)
class Sampling:
    """Settings of the sampling chain, in its order: repetition penalty, top-k, top-p, min-p, temperature, draw.

    Attributes:
        temperature: 0 to 100. 0 always takes the likeliest token and ignores the other settings but the penalty.
        top_k: number of candidates kept, 0 to 2^31; 0 keeps all.
        top_p: share of the probability kept, 0 to 1; 1 keeps all. Holtzman et al. 2019, arXiv:1904.09751.
        min_p: least probability as a share of the likeliest token's, 0 to 1. Nguyen et al. 2024, arXiv:2407.01082.
        repeat_penalty: 0.01 to 100; 1 turns it off. Keskar et al. 2019, arXiv:1909.05858, section 4.1.
        repeat_window: number of last tokens that the penalty applies to, 0 to 2^31.
        seed: the same seed gives the same text; None draws a random one.

    Raises:
        EngineError: a value is out of range.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        allowed = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 1 << 31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repeat_penalty": (0.01, 100.0),
            "repeat_window": (0, 1 << 31),
        }
        for name, (least, most) in allowed.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise EngineError(f"{name} is {value}: must be {least} to {most}")

    @classmethod
    def greedy(cls) -> Sampling:
        """Return settings that always take the likeliest token."""
        return cls(temperature=0.0)


class Sampler:
    """One reply's chain: holds the random state and the scratch arrays.

    Args:
        sampling: the settings.
        vocab_size: length of the logits.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._settings = sampling
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed & (2**64 - 1)
        self._state = np.array([seed], np.uint64)
        most = min(sampling.top_k, vocab_size) if sampling.top_k else vocab_size
        self._value = np.empty(most, np.float32)
        self._index = np.empty(most, np.int64)
        self._logits = np.empty(vocab_size, np.float32)

    def choose(self, logits: np.ndarray[Any, np.dtype[np.float32]], recent: Sequence[int]) -> int:
        """Choose a token id.

        Args:
            logits: (vocab_size,) float32, not changed.
            recent: ids of all tokens so far; the penalty applies to the last ``repeat_window`` of them.

        Returns:
            A token id, 0 to vocab_size - 1.

        Raises:
            BrokenModelError: a logit is NaN or infinite.
        """
        from engine.sampling import sampling_kernels as compiled

        s = self._settings
        if s.repeat_penalty != 1.0 and s.repeat_window and recent:
            np.copyto(self._logits, logits)
            logits = self._logits
            window = np.unique(np.asarray(recent[-s.repeat_window :], np.int64))
            compiled.penalise(logits, window, s.repeat_penalty)
        if s.temperature == 0.0:
            token = compiled.largest_logit(logits)
        else:
            token = compiled.draw(
                logits, s.temperature, len(self._value), s.top_p, s.min_p, self._state, self._value, self._index
            )
        if token < 0:
            raise BrokenModelError("the model computed NaN or infinity: its weights are damaged (verify the file)")
        return int(token)
