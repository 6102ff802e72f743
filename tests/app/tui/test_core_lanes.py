"""Lanes of the cores of made machines, and the clock and temperature below them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from app.machine.sensors.delays import QuotaUse
from app.text.glyphs import ASCII, BLOCKS, Glyphs
from app.tui.drawing.graph import GraphScale
from app.tui.drawing.lines import Line, SpanRole, text_of, width_of
from app.tui.speed.core_lanes import (
    CoreLane,
    curve_rows,
    curves_of,
    lane_groups,
    lane_rows,
    ranges,
    seconds_of,
    strip_rows,
    summary_line,
)
from app.tui.speed.dashboard import dashboard_lines, flat_lines, strip_lines
from app.tui.speed.machine_lines import cores_panel
from app.tui.speed.watch import PerformanceView
from engine.machine.core_map import CoreMap
from tests.app.machine.sensors import core_views
from tests.app.machine.sensors.views import SAMPLE, empty_view
from tests.engine import sysfs_trees

MACHINES: list[Callable[[], PerformanceView]] = [
    core_views.laptop,
    core_views.hybrid,
    core_views.two_caches,
    core_views.raspberry_pi,
    core_views.server,
    lambda: core_views.server(128, 1),
]


def lanes_of(view: PerformanceView, n_cores_per_lane: int = 0) -> list[list[CoreLane]]:
    assert view.core_map is not None
    return [list(group.lanes) for group in lane_groups(view.core_map, BLOCKS, n_cores_per_lane)]


def lane_lines(view: PerformanceView, width: int, rows: int, glyphs: Glyphs = BLOCKS) -> list[Line]:
    return lane_rows(view, seconds_of(view.samples), width, rows, glyphs)


def curve_lines(view: PerformanceView, width: int, rows: int) -> list[Line]:
    seconds = seconds_of(view.samples)
    return curve_rows(curves_of(seconds), seconds, width, rows, BLOCKS)


def panel_texts(view: PerformanceView, width: int = 60, rows: int = 16) -> list[str]:
    return [text_of(row) for row in cores_panel(view, BLOCKS, width, rows)]


def test_siblings_are_bracketed() -> None:
    (lanes,) = lanes_of(core_views.laptop())
    assert [(lane.bracket, lane.label) for lane in lanes] == [
        ("╭", "0"),
        ("╰", "2"),
        ("╭", "1"),
        ("╰", "3"),
    ]
    (lanes,) = lanes_of(core_views.raspberry_pi())
    assert [lane.bracket for lane in lanes] == [" "] * 4


def test_four_threads_of_one_core_share_a_bracket() -> None:
    (lanes,) = lanes_of(core_views.server(1, 4))
    assert [lane.bracket for lane in lanes] == ["╭", "│", "│", "╰"]


def test_kinds_of_cores_are_named_where_there_are_two() -> None:
    (lanes,) = lanes_of(core_views.hybrid())
    assert [lane.label for lane in lanes][6:10] == ["P6", "P7", "E8", "E9"]
    (lanes,) = lanes_of(core_views.hybrid(), 2)
    assert [lane.label for lane in lanes] == ["P0-3", "P4-7", "E8-9", "E10-11", "E12-13", "E14-15"]


def test_cores_of_a_cache_stand_below_its_name() -> None:
    view = core_views.two_caches()
    assert view.core_map is not None
    titles = [group.title for group in lane_groups(view.core_map, BLOCKS, 0)]
    assert titles == ["L3 of 0-3, 8-11", "L3 of 4-7, 12-15"]
    rows = [text_of(row) for row in lane_lines(view, 56, 9, BLOCKS)]
    assert rows[0].split("  ")[0] == titles[0]
    assert titles[1] in rows[0], "a column for each"


def test_the_engine_is_marked_where_it_runs_now() -> None:
    view = core_views.laptop()
    rows = lane_lines(view, 56, 4, BLOCKS)
    assert [BLOCKS.here in text_of(row) for row in rows] == [True, False, True, False]
    roles = [{span.role for span in row} for row in rows]
    assert [SpanRole.WRITING in role for role in roles] == [True, False, True, False]
    assert "▶ engine on 0, 1" in "\n".join(panel_texts(view))


def test_a_lane_shows_the_last_minute_and_the_present_load() -> None:
    row = text_of(lane_lines(core_views.laptop(), 56, 4, BLOCKS)[0]).rstrip()
    assert row == "╭0 ▶" + "⣀" * 10 + "⣿" * 20 + "  97 % 2.1 GHz"


def test_lanes_on_the_console_are_plain_text() -> None:
    rows = [text_of(row).rstrip() for row in lane_lines(core_views.laptop(), 56, 4, ASCII)]
    assert rows == [
        "+0 >" + "." * 10 + "#" * 20 + "  97 % 2.1 GHz",
        "+2  " + "." * 30 + "  19 % 0.8 GHz",
        "+1 >" + "." * 10 + "#" * 20 + "  97 % 2.0 GHz",
        "+3  " + "." * 30 + "  18 % 0.8 GHz",
    ]


def test_seconds_without_a_sample_stay_empty() -> None:
    samples = [
        dataclasses.replace(SAMPLE, at_s=at_s, interval_s=interval_s)
        for at_s, interval_s in (
            (100.0, 0.0),
            (101.0, 1.0),
            (140.0, 0.0),
            (141.6, 1.6),
            (143.0, 1.4),
        )
    ]
    seconds = seconds_of(samples)
    known = [index for index, sample in enumerate(seconds) if sample is not None]
    assert known == [16, 17, 56, 57, 58, 59]
    (strip,) = strip_rows([None] * 56 + [0.0] * 4, 30, 1, BLOCKS, SpanRole.ACCENT)
    assert text_of(strip) == " " * 28 + "⣀⣀"


def test_narrow_strips_show_means() -> None:
    values = [0.0] * 30 + [1.0] * 30
    (strip,) = strip_rows(values, 15, 1, BLOCKS, SpanRole.ACCENT)
    assert text_of(strip) == "⣀" * 7 + "⣸" + "⣿" * 7
    (strip,) = strip_rows(values, 15, 1, ASCII, SpanRole.ACCENT)
    assert text_of(strip) == "." * 7 + "=" + "#" * 7


def test_heat_is_marked_when_it_slowed_the_cores() -> None:
    view = core_views.laptop()
    clock, temperature = curve_lines(view, 56, 2)
    assert text_of(clock).startswith("GHz ⣿")
    assert text_of(clock).endswith(" 2.1-2.9")
    assert "!" not in text_of(clock)
    assert [index - 4 for index, sign in enumerate(text_of(temperature)) if sign == "!"] == [26, 28]
    assert text_of(temperature).endswith(" 52-97")
    assert "! throttled by heat, 3 times" in "\n".join(panel_texts(view))


def test_unknown_clock_and_temperature_have_no_curves() -> None:
    unknown = {"clock_ghz": None, "core_clocks_ghz": (), "most_clock_ghz": None}
    view = core_views.core_view(
        sysfs_trees.virtual_machine, 4, (0,), temperature_c=None, throttled=None, **unknown
    )
    assert curve_lines(view, 56, 6) == []
    text = "\n".join(panel_texts(view))
    assert "GHz" not in text
    assert "°C" not in text


def test_cores_that_are_not_allowed_are_named() -> None:
    view = core_views.core_view(sysfs_trees.two_cores_four_threads, 4, (0,), allowed=(0, 2))
    assert "may use CPU 0, 2 only" in "\n".join(panel_texts(view))
    faint = [
        SpanRole.ACCENT in {span.role for span in row} for row in lane_lines(view, 56, 4, BLOCKS)
    ]
    assert faint == [False, True, False, False]


def test_quota_and_offline_cores_are_named() -> None:
    view = core_views.raspberry_pi()
    assert view.core_map is not None
    assert view.sample is not None
    core_map = CoreMap(view.core_map.cpus, n_offline=1)
    sample = dataclasses.replace(view.sample, quota=QuotaUse(0.5, 0.9))
    text = "\n".join(panel_texts(dataclasses.replace(view, core_map=core_map, sample=sample)))
    assert "quota of 0.5 cores" in text
    assert "1 CPU off" in text


def test_loads_of_another_number_of_cores_make_no_lanes() -> None:
    view = core_views.raspberry_pi()
    (sample, *_) = view.samples
    short = dataclasses.replace(sample, core_loads=(0.5, 0.5))
    assert lane_lines(dataclasses.replace(view, sample=short), 56, 9, BLOCKS) == []
    before = dataclasses.replace(view, samples=(short, *view.samples[1:]))
    assert text_of(lane_lines(before, 56, 4, BLOCKS)[0]).startswith(" 0 ▶⢀")


def test_many_cores_are_merged_within_their_caches() -> None:
    view = core_views.server()
    rows = lane_lines(view, 56, 9, BLOCKS)
    assert [text_of(row).split()[0] for row in rows] == [
        "0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63",
    ]  # fmt: skip
    assert text_of(summary_line(view, 34, BLOCKS)) == " ".join(["▄▄"] * 8)
    assert text_of(summary_line(core_views.hybrid(), 34, BLOCKS)) == "P █▁█▁█▁█▁ E ▁▂▁▁▁▁▁▂"


def test_numbers_are_written_as_ranges() -> None:
    assert ranges([8, 0, 1, 2, 3, 5, 6]) == "0-3, 5, 6, 8"
    assert ranges([]) == ""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_no_machine_overflows_its_panel(
    machine: Callable[[], PerformanceView], glyphs: Glyphs
) -> None:
    view = machine()
    for width in (5, 20, 34, 40, 60, 66, 120):
        for rows in range(2, 30, 3):
            drawn = cores_panel(view, glyphs, width, rows)
            assert {width_of(row) for row in drawn} == {width}
            assert len(drawn) == rows
    for width, height in ((80, 22), (120, 38), (200, 48), (60, 18), (40, 60)):
        drawn = dashboard_lines(view, width, height, glyphs, GraphScale())
        assert {width_of(row) for row in drawn} == {width}
        if width >= 76:
            assert len(drawn) == height
        assert all(width_of(row) <= width for row in flat_lines(view, width, glyphs))
    for rows in range(1, 40, 3):
        assert all(width_of(row) <= 30 for row in strip_lines(view, 30, rows, glyphs, GraphScale()))


@pytest.mark.parametrize("height", range(22, 34))
def test_lanes_leave_room_for_the_memory(height: int) -> None:
    for width, last in ((80, "840 of 4,096"), (120, "disk 0 B/s")):
        rows = dashboard_lines(core_views.hybrid(), width, height, BLOCKS, GraphScale())
        assert last in "\n".join(map(text_of, rows))


def test_nothing_is_drawn_of_an_unknown_machine() -> None:
    assert lane_lines(empty_view(), 56, 9, BLOCKS) == []
    assert summary_line(empty_view(), 56, BLOCKS) == ()
    assert curve_lines(empty_view(), 56, 9) == []
