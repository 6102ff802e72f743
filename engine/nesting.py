"""Nesting of lists and objects in foreign data."""

from __future__ import annotations

from typing import Any


def is_nested_deeper(value: Any, n_levels: int) -> bool:
    """Whether lists and objects are nested deeper than ``n_levels``.

    It does not recurse, since foreign values may be nested very deeply.
    """
    level: list[Any] = [member for member in [value] if isinstance(member, (dict, list))]
    for _ in range(n_levels):
        children: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                node = list(node.values())
            children += [member for member in node if isinstance(member, (dict, list))]
        if not children:
            return False
        level = children
    return bool(level)
