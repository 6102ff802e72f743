"""Measurements of the engine's thread as immutable records, and the speed that memory would
allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from app.machine.sensors.page_faults import FaultLog
from app.machine.sensors.reply_history import PastSpeeds
from app.text.record import record

INTERFACE = "interface"
"""The phase of a token's time that goes to handing it to the screen."""


@record
class ModelFacts:
    """Constants of the loaded model and its session."""

    identity: str
    """Names machine, model and weights mode in the history; no readable text."""
    weights_mode: str
    weights_bytes: int
    bytes_per_token: int
    """Weights that one decode step reads, and what it reads and writes of recurrent layers'
    states."""
    kv_bytes: int
    kv_bytes_per_position: float
    resident_weight_bytes: Callable[[], int | None]
    """Asks the system; safe from any thread, and may raise once the model is closed."""
    resident_kv_bytes: Callable[[], int | None]


@record
class PhaseCost:
    """One phase's part of the time of an average token."""

    name: str
    ms_per_token: float
    share: float
    """0 to 1."""
    gbps: float | None
    """Weights read while it ran; None for phases that read none."""


@record
class TimeSpent:
    """Where the time of one reply went; the parts add up to the whole."""

    waited_s: float
    """In the queue, after other messages."""
    disk_s: float
    """Estimate: what tokens with major page faults took longer than the median token."""
    prefill_s: float
    """Pages that came from disk meanwhile are in here: no one knows their part."""
    first_s: float
    """From the end of the prompt to the first token."""
    decode_s: float
    interface_s: float
    """Handing tokens to the screen, and waiting for it."""
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    disk_pages: int | None
    """Major page faults in all; None where the system does not count them."""

    @property
    def total_s(self) -> float:
        """From sending the message to the end of the reply."""
        return (
            self.waited_s
            + self.disk_s
            + self.prefill_s
            + self.first_s
            + self.decode_s
            + self.interface_s
        )


@record
class EngineFigures:
    """All of it, replaced as a whole by the engine's thread."""

    facts: ModelFacts | None = None
    decode_phases: tuple[PhaseCost, ...] = ()
    """Of the running reply, or of the last one."""
    prompt_phases: tuple[PhaseCost, ...] = ()
    faults: FaultLog = field(default_factory=FaultLog)
    """Of the running reply, growing, or of the last one."""
    last_reply: TimeSpent | None = None
    earlier: PastSpeeds | None = None
    """Replies before the running or last one, with the same model, threads and weights mode."""
    threads: int = 0
    """Those that the running or last reply began with; they may have been changed since. 0 for
    unknown."""
    weights_mode: str = ""
    """The same of where the weights lay."""
    read_gbps: Mapping[int, float] = field(default_factory=dict)
    """Measured read-only memory bandwidth by number of threads."""


@record
class Ceiling:
    """The bound for one context length."""

    bytes_per_token: float
    read_gbps: float
    reached_tps: float = 0.0
    """Speed of the reply: what was reached is no more than the limit, whatever was measured of the
    memory."""

    @property
    def memory_tps(self) -> float:
        """Tokens per second that the memory would allow, as it was measured."""
        if self.bytes_per_token > 0:
            return self.read_gbps * 1e9 / self.bytes_per_token
        return 0.0

    @property
    def is_beaten(self) -> bool:
        """Whether the reply was faster than that: a cache holds weights, or the measurement was
        disturbed."""
        return self.reached_tps > self.memory_tps

    @property
    def tps(self) -> float:
        """The limit in tokens per second."""
        return max(self.memory_tps, self.reached_tps)

    def share(self, tps: float) -> float:
        """Return which part of it is reached, 0 to 1."""
        if self.tps > 0:
            return min(1.0, tps / self.tps)
        return 0.0


def ceiling_at(
    facts: ModelFacts | None, context_used: int, read_gbps: float | None, reached_tps: float = 0.0
) -> Ceiling | None:
    """Return the bound at a context length; None while model or bandwidth is unknown."""
    if facts is None or not read_gbps:
        return None
    # Every token reads all weights, and the keys and values of the whole context, once.
    return Ceiling(
        facts.bytes_per_token + context_used * facts.kv_bytes_per_position, read_gbps, reached_tps
    )
