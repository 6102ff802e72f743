import dataclasses
import re
from functools import partial
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from app.backend.status import Activity, EngineStatus
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.sample import MachineSample
from app.program.manual import page
from app.tui.screens import performance
from app.tui.screens.performance import PerformanceScreen
from app.tui.speed.dashboard import dashboard_lines
from app.tui.speed.watch import InterfacePace, PerformanceWatch, _mean_others
from app.tui.widgets.figure_lines import FigureLines
from app.tui.widgets.performance_strip import PerformanceStrip
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.app.machine.sensors.views import empty_view, view

WORDS = [f" word{n}" for n in range(30)]


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Count the samples of the machine."""
    taken: list[object] = []
    take = MachineMonitor.sample_load

    def counted(self, *arguments):
        taken.append(arguments)
        return take(self, *arguments)

    monkeypatch.setattr(MachineMonitor, "sample_load", counted)
    return taken


async def sees(driver: Driver, *parts: str) -> None:
    for part in parts:
        await driver.shows(part)


async def opened(driver: Driver) -> FigureLines:
    """Open the screen and return its figures."""
    await driver.pilot.press("f2")
    await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
    figures = driver.app.screen.query_one("#figures", FigureLines)
    await driver.until(lambda: figures.lines)
    return figures


async def test_the_screen_measures_only_while_it_is_shown(samples):
    async with chatting(Script(replies=[WORDS]), size=(100, 40)) as driver:
        watch = driver.app.performance
        await driver.ask("hello")
        samples.clear()  # those of the reply, if it took until the timer's next tick
        watch.look()
        assert (
            samples,
            driver.script.n_bandwidth_probes,
            driver.app.engine_thread.inbox.is_watched,
        ) == (
            [],
            0,
            False,
        )
        for back in ("escape", "f2", "q"):
            await opened(driver)
            assert driver.app.engine_thread.inbox.is_watched
            await sees(
                driver,
                "tok/s",
                "feed-forward",
                "writing 30 tokens",
                "Memory",
                "Cores",
                "program",
                "screen",
            )
            assert re.search(r"this reply +2\.0", driver.screen_text())
            assert re.search(r"last second +2\.0", driver.screen_text())
            await driver.shows("10.0 GB/s")
            assert driver.script.n_bandwidth_probes == 1
            await driver.pilot.press(back)
            await driver.until(lambda: driver.app.screen is driver.chat)
            await driver.until(lambda: not watch.is_watched)
            assert not driver.app.engine_thread.inbox.is_watched
        taken = len(samples)
        for _ in range(10):  # one sample a second at any rate of drawing
            driver.script.clock.advance(0.25)
            watch.read_view()
        assert len(samples) - taken in (2, 3)


@pytest.mark.parametrize(
    ("activity", "n_samples"), [(Activity.WRITING, 5), (Activity.READING, 5), (Activity.READY, 0)]
)
def test_a_reply_is_sampled_each_second_without_a_view(
    samples: list[object], activity: Activity, n_samples: int
) -> None:
    engine_thread = Mock(status=EngineStatus(activity))
    watch = PerformanceWatch(engine_thread)
    for quarter in range(20):
        engine_thread.now_s = lambda quarter=quarter: 100.0 + quarter / 4
        watch.look()
    assert len(samples) == n_samples
    assert not watch.is_watched


def test_any_speed_has_a_bound_where_memory_was_measured() -> None:
    watch = PerformanceWatch(Mock(state=Mock(figures=view().figures)))
    assert watch.bound_text(5.2, 2) == "bound by memory: 81 % of what this machine can read"
    assert watch.bound_text(2.0, 2).startswith("bound by the cores: they compute at 31 %")
    assert watch.bound_text(5.1, 4) == ""


async def test_a_reply_is_compared_at_its_own_thread_count():
    words = [*WORDS, *WORDS]
    async with chatting(Script(replies=[words]), size=(100, 40)) as driver:
        await driver.ask("hello")
        await driver.ask("again")
        await driver.say("/threads 1")
        await driver.until(lambda: driver.app.engine_thread.status.threads == 1)
        await driver.pilot.press("f2")
        await sees(driver, "usual here    2.0", "· 1 thread")
        await driver.until(
            lambda: 1 in driver.app.engine_thread.state.figures.read_gbps
        )  # for the next reply
        assert driver.app.performance.read_view().ceiling is None, (
            "nothing is known of the threads that wrote it"
        )


async def test_the_title_says_that_the_model_is_prepared() -> None:
    gate = Gate()
    async with chatting(Script(open_gate=gate), wait=False) as driver:
        gate.allow(2)
        await driver.until(lambda: "setup 1/2" in driver.screen_text(), "it compiles")
        for key in ("f2", "f5"):
            await driver.pilot.press(key)
            await driver.until(lambda: "preparing the model: 50 %" in driver.screen_text(), key)
            assert "no model is open" not in driver.screen_text()
            await driver.pilot.press("escape")
        gate.open()


async def test_the_title_has_the_threads_that_compute() -> None:
    async with chatting() as driver:
        await driver.ask("hello")
        await driver.say("/threads 1")
        await driver.note("1 thread")
        await driver.pilot.press("f2")
        await driver.until(lambda: " 1 thread " in driver.screen_text().splitlines()[0], "1 thread")


async def test_a_reply_is_sampled_from_its_beginning(samples, monkeypatch):
    monkeypatch.setattr(PerformanceWatch, "look", lambda watch: None)
    async with chatting(Script(replies=[WORDS], token_gate=Gate()), size=(100, 40)) as driver:
        watch = driver.app.performance
        driver.script.clock.advance(100.0)
        await driver.say("hello")
        await driver.until(lambda: samples)
        assert not watch.is_watched
        driver.script.token_gate.open()
        await driver.last_reply()


async def test_a_running_reply_is_shown_and_costly_drawing_is_rare():
    async with chatting(Script(replies=[WORDS], token_gate=Gate()), size=(100, 40)) as driver:
        await driver.say("hello")
        driver.script.token_gate.allow(9)
        await driver.until(driver.script.token_gate.waiting.is_set)
        await driver.pilot.press("f2")
        await driver.shows("limit: not measured yet")
        assert len(driver.app.engine_thread._worker.queue) == 0
        assert driver.script.n_bandwidth_probes == 0
        await driver.pilot.press("escape", "ctrl+t")
        driver.script.token_gate.allow(11)
        await sees(driver, "500 ms/token", "█", "⣿")
        for _ in range(30):
            driver.app.performance.pace.add_cost(0.5, True)
        await driver.shows("redraws less")
        driver.script.token_gate.open()
        assert (await driver.last_reply()).text.endswith("word29")


async def test_the_strip_polls_while_visible_without_blocking_keys(samples):
    async with chatting(Script(replies=[WORDS]), size=(100, 30)) as driver:
        assert not driver.chat.query(PerformanceStrip), (
            "nothing is laid out before anyone asks for it"
        )
        await driver.say("/strip")
        await sees(driver, "tok/s", "Memory", "free")
        await driver.type("next")
        await driver.shows("│ next")
        driver.prompt.show_text("")
        await driver.say("/stats")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        driver.app.screen._timer.pause()
        look = driver.app.performance.read_view
        looked = []
        driver.app.performance.read_view = lambda: (looked.append(1), look())[1]
        driver.chat._strip._refresh()
        assert looked == []
        await driver.pilot.press("escape", "ctrl+t")
        await driver.hides("Memory")
        assert not driver.app.performance.is_watched


async def test_every_size_shows_figures():
    async with chatting(Script(replies=[WORDS]), size=(200, 60)) as driver:
        await driver.ask("hello")
        await driver.pilot.press("ctrl+t")
        strip = driver.chat.query_one(PerformanceStrip)
        strip._watch.read_view = view  # a busy machine slows the drawing, which is a line more
        for size in [(200, 60), (100, 30), (80, 24), (60, 20), (40, 15), (20, 6), (1, 1)]:
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda size=size: driver.chat.size == size)
            await driver.until(lambda size=size: strip.has_class("-flat") == (size[0] < 76))
            if size[0] >= 60:
                await driver.until(
                    lambda size=size: (
                        strip.size.height == 3 if size[0] < 76 else strip.size.height > 10
                    )
                )
                await sees(driver, "tok/s", "free")
            await opened(driver)
            for shown_view in (view(), empty_view()):
                driver.app.screen._show(shown_view)
                await driver.pilot.pause()
            if size[0] >= 60:
                await sees(driver, "Speed", "Writing")
            await driver.pilot.press("escape")
            await driver.until(lambda: driver.app.screen is driver.chat)


async def test_only_changed_lines_are_redrawn():
    async with chatting(size=(100, 40)) as driver:
        lines = await opened(driver)
        drawn = []
        driver.app.screen._timer.pause()
        driver.app.screen._show(view())
        await driver.pilot.pause()
        lines.refresh = lambda *regions, **options: drawn.append((regions, options))
        driver.app.screen._show(view())
        assert drawn == []
        driver.app.screen._show(view(interface_cost=0.07))
        ((regions, _),) = drawn
        assert [region.height for region in regions] == [1]


async def test_the_flat_strip_has_its_figures_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterfacePace, "leaves_out", lambda pace, number: True)
    async with chatting(size=(60, 20)) as driver:
        await driver.pilot.press("ctrl+t")
        await driver.until(
            lambda: "program" in "\n".join(driver.screen_text().splitlines()[:4]), "it is not empty"
        )


def test_a_strip_without_a_size_draws_nothing() -> None:
    strip = PerformanceStrip(Mock(pace=InterfacePace(), look=view))
    strip.display = True
    strip.set_class(True, "-flat")
    strip.draw()
    assert strip.lines == []


@pytest.mark.parametrize("screen_key", ["f2", "f4"])
async def test_a_question_mark_explains_every_word(screen_key: str) -> None:
    async with chatting(size=(80, 24)) as driver:
        await driver.pilot.press(screen_key)
        await sees(driver, "? words")
        await driver.pilot.press("question_mark")
        rows = [row.strip() for row in page("words").splitlines() if row.startswith("  ")]
        await sees(driver, *rows)
        assert len(rows) >= 8
        assert driver.app.screen.query_one("#manual").max_scroll_y == 0
        await driver.pilot.press("escape")
        await sees(driver, "? words")


async def test_an_unchanged_view_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def count_drawing(shown_view, width, *rest):
        drawn.append(width)
        return dashboard_lines(shown_view, width, *rest)

    monkeypatch.setattr(performance, "dashboard_lines", count_drawing)
    async with chatting(size=(100, 40)) as driver:
        await opened(driver)
        screen = driver.app.screen
        screen._timer.pause()
        await driver.pilot.pause()
        first = view()
        changed = dataclasses.replace(first, interface_cost=0.07)
        n_drawings = []
        for shown_view in (first, dataclasses.replace(first), changed, changed):
            drawn.clear()
            screen._show(shown_view)
            n_drawings.append(len(drawn))
        assert n_drawings == [1, 0, 1, 0]
        await driver.pilot.resize_terminal(90, 40)
        await driver.until(lambda: drawn[-1:] == [90], "it is drawn in the new width")


def test_the_use_of_other_programs_is_averaged_over_a_time():
    samples = [
        MachineSample(at_s=float(second), interval_s=1.0, others_cores=others_cores)
        for second, others_cores in ((10, 0.0), (11, 1.0), (12, 2.0), (13, None), (14, 8.0))
    ]
    assert _mean_others(samples, 10.5, 11.5) == 1.5
    assert _mean_others(samples, 11.5, 12.9) == 2.0
    assert _mean_others(samples, 20.0, 21.0) == 0.0
    assert _mean_others([], 0.0, 1.0) == 0.0


async def test_readings_are_drawn_rarely_and_activities_at_once() -> None:
    async with chatting(size=(100, 40)) as driver:
        await opened(driver)
        screen = driver.app.screen
        screen._timer.pause()
        await driver.pilot.pause()
        screen._watch.pace.divisor = 1
        screen._refresh_numbers = count(1)
        drawn: list[int] = []
        base = view()
        engine = SimpleNamespace(
            status=base.status, state=SimpleNamespace(figures=base.figures), idle_work_name=""
        )
        screen._engine_thread = engine

        def poll(activity: Activity, n_polls: int) -> None:
            """Poll while the engine does something, and record the numbers of the drawings."""
            engine.status = dataclasses.replace(base.status, activity=activity)
            for number in range(1, n_polls + 1):
                screen.show_figures = partial(drawn.append, number)
                screen.poll()
                if drawn[-1:] == [number]:
                    screen._shown = (
                        dataclasses.replace(base, status=engine.status),
                        "",
                        screen.size,
                        screen.body_rows,
                    )

        poll(Activity.READY, 1)
        drawn.clear()
        poll(Activity.READY, 8)
        assert drawn == [3, 7], "nothing happens"
        drawn.clear()
        poll(Activity.WRITING, 6)
        assert drawn == [1, 3, 5], "a reply is written"
        drawn.clear()
        poll(Activity.READY, 1)
        assert drawn == [1]
        del screen.show_figures
        screen._engine_thread = driver.app.engine_thread
