"""Reports as JSON that is safe to print: pure ASCII without a control character, whatever text they hold."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.text.clean_text import clean_line


def json_line(report: Mapping[str, Any], indent: int | None = None) -> str:
    """Return the report as JSON; one line unless indented."""
    # The one control character that JSON may hold as it stands.
    return json.dumps(report, indent=indent).replace("\x7f", "\\u007f")


def plain_values(value: Any, most_chars: int = 4096) -> Any:
    """Return dataclasses and sets as what JSON can hold, with foreign text cleaned."""
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain_values(one, most_chars) for key, one in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(plain_values(one, most_chars) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain_values(one, most_chars) for one in value]
    return clean_line(value, most_chars) if isinstance(value, str) else value
