"""Compiled functions that Python calls: C functions of three int64, found by name.

Imports no numba.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

ENTRIES = {
    "lead": "engine.plan.interpreter:lead",
    "lead timed": "engine.plan.interpreter:lead_timed",
    "follow": "engine.plan.interpreter:follow",
    "dismiss": "engine.plan.interpreter:dismiss",
    "largest logit": "engine.sampling.sampling_kernels:largest_logit",
    "copy logits": "engine.sampling.sampling_kernels:copy_logits",
    "draw": "engine.sampling.sampling_kernels:draw",
    "penalise": "engine.sampling.repetition_kernels:penalise",
    "find repeats": "engine.sampling.repetition_kernels:find_repeats",
}
"""Name -> place. A session has all of them compiled before the first prompt, so that it waits for
none."""

_C_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)


@cache
def entry(name: str) -> Callable[[int, int, int], None]:
    """The function of a name, linked or compiled when it is first asked for; it runs without the
    GIL."""
    from engine.ahead import address_of  # imports llvmlite, which opening a model does not need

    return _C_FUNCTION(address_of(ENTRIES[name]))


def run(name: str, record: Any, **values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Run a function on a record of ``engine.kernels.records``.

    Args:
        values: words of the record by name: numbers, or contiguous arrays for their addresses.

    Returns:
        The record's words, in which the function left its result.
    """
    words = np.zeros(len(record), np.int64)
    for field, value in values.items():
        at = getattr(record, field) // 8
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, field
            words[at] = value.ctypes.data
        elif isinstance(value, float):
            words[at : at + 1].view(np.float64)[0] = value
        else:
            words[at] = value
    entry(name)(words.ctypes.data, 0, 1)
    return words
