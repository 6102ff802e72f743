"""A session's keys and values in a file: written while it grows, restored at the next start, never trusted unchecked.

The file is a disposable cache: token ids and K/V, no text. What it is like is told in ``layout``; whoever finds one
refused moves it aside and computes anew. Importing this package imports no numba.
"""

from engine.saved_state.layout import StateRefusedError, StateSummary
from engine.saved_state.restore import Restored, read_summary, restore_state
from engine.saved_state.writer import StateWriter

__all__ = [
    "Restored",
    "StateRefusedError",
    "StateSummary",
    "StateWriter",
    "read_summary",
    "restore_state",
]
