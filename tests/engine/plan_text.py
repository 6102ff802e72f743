"""A plan as text: every row with its arguments, addresses replaced by names, so that two ways to
write it compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine import Model
from engine.cache.kv_cache import kv_type_of

PLANS = ("decode", "small batch", "small batch last", "block", "block last")
N_CTX = 256
_ADDRESSES = frozenset(
    (
        "weights",
        "weight",
        "x",
        "q",
        "d",
        "sums",
        "out",
        "add",
        "scratch",
        "frequencies",
        "angles",
        "v",
        "gate",
        "up",
    )
) | {"k_cache", "v_cache", "k_scales", "v_scales"}
_LEFT_OUT = frozenset({"step", "claims", "address", "n_bytes", "ahead"})
"""Fields left out: equal in every row, assigned when the table is written, or of the processor at
hand."""


class _Names:
    """Names of addresses: weights by their tensor and offset, everything else in the order of first
    use."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = sorted(
            (tensor.address, tensor.size_bytes, name) for name, tensor in tensors.items()
        )
        self._found: dict[int, str] = {}

    def name(self, address: int) -> str:
        for start, size, name in self._tensors:
            if start <= address < start + size:
                return name + (f"+{address - start}" if address > start else "")
        return self._found.setdefault(address, f"@{len(self._found)}")


def plan_lines(model: Model, kv: str = "f16") -> Iterator[str]:
    """Return all rows of a session's tables as text.

    Addresses in the middle of a buffer have names of their own: of which buffer they are shows in
    the difference only.
    """
    pipeline = model._pipeline(kv_type_of(kv, model.config), N_CTX)
    names = _Names(model._weights.tensors)
    for plan in PLANS:
        yield f"[{plan}]"
        for operation in pipeline.plans[plan].operations:
            yield _line(operation, names)


def _line(operation: Any, names: _Names) -> str:
    row = dict(operation.describe())
    columns = [row["phase"], row["op"] + (" |" if row["barrier"] else "")]
    if "weights" in row:
        columns.append(f"{row['type']} {row['shape'][0]}x{row['shape'][1]} {row['bytes']} bytes")
    is_address = re.compile(rf"({'|'.join(_ADDRESSES)})\Z")
    for name, value in sorted(operation.arguments.items()):
        if value and name not in _LEFT_OUT:
            is_count = operation.kernel.startswith("rope") and name == "d"
            columns.append(
                f"{name}={names.name(value) if is_address.match(name) and not is_count else value}"
            )
    return "; ".join(columns)
