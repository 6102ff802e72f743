"""A session's keys and values in a file: written while the session grows, checked and restored at the next start.

The file is a disposable cache: token ids, keys and values, no text. ``layout`` describes the format. If a file is
refused, move it aside and compute the tokens again. Importing this package does not import numba.
"""

from engine.saved_state.layout import StateRefusedError, StateSummary
from engine.saved_state.restore import Restored, read_summary, restorable, restore_state
from engine.saved_state.writer import StateWriter

__all__ = [
    "Restored",
    "StateRefusedError",
    "StateSummary",
    "StateWriter",
    "read_summary",
    "restorable",
    "restore_state",
]
