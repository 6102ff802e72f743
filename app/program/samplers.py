"""The table of samplers: name, type, limits, description and command-line option of each.

The settings, ``/set``, the options of the commands and the API of ``jalopy serve`` read it.
``engine.Sampling`` has the same limits; a test compares them.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, get_type_hints

from app.text.record import record

MAX_COUNT = 2**31 - 1


def _sampler(
    least: float, most: float, description: str, option: str = "", option_help: str = ""
) -> Any:
    """Return a field of the table.

    Args:
        description: comment of the setting in ``config/default.toml``.
        option: names of the command-line option; empty if there is none.
    """
    return field(
        metadata={
            "kind": "",
            "choices": (),
            "least": least,
            "most": most,
            "description": description,
            "option": option,
            "option_help": option_help,
        }
    )


@record
class SamplingSettings:
    """How the next token is chosen, and how many."""

    temperature: float = _sampler(
        0,
        100,
        "How freely words are chosen; 0 = always the most likely token.",
        "--temp X",
        "0 = always the most likely token",
    )
    top_k: int = _sampler(
        0,
        MAX_COUNT,
        "Number of most likely tokens to choose from; 0 = all.",
        "--top-k N",
        "choose from the N most likely tokens",
    )
    top_p: float = _sampler(
        0,
        1,
        "Choose from the most likely tokens that together reach this probability; 1 = all.",
        "--top-p X",
        "choose from the most likely tokens of this total probability",
    )
    min_p: float = _sampler(
        0,
        1,
        "Drop tokens whose probability is below this share of the most likely one's; 0 = none.",
        "--min-p X",
        "drop tokens below this share of the top probability",
    )
    typical_p: float = _sampler(
        0,
        1,
        "Typical sampling: choose from the tokens of typical probability, up to this total; "
        "1 = all.",
        "--typical X",
        "typical sampling; 1 = off",
    )
    top_n_sigma: float = _sampler(
        0,
        100,
        "Drop tokens whose logit is this many standard deviations below the largest; 0 = none.",
        "--top-nsigma X",
        "drop logits this many standard deviations below the top",
    )
    xtc_probability: float = _sampler(
        0,
        1,
        "How often XTC drops the most likely tokens to make the text less predictable; 0 = never.",
        "--xtc-probability X",
        "how often XTC drops the most likely tokens",
    )
    xtc_threshold: float = _sampler(
        0,
        1,
        "XTC drops all tokens above this probability but the least likely; above 0.5 = never.",
        "--xtc-threshold X",
        "probability above which XTC drops tokens",
    )
    repeat_penalty: float = _sampler(
        0.01,
        100,
        "Factor that makes recent tokens less likely; 1 = off.",
        "--repeat-penalty X",
        "makes recent tokens less likely; 1 = off",
    )
    presence_penalty: float = _sampler(
        -100,
        100,
        "Amount off the logit of each recent token; 0 = off.",
        "--presence-penalty X",
        "amount off each recent token; 0 = off",
    )
    frequency_penalty: float = _sampler(
        -100,
        100,
        "Amount off the logit for each occurrence of a recent token; 0 = off.",
        "--frequency-penalty X",
        "amount off for each occurrence; 0 = off",
    )
    repeat_window: int = _sampler(
        0, MAX_COUNT, "Number of recent tokens that these three penalties count."
    )
    dry_multiplier: float = _sampler(
        0,
        100,
        "Strength of DRY, a penalty on tokens that continue a repetition; 0 = off, 0.8 is usual.",
        "--dry-multiplier X",
        "penalty on long repetitions (DRY); 0.8 is usual",
    )
    dry_base: float = _sampler(
        1, 100, "Growth of the DRY penalty with each token of the repetition."
    )
    dry_allowed_length: int = _sampler(
        0, MAX_COUNT, "Number of tokens that may be repeated without a DRY penalty."
    )
    dry_window: int = _sampler(
        0, MAX_COUNT, "Number of recent tokens that DRY searches for repetitions; 0 = all."
    )
    max_tokens: int = _sampler(
        0,
        MAX_COUNT,
        "Limit on an answer in tokens; 0 = until the model ends it or the context is full.",
        "-n, --max-tokens N",
        "limit on the answer, in tokens",
    )
    seed: int = _sampler(
        -1,
        2**63 - 1,
        "The same seed gives the same text again; -1 = a random one each time.",
        "--seed N",
        "same seed, same text; -1 = random",
    )


@record
class SamplerRow:
    """Row of the table."""

    name: str
    value_type: type
    """``float`` or ``int``."""
    least: float
    most: float
    description: str
    option: str
    """Names of the command-line option, as the help shows them; empty if there is none."""
    option_help: str


def _rows() -> dict[str, SamplerRow]:
    types = get_type_hints(SamplingSettings)
    return {
        row.name: SamplerRow(
            row.name,
            types[row.name],
            row.metadata["least"],
            row.metadata["most"],
            row.metadata["description"],
            row.metadata["option"],
            row.metadata["option_help"],
        )
        for row in fields(SamplingSettings)
    }


SAMPLERS = _rows()
"""Rows of the table by name."""
