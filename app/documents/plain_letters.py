"""Letters as they are typed, in place of the forms that printing gives them.

Such forms are ligatures, and shapes within a word.
"""

from __future__ import annotations

import re
import unicodedata

_FORMS = re.compile("[\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc]")
"""Ligatures of Latin and Armenian, and presentation forms of Hebrew and Arabic."""
_SOFT_HYPHEN = re.compile("\u00ad\n?")


def plain_letters(text: str) -> str:
    """Return the text with plain letters for ligatures and presentation forms.

    Soft hyphens are left out.
    """
    if text.isascii():
        return text
    return _FORMS.sub(_plain, _SOFT_HYPHEN.sub("", text))


def _plain(match: re.Match[str]) -> str:
    # Forms of a vowel sign alone begin with a space, which would cut the word.
    return unicodedata.normalize("NFKC", match[0]).strip(" ")
