import dataclasses

import pytest
from textual.geometry import Region

from app.chat.status import Activity, EngineStatus
from app.machine.records import Ceiling, EngineFigures
from app.text.glyphs import ASCII, BLOCKS, choose_glyphs
from app.tui.speed import screen_lines, strip_lines
from app.tui.speed.graph_lines import Graph, graph_lines, next_round
from app.tui.speed.lines import text_of
from app.tui.speed.watch import Speed
from app.tui.widgets.figure_lines import FigureLines
from tests.app.chat_driver import chatting
from tests.app.machine.views import FACTS, SAMPLE, SPENT, bare, view


def texts(lines) -> list[str]:
    return [text_of(one) for one in lines]


def everything(shown, width, glyphs) -> list[str]:
    return texts(
        [
            *screen_lines.speed_lines(shown, width),
            *screen_lines.ceiling_lines(shown, width, glyphs),
            *screen_lines.stutter_lines(shown, width, glyphs),
            *screen_lines.time_lines(shown.figures.last_reply, width, glyphs),
            *screen_lines.phase_lines(shown, width, glyphs),
            *screen_lines.machine_lines(shown, width, glyphs),
            *strip_lines.speed_lines(shown),
            *strip_lines.below_graph(shown, glyphs),
        ]
    )


def test_the_strip_says_what_the_drawing_says():
    shown = view()
    assert texts(strip_lines.speed_lines(shown)) == ["  5.1 tok/s   196 ms/tok"]
    assert texts(strip_lines.below_graph(shown, BLOCKS)) == [
        "ceiling   84 % ████████░",
        "of 6.1 tok/s (12.1 GB/s)",
        "",
        "core 0 ███████████ 100 %",
        "core 1 ███████████  97 %",
        "core 2 ░░░░░░░░░░░   2 %",
        "core 3 ░░░░░░░░░░░   0 %",
        "2.5 of 2.9 GHz · 71 °C",
        "",
        "model 2.0G/2.0G resident",
        "KV    118M  112KB/token",
        "app   141M  free 2.6G",
        "disk     0/s  idle",
        "threads 2 of 9 busy",
        "screen  2 %",
    ]


def test_a_cache_of_few_bytes_a_token_is_in_bytes_once():
    facts = dataclasses.replace(FACTS, kv_bytes_per_position=640.0)
    shown = " ".join(everything(view(figures=EngineFigures(facts)), 80, BLOCKS))
    assert "640B a token" in shown
    assert "640B/token" in shown
    assert "BB" not in shown


def test_the_screen_says_where_the_time_went():
    assert texts(screen_lines.time_lines(SPENT, 60, BLOCKS)) == [
        "Where the last reply's time went (43.9 s)",
        "×" + "▒" * 29 + "█" * 29 + "+",
        "░ waiting 0  × disk 0.40 s (212 pages)",
        "▒ reading 840 tokens, 31 from cache 21.6 s  ▓ first token 0",
        "█ writing 214 tokens 21.1 s  + interface 0.80 s",
    ]


def test_the_parts_of_the_time_are_told_apart_in_ascii_too():
    bar = texts(screen_lines.time_lines(SPENT, 60, ASCII))[1]
    assert set(bar) == {"x", ":", "#", "+"}
    assert len(bar) == 60


def test_the_screen_says_where_a_tokens_time_goes():
    shown = texts(screen_lines.phase_lines(view(), 76, BLOCKS))
    assert shown[0].split() == ["Where", "a", "token's", "time", "goes", "(195", "ms)", "ms", "GB/s", "share"]
    assert shown[1].split() == ["feed-forward", "█" * 37, "118", "11.9", "60", "%"]
    assert shown[3].split() == ["attention", "█" * 4, "14.0", "-", "7", "%"]
    assert {len(one) for one in shown} == {76}


@pytest.mark.parametrize("width", [54, 56, 58, 76])
@pytest.mark.parametrize("activity", [Activity.READY, Activity.READING])
def test_nothing_is_cut_where_a_terminal_has_sixty_columns(width, activity):
    shown = view()
    figures = dataclasses.replace(shown.figures, prompt_phases=shown.figures.decode_phases)
    shown = dataclasses.replace(shown, figures=figures, status=dataclasses.replace(shown.status, activity=activity))
    head, *rows = texts(screen_lines.phase_lines(shown, width, BLOCKS))
    assert head.endswith("   share")
    assert {len(head), *map(len, rows)} == {len(head)}
    assert "tok/s that memory allows" in " ".join(
        " ".join(texts(screen_lines.ceiling_lines(shown, width, BLOCKS))).split()
    )


def test_while_a_prompt_is_read_its_own_phases_are_shown():
    status = EngineStatus(Activity.READING, done=312, total=840, threads=2, n_ctx=4096)
    shown = view(status=status)
    assert texts(screen_lines.phase_lines(shown, 76, BLOCKS))[0].startswith("Where a prompt token's time goes")
    assert "reading 312 of 840 tokens" in "".join(texts(screen_lines.speed_lines(shown, 80)))
    assert texts(strip_lines.speed_lines(shown)) == ["    - tok/s   37 % read"]


@pytest.mark.parametrize(
    ("tps", "text"),
    [
        (5.0, "as fast as the median 4.9 of 14 earlier replies (2 threads, mmap)"),
        (5.4, "10 % above the median 4.9 of 14 earlier replies (2 threads, mmap)"),
        (2.45, "50 % below the median 4.9 of 14 earlier replies (2 threads, mmap)"),
        (0.0, "to compare with: the median 4.9 of 14 earlier replies (2 threads, mmap)"),
    ],
)
def test_a_reply_is_compared_with_earlier_ones(tps, text):
    shown = view(speed=Speed(tps, tps, tps))
    assert texts(screen_lines.speed_lines(shown, 100))[-1] == text


def test_a_model_in_the_cache_has_no_share_of_the_memory():
    shown = view(ceiling=Ceiling(1e6, 2.0), speed=Speed(9000, 9000, 9000))
    assert "ceiling >100 %" in texts(screen_lines.ceiling_lines(shown, 100, BLOCKS))[0]
    assert "the weights lie in the cache" in " ".join(texts(screen_lines.ceiling_lines(shown, 100, BLOCKS)))


def test_stutters_are_counted_and_the_newest_is_explained():
    assert texts(screen_lines.stutter_lines(view(), 80, BLOCKS)) == [
        "▲ 1 stutter  token 58 took 800 ms: 212 pages from disk"
    ]
    assert texts(screen_lines.stutter_lines(view(n_stutters=0, stutters=()), 80, BLOCKS)) == ["no stutters"]


def test_the_disk_light_and_the_held_back_interface_are_words():
    busy = view(sample=dataclasses.replace(SAMPLE, faults_per_s=212.0), slowed_by=2, interface_cost=0.13)
    shown = texts(strip_lines.below_graph(busy, BLOCKS))
    assert "disk   212/s  reading!" in shown
    assert "screen 13 %, slowed 2x" in shown
    assert "slowed 2x until it costs less" in " ".join(texts(screen_lines.machine_lines(busy, 100, BLOCKS)))


@pytest.mark.parametrize("cost", [None, 0.01])
def test_an_interface_that_costs_little_is_not_said_to_cost_too_much(cost):
    shown = " ".join(texts(screen_lines.machine_lines(view(slowed_by=4, interface_cost=cost), 57, BLOCKS)))
    assert "slowed 4x to leave the cores to the engine" in shown
    assert "too much" not in shown


@pytest.mark.parametrize("width", [57, 77, 97, 197])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_no_line_is_wider_than_its_place(width, glyphs):
    many_cores = dataclasses.replace(SAMPLE, core_loads=tuple(n / 64 for n in range(64)))
    for shown in (view(), bare(), view(sample=many_cores), view(sample=None), view(ceiling=None)):
        figures_only = everything(shown, width, glyphs)[: -len(strip_lines.below_graph(shown, glyphs)) - 1]
        assert all(len(one) <= width for one in figures_only), figures_only
        assert all(len(one) <= 25 for one in texts(strip_lines.below_graph(shown, glyphs)))
        assert all(len(one) <= width for one in texts(strip_lines.flat_lines(shown, width, glyphs)))


def test_with_nothing_known_nothing_is_claimed():
    shown = " ".join(everything(bare(), 80, BLOCKS))
    assert "no model is loaded" in shown
    assert "ceiling not measured" in shown
    assert "0/s" not in shown
    empty = dataclasses.replace(
        SAMPLE, core_loads=(), clock_ghz=None, most_clock_ghz=None, temperature_c=None, governor=None, battery=None,
        own_bytes=None, available_bytes=None, swap_used_bytes=None, faults_per_s=None, threads=None, others_cores=None,
        weights_resident_bytes=None, throttled=None,
    )  # fmt: skip
    unknown = view(sample=empty, figures=EngineFigures(FACTS), n_stutters=0, stutters=())
    shown = " ".join(everything(unknown, 80, BLOCKS))
    for absent in ("GHz", "°C", "battery", "swap", "faults", "throttled", "working", "pages"):
        assert absent not in shown
    assert "model    -/2.0G resident" in shown


def test_figures_keep_their_width_whatever_they_are():
    widths = set()
    for tps in (0.0, 0.07, 3.2, 99.94, 99.96, 1234.0):
        shown = view(speed=Speed(tps, tps, tps, tps))
        widths.add((len(texts(strip_lines.speed_lines(shown))[0]), len(texts(screen_lines.speed_lines(shown, 99))[1])))
    assert len(widths) == 1


def test_the_graph_stands_on_zero_and_fills_from_the_left():
    drawn = texts(graph_lines(Graph((2.0, 4.0, 1.0, 0.0)), 26, 5, BLOCKS, top=4.0))
    assert drawn == [
        "   5 ┤ ▂" + " " * 18,
        "     ┤ █" + " " * 18,
        " 2.5 ┤▅█" + " " * 18,
        "     ┤██▆" + " " * 17,
        "   0 └" + "─" * 15 + " 20 s",
    ]


def test_a_steady_rate_is_a_flat_line_and_not_noise():
    drawn = texts(graph_lines(Graph((3.0, 3.01, 2.99, 3.0)), 30, 5, BLOCKS))
    assert all(len(set(one[6:10])) == 1 for one in drawn)


def test_a_slow_second_is_not_nothing_and_a_stall_is():
    base = texts(graph_lines(Graph((100.0, 0.5, 0.0)), 30, 5, BLOCKS))[3]
    assert base[6:9] == "█▁ "


def test_ceiling_and_median_cross_the_empty_cells_and_stutters_are_marked():
    drawn = texts(graph_lines(Graph((4.0, 4.0), ceiling_tps=7.0, median_tps=5.0, marked=(1,)), 30, 6, BLOCKS))
    assert any("╌╌╌" in one for one in drawn)
    assert any("┄┄┄" in one for one in drawn)
    assert drawn[5][7] == "▲"


def test_a_ceiling_far_above_would_flatten_the_curve_and_is_left_out():
    drawn = texts(graph_lines(Graph((4.0, 4.0), ceiling_tps=400.0), 30, 6, BLOCKS))
    assert not any("╌" in one for one in drawn)
    assert drawn[0].strip().startswith("5")


def test_the_newest_seconds_are_shown_when_there_are_more_than_columns():
    rates = [1.0] * 100 + [5.0] * 10
    drawn = texts(graph_lines(Graph(rates, marked=(3, 105)), 26, 5, BLOCKS))
    assert drawn[3].endswith("█" * 10)
    assert drawn[4].count("▲") == 1


@pytest.mark.parametrize(("width", "height"), [(0, 0), (1, 1), (5, 5), (9, 2), (200, 1), (12, 2)])
def test_the_graph_has_an_answer_to_any_size(width, height):
    drawn = texts(graph_lines(Graph((1.0, 2.0), 3.0, 1.5, (0, 1)), width, height, BLOCKS))
    assert len(drawn) == height
    assert all(len(one) <= max(width, 0) for one in drawn)


def test_round_numbers():
    assert [next_round(value) for value in (0.07, 1.0, 1.2, 5.3, 6.4, 9.5, 101)] == pytest.approx(
        [0.08, 1.0, 1.5, 6.0, 8.0, 10.0, 150.0]
    )


def test_a_console_and_an_old_encoding_get_plain_characters():
    assert choose_glyphs({"TERM": "xterm-256color"}, "utf-8") is BLOCKS
    assert choose_glyphs({"TERM": "linux"}, "utf-8") is ASCII
    assert choose_glyphs({"TERM": "xterm"}, "latin-1") is ASCII
    assert choose_glyphs({"TERM": "xterm"}, "no such encoding") is ASCII
    assert "".join(vars(ASCII).values()).isascii()
    for one in (BLOCKS, ASCII):
        assert len(one.parts) == len(set(one.parts)) == 6


async def test_the_ground_that_lines_stand_on_is_found_once_for_all_lines_that_are_drawn(monkeypatch):
    async with chatting(size=(100, 30)) as driver:
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.app.screen.query(FigureLines))
        table = driver.app.screen.query_one("#machine", FigureLines)
        await driver.until(lambda: len(table.lines) > 3 and table.size.height > 3)
        found: list[str] = []
        style = FigureLines.rich_style
        monkeypatch.setattr(FigureLines, "rich_style", property(lambda widget: found.append("") or style.fget(widget)))
        table._styles_cache.clear()
        table._set_dirty()
        assert len(table.render_lines(Region(0, 0, table.size.width, 4))) == 4
        assert len(found) == 1
