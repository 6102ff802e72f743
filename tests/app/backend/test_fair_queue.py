"""Queue of waiting requests: limited, in order for each client, and fair between clients."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backend.work_thread import FairQueue, QueueFullError


def take_all(queue: FairQueue[int]) -> list[int]:
    return list(iter(queue.take, None))  # type: ignore[arg-type]


def test_clients_take_turns_and_keep_their_order() -> None:
    queue: FairQueue[int] = FairQueue(5)
    for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 10), ("c", 20)):
        queue.put(client, item)
    with pytest.raises(QueueFullError):
        queue.put("d", 30)
    assert take_all(queue) == [1, 10, 20, 2, 3]


def test_a_full_queue_accepts_clients_with_fewer_items() -> None:
    queue: FairQueue[int] = FairQueue(4)
    assert [queue.put_fairly("a", item) for item in range(4)] == [None] * 4
    with pytest.raises(QueueFullError):
        queue.put_fairly("a", 4)
    assert queue.put_fairly("b", 10) == 3
    assert queue.put_fairly("b", 11) == 2
    with pytest.raises(QueueFullError):
        queue.put_fairly("b", 12)
    assert len(queue) == 4
    assert take_all(queue) == [0, 10, 1, 11]
    with pytest.raises(QueueFullError):
        FairQueue[int](0).put_fairly("a", 1)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["join", "leave", "take"])), max_size=60
    )
)
def test_no_item_is_lost_or_returned_twice(steps: list[tuple[str, str]]) -> None:
    queue: FairQueue[int] = FairQueue(5)
    waiting: list[int] = []
    for number, (client, step) in enumerate(steps):
        if step == "join" and len(waiting) < 5:
            queue.put(client, number)
            waiting.append(number)
        elif step == "leave":
            assert queue.remove(number - 1) == (number - 1 in waiting)
            waiting = [waiting_item for waiting_item in waiting if waiting_item != number - 1]
        elif step == "take":
            item = queue.take()
            assert (item is None) == (not waiting)
            waiting = [waiting_item for waiting_item in waiting if waiting_item != item]
        assert len(queue) == len(waiting)
    assert sorted(take_all(queue)) == sorted(waiting)
