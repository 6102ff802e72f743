"""Plain letters in place of ligatures and presentation forms."""

from __future__ import annotations

import re
import unicodedata

_FORMS = re.compile("[\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc]")
"""Ligatures of Latin and Armenian, and presentation forms of Hebrew and Arabic."""
_SOFT_HYPHEN = re.compile("\u00ad\n?")


def plain_letters(text: str) -> str:
    """Return the text with plain letters and without soft hyphens."""
    if text.isascii():
        return text
    return _FORMS.sub(_plain, _SOFT_HYPHEN.sub("", text))


def _plain(match: re.Match[str]) -> str:
    # A lone vowel sign begins with a space, which would split the word.
    return unicodedata.normalize("NFKC", match[0]).strip(" ")
