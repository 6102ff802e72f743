"""The sampler ``infill``, for text that fills a gap: it ends early rather than guess.

Source: ggml-org/llama.cpp, src/llama-sampling.cpp, ``llama_sampler_infill_apply``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import numpy as np
from numpy.typing import NDArray

from engine.sampling.settings import Sampling

Logits = NDArray[np.float32]
Probabilities = NDArray[np.float64]

END_WEIGHT = 3
"""Factor on the probability of an end, for each candidate."""
MIN_PROBABILITY = 0.2
"""Minimum probability of a candidate."""
MAX_CANDIDATES = 256
"""Limit on the candidates, since the texts of all pairs are compared."""


class InfillSampler:
    """Chooses tokens of a text that fills a gap.

    Args:
        sampling: settings; the candidates are those that top-n-sigma, top-k, typical, top-p and
            min-p leave.
        end_ids: ids of the tokens that end a reply.
        token_bytes: returns the bytes of a token's text.
        seed: seed of the draws.
    """

    def __init__(
        self,
        sampling: Sampling,
        end_ids: Collection[int],
        token_bytes: Callable[[int], bytes],
        seed: int,
    ) -> None:
        self._sampling = sampling
        self._end_ids = frozenset(end_ids)
        self._token_bytes = token_bytes
        self._random = Random(seed)

    def choose(self, logits: Logits) -> int:
        """Choose a token id by finite logits, (vocab_size,) float32."""
        ids, probabilities = candidates(logits, self._sampling)
        ids, probabilities = self.cut(ids, probabilities)
        if not ids:
            ends = sorted(self._end_ids)
            return max(ends, key=lambda token_id: float(logits[token_id]))
        if self._sampling.temperature == 0.0:
            return ids[int(np.argmax(probabilities))]

        # The most probable one keeps its weight, however low the temperature is.
        shares = np.asarray(probabilities) / max(probabilities)
        weights = shares ** (1.0 / self._sampling.temperature)
        return self._random.choices(ids, weights.tolist())[0]

    def cut(self, ids: list[int], probabilities: list[float]) -> tuple[list[int], list[float]]:
        """Return the remaining candidates with their probabilities.

        Args:
            ids: candidates, the most probable first.
            probabilities: probabilities of the candidates.

        Returns:
            Candidates and probabilities; empty lists if the text should end.
        """
        is_end = [token_id in self._end_ids for token_id in ids]
        end_sum = sum(p for p, ends in zip(probabilities, is_end, strict=True) if ends)
        text_sum = sum(p for p, ends in zip(probabilities, is_end, strict=True) if not ends)
        if END_WEIGHT * end_sum * len(ids) > text_sum:
            return _selected(ids, probabilities, is_end)

        merged = self._merged(ids, probabilities)
        is_likely = [
            p > 0.0 and (ends or p >= MIN_PROBABILITY)
            for p, ends in zip(merged, is_end, strict=True)
        ]
        ids, merged = _selected(ids, merged, is_likely)
        n_texts = sum(token_id not in self._end_ids for token_id in ids)
        if not n_texts:
            return [], []

        least = 1.0 / (n_texts + 1)
        is_likely = [
            token_id in self._end_ids or p >= least for token_id, p in zip(ids, merged, strict=True)
        ]
        return _selected(ids, merged, is_likely)

    def _merged(self, ids: list[int], probabilities: list[float]) -> list[float]:
        """Return the probabilities after each candidate whose text begins another one's was added
        to the more probable of the two; the other one gets 0."""
        texts = [self._token_bytes(token_id) for token_id in ids]
        merged = list(probabilities)
        for first, first_text in enumerate(texts):
            for second, second_text in enumerate(texts):
                if not first_text or not merged[first]:
                    break
                if first == second or not merged[second] or not second_text.startswith(first_text):
                    continue
                target = first
                source = second
                if merged[second] > merged[first]:
                    target = second
                    source = first
                merged[target] += merged[source]
                merged[source] = 0.0
        return merged


def _selected(
    ids: list[int], probabilities: list[float], is_selected: list[bool]
) -> tuple[list[int], list[float]]:
    """Return the selected candidates with probabilities that add up to 1."""
    indexes = [index for index, selected in enumerate(is_selected) if selected]
    total = sum(probabilities[index] for index in indexes)
    return [ids[index] for index in indexes], [probabilities[index] / total for index in indexes]


def candidates(logits: Logits, sampling: Sampling) -> tuple[list[int], list[float]]:
    """Return the candidates that the other samplers leave, the most probable first.

    XTC and the temperature do not count.
    """
    n = len(logits)
    top_k = min(sampling.top_k or MAX_CANDIDATES, MAX_CANDIDATES, n)
    ids = np.argpartition(logits, n - top_k)[n - top_k :]
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    values = logits[ids].astype(np.float64)
    is_kept = values >= values[0] - _sigma_limit(logits, sampling)
    ids = ids[is_kept]
    probabilities = _softmax(values[is_kept])

    if sampling.typical_p < 1.0:
        order = np.argsort(_surprise(probabilities), kind="stable")
        order = np.sort(order[: _n_reaching(probabilities[order], sampling.typical_p)])
        ids = ids[order]
        probabilities = probabilities[order] / probabilities[order].sum()
    if sampling.top_p < 1.0:
        n_left = _n_reaching(probabilities, sampling.top_p)
        ids = ids[:n_left]
        probabilities = probabilities[:n_left]
    is_kept = probabilities >= sampling.min_p * probabilities[0]
    probabilities = probabilities[is_kept]
    return ids[is_kept].tolist(), (probabilities / probabilities.sum()).tolist()


def _sigma_limit(logits: Logits, sampling: Sampling) -> float:
    """Return the distance from the largest logit within which candidates lie."""
    if sampling.top_n_sigma > 0.0:
        return float(sampling.top_n_sigma * logits.std(dtype=np.float64))
    return np.inf


def _softmax(values: Probabilities) -> Probabilities:
    weights = np.exp(values - values.max())
    result: Probabilities = weights / weights.sum()
    return result


def _surprise(probabilities: Probabilities) -> Probabilities:
    """Return how far the information of each candidate is from the expected one."""
    information = -np.log(np.maximum(probabilities, 1e-30))
    result: Probabilities = np.abs(information - (probabilities * information).sum())
    return result


def _n_reaching(probabilities: Probabilities, share: float) -> int:
    """Return how many of the first candidates together reach a share of the probability."""
    return min(int(np.searchsorted(np.cumsum(probabilities), share)) + 1, len(probabilities))
