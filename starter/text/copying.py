"""Answers that stand in the question itself: words said again, and one of several things just
told."""

from __future__ import annotations

from starter.grammar import expand
from starter.text import invented
from starter.text.tables import Turn, Writer, table

ECHO = table("memory")["other"]["exact"]
TOLD = table("memory")["other"]["told in one"]


def turns(rng: Writer) -> list[Turn]:
    """Ask for words to be repeated exactly, or for one of some facts in the same message."""
    return [_echo(rng) if rng.random() < 0.6 else _one_of_several(rng)]


def _echo(rng: Writer) -> Turn:
    text = " ".join(_thing(rng) for _ in range(rng.choice((1, 2, 3, 4, 6, 8))))
    return expand(rng.choice(ECHO), rng, {"v": text}), text


def _one_of_several(rng: Writer) -> Turn:
    texts = rng.choice(TOLD)
    keys = _different_names(rng, rng.choice((2, 2, 3, 4)))
    values = {key: _thing(rng) for key in keys}
    statement = " ".join(_filled(texts["tell"], key, value) for key, value in values.items())
    key_to_ask = rng.choice(keys)
    return f"{statement} {_filled(texts['ask'], key_to_ask, '')}", _filled(
        texts["answer"], key_to_ask, values[key_to_ask]
    )


def _different_names(rng: Writer, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[invented.name(rng)] = None
    return list(names)


def _filled(text: str, key: str, value: str) -> str:
    return text.replace("{k}", key).replace("{v}", value)


def _thing(rng: Writer) -> str:
    draw = rng.random()
    if draw < 0.35:
        return invented.word(rng)
    if draw < 0.55:
        return invented.name(rng)
    if draw < 0.75:
        return str(rng.randrange(1, 10 ** rng.choice((1, 2, 3, 4))))
    return str(rng.choice(table("words")[rng.choice(("foods", "colours", "jobs", "cities"))]))


def wordings() -> list[str]:
    """Return all wordings of the user."""
    return [*ECHO, *(texts["ask"] for texts in TOLD)]
