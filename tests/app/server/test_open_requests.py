"""Tests of places and memory for open requests."""

from __future__ import annotations

import pytest

from app.server import open_requests
from app.server.api_error import ApiError
from app.server.open_requests import OpenRequest, OpenRequests
from app.server.transfer import MAX_BODY_BYTES
from tests.app.fake_engine import FakeClock


class Crowd:
    """Open requests, with the names of the requests that were cut."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.requests = OpenRequests(self.clock)
        self.cut: list[str] = []

    def begin(self, name: str, address: str = "10.0.0.1") -> OpenRequest:
        return self.requests.add(address, lambda: self.cut.append(name))


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    monkeypatch.setattr(open_requests, "MAX_REQUESTS", 2)
    monkeypatch.setattr(open_requests, "MAX_BYTES", 1000)
    return Crowd()


def test_only_complete_requests_have_places(crowd: Crowd) -> None:
    for number in range(10):
        crowd.requests.add_bytes(crowd.begin(f"half {number}"), 10)
    first = crowd.begin("first")
    crowd.requests.take_place(first)
    crowd.requests.take_place(first)
    crowd.requests.take_place(crowd.begin("second"))
    with pytest.raises(ApiError, match="too many requests are open"):
        crowd.requests.take_place(crowd.begin("third"))
    assert crowd.cut == []


def test_a_place_is_free_after_the_end(crowd: Crowd) -> None:
    for number in range(5):
        request = crowd.begin(str(number))
        crowd.requests.take_place(request)
        crowd.requests.remove(request)


def test_a_client_that_reads_nothing_loses_its_place(crowd: Crowd) -> None:
    stuck = [crowd.begin("first"), crowd.begin("second")]
    for request in stuck:
        crowd.requests.take_place(request)
        crowd.requests.start_sending(request)
        crowd.clock.advance(1.0)
    with pytest.raises(ApiError):
        crowd.requests.take_place(crowd.begin("early"))
    crowd.clock.advance(open_requests.STUCK_S)
    crowd.requests.take_place(crowd.begin("late"))
    assert crowd.cut == ["first"]
    crowd.requests.finish_sending(stuck[1])
    with pytest.raises(ApiError):
        crowd.requests.take_place(crowd.begin("later"))


def test_slow_bodies_are_cut_for_new_ones(crowd: Crowd) -> None:
    halves = [
        crowd.begin("old", "10.0.0.2"),
        crowd.begin("older of the crowd"),
        crowd.begin("younger of the crowd"),
    ]
    for request in halves:
        crowd.requests.add_bytes(request, 300)
    crowd.requests.add_bytes(crowd.begin("new", "10.0.0.3"), 300)
    assert crowd.cut == ["older of the crowd"]


def test_complete_bodies_stay_and_a_new_one_is_refused(crowd: Crowd) -> None:
    complete = crowd.begin("whole")
    crowd.requests.add_bytes(complete, 900)
    crowd.requests.take_place(complete)
    with pytest.raises(ApiError, match="too much is being sent"):
        crowd.requests.add_bytes(crowd.begin("new"), 300)
    assert crowd.cut == []


def test_a_body_that_is_too_large_takes_no_memory(crowd: Crowd) -> None:
    crowd.requests.add_bytes(crowd.begin("huge"), MAX_BODY_BYTES + 1)
    crowd.requests.add_bytes(crowd.begin("new"), 900)
    assert crowd.cut == []
