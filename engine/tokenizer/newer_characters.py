"""Characters that are newer than the tables that cut text into words.

llama.cpp has the classes of Unicode 15.1 (src/unicode-data.cpp), the ``regex`` package those of
today. Newer characters must count as unassigned, or they would fall into other tokens. ``_RANGES``
are the code points to which ``regex`` 2026.11.19 gives a class (not Cn) and llama-cpp-python 0.3.36
does not (its library's ``unicode_cpt_flags_from_cpt`` returns "undefined"). For all others the two
agree on L, M, N, P, S, Z and blanks.
"""

from __future__ import annotations

import re

_RANGES = (
    "558 58b-58c 5c8-5c9 88f 897 b53-b54 c5c cdc 1acf-1af0 1b4e-1b4f 1b7f 1c89-1c8a 208f "
    "209d-209f 20c1-20c4 "
    "2427-2429 2b96 2e60-2e63 31e4-31e5 a7cb-a7cf a7d2 a7d4 a7da-a7dd a7e2 a7f1 ab6c-ab6d "
    "fbc3-fbd2 fd90-fd91 "
    "fdc8-fdce 105c0-105f3 107bb-107bf 10940-10959 10d40-10d65 10d69-10d85 10d8e-10d8f "
    "10ec2-10ec7 10ec9-10eee "
    "10ef0-10efc 11380-11389 1138b 1138e 11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca "
    "113cc-113d5 113d7-113d8 "
    "113e1-113e2 116d0-116e3 11b0a 11b60-11b67 11bc0-11be1 11bf0-11bf9 11db0-11ddb "
    "11de0-11de9 11df0-11df1 11f5a "
    "1246f 12475-1247f 12550-12686 13460-143fa 16100-16139 16d40-16d79 16ea0-16eb8 "
    "16ebb-16ed3 16ff2-16ff6 "
    "187f8-187ff 18cd6-18cda 18cff 18d09-18d20 18d80-18df2 18e00-19191 191a0-191d2 "
    "1b123-1b128 1b168 1cc00-1ccfc "
    "1cd00-1ceb3 1ceba-1ced0 1ced2-1ced4 1cedd-1cefd 1d127-1d128 1d1eb-1d1ff 1d250-1d281 "
    "1d6a6 1db00-1db1c "
    "1df1f-1df24 1df2b-1df81 1df90-1df96 1dfcd-1dfff 1e5d0-1e5fa 1e5ff 1e6c0-1e6de "
    "1e6e0-1e6f5 1e6fe-1e6ff 1f1ae "
    "1f6d8-1f6d9 1f777-1f77a 1f7da-1f7db 1f7f1-1f7ff 1f8b2-1f8bb 1f8c0-1f8c1 1f8d0-1f8d8 "
    "1fa54-1fa57 1fa89-1fa8f "
    "1fabe 1fac6 1fac8 1facc-1facd 1fadc-1fadd 1fadf 1fae9-1faeb 1faef 1faf9-1fafa "
    "1fbcb-1fbef 1fbfa 2b73a-2b73f "
    "2b81e 2cea2-2cead 323b0-33479 3d000-3fc3f"
)
STAND_IN = "\ufdd0"
"""Noncharacter, which is unassigned in every version of Unicode."""


def _set_of(ranges: list[str]) -> str:
    ends = [(code_range.partition("-")[0], code_range.rpartition("-")[2]) for code_range in ranges]
    return "".join(f"{chr(int(first, 16))}-{chr(int(last, 16))}" for first, last in ends)


_RANGE_LIST = _RANGES.split()
_NEWER = re.compile(f"[{_set_of(_RANGE_LIST)}]")
_SHORT_RANGES = [code_range for code_range in _RANGE_LIST if len(code_range.partition("-")[0]) < 5]
_MAYBE = re.compile(
    f"[{_set_of(_SHORT_RANGES)}\U00010500-\U0001f1ae\U0001f6d8-\U0001f8ff\U0001fa54-\U0010ffff]"
)
"""Quick test that excludes most text; the exact expression takes fifty times as long."""


def has_newer(text: str) -> bool:
    """Whether any character of a text is newer than the tables."""
    return not text.isascii() and bool(_MAYBE.search(text) and _NEWER.search("".join(set(text))))


def with_older(text: str) -> str:
    """Return a text in which each newer character is replaced by ``STAND_IN``."""
    return _NEWER.sub(STAND_IN, text)
