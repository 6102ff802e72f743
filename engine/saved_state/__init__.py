"""Store of prefixes: tokens with their keys and values, computed once, on disk; written while a
session grows.

The files are a disposable cache: token ids, keys and values, no text. ``segments`` describes a
file, and how files form a tree. Importing this package does not import numba.
"""

from engine.saved_state.pruning import Prefix, SegmentFile, drop_stored, prefixes_in, stored_in
from engine.saved_state.restore import RestoreResult, restorable, restore_state, saved_names
from engine.saved_state.writer import StateWriter

__all__ = [
    "Prefix",
    "RestoreResult",
    "SegmentFile",
    "StateWriter",
    "drop_stored",
    "prefixes_in",
    "restorable",
    "restore_state",
    "saved_names",
    "stored_in",
]
