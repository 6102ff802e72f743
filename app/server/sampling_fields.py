"""How a request wants tokens to be chosen, in the names of OpenAI's API, of llama-server and of
vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from app.program.samplers import MAX_COUNT, SAMPLERS
from app.server.fields import Fields, is_short_text, is_valid_text

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

MAX_BIASES = 10_000
MAX_BREAKERS = 64
MAX_BREAKER_CHARS = 100
MAX_SAMPLERS = 32
_LLAMA_SAMPLERS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "typical_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
    "infill": {},
}
"""Names of llama-server's samplers, each with values that have no effect."""
_SAME_SAMPLER = {"typ_p": "typical_p", "typical_p": "typ_p"}
FORBIDDING_BIAS = 1e9
"""``false`` in place of a bias takes this off a logit."""
LLAMA_SERVER_NAMES = {
    "repeat_last_n": "repeat_window",
    "dry_penalty_last_n": "dry_window",
    "dry_sequence_breakers": "dry_breakers",
}
_NUMBERS = {
    row.name: (row.least, row.most) for row in SAMPLERS.values() if row.value_type is float
} | {
    # Other servers take any negative value for "off".
    "top_n_sigma": (-MAX_COUNT, SAMPLERS["top_n_sigma"].most),
    "repetition_penalty": (SAMPLERS["repeat_penalty"].least, SAMPLERS["repeat_penalty"].most),
}
"""Limits of the fields that are numbers: names of the samplers, and vLLM's name for one."""


def read_sampling(fields: Fields) -> dict[str, Any]:
    """Return the fields of ``engine.Sampling`` that a request sets; biases may still name texts
    (``resolved``)."""
    chosen: dict[str, Any] = {
        name: fields.number(name, *limits) for name, limits in _NUMBERS.items()
    }
    chosen["top_k"] = fields.integer("top_k", -1, MAX_COUNT)
    chosen["repeat_window"] = fields.integer("repeat_last_n", -1, MAX_COUNT)
    chosen["dry_allowed_length"] = fields.integer("dry_allowed_length", 0, MAX_COUNT)
    chosen["dry_window"] = fields.integer("dry_penalty_last_n", -1, MAX_COUNT)
    chosen["dry_breakers"] = _breakers(fields)
    chosen["logit_bias"] = _biases(fields)
    if fields.has("ignore_eos"):
        chosen["ignore_eos"] = fields.flag("ignore_eos")
    else:
        chosen["ignore_eos"] = None
    chosen["seed"] = fields.integer("seed", -(2**63), 2**64 - 1)
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen = _without_left_out(fields, chosen)
    if "repetition_penalty" in chosen:  # vLLM's name
        chosen.setdefault("repeat_penalty", chosen.pop("repetition_penalty"))
    if chosen.get("dry_window") == 0:  # llama-server's way to turn it off
        chosen["dry_multiplier"] = 0.0
    # -1, where it is allowed, is none, all of it, or for the seed any.
    for name, meant in {
        "top_k": 0,
        "repeat_window": MAX_COUNT,
        "dry_window": 0,
        "seed": None,
    }.items():
        if chosen.get(name) == -1:
            chosen[name] = meant
    if "top_n_sigma" in chosen:
        chosen["top_n_sigma"] = max(0.0, chosen["top_n_sigma"])
    return chosen


def _without_left_out(fields: Fields, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return what was chosen, without effect of the samplers that ``samplers`` leaves out.

    llama-server's names; the order of the samplers is fixed here.
    """
    names = fields.array("samplers", MAX_SAMPLERS)
    if names is None:
        return chosen
    if not all(isinstance(name, str) and name in _LLAMA_SAMPLERS for name in names):
        raise fields.wrong_value("samplers", f"names among {', '.join(_LLAMA_SAMPLERS)}")
    if "infill" in names and "xtc" in names:
        raise fields.wrong_value("samplers", "either infill or xtc, which exclude each other")
    values = {**chosen, "infill": "infill" in names}
    for name, neutral_values in _LLAMA_SAMPLERS.items():
        if name not in names and not (name in _SAME_SAMPLER and _SAME_SAMPLER[name] in names):
            values |= neutral_values
    return values


def resolved(chosen: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what was chosen with the tokens of the texts that have a bias."""
    values = dict(chosen)
    if "logit_bias" in values:
        named: list[tuple[int, float]] = []
        for name, bias in values["logit_bias"]:
            if isinstance(name, int):
                ids = [name]
            else:
                ids = tokenizer.encode(name, bos=False, special=False)
            named += [(one, bias) for one in ids if one >= 0]
        values["logit_bias"] = tuple(named)
    return values


def _biases(fields: Fields) -> tuple[tuple[int | str, float], ...] | None:
    """Return the biases of tokens, each named by its id or by its text: an object, or a list of
    pairs."""
    given = fields.value("logit_bias")
    if given is None:
        return None
    pairs: Iterable[Any] = (
        given.items()
        if isinstance(given, Mapping)
        else given
        if isinstance(given, list)
        else [None]
    )
    found = [_bias(pair) for pair in pairs]
    if len(found) > MAX_BIASES or None in found:
        wanted = (
            f'at most {MAX_BIASES} tokens with a number or false, as {{"50": -100}} or [[50, -100]]'
        )
        raise fields.wrong_value("logit_bias", wanted)
    return tuple(one for one in found if one is not None)


def _bias(pair: Any) -> tuple[int | str, float] | None:
    """Return a token's id or text, and what is added to its logit; None for what is no such
    pair."""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return None
    name, bias = pair
    if bias is False:
        bias = -FORBIDDING_BIAS
    if isinstance(name, str) and not is_valid_text(name):
        return None
    if (
        type(name) not in (int, str)
        or type(bias) not in (int, float)
        or not abs(bias) <= FORBIDDING_BIAS
    ):
        return None
    is_id = isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) < 12
    return (int(name) if is_id else name), float(bias)


def _breakers(fields: Fields) -> tuple[str, ...] | None:
    given = fields.array("dry_sequence_breakers", MAX_BREAKERS)
    if given is None:
        return None
    if not all(is_short_text(text, MAX_BREAKER_CHARS) for text in given):
        raise fields.wrong_value(
            "dry_sequence_breakers",
            f"a list of texts of at most {MAX_BREAKER_CHARS} whole characters",
        )
    return tuple(given)
