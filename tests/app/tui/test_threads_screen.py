"""The threads screen and ``/threads``, with a scripted speed for each thread count."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from app.backend.local import engine_access
from app.backend.options import ChatOptions
from app.machine.sensors.tuning_conditions import Conditions, ConditionsWatch
from app.machine.tuning.battery_life import EnergyRun, EnergySample
from app.machine.tuning.past_runs import PastRuns
from app.machine.tuning.quiet import SETTLE_S
from app.machine.tuning.saved_tuning import SavedTuning
from app.program.settings import built_in_settings
from app.program.state import TunedChoice, TuningConditions
from app.text.figures import counted
from app.tui.app import JalopyApp
from app.tui.drawing.lines import text_of
from app.tui.screens.threads import ThreadsScreen
from app.tui.speed.watch import PerformanceWatch
from app.tui.widgets.thread_curve import ThreadCurve
from engine.errors import BrokenModelError
from engine.machine import host
from engine.machine.topology import Cores, read_cores
from engine.plan.lookahead import Lookahead
from engine.tuning.report import Curve
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_machine import ScriptedMachine
from tests.engine import sysfs_trees

pytestmark = pytest.mark.slow

LAPTOP_SPEEDS = {1: 1.0, 2: 1.7, 3: 1.5, 4: 1.4}


def use_cores(monkeypatch: pytest.MonkeyPatch, cores: Cores) -> None:
    monkeypatch.setattr(host, "cores", lambda: cores)


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PerformanceWatch, "others_cores", None)
    monkeypatch.setattr(PerformanceWatch, "measures_energy", False)
    use_cores(
        monkeypatch,
        read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "machine")),
    )


def laptop_script(**changes: Any) -> Script:
    return Script(**{"seconds_per_prompt_token": 0.02, "thread_speeds": LAPTOP_SPEEDS, **changes})


class Memory:
    """Fake state file."""

    def __init__(self, remembered: TunedChoice | None = None) -> None:
        self.remembered = remembered
        self.measured: TuningConditions | None = None
        self.doubt = ""
        self.trouble: str | None = None

    def recall(self, model: object) -> SavedTuning:
        return SavedTuning(self.remembered, self.measured, self.doubt)

    def remember(
        self, model: object, choice: TunedChoice | None, measured: TuningConditions | None
    ) -> str | None:
        if self.trouble is None:
            self.remembered = choice
            self.measured = measured
        return self.trouble


@asynccontextmanager
async def tuning(
    script: Script,
    memory: Memory | None = None,
    size: tuple[int, int] = (80, 24),
    machine: ScriptedMachine | None = None,
    try_lookahead: Any = lambda *_: {},
    runs: PastRuns | None = None,
    **settings: object,
) -> AsyncIterator[Driver]:
    memory = memory or Memory()
    machine = machine or ScriptedMachine()
    options = ChatOptions(
        open_model=script.open_model,
        sampling=lambda chosen, model, mode: None,
        watch_conditions=machine.watch,
        try_lookahead=try_lookahead,
        open_runs=lambda: runs or PastRuns(None),
    )
    chosen = dataclasses.replace(built_in_settings(), **settings)
    app = JalopyApp(chosen, Path("model.gguf"), options=options, clock=script.clock)
    remembering = {
        "recall_tuned": memory.recall,
        "remember_tuned": memory.remember,
        "kernels_version": lambda: "k1",
    }
    with patch.multiple(engine_access, **remembering):
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot, script)
            await driver.ready()
            yield driver
            for gate in (script.prefill_gate, script.token_gate):
                if gate:
                    gate.open()


async def shown(driver: Driver, part: str) -> str:
    """Wait until the screen shows a text, ignoring line breaks, and return all of its text."""
    await driver.until(lambda: part in unframed(driver), f"the screen shows {part!r}")
    return driver.screen_text()


def unframed(driver: Driver) -> str:
    """Return the text of the screen in one line, without frames and scroll bars."""
    return " ".join(driver.screen_text().replace("│", " ").replace("┃", " ").split())


def in_use(driver: Driver) -> TunedChoice | None:
    return threads_of(
        driver.app.engine_thread.state.threads.now
        if driver.app.engine_thread.state.threads is not None
        else None
    )


def threads_of(choice: TunedChoice | None) -> TunedChoice | None:
    return dataclasses.replace(choice, weights="", kv_type="") if choice is not None else None


async def test_details_say_what_bounds_the_best_speed() -> None:
    asked = []

    def bound_text(tps: float, threads: int) -> str:
        asked.append((round(tps), threads))
        return "bound by memory: 93 % of what this machine can read"

    async with tuning(laptop_script()) as driver:
        driver.app.performance.bound_text = bound_text
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
        await driver.pilot.press("tab")
        await shown(driver, "The best speed of writing is bound by memory: 93 %")
        assert set(asked) == {(85, 2)}


async def test_f4_measures_memory_prefetch() -> None:
    asked = []

    def try_lookahead(
        model: Any, session: Any, is_unwanted: Callable[[], bool], again: bool
    ) -> dict[str, Lookahead]:
        asked.append((again, is_unwanted()))
        return {"Q4_K": Lookahead(-4096, 24.1, 16.5)}

    async with tuning(laptop_script(), try_lookahead=try_lookahead) as driver:
        await driver.pilot.press("f4", "enter")
        line = "Q4_K: prefetch 4 kB, non-temporal: 24.1 instead of 16.5 GB/s"
        await shown(driver, "Done in")
        assert line not in unframed(driver)
        await driver.pilot.press("tab")
        await shown(driver, line)
        report = driver.app.engine_thread.state.tuning
        await driver.pilot.press("k")
        await driver.until(
            lambda: (
                driver.app.engine_thread.state.tuning is not report
                and driver.app.engine_thread.state.tuning.is_over
            )
        )
        assert driver.app.engine_thread.state.tuning.reasons.count(line) == 1
    assert asked == [(True, False)]


async def test_f4_measures_on_request_and_explains_the_best() -> None:
    async with tuning(laptop_script(), threads=2) as driver:
        engine_thread = driver.app.engine_thread
        await driver.pilot.press("f4")
        await shown(driver, "Enter measure (1-2 minutes)")
        await shown(driver, "not measured")
        assert engine_thread.state.tuning is None  # opening the screen measures nothing
        assert driver.app.screen._pending_parts == ()
        await driver.pilot.press("enter")
        await shown(driver, "2 threads write fastest: this CPU has 2 cores; the other 2 are their")
        text = await shown(driver, "Done in")
        lines = text.splitlines()
        assert lines.index(next(row for row in lines if "physical cores" in row)) < lines.index(
            next(row for row in lines if "and siblings" in row)
        )
        best = [row for row in lines if "best" in row and "▶  " in row]
        assert len(best) == 1
        assert best[0].count("best") == 2  # both columns
        first = engine_thread.state.tuning
        await driver.pilot.press("escape", "f4")
        await shown(driver, "Done in")
        assert engine_thread.state.tuning is first
        await driver.pilot.press("r")
        await driver.until(
            lambda: engine_thread.state.tuning is not first and engine_thread.state.tuning.is_over,
            "a new search",
        )
        # Digits choose for the column that is marked.
        await driver.pilot.press("3")
        await driver.until(lambda: in_use(driver) == TunedChoice(3, 2), "three write")
        await driver.pilot.press("enter")
        await shown(driver, "Your settings for threads override the saved choice")
        await driver.pilot.press("c", "4")
        await driver.until(lambda: in_use(driver) == TunedChoice(3, 4), "four read")
        reading = driver.app.screen.query_one("#thread-prefill", ThreadCurve)
        await driver.until(
            lambda: "1-4 set by hand" in text_of(reading.lines[-1]), "digits choose for reading"
        )
        await driver.pilot.press("9")  # there are four
        assert in_use(driver) == TunedChoice(3, 4)


async def test_a_high_screen_shows_larger_bars_steps_and_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_cores(
        monkeypatch, read_cores([0, 1], sysfs_trees.two_cores_four_threads(tmp_path / "other"))
    )

    def empty_rows() -> int:
        return sum(not row.strip() for row in driver.screen_text().splitlines())

    async with tuning(laptop_script(), size=(120, 40)) as driver:
        await driver.pilot.press("f4")
        before = await shown(driver, "What tuning measures")
        assert driver.app.performance.is_watched
        assert before.count("not yet") == 6
        await driver.until(lambda: empty_rows() <= 1, "the rows are filled")
        await driver.pilot.press("enter")
        await shown(driver, "Done in")
        await shown(driver, "✓ 2 threads for writing")
        for size in ((200, 50), (120, 40)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda: empty_rows() <= 1, "the rows are filled")
        bars = [row for row in driver.screen_text().splitlines() if "███" in row]
        assert len(bars) == 2 * 3 + 2  # rows of two counts and of two memory modes
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat, "the chat")
        assert not driver.app.performance.is_watched


async def test_a_search_does_not_change_the_conversation() -> None:
    async with tuning(laptop_script(replies=[["One."], ["Two."]])) as driver:
        await driver.ask("first?")
        session = driver.script.opened[0].sessions[0]
        before = list(session.tokens)
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
        assert session.tokens == before
        await driver.pilot.press("escape")
        reply = await driver.ask("second?")
        assert reply.text == "Two."
        assert "cached" in reply.details


async def test_enter_uses_and_saves_the_best_and_u_undoes() -> None:
    memory = Memory()
    async with tuning(
        laptop_script(thread_speeds={1: 1.0, 2: 1.5, 3: 2.0, 4: 3.0}), memory
    ) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
        assert in_use(driver) == TunedChoice(2, 2)
        await driver.pilot.press("enter")
        await driver.until(lambda: in_use(driver) == TunedChoice(4, 4), "four threads")
        assert threads_of(memory.remembered) == TunedChoice(4, 4)
        await shown(driver, "u undo (was 2 threads)")
        await shown(driver, "Saved for this machine and model")
        await driver.pilot.press("u")
        await driver.until(lambda: in_use(driver) == TunedChoice(2, 2), "two threads again")
        assert memory.remembered is None
        await shown(driver, "Nothing is saved yet")
        assert driver.script.opened[0].thread_calls[-1] == (2, 2)
        for digit in (3, 1):
            await driver.pilot.press(str(digit))
            await driver.until(lambda digit=digit: in_use(driver).decode == digit)
            await shown(driver, f"Enter keep {counted(digit, 'thread')} (2 reading)")
            await driver.pilot.press("enter")
            await driver.until(
                lambda digit=digit: memory.remembered and memory.remembered.decode == digit
            )
        await driver.pilot.press("u")
        await driver.until(
            lambda: threads_of(memory.remembered) == TunedChoice(3, 2), "what was remembered before"
        )


async def test_the_reply_after_keeping_tells_what_came_true() -> None:
    script = laptop_script(
        thread_speeds={1: 1.0, 2: 1.5, 3: 2.0, 4: 3.0},
        replies=[["Short."], [f" word{n}" for n in range(60)]],
    )
    async with tuning(script) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "now 75.0 → best 150 tok/s (+100 %) · 4 threads")
        await driver.pilot.press("enter")
        await driver.until(lambda: in_use(driver) == TunedChoice(4, 4), "four threads")
        await driver.pilot.press("escape")
        await driver.ask("a short one?")
        assert "promised" not in driver.screen_text()
        await driver.ask("a long one?")
        await driver.note("2.0 tok/s, was 75.0 (promised 150)")
        await driver.ask("another one?")
        assert sum("promised" in note for note in driver.notes()) == 1


async def test_a_digit_and_the_command_hold_for_this_run_until_kept() -> None:
    memory = Memory(TunedChoice(2, 2))
    async with tuning(laptop_script(), memory) as driver:
        await driver.pilot.press("f4", "1")
        await driver.until(lambda: in_use(driver) == TunedChoice(1, 2), "one writes")
        await shown(driver, "Saved for next time: 2 threads")
        assert memory.remembered == TunedChoice(2, 2)
        await driver.pilot.press("escape")
        await driver.say("/threads 3")
        await driver.note("now 3 threads (was 1 thread writing, 2 reading), for this run only")
        assert memory.remembered == TunedChoice(2, 2)
        await driver.pilot.press("f4")
        await shown(driver, "Enter keep 3 threads")
        await driver.pilot.press("enter")
        await driver.until(lambda: memory.remembered == TunedChoice(3, 3), "kept")
        await shown(driver, "Enter measure")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("busy", "because other programs used 0.4 cores"),
        ("uncertain", "because they are uncertain"),
    ],
)
async def test_doubtful_results_are_used_for_this_run_only(
    monkeypatch: pytest.MonkeyPatch, trouble: str, reason: str
) -> None:
    memory = Memory()
    machine = ScriptedMachine()
    script = laptop_script(thread_speeds={1: 3.0, 2: 1.0, 3: 1.0, 4: 1.0})
    if trouble == "uncertain":
        monkeypatch.setattr(Curve, "is_certain_from", lambda curve, count: False)
    else:
        monkeypatch.setattr(ConditionsWatch, "end", lambda watch: Conditions(others_cores=0.4))
    async with tuning(script, memory, machine=machine) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, f"Result not kept, {reason}")
        text = await shown(driver, "t try 1 thread")
        assert "Enter measure again" in text
        assert " keep " not in text.splitlines()[-1]
        await driver.pilot.press("t")
        await driver.until(lambda: in_use(driver) == TunedChoice(1, 1), "used")
        await shown(driver, "1 thread. For this run only")
        await shown(driver, "Enter measure again")
        assert memory.remembered is None
        first = driver.app.engine_thread.state.tuning
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.app.engine_thread.state.tuning is not first, "again")
        assert memory.remembered is None


async def test_escape_stops_a_search_and_a_second_one_goes_back() -> None:
    script = laptop_script(prefill_gate=Gate())
    async with tuning(script) as driver:
        await driver.pilot.press("f4", "enter")
        gate = script.prefill_gate
        assert gate is not None
        gate.allow(60)  # a few samples of decode and prefill
        await shown(driver, "round 1 of 6")
        await driver.until(gate.waiting.is_set, "the engine waits inside a sample")
        await driver.pilot.press("escape")
        await shown(driver, "Stopped: these are the results so far")
        await shown(driver, "Result not kept, because the measurement was stopped")
        assert isinstance(driver.app.screen, ThreadsScreen)
        assert driver.script.opened[0].sessions[0].tokens == []
        assert (driver.script.opened[0].threads, driver.script.opened[0].prefill_threads) == (2, 2)
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat, "the chat")


async def test_a_search_waits_for_the_reply_but_a_digit_works_at_once() -> None:
    script = laptop_script(replies=[[f" word{n}" for n in range(30)]], token_gate=Gate())
    async with tuning(script) as driver:
        gate = script.token_gate
        assert gate is not None
        await driver.say("hello")
        gate.allow(5)
        await driver.until(gate.waiting.is_set, "the reply is held")
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Measuring starts when it is free")
        await driver.pilot.press("1")
        gate.allow(1)
        await driver.until(
            lambda: in_use(driver) == TunedChoice(1, 2), "one thread, between two tokens"
        )
        assert driver.app.engine_thread.status.threads == 1
        # Who chooses by hand need not measure.
        await driver.until(
            lambda: "Measuring starts" not in driver.screen_text(), "the search is off"
        )
        await driver.pilot.press("r")
        gate.open()
        await shown(driver, "Done in")
        reply = driver.transcript.replies()[-1]
        assert reply.text.endswith("word29")


async def test_a_message_sent_while_threads_are_measured_is_answered() -> None:
    script = laptop_script(prefill_gate=Gate())
    async with tuning(script) as driver:
        await driver.pilot.press("f4", "enter")
        gate = script.prefill_gate
        assert gate is not None
        await driver.until(gate.waiting.is_set, "measuring")
        assert driver.chat.core.chat_session.is_busy
        driver.prompt.show_text("are you there?")
        driver.prompt.action_send()
        await driver.until(lambda: len(driver.chat.core.chat_session.queued_texts) == 1, "it waits")
        gate.open()
        await driver.until(
            lambda: driver.chat.core.chat_session.conversation.last_reply is not None, "the answer"
        )


async def test_quitting_while_threads_are_measured_ends_the_engine() -> None:
    script = laptop_script(prefill_gate=Gate())
    async with tuning(script) as driver:
        await driver.pilot.press("f4", "enter")
        assert script.prefill_gate is not None
        await driver.until(script.prefill_gate.waiting.is_set, "measuring")
        driver.app.engine_thread.close(20)
        assert not driver.app.engine_thread.is_alive


async def test_a_model_failing_during_tuning_is_reported_in_the_chat() -> None:
    script = laptop_script()
    async with tuning(script) as driver:
        script.prefill_error = BrokenModelError("model.gguf: NaN")
        await driver.pilot.press("f4", "enter")
        await driver.note("threads could not be measured: model.gguf: NaN")
        script.prefill_error = None
        await driver.pilot.press("f4", "enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert (await driver.ask("hi")).text == "Hello there."


async def test_a_full_context_is_not_measured() -> None:
    script = laptop_script(n_ctx=40, replies=[[" word"] * 60])
    async with tuning(script) as driver:
        await driver.ask("fill it")
        await driver.pilot.press("f4", "enter")
        text = await shown(driver, "nothing can be measured: the conversation leaves")
        assert "Enter use" not in text


async def test_a_tall_screen_explains_the_measurement() -> None:
    async with tuning(Script(), size=(120, 40)) as driver:
        await driver.pilot.press("f4")
        await shown(driver, "Tries every thread count")
        # in use, for writing and for reading
        await driver.until(
            lambda: driver.screen_text().count("▶  2 ") == 2, "two threads are in use"
        )
        await driver.until(lambda: driver.screen_text().count("   3 ─") == 2, "rows to be measured")
        await driver.pilot.resize_terminal(80, 20)
        await driver.hides("   3 ─")


async def test_without_a_model_a_narrow_screen_says_so_too() -> None:
    async with chatting(model=None, size=(40, 15)) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "No model is loaded. Press F3 in the chat to choose one.")


async def test_a_choice_by_hand_ends_the_search_even_after_the_help() -> None:
    script = laptop_script(replies=[[f" word{n}" for n in range(30)]], token_gate=Gate())
    async with tuning(script) as driver:
        await driver.say("hello")
        await driver.until(script.token_gate.waiting.is_set, "the reply is held")
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Measuring starts when it is free")
        screen = driver.app.screen
        await driver.pilot.press("1")
        await driver.until(
            lambda: "Measuring starts" not in driver.screen_text(), "the search is off"
        )
        await driver.pilot.press("f1")
        await driver.until(lambda: driver.app.screen is not screen, "the help")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is screen, "back")
        await driver.until(screen._timer._active.is_set, "it looks again")
        await driver.hides("Measuring starts")
        assert screen._pending_parts == ()


async def test_a_choice_that_cannot_be_saved_is_reported() -> None:
    memory = Memory()
    memory.trouble = "no directory is writable"
    async with tuning(laptop_script(), memory) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
        await driver.pilot.press("4")
        await shown(driver, "Enter keep 4 threads (2 reading)")
        await driver.pilot.press("enter")
        await driver.note("threads not remembered: no directory is writable")


async def test_a_search_waits_until_other_programs_are_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PerformanceWatch, "others_cores", 1.4)
    async with tuning(laptop_script()) as driver:
        await driver.pilot.press("f4")
        busy = "Other programs use 1.4 of 4 cores"
        await shown(driver, f"{busy}: Enter waits and begins when they are quiet, m measures")
        await shown(driver, "Enter measure when quiet")
        await driver.pilot.press("enter")
        await shown(driver, f"{busy}: measuring begins when they are quiet, m measures anyway")
        assert not driver.app.screen._is_measuring
        monkeypatch.setattr(PerformanceWatch, "others_cores", 0.1)
        await shown(driver, "Other programs are quiet: measuring begins in a moment")
        driver.script.clock.now_s += SETTLE_S
        await shown(driver, "Done in")


async def test_m_measures_anyway_and_escape_ends_the_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PerformanceWatch, "others_cores", 1.4)
    async with tuning(laptop_script()) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Esc do not wait")
        await driver.pilot.press("escape")
        await shown(driver, "Enter waits and begins")
        assert isinstance(driver.app.screen, ThreadsScreen)
        await driver.pilot.press("enter", "m")
        await shown(driver, "Done in")


async def test_after_a_restart_the_last_search_is_shown(tmp_path: Path) -> None:
    runs = PastRuns(tmp_path / "tunings.json")
    async with tuning(laptop_script(), runs=runs) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
    async with tuning(laptop_script(), runs=runs) as driver:
        await driver.pilot.press("f4")
        await shown(driver, "measured today")
        await shown(driver, "now 85.0 tok/s: the best that was measured · 2 threads")
        text = await shown(driver, "85.0 ±0.0 best")
        assert "Done in" not in text


async def test_a_race_is_written_and_replayed_side_by_side() -> None:
    script = laptop_script(replies=[[f" word{n}" for n in range(12)]])
    async with tuning(script) as driver:
        await driver.ask("hello?")
        session = driver.script.opened[0].sessions[0]
        before = list(session.tokens)
        await driver.pilot.press("f4", "a")
        await driver.until(lambda: driver.app.engine_thread.state.race is not None, "a race")
        await driver.until(lambda: driver.app.engine_thread.state.race.is_over, "written")
        await shown(driver, "1 thread 2.0 tok/s")
        await shown(driver, "4 threads 2.0 tok/s")
        text = await shown(driver, "word0")
        assert "word11" not in text
        driver.script.clock.now_s += 10.0
        text = await shown(driver, "word11")
        assert "times one thread" in text
        assert session.tokens == before
        assert (driver.script.opened[0].threads, driver.script.opened[0].prefill_threads) == (2, 2)
        await driver.pilot.press("escape")
        await shown(driver, "Enter measure")


async def test_the_longest_battery_is_measured_tried_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PerformanceWatch, "measures_energy", True)
    memory = Memory()
    samples = [EnergySample(1, 0.6, 23.0), EnergySample(2, 1.0, 25.0)]
    made = EnergyRun((1, 2), (*samples, *samples), "whole machine", 4, is_over=True)
    async with tuning(laptop_script(), memory) as driver:
        await driver.pilot.press("f4")
        await shown(driver, "b longest battery")
        await driver.pilot.press("b")
        await shown(driver, "this machine does not tell its power")  # options without a meter
        driver.app.engine_thread._link.update(energy=made)
        await shown(driver, "1 of 2 threads: 8 % slower, 40 % less energy per token")
        await shown(driver, "Enter use 1 thread")
        await driver.pilot.press("enter")
        await driver.until(lambda: in_use(driver) == TunedChoice(1, 2), "one thread")
        assert memory.remembered is None
        await shown(driver, "Enter keep 1 thread (2 reading)")
        await driver.pilot.press("enter")
        await driver.until(lambda: threads_of(memory.remembered) == TunedChoice(1, 2), "kept")
        await driver.pilot.press("escape")
        await shown(driver, "Enter measure")


async def test_where_energy_is_not_measured_battery_has_no_key() -> None:
    async with tuning(laptop_script()) as driver:
        await driver.pilot.press("f4", "b")
        await shown(driver, "Enter measure")
        assert "battery" not in driver.screen_text()


_SIZES = [(80, 24), (200, 60), (40, 15), (10, 4)]
_MACHINES = ["hybrid", "two sockets", "virtual machine", "quota"]


@pytest.mark.parametrize(("machine", "first"), [*zip(_MACHINES, _SIZES, strict=True)])
async def test_every_machine_fits_every_screen_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, first: tuple[int, int]
) -> None:
    root = tmp_path / "other"
    trees: dict[str, Callable[[], Cores]] = {
        "hybrid": lambda: read_cores(range(20), sysfs_trees.hybrid(root)),
        "two sockets": lambda: read_cores(range(24), sysfs_trees.two_sockets(root)),
        "virtual machine": lambda: read_cores(range(4), sysfs_trees.virtual_machine(root)),
        "quota": lambda: read_cores(
            range(4), sysfs_trees.with_quota(sysfs_trees.virtual_machine(root), "200000 100000")
        ),
    }
    use_cores(monkeypatch, trees[machine]())
    speeds = {n: min(n, 8) + 0.01 * n for n in range(1, 25)}
    async with tuning(laptop_script(thread_speeds=speeds), size=first) as driver:
        await driver.pilot.press("f4", "enter")
        report = lambda: driver.app.engine_thread.state.tuning  # noqa: E731
        await driver.until(lambda: report() is not None and report().is_over, "measured")
        for columns, rows in (first, *(size for size in _SIZES if size != first)):
            if driver.app.size != (columns, rows):
                await driver.pilot.resize_terminal(columns, rows)
            await driver.until(
                lambda columns=columns: max(map(len, driver.screen_text().splitlines())) <= columns,
                f"nothing is wider than {columns}",
            )
            if columns >= 40:
                await shown(driver, "Esc back")
                await shown(driver, "best")
            if columns >= 80:
                await shown(
                    driver,
                    "8 threads"
                    if machine in ("hybrid", "two sockets")
                    else "threads write fastest",
                )


# ---- /threads


async def test_threads_typed_in_the_chat_are_not_saved() -> None:
    remembered = TunedChoice(2, 4, True)
    memory = Memory(remembered)
    refused = {
        "5": "5 threads are not possible (1 to 4)",
        "0": "0 threads are not possible (1 to 4)",
        "two": "not a number of threads",
        "1 2 3": "not a number of threads",
    }
    async with tuning(laptop_script(), memory) as driver:
        await driver.say("/threads")
        note = await driver.note("2 threads. Saved for next time")
        assert "Saved for next time: 2 threads writing, 4 reading, each fixed to one core" in note
        assert "1 to 4" in note
        for typed, answer in refused.items():
            await driver.say(f"/threads {typed}")
            await driver.note(answer)
            assert in_use(driver) == TunedChoice(2, 2)
        await driver.say("/threads 1 3")
        await driver.note("now 1 thread writing, 3 reading (was 2 threads), for this run only")
        assert driver.script.opened[0].thread_calls[-1] == (1, 3)
        assert memory.remembered == remembered
        await driver.shows("1 thread │")
        await driver.say("/threads 4")
        await driver.note("now 4 threads (was 1 thread writing, 3 reading), for this run only")


@pytest.mark.smoke
async def test_threads_change_between_two_blocks_and_two_tokens() -> None:
    script = laptop_script(
        replies=[[f" word{n}" for n in range(20)]], token_gate=Gate(), prefill_gate=Gate()
    )
    async with tuning(script) as driver:
        gate = script.token_gate
        blocks = script.prefill_gate
        assert gate is not None
        assert blocks is not None
        await driver.say("a prompt of many words that is read slowly")
        blocks.allow(2)
        await driver.until(blocks.waiting.is_set, "the prompt is held")
        driver.chat.models.action_threads("1")
        blocks.allow(1)
        await driver.until(lambda: in_use(driver) == TunedChoice(1, 1), "granted in the middle")
        blocks.open()
        gate.allow(3)
        await driver.until(gate.waiting.is_set, "the reply is held")
        driver.chat.models.action_threads("4 1")
        gate.allow(1)
        await driver.until(lambda: in_use(driver) == TunedChoice(4, 1), "granted in the middle")
        assert driver.chat.core.chat_session.is_answering
        gate.open()
        reply = await driver.last_reply()
        assert reply.text.endswith("word19")
