"""The line of those who wait: bounded, in order for each peer, and fair between peers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.host import LineFullError, WaitingLine


def taken(line: WaitingLine[int]) -> list[int]:
    out = []
    while (item := line.take()) is not None:
        out.append(item)
    return out


def test_one_peer_is_answered_in_its_order() -> None:
    line: WaitingLine[int] = WaitingLine(9)
    for item in (1, 2, 3):
        line.join("a", item)
    assert taken(line) == [1, 2, 3]


def test_who_sends_many_waits_for_who_sends_one() -> None:
    line: WaitingLine[int] = WaitingLine(9)
    for item in (1, 2, 3):
        line.join("a", item)
    line.join("b", 10)
    line.join("c", 20)
    assert taken(line) == [1, 10, 20, 2, 3]


def test_it_is_bounded_and_has_room_again() -> None:
    line: WaitingLine[int] = WaitingLine(2)
    line.join("a", 1)
    line.join("b", 2)
    with pytest.raises(LineFullError):
        line.join("c", 3)
    assert line.leave(1)
    line.join("c", 3)
    assert (len(line), taken(line)) == (2, [2, 3])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["join", "leave", "take"])), max_size=60))
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
