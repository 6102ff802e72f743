"""The doctor screen: readings at once, measurements when the engine is free, no hidden polling."""

import dataclasses
from typing import Any

import pytest

from app.machine.doctor import examine
from app.machine.doctor.readings import CoreReadings
from app.models.library import advice
from app.models.library.measure import EngineReadings
from app.models.library.speed import ModelSpeed
from app.tui.screens import doctor as module
from app.tui.screens.doctor import DoctorScreen
from engine.measure.fit import MachineMemory, MachineRates, fit
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

GIB = 1 << 30
MEMORY = MachineMemory(8 * GIB, 6 * GIB)
RATES = MachineRates(12.0, {"Q4_K": 10.5}, {"Q4_K": 40.0})


def examination() -> examine.Examination:
    found = advice.suggestions(MEMORY, RATES)
    needs = advice.needs_of_size(8e9, "Q4_K_M")
    fitting = fit(needs, MEMORY, RATES, 4096)
    return examine.Examination(
        engine=EngineReadings("avx2", 2, 12.0, 40.0, "/cache/kernels-1", 1_000_000),
        rates=RATES,
        memory=MEMORY,
        needs=needs,
        fit=fitting,
        speed=ModelSpeed(fitting.decode_tps, fitting.prefill_tps),
        suggestions=tuple(found),
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the results or exceptions of examinations, in turn; the last one repeats."""
    found: list[Any] = [examination()]

    def examine_machine(*_: Any) -> Any:
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    original = chat_driver.options_for
    monkeypatch.setattr(
        chat_driver,
        "options_for",
        lambda script: dataclasses.replace(original(script), examine=examine_machine),
    )
    monkeypatch.setattr(module, "read_cores", lambda: CoreReadings("Old CPU", 2, 4, 4, 2))
    return found


def screen_of(driver: Driver) -> DoctorScreen:
    screen = driver.app.screen
    assert isinstance(screen, DoctorScreen)
    return screen


async def measured(driver: Driver) -> None:
    await driver.until(lambda: isinstance(driver.app.screen, DoctorScreen), "the screen is open")
    await driver.until(
        lambda: "Models for this machine" in driver.screen_text(), "the measurement is shown"
    )


async def test_the_doctors_title_has_room_during_compilation(answers: list[Any]) -> None:
    gate = Gate()
    async with chatting(Script(open_gate=gate), wait=False) as driver:
        gate.allow(2)
        await driver.pilot.press("f5")
        await driver.shows("Doctor   preparing the model: 50 %")
        await driver.shows("setup 1/2")


async def test_a_key_and_a_command_open_the_doctor_and_esc_closes_it(answers: list[Any]) -> None:
    answers[:] = [RuntimeError("out of\x1b[31m luck"), examination()]
    async with chatting(size=(120, 26)) as driver:
        await driver.ask("hello")
        before = driver.app.engine_thread.status
        await driver.pilot.press("f5")
        await driver.shows("Not measured: RuntimeError: out of")
        await driver.pilot.press("r")
        await measured(driver)
        # the last reply's figures outlive the examination
        assert driver.app.engine_thread.status == before
        await driver.shows("12.0 GB/s")  # it costs speed, so it is no check that is fine
        await driver.hides("Old CPU uses AVX2")
        await driver.pilot.press("tab")
        await driver.shows("checks passed ─")
        await driver.shows("Old CPU uses AVX2")
        await driver.pilot.press("tab")
        await driver.shows("checks passed   Tab shows them")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.say("/doctor")
        await measured(driver)
        for size in ((80, 24), (60, 20), (40, 15), (200, 60)):
            await driver.pilot.resize_terminal(*size)
            await driver.until(
                lambda size=size: all(
                    len(line.rstrip()) <= size[0] for line in driver.screen_text().splitlines()
                )
            )
            await driver.shows("Esc back")


async def test_a_large_screen_lists_models_and_passed_checks(answers: list[Any]) -> None:
    async with chatting(size=(120, 60)) as driver:
        await driver.pilot.press("f5")
        await measured(driver)
        for part in (
            "a model of 8B · Q4_K_M",
            "▶  8 GB",
            "▶ fits in 8",
            "Old CPU uses AVX2",
        ):
            await driver.shows(part)
        await driver.shows("Enter download · Tab hide passed checks")
        await driver.pilot.press("tab")
        await driver.hides("Old CPU uses AVX2")


async def test_what_only_needs_waiting_is_not_to_mend(answers: list[Any]) -> None:
    busy = dataclasses.replace(examination().engine, read_gbps=6.0, best_gbps=12.0, is_quiet=False)
    answers[:] = [dataclasses.replace(examination(), engine=busy)]
    async with chatting(size=(120, 40)) as driver:
        await driver.pilot.press("f5")
        await driver.shows("6.0 GB/s read with 2 threads now, 12.0 at best")
        await driver.shows("try again later")
        await driver.shows("nothing to mend")


async def test_enter_offers_the_recommended_model(answers: list[Any]) -> None:
    async with chatting(size=(120, 40)) as driver:
        await driver.pilot.press("f5")
        await measured(driver)
        await driver.shows("1 to mend")
        await driver.pilot.press("enter")
        await driver.shows("Download: Qwen3.5 4B")
        assert driver.app.downloads.job is not None
        assert driver.app.downloads.job.request == "unsloth/Qwen3.5-4B-MTP-GGUF"


async def test_the_measurement_waits_for_a_running_reply(answers: list[Any]) -> None:
    script = Script(replies=[["one", " two"]], token_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("hello")
        assert script.token_gate is not None
        await driver.until(script.token_gate.waiting.is_set)
        await driver.pilot.press("f5")
        await driver.until(lambda: "waiting for the engine" in driver.screen_text())
        await driver.until(lambda: "passed" in driver.screen_text())
        await driver.hides("GB/s")
        screen = screen_of(driver)
        assert screen._timer._active.is_set()
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert not screen._timer._active.is_set()  # nothing is asked while no one looks
        await driver.pilot.press("f5")
        script.token_gate.open()
        await measured(driver)
        reply = driver.chat.core.chat_session.conversation.last_reply
        assert reply is not None
        assert reply.text == "one two"


async def test_the_doctor_works_without_a_model(answers: list[Any]) -> None:
    answers[:] = [dataclasses.replace(examination(), needs=None, fit=None, speed=None)]
    async with chatting(model=None) as driver:
        await driver.pilot.press("f5")
        await measured(driver)
        await driver.hides("a model of")
