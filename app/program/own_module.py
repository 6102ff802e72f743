"""A process of its own for one of our modules."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
_RUN = "import sys; sys.path[0] = {root!r}; import runpy; runpy.run_module({name!r}, None, '__main__', True)"


def own_module(name: str) -> list[str]:
    """Return the command that runs a module of ours.

    With ``-m`` the current directory would come first, and another project's ``app`` there would be run.
    """
    return [sys.executable, "-c", _RUN.format(root=_ROOT, name=name)]
