"""Tests of the date and time."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from app.tools.built_in.clock import date_and_time
from app.tools.built_in.tool import ToolFailure

NOON = datetime(2026, 1, 2, 12, 0, 5, tzinfo=timezone.utc)


def test_the_time_has_day_date_and_offset() -> None:
    assert date_and_time("utc", NOON) == (
        "Friday, 2 January 2026 (2026-01-02), 12:00:05 (UTC, UTC+00:00), week 1, day 2 of the year"
    )


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "tokyo", "ASIA/TOKYO"])
def test_a_time_zone_has_its_name_or_its_city(zone: str) -> None:
    pytest.importorskip("zoneinfo")
    try:
        line = date_and_time(zone, NOON)
    except ToolFailure:
        pytest.skip("this system has no time zones")
    assert "21:00:05 (Asia/Tokyo, UTC+09:00)" in line


@pytest.mark.parametrize("zone", ["Nowhere", "../../etc/passwd", "/etc/passwd", "x" * 10_000])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ToolFailure, match="There is no time zone"):
        date_and_time(zone, NOON)


def test_without_a_time_zone_the_local_time_is_told() -> None:
    assert "(20" in date_and_time("", NOON)
