"""Weights and KV types on the thread screen, and doubts about saved tuning."""

from pathlib import Path

import pytest

from app.program.state import TunedChoice, TuningConditions
from app.tui.screens.threads import ThreadsScreen
from app.tui.speed.watch import PerformanceWatch
from engine.errors import MemoryPlanError
from engine.machine.topology import read_cores
from tests.app.chat_driver import Driver
from tests.app.fake_engine import FakeModel, Gate
from tests.app.scripted_machine import ScriptedMachine
from tests.app.tui.test_threads_screen import (
    Memory,
    in_use,
    laptop_script,
    shown,
    tuning,
    use_cores,
)
from tests.engine import sysfs_trees

pytestmark = pytest.mark.slow

FASTER = {"weight_speeds": {"huge": 1.12}}


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_cores(
        monkeypatch,
        read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "machine")),
    )
    monkeypatch.setattr(PerformanceWatch, "others_cores", None)
    monkeypatch.setattr("engine.tuning.trials.gives_huge_pages", lambda: True)


def model_of(driver: Driver) -> FakeModel:
    return driver.script.opened[0]


async def test_huge_pages_are_compared_used_and_released() -> None:
    memory = Memory()
    async with tuning(laptop_script(**FASTER), memory, size=(100, 40)) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "With weights in huge pages this model writes 12 % faster (12 to 12)")
        text = await shown(driver, "Enter keep 2 threads, huge pages")
        assert "now 85.0 → best 95.2 tok/s (+12 %) · 2 threads, huge pages · costs 1" in text
        huge = next(row for row in text.splitlines() if "  huge pages " in row)
        assert huge.split().count("best") == 2
        assert huge.split()[4:7] == ["95.2", "±0.0", "+12"]
        assert model_of(driver).weights_mode == "mmap"
        assert not model_of(driver).has_copy, "the copy of the comparison is freed"
        driver.script.weights_error = MemoryPlanError(
            "model.gguf: weights in huge pages need 2.0 GB of their own"
        )
        await driver.pilot.press("enter")
        await driver.note(
            "weights stay where they are: model.gguf: weights in huge pages need 2.0 GB"
        )
        assert memory.remembered is None
        assert model_of(driver).weights_mode == "mmap"
        driver.script.weights_error = None
        await driver.pilot.press("enter")
        await shown(driver, "weights in huge pages. Saved for this machine and model")
        assert model_of(driver).weights_mode == "huge"
        assert memory.remembered == TunedChoice(2, 2, False, "huge", "")
        assert driver.app.engine_thread.state.figures.facts is not None
        assert driver.app.engine_thread.state.figures.facts.weights_mode == "huge"
        await driver.pilot.press("u")
        await driver.until(lambda: model_of(driver).weights_mode == "mmap", "the map again")
        assert not model_of(driver).has_copy
        await driver.until(lambda: memory.remembered is None, "forgotten")


async def test_weights_move_between_two_tokens_of_a_reply() -> None:
    script = laptop_script(replies=[[f" word{n}" for n in range(20)]], token_gate=Gate(), **FASTER)
    async with tuning(script) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Done in")
        await driver.pilot.press("escape")
        gate = script.token_gate
        assert gate is not None
        await driver.say("hello")
        gate.allow(3)
        await driver.until(gate.waiting.is_set, "the reply is held")
        await driver.pilot.press("f4", "enter")
        gate.allow(1)
        await driver.until(lambda: model_of(driver).weights_mode == "huge", "granted in the middle")
        gate.open()
        await driver.pilot.press("escape")
        assert (await driver.last_reply()).text.endswith("word19")


async def test_stopping_the_comparison_of_weights_frees_the_copy() -> None:
    script = laptop_script(prefill_gate=Gate(), **FASTER)
    async with tuning(script, size=(100, 40)) as driver:
        gate = script.prefill_gate
        assert gate is not None
        await driver.pilot.press("f4", "enter")
        await shown(driver, "huge pages: a copy of 1 MB next to the file's own pages")
        assert not model_of(driver).has_copy
        for _ in range(100):
            gate.allow(200)
            await driver.until(lambda: gate.waiting.is_set() or model_of(driver).has_copy)
            if model_of(driver).has_copy:
                break
        await driver.until(gate.waiting.is_set, "a sample of the weights is held")
        await driver.pilot.press("escape")
        await shown(driver, "Stopped: these are the results so far")
        assert model_of(driver).weights_mode == "mmap"
        assert not model_of(driver).has_copy
        assert model_of(driver).sessions[0].tokens == []
        assert isinstance(driver.app.screen, ThreadsScreen)


# ---- KV types


async def test_missing_gains_are_shown_and_k_compares_kv_types() -> None:
    memory = Memory()
    async with tuning(laptop_script(kv_speeds={"f32": 1.2}), memory, size=(100, 40)) as driver:
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Weights stay mapped from the file: huge pages brought no gain")
        await shown(driver, "Enter keep 2 threads")
        await driver.pilot.press("k")
        await shown(driver, "A KV cache of f32 writes 20 % faster (20 to 20)")
        text = await shown(driver, "Enter keep 2 threads, KV cache f32")
        # The earlier result is still shown.
        assert "2 threads write fastest" in " ".join(text.split())
        sessions = model_of(driver).sessions
        # Less exact types are not compared, even if they are faster.
        assert [session.kv_type for session in sessions[1:]] == [
            "f16",
            "f32",
        ]
        assert all(session.is_closed for session in sessions[1:])
        assert not sessions[0].is_closed
        assert sessions[0].tokens == []
        await driver.pilot.press("enter")
        await shown(driver, "The next time it opens, its KV cache is f32")
        assert memory.remembered == TunedChoice(2, 2, False, "mmap", "f32")
        await driver.pilot.press("u")
        await driver.until(lambda: memory.remembered is None, "forgotten")


@pytest.mark.smoke
async def test_k_without_a_measurement_measures_threads_first() -> None:
    script = laptop_script(prefill_gate=Gate())
    async with tuning(script) as driver:
        gate = script.prefill_gate
        assert gate is not None
        await driver.pilot.press("f4", "enter")
        await driver.until(gate.waiting.is_set, "measuring")
        await driver.pilot.press("escape")
        await driver.until(lambda: not driver.chat.core.chat_session.is_tuning, "stopped")
        gate.open()
        await driver.pilot.press("k")
        report = lambda: driver.app.engine_thread.state.tuning  # noqa: E731
        await driver.until(
            lambda: report().is_over and report().comparison("kv") is not None, "all of it"
        )
        assert report().comparison("kv").is_measured
        assert report().comparison("weights").is_measured


# ---- doubts


async def test_saved_tuning_is_used_and_a_doubt_shown_once() -> None:
    memory = Memory(TunedChoice(2, 2, False, "mmap", "f32"))
    memory.doubt = "threads were tuned on mains, now on battery"
    async with tuning(laptop_script(), memory) as driver:
        await driver.note("threads were tuned on mains, now on battery: F4 measures again")
        assert model_of(driver).sessions[0].kv_type == "f32"
        assert driver.app.engine_thread.state.tuning is None
        assert driver.app.screen is driver.chat
        model = driver.chat.core.chat_session.model
        await driver.say("/model other.gguf")
        await driver.until(
            lambda: driver.chat.core.chat_session.model not in (None, model),
            "the other model is open",
        )
        await driver.ask("hello")
        # The notes of the earlier model are gone.
        assert not any("measures again" in note for note in driver.notes())


async def test_a_result_with_swapping_is_used_but_not_saved() -> None:
    memory = Memory()
    machine = ScriptedMachine()
    async with tuning(
        laptop_script(thread_speeds={1: 1.0, 2: 1.5, 3: 2.0, 4: 3.0}), memory, (100, 40), machine
    ) as driver:
        swap_memory = machine.swap_memory

        def read_swap() -> object:
            machine.swapped_bytes += 64 << 20
            return swap_memory()

        machine.swap_memory = read_swap  # type: ignore[method-assign]
        await driver.pilot.press("f4", "enter")
        await shown(driver, "Result not kept, because the machine was swapping.")
        await driver.pilot.press("tab")
        await shown(driver, "The machine was swapping, so these figures are not saved.")
        await driver.pilot.press("tab")
        machine.swap_memory = swap_memory  # type: ignore[method-assign]
        await shown(driver, "KV types")  # the first search is over
        # A quiet search afterwards does not make the counts more reliable.
        await driver.pilot.press("k")
        await shown(driver, "The KV cache stays f16")
        await shown(driver, "Result not kept, because the machine was swapping.")
        await shown(driver, "Enter measure again · t try 4 threads")
        await driver.pilot.press("t")
        await driver.until(lambda: in_use(driver) == TunedChoice(4, 4), "used")
        await shown(driver, "4 threads. For this run only")
        assert memory.remembered is None
        # Enter measures again, and only a result without swapping is kept.
        await driver.pilot.press("enter")
        await shown(driver, "Enter keep 4 threads")
        assert "swapping" not in driver.screen_text()
        assert memory.remembered is None
        await driver.pilot.press("enter")
        await shown(driver, "4 threads. Saved for this machine and model")
        assert memory.remembered == TunedChoice(4, 4, False, "mmap", "")


async def test_conditions_that_affect_a_result_are_shown_with_it() -> None:
    """Measure on battery, with other programs, without memory for a copy, and with settings."""
    memory = Memory(TunedChoice(2, 2))
    machine = ScriptedMachine()
    machine.on_mains = False
    script = laptop_script(thread_speeds={1: 2.0, 2: 1.0}, has_room_for_both=False)
    async with tuning(script, memory, (100, 60), machine, weights="mmap", kv_type="f16") as driver:
        cpu_times = machine.cpu_times

        def read_times(percpu: bool) -> object:
            machine.now_s += 10.0
            machine.busy_s += 12.0
            return cpu_times(percpu)

        machine.cpu_times = read_times  # type: ignore[assignment, method-assign]
        await driver.pilot.press("f4", "enter")
        await shown(driver, "huge pages are not tried: both at once do not fit into memory")
        await shown(
            driver,
            "Your settings for weights and kv_type override the saved choice",
        )
        await shown(driver, "on battery ─╮")
        await driver.pilot.press("tab")
        await shown(driver, "Measured on battery, so this applies on battery only.")
        await shown(driver, "measure again without them")
        await driver.pilot.press("tab")
        await shown(driver, "1 thread writes fastest. Unreliable: other programs used 1.2 cores")
        await shown(driver, "Result not kept, because other programs used 1.2 cores.")
        assert model_of(driver).weight_calls == []
        await shown(driver, "Enter measure again · t try 1 thread")
        await driver.pilot.press("t")
        await driver.until(lambda: in_use(driver) == TunedChoice(1, 1), "used")
        await shown(driver, "1 thread. Saved for next time: 2 threads")
        assert memory.remembered == TunedChoice(2, 2)
        assert memory.measured is None
        # Enter measures again, and a result without other programs is kept with its conditions.
        machine.cpu_times = cpu_times  # type: ignore[method-assign]
        await driver.pilot.press("enter")
        await shown(driver, "Enter keep 1 thread")
        await shown(driver, "on battery ─╮")
        await driver.until(
            lambda: "ther programs used" not in driver.screen_text(), "other programs are quiet"
        )
        assert memory.remembered == TunedChoice(2, 2)
        await driver.pilot.press("enter")
        await driver.until(lambda: memory.measured is not None, "remembered")
        assert memory.remembered == TunedChoice(1, 1)
        assert memory.measured == TuningConditions("k1", True)
