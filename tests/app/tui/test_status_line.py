"""The status line: speed and its curve, disk reads, context, narrow screens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.backend.reply import ReplyMeter
from app.backend.status import Activity, EngineStatus
from app.machine.sensors.page_faults import DiskRate
from app.text import glyphs
from app.tui.drawing.panels import cells_of
from app.tui.widgets.status_line import (
    ASCII_BLOCKS,
    ContextParts,
    StatusLine,
    context_bar,
    context_parts,
    curve_text,
    fit,
    status_segments,
)
from tests.app.chat_driver import chatting

MB = 1 << 20


def meter(*times_s: float) -> ReplyMeter:
    """Return a status of a reply with tokens at these times."""
    found = ReplyMeter(1, lambda: times_s[-1])
    found.token_times_s += times_s
    return found


def status(used: int, starts: tuple[int, ...], n_ctx: int = 1000) -> EngineStatus:
    return EngineStatus(
        Activity.READY, threads=2, context_used=used, n_ctx=n_ctx, turn_starts=starts
    )


def shown(
    status: EngineStatus,
    columns: int = 80,
    rss_bytes: int = 0,
    curve: str = "",
    mb_per_s: float = 0.0,
) -> str:
    segments = status_segments(
        status, rss_bytes, columns, curve=curve, disk_bytes_per_s=mb_per_s * MB
    )
    return fit(segments, columns).plain


def test_the_curve_starts_at_zero_and_shows_even_speed_level() -> None:
    assert curve_text([], glyphs.BLOCKS) == curve_text([0.0, 0.0], glyphs.BLOCKS) == ""
    assert curve_text([5.0] * 20, glyphs.BLOCKS) == "▆" * 8
    assert curve_text([4.0, 2.0, 0.0, 4.0], glyphs.BLOCKS) == "    ▆▃▁▆"
    assert curve_text([4.0, 2.0], glyphs.ASCII) == "      =:"


def test_the_curve_is_dropped_first_on_narrow_screens() -> None:
    writing = EngineStatus(
        Activity.WRITING, meter=meter(*range(9)), threads=2, context_used=20, n_ctx=1000
    )
    line = "  1.0 tok/s ▆▆▆▆▆▆▆▆ │ 2 threads │ mem 1.0M │ ctx █░░░░░░░ 2 % │ writing"
    assert shown(writing, 80, MB, "▆" * 8) == line
    assert shown(writing, 68, MB, "▆" * 8) == line.replace(" ▆▆▆▆▆▆▆▆", "")
    assert "▆" not in shown(writing, 40, MB, "▆" * 8)


async def test_the_line_draws_only_full_seconds_of_a_running_reply() -> None:
    writing = EngineStatus(
        Activity.WRITING, meter=meter(0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 3.2), threads=2, n_ctx=1000
    )
    async with chatting() as driver:
        line = driver.chat.query_one(StatusLine)
        line.show(writing, 0)
        assert f" tok/s {'▆▃':>8} │ 2 threads │" in line.line
        line.show(replace(writing, activity=Activity.READY), 0)
        assert "▆" not in line.line


def test_a_late_report_does_not_count_down_to_nothing() -> None:
    moments = iter([0.0, 10.0])
    read = ReplyMeter(300, lambda: next(moments))
    read.update_prefill(100)
    reading = EngineStatus(Activity.READING, done=100, total=300, since_s=0.0, meter=read)
    assert [reading.seconds_left(now_s) for now_s in (10.0, 15.0, 24.0, 60.0)] == [
        20.0,
        15.0,
        6.0,
        5.0,
    ]


def test_disk_reads_per_token_are_shown_only_while_writing() -> None:
    writing = EngineStatus(
        Activity.WRITING, meter=meter(*(0.25 * n for n in range(1, 42))), threads=2, n_ctx=1000
    )
    for columns in (40, 80):
        assert "disk 120 MB/token" in shown(writing, columns, mb_per_s=480)
        assert "disk" not in shown(writing, columns, mb_per_s=0.9)
    assert "disk 480 MB/s" in shown(replace(writing, activity=Activity.READING), mb_per_s=480)
    assert "disk" not in shown(replace(writing, activity=Activity.READY), mb_per_s=480)


def test_disk_reads_are_those_of_this_process(tmp_path: Path) -> None:
    counts = tmp_path / "io"
    rate = DiskRate(counts)
    assert rate.since_last(1.0) is None
    for now_s, n_bytes, wanted in (
        (2.0, 1000, None),
        (4.0, 5000, 2000.0),
        (4.0, 9000, None),
        (5.0, 8000, 0.0),
    ):
        counts.write_text(f"rchar: 7\nread_bytes: {n_bytes}\nwrite_bytes: 3\n")
        assert rate.since_last(now_s) == wanted
    counts.write_text("nothing of the kind")
    assert rate.since_last(6.0) is None


def test_the_context_is_divided_at_turns() -> None:
    assert context_parts(status(500, (100, 250, 400))) == ContextParts(100, 300, 100, 500)
    assert context_parts(status(500, (100,))) == ContextParts(100, 0, 400, 500)
    assert context_parts(status(0, ())) == ContextParts(0, 0, 0, 1000)
    # While a prompt is read the cache is shorter than what the turn will need.
    assert context_parts(status(50, (100, 400))) == ContextParts(50, 0, 0, 950)


@pytest.mark.parametrize("n_cells", [8, 14])
def test_every_part_with_tokens_has_a_cell(n_cells: int) -> None:
    for counts in (
        (1, 1, 1, 997),
        (997, 1, 1, 1),
        (0, 500, 500, 0),
        (0, 0, 0, 1000),
        (1, 0, 999, 0),
    ):
        cells = cells_of(counts, n_cells)
        assert sum(cells) == n_cells
        assert [bool(count) for count in counts] == [bool(cell) for cell in cells]


@pytest.mark.parametrize(("n_used", "n_cells"), [(0, 0), (1, 1), (60, 1), (400, 3), (999, 7)])
def test_the_bar_of_the_context_shows_the_used_share(n_used: int, n_cells: int) -> None:
    cells = ContextParts(n_used // 3, n_used // 3, n_used - 2 * (n_used // 3), 1000 - n_used)
    assert sum(cells.cells(8)[:3]) == n_cells
    assert sum(cells.cells(8)) == 8
    assert ContextParts(500, 400, 100, 0).cells(8)[3] == 0


def test_shapes_and_colours_tell_the_parts_of_the_context_apart() -> None:
    parts = ContextParts(250, 250, 250, 250)
    assert context_bar(parts, 8).plain == "ctx ██▓▓▒▒░░ 75 %"
    assert context_bar(parts, 8, ASCII_BLOCKS).plain == "ctx ##==++.. 75 %"
    named = context_bar(parts, 8, with_names=True)
    assert named.plain.endswith("75 % █ system ▓ old ▒ new ░ free")
    bar = named.spans[:4]
    legend = named.spans[4:]
    assert [(span.start, span.end) for span in bar] == [(4, 6), (6, 8), (8, 10), (10, 12)]
    assert [span.style for span in legend] == [span.style for span in bar]
    assert len({span.style for span in bar}) == 4


def test_a_nearly_full_context_warns_in_words_and_colour() -> None:
    line = fit(status_segments(status(920, (0,)), 0, 80), 80)
    assert [str(span.style) for span in line.spans] == ["bold $text-warning"]
    assert (
        line.plain[line.spans[0].start : line.spans[0].end]
        == "ctx ▒▒▒▒▒▒▒░ 92 % nearly full: 80 left"
    )


def test_narrow_screens_show_the_context_in_numbers() -> None:
    assert "ctx 500/1,000" in shown(status(500, (250, 500)), 40)
    assert "ctx ██▓▓░░░░ 50 %" in shown(status(500, (250, 500)), 60)
    assert "ctx 950/1,000!" in shown(status(950, (250,)), 40)
