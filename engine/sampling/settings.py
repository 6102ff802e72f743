"""Settings of the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import EngineError

FORBIDDEN_BIAS = -1e9
"""Bias for the logit of a forbidden token. The token is never chosen unless a form excludes all
others."""
DRY_BREAKERS = ("\n", ":", '"', "*")
"""Default texts that no repetition reaches across, as in llama.cpp."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the sampler.

    The steps have llama.cpp's order: logit bias, penalties, DRY, top-n-sigma, top-k, typical,
    top-p, min-p, XTC, temperature, draw.

    Attributes:
        temperature: 0 to 100; 0 takes the most likely token.
        top_k: number of candidates, 0 to 2^31; 0 for all.
        top_p: share of the probability that the candidates have, 0 to 1; 1 for all. Holtzman et al.
            2019, arXiv:1904.09751.
        min_p: least probability of a candidate as a share of the most likely token's, 0 to 1.
            Nguyen et al. 2024, arXiv:2407.01082.
        typical_p: share of the probability that the candidates have, those first whose information
            is nearest to the expected, 0 to 1; 1 for all. Meister et al. 2022, arXiv:2202.00666.
        top_n_sigma: distance of a candidate's logit from the largest in standard deviations, 0 to
            100; 0 for all. Tang et al. 2024, arXiv:2411.07641.
        xtc_probability: probability of dropping the most likely tokens, 0 to 1; 0 for never.
        xtc_threshold: probability above which XTC drops all tokens but the least likely; above 0.5
            it never does.
        repeat_penalty: factor on the logits of tokens that occurred, 0.01 to 100; 1 for off. Keskar
            et al. 2019, arXiv:1909.05858, section 4.1.
        presence_penalty: amount off the logit of each token that occurred, -100 to 100.
        frequency_penalty: amount off the logit for each occurrence, -100 to 100.
        repeat_window: number of last tokens that these three penalties count, 0 to 2^31.
        dry_multiplier: strength of DRY, a penalty for continuing a repetition, 0 to 100; 0 for off.
        dry_base: growth of the penalty with each token of the repetition, 1 to 100.
        dry_allowed_length: number of tokens that may be repeated freely, 0 to 2^31.
        dry_window: number of last tokens that DRY searches, 0 to 2^31; 0 for all.
        dry_breakers: texts that no repetition reaches across.
        logit_bias: pairs of a token id and a bias, -1e9 to 1e9. Ids that the model lacks are
            ignored.
        ignore_eos: whether end tokens are never chosen.
        infill: whether text fills a gap (``engine.sampling.infill``); XTC has no effect then.
        seed: the same seed gives the same text; None for a random one.

    Raises:
        EngineError: a value is out of range.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_window: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = 0
    dry_breakers: tuple[str, ...] = DRY_BREAKERS
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    infill: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 1 << 31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "typical_p": (0.0, 1.0),
            "top_n_sigma": (0.0, 100.0),
            "xtc_probability": (0.0, 1.0),
            "xtc_threshold": (0.0, 1.0),
            "repeat_penalty": (0.01, 100.0),
            "presence_penalty": (-100.0, 100.0),
            "frequency_penalty": (-100.0, 100.0),
            "repeat_window": (0, 1 << 31),
            "dry_multiplier": (0.0, 100.0),
            "dry_base": (1.0, 100.0),
            "dry_allowed_length": (0, 1 << 31),
            "dry_window": (0, 1 << 31),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise EngineError(f"{name} is {value}: must be {low} to {high}")
        for token, bias in self.logit_bias:
            if not (token >= 0 and abs(bias) <= -FORBIDDEN_BIAS):
                raise EngineError(
                    f"logit_bias of token {token} is {bias}: must be {FORBIDDEN_BIAS:g} to "
                    f"{-FORBIDDEN_BIAS:g}"
                )

    @classmethod
    def greedy(cls) -> Sampling:
        """Return settings that always take the most likely token."""
        return cls(temperature=0.0)
