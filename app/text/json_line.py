"""Reports as JSON that is safe to print: pure ASCII without a control character, whatever text they hold."""

import json
from collections.abc import Mapping
from typing import Any


def json_line(report: Mapping[str, Any], indent: int | None = None) -> str:
    """Return the report as JSON; one line unless indented."""
    # The one control character that JSON may hold as it stands.
    return json.dumps(report, indent=indent).replace("\x7f", "\\u007f")
