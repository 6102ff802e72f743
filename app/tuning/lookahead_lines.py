"""Says in one line per weight type how decode asks memory ahead, and what that brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tuning.lookahead_trials import Lookahead


def lookahead_lines(found: Mapping[str, Lookahead]) -> list[str]:
    """Return a line for each weight type."""
    return [f"{quant}: {_line(one)}" for quant, one in found.items()]


def _line(found: Lookahead) -> str:
    way, far = "no prefetch", abs(found.ahead & ~1)
    if far:
        way = f"prefetch {far / 1024:g} kB{', non-temporal' if found.ahead < 0 else ''}"
    if found.ahead & 1:
        way = f"{way} and pages" if far else "prefetch pages"
    if found.gbps <= found.usual_gbps:
        return f"{way}, as usual: {found.gbps:.1f} GB/s"
    return f"{way}: {found.gbps:.1f} instead of {found.usual_gbps:.1f} GB/s"
