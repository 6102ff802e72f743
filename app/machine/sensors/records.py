"""Measurements of the engine thread as immutable records, and the limit that memory sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from app.machine.sensors.daily_speeds import DailySpeeds
from app.machine.sensors.page_faults import FaultLog
from app.machine.sensors.reply_history import PastSpeeds
from app.text.guesses import GuessFigures
from app.text.record import record

INTERFACE = "interface"
"""Name of the phase that hands tokens to the screen."""


@record
class ModelFacts:
    """Constants of the loaded model and its session."""

    identity: str
    """Key of machine, model and weights mode in the history; not readable."""
    weights_mode: str
    weights_bytes: int
    bytes_per_token: int
    """Weights read by a decode step, and states of recurrent layers read and written."""
    kv_bytes: int
    kv_bytes_per_position: float
    resident_weight_bytes: Callable[[], int | None]
    """Function that asks the system. Any thread may call it; it may raise after the model is
    closed. It does not keep the model in memory.
    """
    resident_kv_bytes: Callable[[], int | None]

    def context_share(self, context_used: int) -> float:
        """Return the share of keys and values in the bytes that each token reads."""
        context_bytes = context_used * self.kv_bytes_per_position
        return context_bytes / max(1.0, self.bytes_per_token + context_bytes)


@record
class PhaseCost:
    """Share of a phase in the time of an average token."""

    name: str
    ms_per_token: float
    share: float
    """Share from 0 to 1."""
    gbps: float | None
    """Rate of reading weights; None for phases that read none."""


@record
class TimeSpent:
    """Where the time of one reply went; the parts add up to the whole."""

    waited_s: float
    """Time that the message waited in the queue."""
    disk_s: float
    """Estimated time for disk: excess of tokens with major page faults over the median."""
    prefill_s: float
    """Time for the prompt, including pages from disk, whose share is unknown."""
    first_s: float
    """Time from the end of the prompt to the first token."""
    decode_s: float
    interface_s: float
    """Time for handing tokens to the screen and waiting for it."""
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    disk_pages: int | None
    """Number of major page faults; None if the system does not count them."""
    guesses: tuple[GuessFigures, ...] = ()
    """Guesses by kind; empty if none was tried."""
    guess_saved_s: float | None = None
    """Seconds that guesses saved, negative if they cost time; None if that is unknown."""

    @property
    def total_s(self) -> float:
        """Time from sending the message to the end of the reply."""
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
    """All measurements. The engine thread replaces this record as a whole."""

    facts: ModelFacts | None = None
    decode_phases: tuple[PhaseCost, ...] = ()
    """Phases of the running or last reply."""
    prompt_phases: tuple[PhaseCost, ...] = ()
    faults: FaultLog = field(default_factory=FaultLog)
    """Faults of the running or last reply."""
    last_reply: TimeSpent | None = None
    earlier: PastSpeeds | None = None
    """Earlier replies and measurements of the model."""
    daily: DailySpeeds = DailySpeeds()
    """Replies of the model by day, with the last one."""
    threads: int = 0
    """Threads at the start of the running or last reply; 0 if unknown."""
    weights_mode: str = ""
    """Weights mode at the start of the running or last reply."""
    read_gbps: Mapping[int, float] = field(default_factory=dict)
    """Measured memory bandwidth for reading, by number of threads."""


@record
class Ceiling:
    """The bound for one context length."""

    bytes_per_token: float
    read_gbps: float
    reached_tps: float = 0.0
    """Speed of the reply. The limit is at least this, whatever memory measurements say."""

    @property
    def memory_tps(self) -> float:
        """Tokens per second that the measured memory allows."""
        if self.bytes_per_token > 0:
            return self.read_gbps * 1e9 / self.bytes_per_token
        return 0.0

    @property
    def is_beaten(self) -> bool:
        """Whether the reply was faster than the memory limit, because of caches or a disturbed
        measurement.
        """
        return self.reached_tps > self.memory_tps

    @property
    def tps(self) -> float:
        """Limit in tokens per second."""
        return max(self.memory_tps, self.reached_tps)

    def memory_share(self, tps: float) -> float | None:
        """Return a speed as a share of what memory allows, above 1 with caches; None if unknown."""
        if self.memory_tps > 0:
            return tps / self.memory_tps
        return None

    def share(self, tps: float) -> float:
        """Return the reached share of the limit, 0 to 1."""
        if self.tps > 0:
            return min(1.0, tps / self.tps)
        return 0.0


def ceiling_at(
    facts: ModelFacts | None, context_used: int, read_gbps: float | None, reached_tps: float = 0.0
) -> Ceiling | None:
    """Return the limit at a context length; None if model or bandwidth is unknown."""
    if facts is None or not read_gbps:
        return None
    # each token reads all weights, and keys and values of the whole context, once
    return Ceiling(
        facts.bytes_per_token + context_used * facts.kv_bytes_per_position, read_gbps, reached_tps
    )
