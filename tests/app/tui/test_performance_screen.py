import re
from unittest.mock import Mock

import pytest

from app.machine.machine_monitor import MachineMonitor
from app.text.glyphs import ASCII
from app.tui.screens.performance import PerformanceScreen
from app.tui.speed.watch import InterfacePace
from app.tui.widgets.figure_lines import FigureLines
from app.tui.widgets.performance_strip import PerformanceStrip
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Gate, Script
from tests.app.machine.views import bare, view

WORDS = [f" word{n}" for n in range(30)]


@pytest.fixture
def samples(monkeypatch):
    """Count how often the machine is looked at."""
    taken = []
    take = MachineMonitor.sample

    def counted(self, *arguments):
        taken.append(arguments)
        return take(self, *arguments)

    monkeypatch.setattr(MachineMonitor, "sample", counted)
    return taken


def shown(driver, *parts: str) -> bool:
    text = driver.screen_text()
    return all(part in text for part in parts)


async def test_f2_shows_figures_looks_only_then_and_usual_keys_go_back(samples):
    async with chatting(Script(replies=[WORDS]), size=(100, 40)) as driver:
        await driver.ask("hello")
        assert samples == []
        assert not driver.app.bridge.is_watched
        assert driver.script.n_bandwidth_probes == 0
        for back in ("escape", "f2", "q"):
            await driver.say("/stats")
            await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
            await driver.until(lambda: shown(driver, "tok/s", "feed-forward", "writing 30 tokens", "10.0 GB/s"))
            assert re.search(r"this reply +2\.0", driver.screen_text())
            assert re.search(r"last second +2\.0", driver.screen_text())
            assert shown(driver, "Memory", "Cores", "program", "screen")
            assert samples
            assert driver.app.bridge.is_watched
            await driver.pilot.press(back)
            await driver.until(lambda: driver.app.screen is driver.chat)
            await driver.until(lambda: not driver.app.performance.is_watched)
            assert not driver.app.bridge.is_watched
        assert driver.script.n_bandwidth_probes == 1  # with the screen open and idle
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.app.bridge.is_watched)
        taken = len(samples)  # the machine is looked at once a second at any draw rate
        for _ in range(10):
            driver.script.clock.advance(0.25)
            driver.app.performance.look()
        assert len(samples) - taken in (2, 3)


async def test_a_reply_is_compared_under_its_own_thread_count():
    async with chatting(Script(replies=[WORDS]), size=(100, 40)) as driver:
        await driver.ask("hello")
        await driver.ask("again")
        await driver.say("/threads 1")
        await driver.until(lambda: driver.app.bridge.status.threads == 1)
        await driver.pilot.press("f2")
        await driver.until(lambda: shown(driver, "usual here    2.0", "2 threads · mmap"))
        await driver.until(lambda: 1 in driver.app.bridge.figures.read_gbps)  # for the next reply
        assert driver.app.performance.look().ceiling is None, "nothing is known of the threads that wrote it"


async def test_the_memory_is_not_measured_while_a_reply_runs():
    async with chatting(Script(replies=[WORDS], token_gate=Gate()), size=(100, 40)) as driver:
        await driver.say("hello")
        driver.script.token_gate.allow(9)
        await driver.until(driver.script.token_gate.waiting.is_set)
        await driver.pilot.press("f2")
        await driver.until(lambda: shown(driver, "limit: measured when idle"))
        assert len(driver.app.bridge.host.line) == 0
        assert driver.script.n_bandwidth_probes == 0
        for _ in range(30):  # a costly interface drains more rarely and says so
            driver.app.performance.pace.note_cost(0.5, True)
        await driver.pilot.press("escape", "ctrl+t")
        await driver.until(lambda: shown(driver, "slowed 4x"))
        driver.script.token_gate.open()
        reply = await driver.last_reply()
        assert reply.text.endswith("word29")


async def test_ctrl_t_toggles_the_strip_and_typing_goes_on(samples):
    async with chatting(Script(replies=[WORDS], token_gate=Gate()), size=(60, 20)) as driver:
        assert not driver.chat.query(PerformanceStrip), "nothing is laid out before anyone asks for it"
        await driver.pilot.press("ctrl+t")
        await driver.until(lambda: shown(driver, "- tok/s", "free"))
        strip = driver.chat.query_one(PerformanceStrip)
        await driver.until(lambda: strip.size.height == 3)  # flat lines on a narrow screen, else a column
        await driver.pilot.resize_terminal(100, 30)
        await driver.until(lambda: not strip.has_class("-flat") and strip.size.height > 10)
        await driver.until(lambda: shown(driver, "Memory", "program"))
        await driver.say("hello")
        driver.script.token_gate.allow(20)
        await driver.until(lambda: shown(driver, "500 ms a token", "█", "⣿"))
        await driver.type("next")
        await driver.until(lambda: shown(driver, "│ next"))
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        driver.app.screen._timer.pause()
        looked: list[int] = []
        look, driver.app.performance.look = driver.app.performance.look, lambda: looked.append(1)
        strip._refresh()
        assert looked == []  # not while another screen lies on it
        driver.app.performance.look = look
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        driver.prompt.show_text("")
        await driver.say("/strip")
        await driver.until(lambda: not shown(driver, "Memory"))
        assert not driver.app.performance.is_watched


@pytest.mark.slow
async def test_every_size_shows_something_and_none_breaks():
    async with chatting(Script(replies=[WORDS]), size=(1, 1)) as driver:
        await driver.pilot.press("ctrl+t")
        await driver.ask("hello")
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        screen = driver.app.screen
        await driver.until(lambda: screen.query_one("#figures", FigureLines).lines)
        for size in ((1, 1), (200, 60), (80, 24), (60, 20), (40, 15), (20, 6)):
            await driver.pilot.resize_terminal(*size)
            for shown_view in (view(), bare()):
                screen._show(shown_view)
                await driver.pilot.pause()
            if size[0] >= 60:
                await driver.until(lambda: shown(driver, "Speed", "Writing"))
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)


async def test_a_console_is_drawn_in_plain_characters(monkeypatch):
    monkeypatch.setenv("TERM", "linux")
    async with chatting(Script(replies=[WORDS]), size=(80, 24)) as driver:
        await driver.ask("hello")
        await driver.pilot.press("f2")
        await driver.until(lambda: shown(driver, "writing 30 tokens"))
        assert not set("▁▂▃▄▅▆▇█░▒▓▲╌┄━╸─╭│⣿✓→") & set(driver.screen_text())
        await driver.shows(ASCII.full)


async def test_lines_that_stay_the_same_are_not_drawn_again():
    async with chatting(size=(100, 40)) as driver:
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        lines, drawn = driver.app.screen.query_one("#figures", FigureLines), []
        driver.app.screen._timer.pause()
        driver.app.screen._show(view())
        await driver.pilot.pause()
        lines.refresh = lambda *regions, **options: drawn.append((regions, options))
        driver.app.screen._show(view())
        assert drawn == []
        driver.app.screen._show(view(interface_cost=0.07))
        assert len(drawn) == 1
        assert drawn[0][0][0].height == 1
        assert drawn[0][0][0].width < 40, "what changed of the row"


async def test_the_flat_strip_has_its_figures_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterfacePace, "leaves_out", lambda pace, number: True)
    async with chatting(size=(60, 20)) as driver:
        await driver.pilot.press("ctrl+t")
        await driver.until(lambda: "program" in "\n".join(driver.screen_text().splitlines()[:4]), "it is not empty")


def test_a_strip_without_a_size_draws_nothing() -> None:
    strip = PerformanceStrip(Mock(pace=InterfacePace(), look=view))
    strip.display = True
    strip.set_class(True, "-flat")
    strip.draw()
    assert strip.lines == []
