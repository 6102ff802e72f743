"""The line of those who wait: bounded, in order for each peer, and fair between peers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend.engine_host import LineFullError, WaitingLine


def taken(line: WaitingLine[int]) -> list[int]:
    return list(iter(line.take, None))  # type: ignore[arg-type]


def test_who_sends_many_waits_for_who_sends_one_in_its_order() -> None:
    line: WaitingLine[int] = WaitingLine(5)
    for peer, item in (("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20)):
        line.join(peer, item)
    with pytest.raises(LineFullError):
        line.join("d", 30)
    assert taken(line) == [1, 10, 20, 2, 3]


def test_a_full_line_has_room_for_a_peer_that_has_fewer_in_it() -> None:
    line: WaitingLine[int] = WaitingLine(4)
    assert [line.join_fairly("a", item) for item in range(4)] == [None] * 4
    with pytest.raises(LineFullError):
        line.join_fairly("a", 4)
    assert line.join_fairly("b", 10) == 3
    assert line.join_fairly("b", 11) == 2
    with pytest.raises(LineFullError):
        line.join_fairly("b", 12)
    assert len(line) == 4
    assert taken(line) == [0, 10, 1, 11]
    with pytest.raises(LineFullError):
        WaitingLine[int](0).join_fairly("a", 1)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["join", "leave", "take"])), max_size=60
    )
)
def test_nothing_is_lost_and_nothing_comes_twice(steps: list[tuple[str, str]]) -> None:
    line: WaitingLine[int] = WaitingLine(5)
    waiting: list[int] = []
    for number, (peer, step) in enumerate(steps):
        if step == "join" and len(waiting) < 5:
            line.join(peer, number)
            waiting.append(number)
        elif step == "leave":
            assert line.leave(number - 1) == (number - 1 in waiting)
            waiting = [one for one in waiting if one != number - 1]
        elif step == "take":
            item = line.take()
            assert (item is None) == (not waiting)
            waiting = [one for one in waiting if one != item]
        assert len(line) == len(waiting)
    assert sorted(taken(line)) == sorted(waiting)
