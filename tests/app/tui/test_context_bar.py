import pytest

from app.chat.status import Activity, EngineStatus
from app.tui.drawing.panels import cells_of
from app.tui.widgets.status_line import ASCII, ContextParts, context_bar, context_parts, fit, status_segments


def status(used: int, starts: tuple[int, ...], n_ctx: int = 1000) -> EngineStatus:
    return EngineStatus(Activity.READY, threads=2, context_used=used, n_ctx=n_ctx, turn_starts=starts)


def test_the_parts_are_divided_where_turns_begin() -> None:
    assert context_parts(status(500, (100, 250, 400))) == ContextParts(100, 300, 100, 500)
    assert context_parts(status(500, (100,))) == ContextParts(100, 0, 400, 500)
    assert context_parts(status(0, ())) == ContextParts(0, 0, 0, 1000)
    # While a prompt is read the cache is shorter than what the turn will need.
    assert context_parts(status(50, (100, 400))) == ContextParts(50, 0, 0, 950)


@pytest.mark.parametrize("n_cells", [8, 14])
def test_every_part_with_tokens_has_a_cell_and_the_width_is_kept(n_cells: int) -> None:
    for counts in ((1, 1, 1, 997), (997, 1, 1, 1), (0, 500, 500, 0), (0, 0, 0, 1000), (1, 0, 999, 0)):
        cells = cells_of(counts, n_cells)
        assert sum(cells) == n_cells
        assert [bool(count) for count in counts] == [bool(cell) for cell in cells]


def test_shapes_tell_the_parts_apart_without_colour() -> None:
    parts = ContextParts(250, 250, 250, 250)
    assert context_bar(parts, 8).plain == "ctx ██▓▓▒▒░░ 75 %"
    assert context_bar(parts, 8, ASCII).plain == "ctx ##==++.. 75 %"
    assert context_bar(parts, 8, with_names=True).plain.endswith("75 % █ system ▓ old ▒ new ░ free")


def test_a_nearly_full_context_says_so_in_words_and_colour() -> None:
    line = fit(status_segments(status(920, (0,)), 0, 80), 80)
    assert [str(span.style) for span in line.spans] == ["bold $text-warning"]
    assert line.plain[line.spans[0].start : line.spans[0].end] == "ctx ▒▒▒▒▒▒▒░ 92 % nearly full: 80 left"


def test_each_part_of_the_bar_has_its_colour() -> None:
    spans = context_bar(ContextParts(250, 250, 250, 250), 8, with_names=True).spans
    bar, legend = spans[:4], spans[4:]
    assert [(span.start, span.end) for span in bar] == [(4, 6), (6, 8), (8, 10), (10, 12)]
    assert [span.style for span in legend] == [span.style for span in bar]


@pytest.mark.parametrize(("columns", "text"), [(40, "ctx 500/1,000"), (60, "ctx ██▓▓░░░░ 50 %")])
def test_below_sixty_columns_numbers_stand_for_the_bar(columns: int, text: str) -> None:
    assert text in [str(segment.text) for segment in status_segments(status(500, (250, 500)), 0, columns)]
    full = status_segments(status(950, (250,)), 0, 40)
    assert "ctx 950/1,000!" in [str(segment.text) for segment in full]
