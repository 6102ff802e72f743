"""Reports as JSON that is safe to print: ASCII without control characters."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.text.clean_text import clean_line

_FIRST_ELEMENTS = 4


def json_line(report: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a report as JSON, in one line unless indented."""
    # JSON may contain this control character unescaped.
    return json.dumps(report, indent=indent).replace("\x7f", "\\u007f")


def plain_values(value: Any, most_chars: int = 4096, most_items: int | None = None) -> Any:
    """Return values for JSON, with foreign text cleaned and long arrays cut to their beginning."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return clean_line(value, most_chars)
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {
            clean_line(str(key)): plain_values(item, most_chars, most_items)
            for key, item in value.items()
        }
    if isinstance(value, (frozenset, set)):
        value = sorted(value)
    if not isinstance(value, Sequence) and not hasattr(value, "tolist"):
        return clean_line(str(value), most_chars)
    is_whole = most_items is None or len(value) <= most_items
    if is_whole:
        items = value
    else:
        items = value[:_FIRST_ELEMENTS]
    plain = [
        plain_values(item, most_chars, most_items)
        for item in getattr(items, "tolist", lambda: items)()
    ]
    if is_whole:
        return plain
    return {"first": plain, "length": len(value)}
