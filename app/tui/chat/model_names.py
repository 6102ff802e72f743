"""Names of the models on this machine, for completions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SEARCH_AGAIN_S = 30.0
"""Seconds after which the folders are searched again."""


class ModelNames:
    """Names of the models that can be opened, searched at the first use.

    Args:
        directories: returns the setting ``model_directories``.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        directories: Callable[[], Sequence[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directories = directories
        self._clock = clock
        self._paths: Mapping[str, Path] = {}
        """Files by name."""
        self._searched_s: float | None = None
        """Time of the last search; None before the first."""

    def others(self, open_path: str) -> list[str]:
        """Return the names of all models but the open one; this may read files.

        Args:
            open_path: path of the open model; "" if there is none.
        """
        now_s = self._clock()
        if self._searched_s is None or now_s - self._searched_s > SEARCH_AGAIN_S:
            self._paths = _paths_by_name(self._directories())
            self._searched_s = now_s
        real_path = os.path.realpath(open_path)
        return [name for name, path in self._paths.items() if os.path.realpath(path) != real_path]


def _paths_by_name(directories: Sequence[str]) -> dict[str, Path]:
    # None of this is needed for the first frame.
    from app.models.library.find_by_name import models_by_name
    from app.models.library.model_files import find_files, places

    models = models_by_name(find_files(places(directories)))
    return {name: file.path for name, (file, _) in models.items()}
