"""Process settings after replies that overlap."""

import sys

from engine.generation import SWITCH_INTERVAL, SWITCH_INTERVAL_S


def test_overlapping_replies_give_the_switch_interval_back() -> None:
    before_s = sys.getswitchinterval()
    first = SWITCH_INTERVAL.short()
    second = SWITCH_INTERVAL.short()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-5 < before_s
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before_s
