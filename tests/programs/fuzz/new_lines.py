"""Coverage: the lines that an input is the first to reach, which makes it a useful seed.

``sys.monitoring`` (Python 3.12) reports every line once and then costs nothing; ``sys.settrace``
before that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class NewLines:
    """Collects lines of some sources.

    Args:
        source: folders and files, from the project's directory.

    Attributes:
        seen: lines reached so far, as (file, number).
    """

    def __init__(self, source: tuple[str, ...]) -> None:
        self._prefixes = tuple(str(ROOT / folder) for folder in source)
        self._is_ours: dict[str, bool] = {}
        self.seen: set[tuple[str, int]] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Collect what runs meanwhile in this thread."""
        if not self._prefixes:
            yield
        elif sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "jalopy-fuzz")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._note)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
            try:
                yield
            finally:
                monitoring.set_events(monitoring.COVERAGE_ID, 0)
                monitoring.free_tool_id(monitoring.COVERAGE_ID)
        else:
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(None)

    def _counts(self, file: str) -> bool:
        if file not in self._is_ours:
            self._is_ours[file] = file.startswith(self._prefixes)
        return self._is_ours[file]

    def _note(self, code: CodeType, line: int) -> Any:
        if self._counts(code.co_filename):
            self.seen.add((code.co_filename, line))
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not self._counts(frame.f_code.co_filename):
            return None
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace
