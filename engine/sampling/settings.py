"""How tokens are chosen: the settings of the sampling chain."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import EngineError

FORBIDDEN = -1e9
"""Added to the logit of a token that must not come: it has no chance next to one that may, and one
next to those that a form excludes."""
DRY_BREAKERS = ("\n", ":", '"', "*")
"""Texts at which llama.cpp and others let DRY begin again."""


@dataclass(frozen=True)
class Sampling:
    """Settings of the sampling chain.

    Its order is llama.cpp's: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p,
    XTC, temperature, draw. Each works on what the one before left.

    Attributes:
        temperature: 0 to 100; 0 takes the likeliest token.
        top_k: number of candidates kept, 0 to 2^31; 0 keeps all.
        top_p: share of the probability kept, 0 to 1; 1 keeps all. Holtzman et al. 2019,
            arXiv:1904.09751.
        min_p: least probability as a share of the likeliest token's, 0 to 1. Nguyen et al. 2024,
            arXiv:2407.01082.
        typical_p: share of the probability kept, of tokens whose information is nearest to the
            expected, 0 to 1; 1 keeps all. Meister et al. 2022, arXiv:2202.00666.
        top_n_sigma: standard deviations of the logits below the largest that are kept, 0 to 100; 0
            keeps all. Tang et al. 2024, arXiv:2411.07641.
        xtc_probability: how often the likeliest tokens are dropped, 0 to 1; 0 is never.
        xtc_threshold: from which probability on they are, but for the least likely of them; above
            0.5 is never.
        repeat_penalty: 0.01 to 100; 1 turns it off. Keskar et al. 2019, arXiv:1909.05858, section
            4.1.
        presence_penalty: taken off the logit of tokens that came up, -100 to 100.
        frequency_penalty: taken off for each time that they did, -100 to 100.
        repeat_window: number of last tokens that these three apply to, 0 to 2^31.
        dry_multiplier: strength of DRY, a penalty for going on with a repetition, 0 to 100; 0 turns
            it off.
        dry_base: grows with each token of the repetition, 1 to 100.
        dry_allowed_length: tokens that may be repeated freely, 0 to 2^31.
        dry_window: number of last tokens that DRY looks through, 0 to 2^31; 0 is all.
        dry_breakers: texts that no repetition reaches across.
        logit_bias: token ids and what is added to their logits, -1e9 to 1e9; ids that the model
            lacks do nothing.
        ignore_eos: never end by itself.
        seed: the same seed gives the same text; None draws a random one.

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
    seed: int | None = None

    def __post_init__(self) -> None:
        allowed = {
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
        for name, (least, most) in allowed.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise EngineError(f"{name} is {value}: must be {least} to {most}")
        for token, bias in self.logit_bias:
            if not (token >= 0 and abs(bias) <= -FORBIDDEN):
                raise EngineError(
                    f"logit_bias of token {token} is {bias}: must be {FORBIDDEN:g} to "
                    f"{-FORBIDDEN:g}"
                )

    @classmethod
    def greedy(cls) -> Sampling:
        """Return settings that always take the likeliest token."""
        return cls(temperature=0.0)
