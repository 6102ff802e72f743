"""Saved states: prefixes of tokens with their keys and values on disk, written while a session
grows.

The files are a disposable cache of token ids, keys and values; they have no text. ``segments``
describes a file and the tree of files. Importing this package does not import numba.
"""

from engine.saved_state.pruning import Prefix, SegmentFile, drop_stored, prefixes_in, stored_in
from engine.saved_state.restore import (
    RestoreResult,
    restorable,
    restore_state,
    saved_names,
    tokens_after,
)
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
    "tokens_after",
]
