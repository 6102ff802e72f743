import dataclasses

import pytest
from textual.geometry import Region

from app.backend.status import Activity, EngineStatus
from app.machine.sensors.energy import EnergyReading, EnergyScope
from app.machine.sensors.records import Ceiling, EngineFigures
from app.machine.sensors.reply_history import Basis
from app.machine.sensors.speed_causes import Cause
from app.machine.tuning.speed_comparison import ChoiceSpeed, SpeedComparison, Verdict
from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice
from app.text.glyphs import ASCII, BLOCKS, choose_glyphs
from app.text.guesses import GuessFigures
from app.tui.drawing.graph import (
    Graph,
    GraphMark,
    GraphScale,
    graph_lines,
    next_round,
)
from app.tui.drawing.lines import (
    LEVELS,
    Span,
    SpanRole,
    apart,
    level_of,
    line,
    muted,
    text_of,
    width_of,
)
from app.tui.drawing.panels import (
    big_digits,
    cells_of,
    gauge,
    panel,
    side_by_side,
    stacked,
    word_mark,
)
from app.tui.speed import machine_lines, writing_lines
from app.tui.speed.change_lines import change_marks, comparison_text
from app.tui.speed.dashboard import dashboard_lines, flat_lines, strip_lines
from app.tui.speed.energy_lines import energy_notes
from app.tui.speed.watch import Speed
from app.tui.widgets.figure_lines import FigureLines, welcome
from tests.app.chat_driver import chatting
from tests.app.machine.sensors.views import FACTS, SAMPLE, SPENT, empty_view, view


def texts(lines) -> list[str]:
    return [text_of(one).rstrip() for one in lines]


def dashboard(shown, width=120, height=38, glyphs=BLOCKS) -> str:
    return "\n".join(texts(dashboard_lines(shown, width, height, glyphs, GraphScale())))


def strip(shown, height=40, glyphs=BLOCKS) -> str:
    return "\n".join(texts(strip_lines(shown, 30, height, glyphs, GraphScale())))


# ---- panels, gauges, digits


def test_a_panel_has_its_title_and_the_requested_size():
    drawn = texts(
        panel("Memory", [line("one"), line("a line that is longer")], 20, BLOCKS, 5, line("4 GB"))
    )
    assert drawn == [
        "╭─ Memory ── 4 GB ─╮",
        "│ one              │",
        "│ a line that is l │",
        "│                  │",
        "╰──────────────────╯",
    ]
    assert (
        texts(panel("Memory", [line("one")], 20, BLOCKS, note=line("too long a note")))[0]
        == "╭─ Memory ─────────╮"
    )
    assert texts(panel("Memory", [line("one")], 12, ASCII)) == [
        "+- Memory -+",
        "| one      |",
        "+----------+",
    ]


@pytest.mark.parametrize("width", range(9))
@pytest.mark.parametrize("height", range(4))
def test_a_panel_without_room_raises_nothing(width, height):
    for one in panel("Memory", [line("one")], width, BLOCKS, height, line("note"), line("foot")):
        assert width_of(one) <= max(width, 3), text_of(one)


def test_an_empty_note_leaves_no_gap_in_the_frame():
    assert panel("a", [], 20, BLOCKS, note=line(muted(""))) == panel("a", [], 20, BLOCKS)


def test_panels_of_any_content_stand_side_by_side():
    left = panel("A", [line("漢字")], 12, BLOCKS)
    right = panel("B", [line("x"), line("y")], 8, BLOCKS)
    both = side_by_side([left, right], [12, 8])
    assert [width_of(one) for one in both] == [20] * 4
    assert text_of(both[1]) == "│ 漢字     ││ x    │"


def test_the_right_aligned_text_is_never_cut():
    assert text_of(apart(line("a long title"), line(muted("now")), 10)) == "a long now"
    assert text_of(apart(line("a"), line(muted("now")), 10)) == "a      now"


def test_a_gauge_fills_in_half_cells_and_shows_small_shares():
    assert [text_of(gauge(share, 4, BLOCKS)) for share in (0, 0.01, 0.3, 0.5, 1, 7)] == [
        "────", "╸───", "━───", "━━──", "━━━━", "━━━━",
    ]  # fmt: skip
    assert text_of(gauge(0.5, 4, ASCII)) == "##--"


def test_areas_fill_a_bar_and_differ_without_colour():
    parts = [
        (70.0, SpanRole.WRITING),
        (20.0, SpanRole.READING),
        (0.1, SpanRole.ACCENT),
        (10.0, SpanRole.UNFILLED),
    ]
    assert text_of(stacked(parts, 20, BLOCKS)) == "█" * 13 + "▓" * 4 + "▒" + "░" * 2
    assert text_of(stacked(parts, 20, ASCII)) == "#" * 13 + "=" * 4 + "+" + "." * 2
    assert cells_of([0, 0], 9) == [0, 0]
    assert sum(cells_of([1, 1, 1, 1, 1], 3)) == 3
    for one in (BLOCKS, ASCII):
        assert len(one.parts) == len(set(one.parts)) == 6


def test_large_digits_have_three_rows_of_equal_width():
    assert big_digits("5.1", BLOCKS) == ["█▀▀   ▄█ ", "▀▀█    █ ", "▀▀▀ ▀ ▀▀▀"]
    assert big_digits("5.1", ASCII) == ["", "5.1", ""]


def test_the_time_per_token_is_never_cut():
    for tps, words in ((5.0, "200 ms/token"), (26.2, "38.2 ms"), (1298.0, "0.8 ms")):
        shown = view(speed=Speed(tps, tps, tps, 39.0))
        *_, last = texts(writing_lines.number_lines(shown, 27, BLOCKS))
        assert last.endswith(f"  {words}")
        assert len(last) <= 27


def test_the_welcome_starts_with_the_name_and_marks_keys():
    text = "Hello!\n\nTry:\n  F3  gets a real model"
    shown = welcome(text)
    assert shown.plain.endswith(text)
    assert shown.plain.splitlines()[:4] == [text_of(one) for one in word_mark(BLOCKS)]
    assert [
        shown.plain[span.start : span.end] for span in shown.spans if "accent" in str(span.style)
    ] == ["F3"]
    assert texts(word_mark(ASCII)) == ["jalopy"]


def test_the_colour_of_a_speed_follows_its_share_of_the_usual():
    assert [level_of(share) for share in (0.1, 0.5, 0.65, 0.78, 0.9)] == list(LEVELS)


def test_a_usual_speed_is_good_far_below_the_memory_limit():
    far = view(ceiling=Ceiling(1_984_000_000, 40.0))
    digits = writing_lines.number_lines(far, 27, BLOCKS)
    assert {row[0].role for row in digits} == {SpanRole.LEVEL_4}
    gauge_line = writing_lines.limit_lines(far, 27, BLOCKS)[0]
    assert not {span.role for span in gauge_line} & set(LEVELS)
    assert texts(writing_lines.reason_lines(far, 76)) == [
        "bound by the cores: they compute at 25 % of what memory delivers"
    ]


def test_the_cause_of_a_slow_reply_stands_below_the_digits():
    cause = "other programs use 1.4 of 2 cores"
    slow = view(speed=Speed(2.4, 2.4, 2.4), causes=(Cause(cause, 0.7),))
    reason = writing_lines.reason_lines(slow, 60)
    assert texts(reason) == [f"{cause} (usually 4.9 tok/s)"]
    assert {row[0].role for row in reason} == {SpanRole.CAUTION}
    for width in (80, 120, 200):
        shown = texts(dashboard_lines(slow, width, 24, BLOCKS, GraphScale()))
        assert any(f"│ {cause} (usually 4.9 tok/s) " in row for row in shown)
    assert cause in text_of(flat_lines(slow, 76, BLOCKS)[0])
    shown = " ".join(
        text_of(row)[2:28].strip() for row in strip_lines(slow, 30, 19, BLOCKS, GraphScale())
    )
    assert f"{cause} (usually 4.9 tok/s)" in shown


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "bound by memory: 84 % of what this machine can read"),
        ({"speed": Speed(2.4, 2.4, 2.4)}, "slower than usual (4.9 tok/s), no cause seen"),
        ({"speed": Speed()}, ""),
        ({"ceiling": None}, ""),
        (
            {"figures": EngineFigures(FACTS), "causes": (Cause("heat", 0.3),), "ceiling": None},
            "heat",
        ),
    ],
)
def test_one_sentence_says_what_bounds_the_speed(changes, text):
    assert writing_lines.reason_of(view(**changes)).text == text


@pytest.mark.parametrize(
    ("energy", "joules", "text"),
    [
        (
            EnergyReading(EnergyScope.MACHINE, 1.0, 9.0, 99.0, 14.04, 7825.0),
            2.811,
            "on battery 83 % · 14.0 W · 2 h 10 min left · 2.8 J per token",
        ),
        (
            EnergyReading(EnergyScope.MACHINE, 1.0, 9.0, 99.0, 6.0, 1570.0),
            0.61,
            "on battery 83 % · 6.0 W · 26 min left · 0.61 J per token",
        ),
        (
            EnergyReading(EnergyScope.PROCESSOR, 1.0, 9.0, 99.0, 31.26),
            None,
            "on battery 83 % · processor 31.3 W",
        ),
        (EnergyReading(EnergyScope.PROCESSOR, 1.0, 9.0, 0.0, None), None, "on battery 83 %"),
        (None, None, "on battery 83 %"),
    ],
)
def test_power_and_energy_are_shown_where_measured(energy, joules, text):
    sample = dataclasses.replace(SAMPLE, energy=energy)
    notes = energy_notes(view(sample=sample, joules_per_token=joules), sample)
    assert " · ".join(texts(notes)) == text
    for size in ((80, 24), (120, 40), (200, 50)):
        shown = dashboard_lines(
            view(sample=sample, joules_per_token=joules), *size, BLOCKS, GraphScale()
        )
        drawn = "\n".join(texts(shown))
        assert all(note in drawn for note in text.split(" · "))


# ---- what the figures say


def test_few_bytes_per_token_have_one_unit():
    facts = dataclasses.replace(FACTS, kv_bytes_per_position=640.0)
    shown = dashboard(view(figures=EngineFigures(facts)))
    assert "KV 640 B per token" in shown
    assert "BB" not in shown


def test_the_screen_shows_the_phases_of_a_reply():
    assert texts(writing_lines.reply_lines(SPENT, 44, 9, BLOCKS)) == [
        "▌" + "▓" * 21 + "█" * 21 + "▚",
        "▓ reading 840 tokens · 31 cached      21.6 s",
        "█ writing 214 tokens                  21.1 s",
        "▚ screen                              0.80 s",
        "▌ disk 212 pages                      0.40 s",
    ]
    assert texts(writing_lines.reply_lines(SPENT, 36, 2, BLOCKS))[1:] == [
        "▓ reading 840 tokens          21.6 s"
    ]


def test_the_screen_shows_the_guesses_of_a_reply():
    guesses = (GuessFigures("conversation", 60, 45), GuessFigures("earlier", 8, 0))
    spent = dataclasses.replace(SPENT, guesses=guesses, guess_saved_s=3.21)
    assert texts(writing_lines.reply_lines(spent, 44, 9, BLOCKS))[5:] == [
        "guesses right · saved 3.2 s         45 of 68",
        "  this conversation                 45 of 60",
        "  earlier conversations               0 of 8",
    ]


def test_phases_differ_in_ascii():
    bar = texts(writing_lines.reply_lines(SPENT, 60, 9, ASCII))[0]
    assert set(bar) == {"o", "=", "#", ":"}
    assert len(bar) == 60


def test_the_screen_shows_the_phases_of_a_token():
    shown = texts(writing_lines.token_lines(view().figures.decode_phases, 60, 9, BLOCKS))
    assert shown[0].split() == ["feed-forward", "━" * 19, "118", "ms", "60", "%", "11.9", "GB/s"]
    assert shown[2].split() == ["attention", "━━", "14.0", "ms", "7", "%"]
    few = texts(writing_lines.token_lines(view().figures.decode_phases, 36, 2, BLOCKS))
    assert [one.split()[0] for one in few] == ["feed-forward", "q"], "the longest"


def test_reading_a_prompt_shows_its_own_phases():
    status = EngineStatus(Activity.READING, done=312, total=840, threads=2, n_ctx=4096)
    shown = view(status=status)
    assert "─ Reading ─" in dashboard(shown)
    assert "Time per prompt token" in dashboard(shown)
    assert "312 of 840" in strip(shown)
    assert " 37 %" in strip(shown)


@pytest.mark.parametrize(
    ("tps", "text"), [(5.0, "as usual"), (5.4, "+10 %"), (2.45, "-50 %"), (0.0, "")]
)
def test_a_reply_is_compared_with_earlier_ones(tps, text):
    shown = texts(writing_lines.compared_lines(view(speed=Speed(tps, tps, tps)), 40))
    assert (
        next(one for one in shown if one.startswith("usual here"))
        == f"usual here    4.9  {text}".rstrip()
    )


def test_a_speed_above_the_memory_limit_becomes_the_limit():
    shown = view(ceiling=Ceiling(1e6, 2.0, reached_tps=9000.0), speed=Speed(9000, 9000, 9000))
    drawn = texts(writing_lines.limit_lines(shown, 27, BLOCKS))
    assert drawn[0].endswith(" 100 %")
    assert drawn[1] == "of 9,000 tok/s (reached)"


def test_stutters_are_counted_and_the_newest_is_explained():
    shown = writing_lines.stutter_line(view(), BLOCKS)
    assert text_of(shown) == "▲ 1 stutter · token 58 took 800 ms: 212 pages from disk"
    assert not writing_lines.stutter_line(view(n_stutters=0, stutter=None), BLOCKS)


def test_disk_reads_and_slowed_drawing_are_named():
    busy = view(
        sample=dataclasses.replace(SAMPLE, disk_bytes_per_s=212 << 20),
        slowed_by=2,
        interface_cost=0.13,
    )
    assert "disk 212 MB/s!" in dashboard(busy)
    assert machine_lines.screen_line(busy, 60) == (
        Span("screen 13 % (redraws less often)", SpanRole.CAUTION),
    )


@pytest.mark.parametrize("cost", [None, 0.01])
def test_cheap_drawing_is_not_a_warning(cost):
    (span,) = machine_lines.screen_line(view(slowed_by=4, interface_cost=cost), 60)
    assert span.text.endswith("redraws less often)")
    assert span.role is SpanRole.MUTED


def test_partly_loaded_weights_are_shown():
    half = dataclasses.replace(SAMPLE, weights_resident_bytes=1 << 30)
    assert "model 1.0G of 2.0G" in dashboard(view(sample=half))


@pytest.mark.parametrize(
    ("width", "glyphs"), [(20, BLOCKS), (57, ASCII), (77, BLOCKS), (97, ASCII), (160, BLOCKS)]
)
@pytest.mark.parametrize("height", [6, 22, 58])
def test_no_line_is_too_wide_and_the_screen_is_filled(width, height, glyphs):
    many_cores = dataclasses.replace(SAMPLE, core_loads=tuple(n / 64 for n in range(64)))
    for shown in (
        view(samples=(SAMPLE, SAMPLE)),
        empty_view(),
        view(sample=many_cores),
        view(sample=None),
        view(ceiling=None),
    ):
        drawn = dashboard_lines(shown, width, height, glyphs, GraphScale())
        assert {width_of(one) for one in drawn} == {width}
        assert len(drawn) == height or height < 22 or width < 76
        assert all(
            width_of(one) <= 30 for one in strip_lines(shown, 30, height, glyphs, GraphScale())
        )
        assert len(strip_lines(shown, 30, height, glyphs, GraphScale())) <= height
        assert all(width_of(one) <= width for one in flat_lines(shown, width, glyphs))


def test_unknown_figures_are_not_shown():
    shown = dashboard(empty_view())
    assert "no model is open" in shown
    assert "B/s" not in shown
    empty = dataclasses.replace(
        SAMPLE, core_loads=(), clock_ghz=None, most_clock_ghz=None, temperature_c=None,
        governor=None, battery=None,
        own_bytes=None, available_bytes=None, swap_used_bytes=None, disk_bytes_per_s=None,
        others_cores=None, weights_resident_bytes=None, throttled=None, threads_working=None,
        energy=None,
    )  # fmt: skip
    shown = dashboard(
        view(
            sample=empty,
            figures=EngineFigures(FACTS),
            n_stutters=0,
            stutter=None,
            ceiling=None,
            joules_per_token=None,
        )
    )
    for absent in (
        "GHz",
        "°C",
        "battery",
        " W ",
        "J per token",
        "swap",
        "disk ",
        "throttled",
        "computing",
        "stutter",
    ):
        assert absent not in shown
    assert "model - of 2.0G" in shown
    assert "limit: not measured yet" in shown


# ---- changes of threads and memory

TWO = TunedChoice(2, 2, weights="mmap")
ONE = TunedChoice(1, 2, weights="mmap")
HUGE = TunedChoice(2, 2, True, weights="huge")


def compared(verdict=Verdict.FASTER, first=TWO, second=ONE, **changes) -> str:
    """Return the sentence of a comparison."""
    speeds = ChoiceSpeed(first, 96, 25.1, 0.6), ChoiceSpeed(second, 40, 12.8, 0.3)
    comparison = SpeedComparison(speeds, verdict, 1.961, **changes)
    return comparison_text(comparison, True, BLOCKS)


def test_speeds_before_and_after_a_change_are_compared_in_words():
    rates = "2 threads: 25.1 ±0.6, 1 thread: 12.8 ±0.3 tok/s: "
    assert compared() == f"{rates}1.96 times as fast"
    assert compared(Verdict.OPEN) == f"{rates}too close to call yet"
    assert compared(Verdict.OPEN, is_final=True) == f"{rates}too close to call"
    assert compared(Verdict.EQUAL) == f"{rates}no difference that counts"
    disturbed = compared(others_cores=1.04)
    assert disturbed == f"{rates}not certain, other programs used 1.0 cores"
    assert compared(Verdict.TOO_FEW, second=HUGE).startswith("huge pages + pinned: 40 of 32")
    assert "mapped file + not pinned: 12.8" in compared(first=HUGE, second=TWO)


def test_too_few_tokens_are_counted():
    speeds = ChoiceSpeed(TWO, 96), ChoiceSpeed(ONE, 12)
    few = SpeedComparison(speeds, Verdict.TOO_FEW)
    assert comparison_text(few, True, BLOCKS) == "1 thread: 12 of 32 tokens, then the comparison"
    assert comparison_text(few, False, BLOCKS) == "1 thread: only 12 tokens, too few to compare"
    few = SpeedComparison(speeds[::-1], Verdict.TOO_FEW)
    assert comparison_text(few, True, BLOCKS) == "1 thread: only 12 tokens, too few to compare"


def test_marks_name_what_was_changed():
    changes = [
        (3.0, ChoiceChange(0, 0, TWO, ONE)),
        (7.5, ChoiceChange(0, 0, ONE, TWO)),
        (9.0, ChoiceChange(0, 0, TWO, HUGE)),
        (12.0, ChoiceChange(0, 0, HUGE, ONE)),
    ]
    names = [mark.name for mark in change_marks(changes)]
    assert names == [
        "1 thread",
        "2 threads",
        "huge pages, pinned",
        "1 thread, mapped file, not pinned",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 21), (80, 20), (120, 37), (200, 47)])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_the_comparison_stands_below_the_curve(width, height, glyphs):
    speeds = ChoiceSpeed(TWO, 96, 25.1, 0.6), ChoiceSpeed(ONE, 40, 12.8, 0.3)
    comparison = SpeedComparison(speeds, Verdict.OPEN, 1.96, others_cores=1.3)
    changed = view(comparison=comparison, changes=((2.0, ChoiceChange(0, 0, TWO, ONE)),))
    drawn = dashboard_lines(changed, width, height, glyphs, GraphScale())
    assert len(drawn) == height
    assert {width_of(row) for row in drawn} == {width}
    text = " ".join("\n".join(texts(drawn)).replace("│", " ").split())
    assert "1 thread: 12.8" in text
    assert f"{glyphs.change}1 thread" in text
    note = dashboard_lines(changed, width, height, glyphs, GraphScale(), "1 thread is the least")
    assert "1 thread is the least" in "\n".join(texts(note))
    assert "12.8" not in "\n".join(texts(note))


# ---- the graph


def test_the_graph_starts_at_zero_and_stretches_short_replies():
    drawn = texts(graph_lines(Graph((2.0, 4.0, 1.0)), 25, 5, BLOCKS, top=4.0))
    assert drawn == [
        "   5       ⢀",
        "       ⢀⣠⣴⣾⣿⣷⣦⡀",
        " 2.5 ⣴⣾⣿⣿⣿⣿⣿⣿⣿⣿⣷⣄⡀",
        "     ⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⣿⡆",
        "   0 ──────────────── 3 s",
    ]


def test_a_steady_rate_is_a_flat_line():
    drawn = texts(graph_lines(Graph((3.0, 3.01, 2.99, 3.0)), 30, 5, BLOCKS))
    assert all(len(set(one[6:20])) <= 1 for one in drawn[:4])


def test_a_slow_second_has_a_dot_and_a_stall_has_none():
    base = texts(graph_lines(Graph((100.0, 0.5, 0.0) * 20), 65, 5, ASCII))[3]
    assert base[5:8] == "#. "


def test_limit_and_median_are_labelled_and_stutters_marked():
    drawn = texts(
        graph_lines(Graph((4.0, 4.0), limit_tps=7.0, median_tps=5.0, marked=(1,)), 60, 9, BLOCKS)
    )
    assert any("╌╌ limit 7.0 ╌╌" in one for one in drawn)
    assert any("┄┄ usual 5.0 ┄┄" in one for one in drawn)
    assert drawn[8].count("▲") == 1


def test_limit_and_median_are_written_as_next_to_the_curve():
    drawn = texts(
        graph_lines(Graph((99.0, 99.0), limit_tps=235.7, median_tps=103.6), 60, 9, BLOCKS)
    )
    assert any(" limit 236 " in row for row in drawn)
    assert any(" usual 104 " in row for row in drawn)


def test_the_curve_and_the_table_name_a_usual_speed_alike() -> None:
    earlier = view().figures.earlier
    assert earlier is not None
    busy = dataclasses.replace(earlier, usual=dataclasses.replace(earlier.usual, basis=Basis.BUSY))
    figures = dataclasses.replace(view().figures, earlier=busy)
    shown = view(figures=figures)
    curve = "\n".join(texts(graph_lines(writing_lines.graph_of(shown), 60, 9, BLOCKS)))
    table = "\n".join(texts(writing_lines.compared_lines(shown, 40)))
    for drawn in (curve, table):
        assert "while busy" in drawn
        assert "usual" not in drawn


def test_the_work_of_an_idle_engine_is_named() -> None:
    shown = view(idle_work="writing a title", sample=dataclasses.replace(SAMPLE, threads_working=1))
    drawn = " ".join(texts(machine_lines.cores_lines(shown, 60, 0, BLOCKS)))
    assert "1 thread busy: writing a title" in drawn


def test_the_edge_of_the_curve_is_stronger_than_its_area():
    drawn = graph_lines(Graph((4.0, 4.0), median_tps=4.0), 30, 6, BLOCKS)
    roles = [span.role for one in drawn[:5] for span in one if "⣿" in span.text or "⣀" in span.text]
    assert roles == [SpanRole.LEVEL_4, *[SpanRole.AREA_4] * 3]


def test_a_limit_far_above_the_curve_is_left_out():
    drawn = texts(graph_lines(Graph((4.0, 4.0), limit_tps=400.0), 30, 6, BLOCKS))
    assert not any("╌" in one for one in drawn)
    assert drawn[0].strip().startswith("5")


def test_the_newest_seconds_are_shown_if_columns_are_too_few():
    rates = [1.0] * 100 + [5.0] * 10
    drawn = texts(graph_lines(Graph(rates, marked=(3, 105)), 25, 5, ASCII))
    assert drawn[3].endswith("#" * 10)
    assert drawn[4].count("^") == 1


def test_an_unchanged_graph_is_drawn_once():
    scale = GraphScale()
    first = scale.draw(Graph((1.0, 2.0)), 40, 6, BLOCKS)
    assert scale.draw(Graph((1.0, 2.0)), 40, 6, BLOCKS) is first
    for graph, width, height in ((Graph((1.0, 3.0)), 40, 6), (Graph((1.0, 3.0)), 41, 6)):
        drawn = scale.draw(graph, width, height, BLOCKS)
        assert drawn == graph_lines(graph, width, height, BLOCKS, scale.top_tps)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 23), (120, 30)])
def test_no_panel_of_the_dashboard_is_empty(width, height):
    for last_reply in (None, SPENT):
        shown = view(figures=EngineFigures(FACTS, last_reply=last_reply))
        rows = dashboard(shown, width, height).splitlines()
        title = next(index for index, row in enumerate(rows) if "─ Last reply ─" in row)
        assert not rows[title + 1].startswith("╰")


def test_marks_do_not_cover_the_seconds():
    drawn = texts(graph_lines(Graph([4.0] * 110, marked=range(110)), 60, 5, BLOCKS))
    assert drawn[4].endswith("▲ 110 s")


@pytest.mark.parametrize(("width", "height"), [(0, 0), (1, 1), (5, 5), (9, 2), (200, 1), (12, 2)])
def test_the_graph_works_in_any_size(width, height):
    drawn = graph_lines(Graph((1.0, 2.0), 3.0, 1.5, (0, 1)), width, height, BLOCKS)
    assert len(drawn) == height
    assert all(width_of(one) <= max(width, 0) for one in drawn)


def marked_row(*marks, glyphs=BLOCKS, width=45, seconds=40) -> str:
    """Return the top row of a graph of a second per column, without its label."""
    n_rates = seconds * (2 if glyphs.has_braille else 1)
    drawn = texts(graph_lines(Graph([0.1] * n_rates, limit_tps=0, changes=marks), width, 5, glyphs))
    return drawn[0][5:]


def test_changes_are_named_in_the_top_row():
    graph = Graph((25.0,) * 8 + (13.0,) * 8, changes=(GraphMark(8.0, "1 thread"),))
    drawn = texts(graph_lines(graph, 50, 6, BLOCKS))
    assert drawn[0].index("▼1 thread") == 5 + 20
    plain = texts(graph_lines(graph, 50, 6, ASCII))
    assert "v1 thread" in plain[0]


def test_names_of_changes_are_shortened_where_room_is_scarce():
    assert marked_row(GraphMark(10, "1 thread"), glyphs=ASCII).strip() == "v1 thread"
    crowded = marked_row(GraphMark(10, "1 thread"), GraphMark(13, "2 threads"), glyphs=ASCII)
    assert crowded.strip() == "v1 v2 threads"
    touching = marked_row(GraphMark(10, "1 thread"), GraphMark(11, "2"), glyphs=ASCII)
    assert touching == f"{' ' * 2}1 threadvv2"
    newest = marked_row(GraphMark(39, "not pinned"), glyphs=ASCII)
    assert newest == f"{' ' * 29}not pinnedv"


def test_changes_outside_the_graph_are_left_out():
    row = marked_row(GraphMark(3, "huge"), GraphMark(105, "2"), glyphs=ASCII, seconds=110)
    assert row.strip() == "v2"
    assert graph_lines(Graph((), changes=(GraphMark(0.0, "2"),)), 9, 2, ASCII)


def test_next_round_returns_round_numbers():
    assert [next_round(value) for value in (0.07, 1.0, 1.2, 5.3, 6.4, 9.5, 101)] == pytest.approx(
        [0.08, 1.0, 1.5, 6.0, 8.0, 10.0, 150.0]
    )


def test_the_scale_only_grows_during_a_reply():
    scale = GraphScale()
    tops = [scale.follow(Graph(rates)) for rates in ((5.0,), (5.0, 30.0), (5.0, 30.0, 2.0), (2.0,))]
    assert tops == [6.0, 40.0, 40.0, 3.0]


def test_a_console_and_an_old_encoding_get_plain_characters():
    assert choose_glyphs({"TERM": "xterm-256color"}, "utf-8") is BLOCKS
    assert choose_glyphs({"TERM": "linux"}, "utf-8") is ASCII
    assert choose_glyphs({"TERM": "xterm"}, "latin-1") is ASCII
    assert choose_glyphs({"TERM": "xterm"}, "no such encoding") is ASCII
    assert "".join(sign for sign in vars(ASCII).values() if isinstance(sign, str)).isascii()


async def test_the_background_is_computed_once_for_all_lines(monkeypatch):
    async with chatting(size=(100, 30)) as driver:
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.app.screen.query("#figures"))
        table = driver.app.screen.query_one("#figures", FigureLines)
        await driver.until(lambda: len(table.lines) > 3 and table.size.height > 3)
        found: list[str] = []
        style = FigureLines.rich_style
        monkeypatch.setattr(
            FigureLines,
            "rich_style",
            property(lambda widget: found.append("") or style.fget(widget)),
        )
        table._styles_cache.clear()
        table._set_dirty()
        assert len(table.render_lines(Region(0, 0, table.size.width, 4))) == 4
        assert len(found) == 1


def test_named_marks_and_a_rule_in_one_row_do_not_overlap():
    marks = (GraphMark(2.0, "1 thread"), GraphMark(4.0, "2"))
    graph = Graph((20.0,) * 8, limit_tps=28.0, median_tps=20.0, changes=marks)
    (top, *_) = texts(graph_lines(graph, 24, 5, BLOCKS, 30.0))
    assert "▼" in top
    assert "limit" not in top
    (top, *_) = texts(graph_lines(dataclasses.replace(graph, changes=()), 24, 5, BLOCKS, 30.0))
    assert "limit 28.0" in top
