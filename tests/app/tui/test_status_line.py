"""The line at the bottom: its curve of the running reply, and what goes where there is no room."""

from __future__ import annotations

from app.chat.reply import ReplyMeter
from app.chat.status import Activity, EngineStatus
from app.text import glyphs
from app.tui.widgets.status_line import StatusLine, curve_text, fit, status_segments
from tests.app.chat_driver import chatting


def test_the_curve_stands_on_zero_and_an_even_speed_is_level() -> None:
    assert curve_text([], glyphs.BLOCKS) == curve_text([0.0, 0.0], glyphs.BLOCKS) == ""
    assert curve_text([5.0] * 20, glyphs.BLOCKS) == "▆" * 8
    assert curve_text([4.0, 2.0, 0.0, 4.0], glyphs.BLOCKS) == "    ▆▃▁▆"
    assert curve_text([4.0, 2.0], glyphs.ASCII) == "      =:"


def test_the_curve_is_next_to_the_speed_and_goes_first_if_narrow() -> None:
    meter = ReplyMeter(1, lambda: 8.0)
    meter.token_times_s += [float(n) for n in range(9)]
    status = EngineStatus(Activity.WRITING, meter=meter, threads=2, context_used=20, n_ctx=1000)
    segments = status_segments(status, 1 << 20, 80, curve="▆" * 8)
    assert fit(segments, 80).plain == "  1.0 tok/s ▆▆▆▆▆▆▆▆ │ 2 threads │ mem 1.0M │ ctx █░░░░░░░ 2 % │ writing"
    assert fit(segments, 68).plain == "  1.0 tok/s │ 2 threads │ mem 1.0M │ ctx █░░░░░░░ 2 % │ writing"
    assert "▆" not in fit(status_segments(status, 1 << 20, 40, curve="▆" * 8), 40).plain


async def test_the_line_draws_only_full_seconds_of_a_running_reply() -> None:
    now_s = 3.2
    meter = ReplyMeter(1, lambda: now_s)
    meter.token_times_s += [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 3.2]
    status = EngineStatus(Activity.WRITING, meter=meter, threads=2, n_ctx=1000)
    async with chatting() as driver:
        line = driver.chat.query_one(StatusLine)
        line.show(status, 0)
        assert f" tok/s {'▆▃':>8} │ 2 threads │" in line.line
        line.show(EngineStatus(Activity.READY, meter=meter, n_ctx=1000), 0)
        assert "▆" not in line.line


def test_a_late_report_does_not_count_down_to_nothing() -> None:
    moments = iter([0.0, 10.0])
    meter = ReplyMeter(300, lambda: next(moments))
    meter.note_read(100)
    status = EngineStatus(Activity.READING, done=100, total=300, since_s=0.0, meter=meter)
    assert [status.seconds_left(now_s) for now_s in (10.0, 15.0, 24.0, 60.0)] == [20.0, 15.0, 6.0, 5.0]
