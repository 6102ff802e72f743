"""What the memory would allow: every token reads all weights and the keys and values of the whole context once."""

from __future__ import annotations

from app.machine.records import ModelFacts
from app.text.record import record

MORE_THAN_MEMORY = 1.1
"""Above this share the weights cannot all come from memory: a cache holds them."""


@record
class Ceiling:
    """The bound for one context length."""

    bytes_per_token: float
    read_gbps: float

    @property
    def tps(self) -> float:
        """Tokens per second that the memory would allow."""
        return self.read_gbps * 1e9 / self.bytes_per_token if self.bytes_per_token > 0 else 0.0

    def share(self, tps: float) -> float:
        """Return which part of it is reached, 0 to 1 and above."""
        return tps / self.tps if self.tps > 0 else 0.0


def ceiling_at(facts: ModelFacts | None, context_used: int, read_gbps: float | None) -> Ceiling | None:
    """Return the bound at a context length; None while model or bandwidth is unknown."""
    if facts is None or not read_gbps:
        return None
    return Ceiling(bytes_per_token(facts, context_used), read_gbps)


def bytes_per_token(facts: ModelFacts, context_used: int) -> float:
    """Return what one token reads: the weights, and the cache up to its position."""
    return facts.bytes_per_token + context_used * facts.kv_bytes_per_position
