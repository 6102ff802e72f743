"""Words and names that do not exist, so that the model learns to copy and not to guess."""

from __future__ import annotations

from random import Random

from starter.text.tables import table

_STARTS = "b bl br c ch cl d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sch sk sl sm sn sp st t tr v w wr z".split()
_VOWELS = "a e i o u a e i o u ai ea ee io oo ou y".split()
_ENDS = ["", "", "", "n", "m", "r", "l", "s", "t", "k", "x", "nd", "rt", "sk", "lm", "ng", "th", "sh", "bb", "zz"]


def word(rng: Random) -> str:
    """Return a word that looks like one."""
    return "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) + (rng.choice(_ENDS) if rng.random() < 0.5 else "") for _ in range(rng.choice((1, 2, 2, 2, 3)))) + rng.choice(_ENDS)


def name(rng: Random) -> str:
    """Return a given name, real or not."""
    return rng.choice(table("words")["given_names"]) if rng.random() < 0.6 else word(rng).capitalize()
