"""Invented words and names, so that the model learns to copy instead of to guess."""

from __future__ import annotations

from starter.text.tables import Writer, table


def word(rng: Writer) -> str:
    """Return an invented word."""
    syllable_parts = table("words")["syllables"]
    syllables = [
        rng.choice(syllable_parts["starts"]) + rng.choice(syllable_parts["vowels"]) + _end(rng, 0.5)
        for _ in range(_length(rng))
    ]
    return "".join(syllables) + _end(rng, 1.0)


def _length(rng: Writer) -> int:
    return rng.choice((1, 2, 2, 2, 3))


def _end(rng: Writer, share: float) -> str:
    return str(rng.choice(table("words")["syllables"]["ends"])) if rng.random() < share else ""


def name(rng: Writer) -> str:
    """Return a given name, real or invented."""
    return (
        rng.choice(table("words")["given_names"]) if rng.random() < 0.6 else word(rng).capitalize()
    )
