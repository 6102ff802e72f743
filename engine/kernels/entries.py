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
"""Place of each function, by name.

A session has all of them compiled before the first prompt, so it never waits for one.
"""

_C_FUNCTION = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)


@cache
def entry(name: str) -> Callable[[int, int, int], None]:
    """Return the function of a name, which runs without the GIL.

    It is linked or compiled at the first call.
    """
    from engine.ahead import address_of  # imports llvmlite, which opening a model does not need

    return _C_FUNCTION(address_of(ENTRIES[name]))


def run_entry(name: str, record: Any, **values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Run a function on a record of ``engine.kernels.records``.

    Args:
        values: Words of the record by name: numbers, or contiguous arrays for their addresses.

    Returns:
        The record's words, in which the function left its result.
    """
    words = np.zeros(len(record), np.int64)
    for field, value in values.items():
        index = getattr(record, field) // 8
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, field
            words[index] = value.ctypes.data
        elif isinstance(value, float):
            words[index : index + 1].view(np.float64)[0] = value
        else:
            words[index] = value
    entry(name)(words.ctypes.data, 0, 1)
    return words
