from app.tui.speed.watch import SLOWEST, InterfacePace


def spend(pace: InterfacePace, share: float, seconds: int, is_engine_busy: bool = True) -> None:
    for _ in range(seconds):
        pace.add_cost(share, is_engine_busy)


def drawn(pace: InterfacePace, due: int = 40) -> int:
    return sum(not pace.leaves_out(number) for number in range(1, due + 1))


def test_cheap_drawing_happens_whenever_it_is_due():
    pace = InterfacePace()
    spend(pace, 0.015, 60)
    assert (pace.divisor, drawn(pace)) == (1, 40)
    assert round(pace.cost, 3) == 0.015


def test_costly_drawing_slows_step_by_step_to_a_floor():
    pace = InterfacePace()
    seen = []
    for _ in range(60):
        pace.add_cost(0.4, True)
        seen.append(pace.divisor)
    assert seen == sorted(seen)
    assert set(seen) == {1, 2, 4}
    assert pace.divisor == SLOWEST
    assert drawn(pace) == 10


def test_the_pace_recovers_when_drawing_is_cheap():
    pace = InterfacePace()
    spend(pace, 0.4, 60)
    spend(pace, 0.005, 60)
    assert pace.divisor == 1
    spend(pace, 0.4, 60)
    spend(pace, 0.005, 60, is_engine_busy=False)
    assert pace.divisor == SLOWEST


def test_another_screen_begins_with_the_pace_of_the_start():
    for first_divisor in (1, SLOWEST):
        pace = InterfacePace(first_divisor)
        spend(pace, 0.4 if first_divisor == 1 else 0.001, 60)
        assert pace.divisor != first_divisor
        pace.restart()
        assert pace.divisor == first_divisor


def test_an_idle_engine_does_not_slow_drawing():
    pace = InterfacePace()
    spend(pace, 0.4, 60, is_engine_busy=False)
    assert pace.divisor == 1


def test_a_missing_measurement_changes_nothing():
    pace = InterfacePace()
    pace.add_cost(None, True)
    assert (pace.cost, pace.divisor) == (None, 1)
