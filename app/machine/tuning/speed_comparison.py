"""Speed of a reply before and after a change of threads or memory, from the times of its tokens.

All tokens that a reply wrote with one choice count together, so going back and forth between two
choices cancels a drift of the machine. Tokens right after a change are left out.

Stutters and steps that computed several guessed tokens are left out. Neighbouring tokens are
disturbed together, so the uncertainty comes from blocks of tokens, of which the slowest and fastest
are trimmed (Yuen 1974).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import pairwise

from app.machine.sensors.token_speed import GUESSED
from app.machine.tuning.last_replies import WrittenReply
from app.machine.tuning.threads_in_use import ChoiceChange, writing_part
from app.program.state import TunedChoice
from app.text.record import record
from engine.tuning.statistics import GAIN

LEAST_TOKENS = 32
"""Tokens below which a choice is not compared."""
MOST_TOKENS = 192
"""Limit on the tokens of a choice, the newest ones: earlier ones had a shorter context."""
_SETTLING_TOKENS = 4
"""Tokens after a change that are left out."""
_STUTTER = 2.0
"""Multiple of the median time above which a token is a stutter, if at most a tenth is."""
_BLOCKS = 16
_TRIMMED_BLOCKS = 2
"""Blocks that are trimmed at each end."""
_MOST_CORRELATION = 0.8
_SHOWN_CONFIDENCE = 0.95
_SURE_CONFIDENCE = 0.999
"""Confidence of a verdict. It is high because the tokens are compared again and again."""

OthersCores = Callable[[float, float], float]
"""Returns the cores that other programs used between two times."""


class Verdict(Enum):
    """Result of a comparison."""

    TOO_FEW = "too few tokens"
    OPEN = "too close to call"
    EQUAL = "no difference that counts"
    FASTER = "faster"


@record
class MeanTime:
    """Trimmed mean of the seconds per token."""

    seconds: float
    error_s: float
    """Standard error."""
    freedom: int
    """Degrees of freedom of the error."""

    def half_width_s(self, confidence: float) -> float:
        """Return half of the width of a confidence interval."""
        return self.error_s * _student(confidence, self.freedom)


@record
class ChoiceSpeed:
    """Speed of a reply with one choice."""

    choice: TunedChoice
    n_tokens: int
    tps: float = 0.0
    half_width_tps: float = 0.0
    """Half of the width of its 95 % confidence interval."""


@record
class SpeedComparison:
    """Speeds of a reply with two choices."""

    speeds: tuple[ChoiceSpeed, ChoiceSpeed]
    """The faster one first; the earlier choice first while there are too few tokens."""
    verdict: Verdict
    ratio: float = 1.0
    """Speed of the first choice divided by that of the second one."""
    others_cores: float = 0.0
    """Cores that other programs used meanwhile, the larger value of both choices."""
    is_final: bool = False
    """Whether more tokens would hardly narrow the intervals."""


@record
class _Readings:
    """Seconds of the newest tokens of a choice, and the spans of time that they cover."""

    gaps_s: tuple[float, ...] = ()
    spans_s: tuple[tuple[float, float], ...] = ()


def compare_choices(
    times_s: Sequence[float], changes: Sequence[ChoiceChange], others_cores: OthersCores
) -> SpeedComparison | None:
    """Compare the present choice of a reply with the one before it.

    An earlier one is taken instead if the one before it wrote too few tokens.

    Args:
        times_s: times of the tokens of the reply.
        changes: changes since before the reply, oldest first.

    Returns:
        None if nothing that matters for writing was changed during the reply.
    """
    readings: dict[TunedChoice, _Readings] = {}
    present: TunedChoice | None = None
    for choice, begin_s, end_s in _segments(times_s, changes):
        present = writing_part(choice)
        earlier = readings.pop(present, _Readings())
        readings[present] = _joined(earlier, times_s, begin_s, end_s)
    if present is None or len(readings) < 2:
        return None
    others = list(readings)[-2::-1]
    enough = (choice for choice in others if len(readings[choice].gaps_s) >= LEAST_TOKENS)
    other = next(enough, others[0])
    return _compared(other, readings[other], present, readings[present], others_cores)


def compare_replies(
    earlier: WrittenReply, present: WrittenReply, others_cores: OthersCores
) -> SpeedComparison:
    """Compare two replies, each written with one choice."""
    readings = [
        _joined(_Readings(), reply.times_s, -math.inf, math.inf) for reply in (earlier, present)
    ]
    return _compared(earlier.choice, readings[0], present.choice, readings[1], others_cores)


def steady_gaps(gaps_s: Sequence[float]) -> list[float]:
    """Return the seconds of tokens without stutters and without steps of several tokens."""
    ordered = sorted(gaps_s)
    n = len(ordered)
    if not n:
        return []
    limit_s = max(_STUTTER * ordered[n // 2], ordered[9 * n // 10])
    least_s = GUESSED * ordered[3 * n // 4]
    followers = (*gaps_s[1:], limit_s)
    return [
        gap_s
        for gap_s, next_s in zip(gaps_s, followers, strict=True)
        if least_s <= gap_s <= limit_s and next_s >= least_s
    ]


def mean_time(gaps_s: Sequence[float]) -> MeanTime:
    """Return the seconds per token with their uncertainty.

    Args:
        gaps_s: seconds of neighbouring tokens, at least ``LEAST_TOKENS``.
    """
    size = len(gaps_s) // _BLOCKS
    newest = gaps_s[len(gaps_s) - size * _BLOCKS :]
    blocks = [sum(newest[start : start + size]) / size for start in range(0, len(newest), size)]
    kept = sorted(blocks)[_TRIMMED_BLOCKS:-_TRIMMED_BLOCKS]
    winsorized = [kept[0]] * _TRIMMED_BLOCKS + kept + [kept[-1]] * _TRIMMED_BLOCKS
    centre = sum(winsorized) / _BLOCKS
    squares = sum((block - centre) ** 2 for block in winsorized)
    n_kept = len(kept)
    error_s = math.sqrt(squares / (n_kept * (n_kept - 1)))
    return MeanTime(sum(kept) / n_kept, error_s * _drift_factor(blocks), n_kept - 1)


def _drift_factor(blocks: Sequence[float]) -> float:
    """Return the factor on the error of a mean whose values follow each other, as in a drift."""
    centre = sum(blocks) / len(blocks)
    apart = [block - centre for block in blocks]
    squares = sum(value * value for value in apart)
    if squares == 0:
        return 1.0
    products = sum(value * following for value, following in pairwise(apart))
    correlation = min(_MOST_CORRELATION, max(0.0, products / squares))
    return math.sqrt((1 + correlation) / (1 - correlation))


def _compared(
    earlier: TunedChoice,
    earlier_readings: _Readings,
    present: TunedChoice,
    present_readings: _Readings,
    others_cores: OthersCores,
) -> SpeedComparison:
    counts = len(earlier_readings.gaps_s), len(present_readings.gaps_s)
    if min(counts) < LEAST_TOKENS:
        speeds = _speed(earlier, earlier_readings), _speed(present, present_readings)
        return SpeedComparison(speeds, Verdict.TOO_FEW)

    pairs = [(earlier, earlier_readings), (present, present_readings)]
    pairs.sort(key=lambda pair: mean_time(pair[1].gaps_s).seconds)
    (fast, fast_readings), (slow, slow_readings) = pairs
    fast_time = mean_time(fast_readings.gaps_s)
    slow_time = mean_time(slow_readings.gaps_s)
    spans_s = (*fast_readings.spans_s, *slow_readings.spans_s)
    return SpeedComparison(
        (_speed(fast, fast_readings), _speed(slow, slow_readings)),
        _verdict(fast_time, slow_time),
        slow_time.seconds / fast_time.seconds,
        max(others_cores(begin_s, end_s) for begin_s, end_s in spans_s),
        min(counts) >= MOST_TOKENS,
    )


def _verdict(fast: MeanTime, slow: MeanTime) -> Verdict:
    ratio = slow.seconds / fast.seconds
    error = math.hypot(fast.error_s / fast.seconds, slow.error_s / slow.seconds)
    freedom = min(fast.freedom, slow.freedom)
    if ratio >= GAIN and math.log(ratio) > error * _student(_SURE_CONFIDENCE, freedom):
        return Verdict.FASTER
    if math.log(ratio) + error * _student(_SHOWN_CONFIDENCE, freedom) < math.log(GAIN):
        return Verdict.EQUAL
    return Verdict.OPEN


def _speed(choice: TunedChoice, readings: _Readings) -> ChoiceSpeed:
    n_tokens = len(readings.gaps_s)
    if n_tokens < LEAST_TOKENS:
        return ChoiceSpeed(choice, n_tokens)
    mean = mean_time(readings.gaps_s)
    tps = 1 / mean.seconds
    half_width_tps = tps * mean.half_width_s(_SHOWN_CONFIDENCE) / mean.seconds
    return ChoiceSpeed(choice, n_tokens, tps, half_width_tps)


def _segments(
    times_s: Sequence[float], changes: Sequence[ChoiceChange]
) -> Iterator[tuple[TunedChoice, float, float]]:
    """Yield each choice of a reply with the time of its first and last step."""
    if not times_s:
        return
    choice: TunedChoice | None = None
    begin_s = -math.inf
    for change in changes:
        if change.end_s < times_s[0] or not change.is_felt_in_writing:
            continue
        yield change.before, begin_s, change.begin_s
        choice = change.after
        begin_s = change.end_s
    if choice is not None:
        yield choice, begin_s, math.inf


def _joined(
    earlier: _Readings, times_s: Sequence[float], begin_s: float, end_s: float
) -> _Readings:
    """Add the tokens between two times; those right after the first one are left out."""
    first = bisect_left(times_s, begin_s) + _SETTLING_TOKENS
    last = bisect_right(times_s, end_s) - 1
    first = max(first, last - MOST_TOKENS)
    if last <= first:
        return earlier
    gaps_s = [times_s[index] - times_s[index - 1] for index in range(first + 1, last + 1)]
    return _Readings(
        (*earlier.gaps_s, *steady_gaps(gaps_s))[-MOST_TOKENS:],
        (*earlier.spans_s, (times_s[first], times_s[last])),
    )


def _student(confidence: float, freedom: int) -> float:
    """Return the two-sided quantile of Student's distribution, by Fisher's expansion."""
    from statistics import NormalDist  # a module import would delay the first frame

    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
