"""Lanes of the cores: a row for each with its load of the last minute.

Siblings are bracketed, cores that share a cache stand together, and a pointer marks the cores on
which the threads of the engine run. If there is no room for a row per logical CPU, siblings and
then neighbours share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

from app.machine.sensors.sample import MachineSample
from app.text.glyphs import Glyphs
from app.text.record import record
from app.tui.drawing import lines
from app.tui.drawing.graph import cell_shape
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, joined, muted
from app.tui.drawing.panels import side_by_side
from app.tui.speed.watch import CORES_WINDOW_S, PerformanceView

if TYPE_CHECKING:
    from engine.machine.core_map import CoreMap, LogicalCpu

_STEPS = 4
"""Steps of a row's height."""
_LEAST_LANE_COLUMNS = 27
_LEAST_CELLS = 15
_MOST_CELLS = 30
"""Limits on the columns for a minute."""
_PERCENT_COLUMNS = 6
_NAME_COLUMNS = 4
_MOST_CURVE_ROWS = 3
_COLDEST_C = 20.0
_HOTTEST_C = 100.0

Values = Sequence[float | None]
"""Values from 0 to 1 for the seconds of the last minute; None for seconds without a sample."""
Seconds = Sequence[MachineSample | None]
"""Sample of each second of the last minute, the oldest first."""


@record
class CoreLane:
    """Cores that share a row."""

    label: str
    cpus: tuple[LogicalCpu, ...]
    bracket: str = " "
    """Sign that joins the rows of a core's siblings."""


@record
class LaneGroup:
    """Lanes that stand below one title."""

    title: str
    lanes: tuple[CoreLane, ...]


# ---- which lanes there are


def lane_groups(core_map: CoreMap, glyphs: Glyphs, n_cores_per_lane: int) -> list[LaneGroup]:
    """Return the lanes of all cores, by cache.

    Args:
        n_cores_per_lane: 0 for a lane per logical CPU.
    """
    by_cache = [
        list(cpus) for _, cpus in groupby(core_map.cpus, lambda cpu: (cpu.cache_level, cpu.cache))
    ]
    groups = []
    for cpus in by_cache:
        title = ""
        if len(by_cache) > 1:
            title = _group_title(cpus)
        lanes = chain.from_iterable(
            _lanes_of_kind(list(kind), core_map.has_two_kinds, glyphs, n_cores_per_lane)
            for _, kind in groupby(cpus, lambda cpu: cpu.is_efficiency)
        )
        groups.append(LaneGroup(title, tuple(lanes)))
    return groups


def _group_title(cpus: Sequence[LogicalCpu]) -> str:
    name = "package"
    if cpus[0].cache_level:
        name = f"L{cpus[0].cache_level}"
    return f"{name} of {ranges([cpu.number for cpu in cpus])}"


def _lanes_of_kind(
    cpus: Sequence[LogicalCpu], has_kinds: bool, glyphs: Glyphs, n_cores_per_lane: int
) -> Iterable[CoreLane]:
    """Yield the lanes of neighbouring cores of one kind."""
    kind = _kind_of(cpus[0].is_efficiency, has_kinds)
    cores = [tuple(core) for _, core in groupby(cpus, lambda cpu: cpu.core)]
    if n_cores_per_lane:
        for start in range(0, len(cores), n_cores_per_lane):
            together = tuple(chain.from_iterable(cores[start : start + n_cores_per_lane]))
            yield CoreLane(f"{kind}{_short_range(together)}", together)
        return
    for core in cores:
        for index, cpu in enumerate(core):
            yield CoreLane(f"{kind}{cpu.number}", (cpu,), _bracket(index, len(core), glyphs))


def _kind_of(is_efficiency: bool, has_kinds: bool) -> str:
    """Return the letter of a kind of cores; empty if all cores are equal."""
    if not has_kinds:
        return ""
    return "E" if is_efficiency else "P"


def _bracket(index: int, n_siblings: int, glyphs: Glyphs) -> str:
    top_left, _, bottom_left, _, _, vertical = tuple(glyphs.frame)
    if n_siblings == 1:
        return " "
    if index == 0:
        return top_left
    if index == n_siblings - 1:
        return bottom_left
    return vertical


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as people write them: "0-3, 8"."""
    texts = []
    ordered = sorted(numbers)
    for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        if len(members) > 2:
            texts.append(f"{members[0]}-{members[-1]}")
        else:
            texts += map(str, members)
    return ", ".join(texts)


def _short_range(cpus: Sequence[LogicalCpu]) -> str:
    """Name CPUs by the first and the last one, or by those of their cores' first threads."""
    numbers = sorted(cpu.number for cpu in cpus)
    if numbers[-1] - numbers[0] >= len(numbers):
        numbers = sorted({cpu.core for cpu in cpus})
    if len(numbers) == 1:
        return f"{numbers[0]}"
    return f"{numbers[0]}-{numbers[-1]}"


# ---- what happened in the last minute


def seconds_of(samples: Sequence[MachineSample]) -> list[MachineSample | None]:
    """Return the sample of each second of the last minute, the oldest first."""
    seconds: list[MachineSample | None] = [None] * CORES_WINDOW_S
    for sample in samples:
        last = round(samples[-1].at_s - sample.at_s)
        first = round(samples[-1].at_s - sample.at_s + sample.interval_s)
        for age in range(last, max(last + 1, first)):
            if 0 <= age < CORES_WINDOW_S:
                seconds[-1 - age] = sample
    return seconds


def loads_of(lane: CoreLane, positions: Mapping[int, int], seconds: Seconds) -> list[float | None]:
    """Return the mean load of a lane's CPUs for each second.

    Args:
        positions: index of each CPU among the loads of a sample.
    """
    indexes = [positions[cpu.number] for cpu in lane.cpus]
    loads: list[float | None] = []
    for sample in seconds:
        if sample is None or len(sample.core_loads) != len(positions):
            loads.append(None)
        else:
            loads.append(sum([sample.core_loads[index] for index in indexes]) / len(indexes))
    return loads


# ---- drawing


def strip_rows(
    values: Values,
    n_cells: int,
    n_rows: int,
    glyphs: Glyphs,
    role: SpanRole,
    marked: frozenset[int] = frozenset(),
) -> list[Line]:
    """Draw values as a curve that is filled below, in ``n_cells`` columns.

    A second without a sample stays empty; a value of 0 has a mark. Cells with a marked second have
    an exclamation mark at the bottom.
    """
    dots_per_cell = 1
    if glyphs.has_braille:
        dots_per_cell = 2
    seconds_per_dot = -(-len(values) // (n_cells * dots_per_cell))
    seconds_per_cell = dots_per_cell * seconds_per_dot
    n_missing = n_cells * seconds_per_cell - len(values)
    padded = [*[None] * n_missing, *values]
    n_steps = n_rows * _STEPS
    steps = [
        0 if value is None else 1 + min(n_steps - 1, max(0, int(n_steps * value)))
        for value in _means(padded, seconds_per_dot)
    ]
    if n_rows == 1 and not marked:
        starts = range(0, len(steps), dots_per_cell)
        shapes = [cell_shape(steps[start : start + dots_per_cell], glyphs) for start in starts]
        return [(Span("".join(shapes), role),)]
    rows = []
    for row in range(n_rows - 1, -1, -1):
        cells = []
        for cell in range(n_cells):
            first = cell * seconds_per_cell - n_missing
            filled = [
                min(_STEPS, max(0, step - row * _STEPS))
                for step in steps[cell * dots_per_cell : (cell + 1) * dots_per_cell]
            ]
            if row == 0 and marked.intersection(range(first, first + seconds_per_cell)):
                cells.append(Span("!", SpanRole.CAUTION))
            else:
                cells.append(Span(cell_shape(filled, glyphs), role))
        rows.append(joined(cells))
    return rows


def cells_for_minute(n_columns: int, glyphs: Glyphs) -> int:
    """Return the number of cells, at most ``n_columns``, that a minute fills without a rest."""
    if n_columns >= _MOST_CELLS:
        return _MOST_CELLS
    dots_per_cell = 1
    if glyphs.has_braille:
        dots_per_cell = 2
    n_columns = max(1, n_columns)
    seconds_per_cell = dots_per_cell * -(-CORES_WINDOW_S // (n_columns * dots_per_cell))
    return -(-CORES_WINDOW_S // seconds_per_cell)


def _means(values: Values, n_together: int) -> list[float | None]:
    """Return the means of neighbouring values; None where none of them is known."""
    if n_together == 1:
        return list(values)
    means: list[float | None] = []
    for start in range(0, len(values), n_together):
        known = [value for value in values[start : start + n_together] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def summary_line(view: PerformanceView, width: int, glyphs: Glyphs) -> Line:
    """Return a character for the present load of each CPU, or of several if there are too many.

    There is a blank between cores of different caches or kinds. Return an empty line if the cores
    are unknown.
    """
    core_map = view.core_map
    sample = view.sample
    if core_map is None or sample is None or len(sample.core_loads) != len(core_map.cpus):
        return EMPTY
    positions = _positions(core_map)
    n_cores_per_lane = 0
    while n_cores_per_lane <= len(core_map.cpus):
        spans = []
        for group in lane_groups(core_map, glyphs, n_cores_per_lane):
            for is_efficiency, lanes in groupby(
                group.lanes, lambda lane: lane.cpus[0].is_efficiency
            ):
                kind = _kind_of(is_efficiency, core_map.has_two_kinds)
                loads = [loads_of(lane, positions, [sample])[0] or 0.0 for lane in lanes]
                signs = "".join(lines.level(load, glyphs) for load in loads)
                spans += [muted(f"{kind} ".lstrip()), Span(signs, SpanRole.ACCENT), Span(" ")]
        if lines.width_of(tuple(spans[:-1])) <= width:
            return tuple(spans[:-1])
        n_cores_per_lane = max(1, 2 * n_cores_per_lane)
    return EMPTY


def _positions(core_map: CoreMap) -> dict[int, int]:
    """Return the index of each CPU among the loads of a sample."""
    numbers = sorted(cpu.number for cpu in core_map.cpus)
    return {number: index for index, number in enumerate(numbers)}


def lane_rows(
    view: PerformanceView, seconds: Seconds, width: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """Draw a lane for each logical CPU or, if there are too many for ``rows``, for several.

    Return no rows if the cores are unknown or have no room.
    """
    core_map = view.core_map
    sample = view.sample
    if core_map is None or sample is None or len(sample.core_loads) != len(core_map.cpus):
        return []
    most_columns = max(1, (width + 2) // (_LEAST_LANE_COLUMNS + 2))
    n_cores_per_lane = 0
    while n_cores_per_lane <= len(core_map.cpus):
        groups = lane_groups(core_map, glyphs, n_cores_per_lane)
        for n_columns in range(1, most_columns + 1):
            columns = _in_columns(groups, n_columns)
            if columns and max(map(len, columns)) <= rows:
                return _drawn(view, core_map, seconds, columns, width, glyphs)
        n_cores_per_lane = max(1, 2 * n_cores_per_lane)
    return []


def _in_columns(groups: Sequence[LaneGroup], n_columns: int) -> list[list[str | CoreLane]]:
    """Distribute titles and lanes among columns; siblings and a title with its lanes stay
    together."""
    blocks: list[list[str | CoreLane]] = []
    for group in groups:
        for index, lane in enumerate(group.lanes):
            if index == 0 and group.title and len(group.lanes) > 1:
                blocks.append([group.title, lane])
            elif index and lane.cpus[0].core == group.lanes[index - 1].cpus[0].core:
                blocks[-1].append(lane)
            else:
                blocks.append([lane])
    n_rows = sum(map(len, blocks))
    for height in range(-(-n_rows // n_columns), n_rows + 1):
        columns: list[list[str | CoreLane]] = [[]]
        for block in blocks:
            if columns[-1] and len(columns[-1]) + len(block) > height:
                columns.append([])
            columns[-1] += block
        if len(columns) <= n_columns:
            return columns
    return []


def _drawn(
    view: PerformanceView,
    core_map: CoreMap,
    seconds: Seconds,
    columns: Sequence[Sequence[str | CoreLane]],
    width: int,
    glyphs: Glyphs,
) -> list[Line]:
    positions = _positions(core_map)
    column_width = (width + 2) // len(columns) - 2
    label_columns = max(
        len(item.label) for column in columns for item in column if isinstance(item, CoreLane)
    )
    blocks = []
    for column in columns:
        block = []
        for item in column:
            if isinstance(item, CoreLane):
                loads = loads_of(item, positions, seconds)
                label = f"{item.label:<{label_columns}} "
                block.append(_lane_line(view, item, label, loads, column_width, glyphs))
            else:
                block.append((muted(item),))
        blocks.append(block)
    return side_by_side(blocks, [column_width + 2] * (len(columns) - 1) + [column_width])


def _lane_line(
    view: PerformanceView, lane: CoreLane, label: str, loads: Values, width: int, glyphs: Glyphs
) -> Line:
    engine_cpus: tuple[int, ...] = ()
    clocks: tuple[float | None, ...] = ()
    if view.sample is not None:
        engine_cpus = view.sample.engine_cpus
        clocks = view.sample.core_clocks_ghz
    pointer = " "
    role = SpanRole.ACCENT
    if any(cpu.number in engine_cpus for cpu in lane.cpus):
        pointer = glyphs.here
        role = SpanRole.WRITING
    elif not any(cpu.is_allowed for cpu in lane.cpus):
        role = SpanRole.MUTED

    n_free_columns = width - len(label) - len(pointer) - 1 - _PERCENT_COLUMNS
    clock = _clock_text(lane, clocks)
    if n_free_columns - len(clock) < _LEAST_CELLS:
        clock = ""
    n_cells = cells_for_minute(n_free_columns - len(clock), glyphs)
    (strip,) = strip_rows(loads, n_cells, 1, glyphs, role)
    percent = "     -"
    if loads[-1] is not None:
        percent = lines.percent(loads[-1], 4)
    bracket = Span(lane.bracket, SpanRole.FRAME)
    return (bracket, muted(label), Span(pointer, role), *strip, Span(percent), muted(clock))


def _clock_text(lane: CoreLane, clocks: Sequence[float | None]) -> str:
    """Return the clock of a lane, if the cores have clocks of their own."""
    if len(clocks) < 2:
        return ""
    known = [
        clock
        for cpu in lane.cpus
        if cpu.clock < len(clocks) and (clock := clocks[cpu.clock]) is not None
    ]
    if not known:
        return ""
    return f"{max(known):4.1f} GHz"


# ---- clock and temperature


@record
class MinuteCurve:
    """A reading over the last minute."""

    name: str
    readings: tuple[float | None, ...]
    least: float
    most: float
    digits: int
    """Digits after the point."""

    @property
    def values(self) -> list[float | None]:
        """Readings as shares of the range that is drawn."""
        span = max(1e-9, self.most - self.least)
        return [
            None if reading is None else (reading - self.least) / span for reading in self.readings
        ]

    @property
    def is_varying(self) -> bool:
        """Whether the readings differ enough to show in a curve of several rows."""
        known = [value for value in self.values if value is not None]
        return max(known) - min(known) >= 1 / (_STEPS * _MOST_CURVE_ROWS)

    @property
    def range_text(self) -> str:
        """Lowest and highest reading."""
        known = [reading for reading in self.readings if reading is not None]
        texts = [f"{reading:.{self.digits}f}" for reading in (min(known), max(known))]
        return "-".join(dict.fromkeys(texts))


def curves_of(seconds: Seconds) -> list[MinuteCurve]:
    """Return clock and temperature over the last minute, as far as they are known."""
    clocks = tuple(None if sample is None else sample.clock_ghz for sample in seconds)
    degrees = tuple(None if sample is None else sample.temperature_c for sample in seconds)
    curves = []
    known_clocks = [clock for clock in clocks if clock is not None]
    if known_clocks:
        stated = [sample.most_clock_ghz or 0.0 for sample in seconds if sample is not None]
        curves.append(MinuteCurve("GHz", clocks, 0.0, max(*known_clocks, *stated), 1))
    if any(value is not None for value in degrees):
        curves.append(MinuteCurve("°C", degrees, _COLDEST_C, _HOTTEST_C, 0))
    return curves


def curve_rows(
    curves: Sequence[MinuteCurve], seconds: Seconds, width: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """Draw clock and temperature of the last minute; seconds in which heat slowed the cores are
    marked in the last curve."""
    n_rows = min(_MOST_CURVE_ROWS, rows // max(1, len(curves)))
    if not n_rows:
        return []
    throttled = frozenset(
        second for second, sample in enumerate(seconds) if sample is not None and sample.throttled
    )
    drawn: list[Line] = []
    for curve in curves:
        n_curve_rows = n_rows if curve.is_varying else 1
        remark = f" {curve.range_text}"
        n_cells = cells_for_minute(width - _NAME_COLUMNS - len(remark), glyphs)
        marked: frozenset[int] = frozenset()
        if curve is curves[-1]:
            marked = throttled
        strips = strip_rows(curve.values, n_cells, n_curve_rows, glyphs, SpanRole.READING, marked)
        names = [*[" " * _NAME_COLUMNS] * (n_curve_rows - 1), f"{curve.name:<{_NAME_COLUMNS}}"]
        remarks = [*[""] * (n_curve_rows - 1), remark]
        drawn += [
            (muted(name), *strip, Span(text))
            for name, strip, text in zip(names, strips, remarks, strict=True)
        ]
    return drawn
