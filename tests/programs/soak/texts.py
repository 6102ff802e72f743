"""Messages of a long run: each holds a marker of its own, by which it is found again."""

from __future__ import annotations

from random import Random

_QUESTIONS = (
    "What is the capital of France?", "What is the capital of Japan?", "What is 3 + 4?",
    "What is 12 - 5?",
    "My name is Ada.", "What is my name?", "Who are you?", "Which key stops a reply?",
    "How do I leave?",
    "What does the screen show?", "Tell me about Norway.", "Why is the sky blue?",
)  # fmt: skip
_WORDS = (
    "old", "laptop", "fan", "noise", "battery", "warm", "slow", "quiet", "table", "window", "river",
    "paper", "engine",
    "lamp", "Straße", "café", "naïve",
)  # fmt: skip
_TYPED_SIGNS = (
    "größer als 3 €",
    "日本語 と 中文",
    "привет",
    "שלום",
    "emoji 🚗🔧",
    "½ × ¾",
    "“quoted” — dash",
)
_PASTED_SIGNS = (
    "👩‍👩‍👧‍👦 family", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G", "می‌خواهم", "a\tb\tc",
    "bidi \u202eabc\u202c end", "zero\u200bwidth", "C1 \x85 \x9b31m",
    "bell \x07 null-like \x01", "\u2028separator", "'; DROP TABLE x; --", "%s %d {0} ${HOME} `id`",
    "<b>html</b> &amp;",
)  # fmt: skip
_MARKDOWN = (
    "# Title\n\n- one\n- two\n  - three\n\n```python\nprint('*not bold*')\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n**bold** _it_ ~~no~~ [link](https://example.org)",
    "> quote\n\n1. first\n2. second\n\n---\n\n```\nunclosed fence",
    "![img](x.png) <script>alert(1)</script> [[wiki]] $x^2$ \\*escaped\\*",
)


def marker_of(number: int) -> str:
    """Return a word that stands in no other message."""
    return f"mk{number:06d}q"


def short(marker: str, rng: Random) -> str:
    """Return a question of one line."""
    sign = f" {rng.choice(_TYPED_SIGNS)}" if rng.random() < 0.3 else ""
    return f"{marker} {rng.choice(_QUESTIONS)}{sign}"


def long(marker: str, rng: Random) -> str:
    """Return some lines that are typed."""
    lines = [" ".join(rng.choices(_WORDS, k=rng.randint(3, 12))) for _ in range(rng.randint(2, 6))]
    return "\n".join([f"{marker} {lines[0]}", *lines[1:]])


def markdown(marker: str, rng: Random) -> str:
    """Return a message that is full of signs with a meaning elsewhere; to be pasted."""
    paragraphs = [rng.choice(_MARKDOWN), *rng.sample(_PASTED_SIGNS, 3)]
    return f"{marker} " + "\n".join(paragraphs)


def pasted(rng: Random) -> str:
    """Return a paste that is folded: mostly one that the context holds, sometimes one that it
    cannot."""
    n_lines = rng.choice((12, 20, 30, 40, 900))
    return "\n".join(" ".join(rng.choices(_WORDS, k=rng.randint(2, 9))) for _ in range(n_lines))
