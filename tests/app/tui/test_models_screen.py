"""The models screen: rows, filter, and opening another model."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.machine.sensors.reply_history import READ_GBPS, ReplyHistory, rates_key
from app.models.library import listing, scan
from app.models.library.header import HeaderCache, ModelHeader, read_header
from app.models.library.measure import EngineReadings
from app.models.library.model_files import Place
from app.models.library.rates import remember_rates
from app.program import paths
from app.tui.screens.models import ModelsScreen
from app.tui.screens.question import SwitchModelScreen, price_line
from engine.errors import GGUFError, MemoryPlanError
from engine.measure.fit import MachineMemory, MachineRates
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two models and another file, the only one that is searched."""
    directory = tmp_path / "models"
    directory.mkdir()
    tiny_gguf.write(directory / "first.gguf", "llama", "F32")
    tiny_gguf.write(directory / "second.gguf", "qwen2", "Q8_0")
    (directory / "portal.gguf").write_bytes(b"<html>")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scan, "places", lambda directories: [Place("here", directory)])
    monkeypatch.setattr(listing, "usual_threads", lambda settings: 2)
    return directory


def screen_of(driver: Driver) -> ModelsScreen:
    screen = driver.app.screen
    assert isinstance(screen, ModelsScreen)
    return screen


async def opened(driver: Driver, key: str = "f3") -> ModelsScreen:
    await driver.pilot.press(key)
    await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen), "the screen is open")
    await shows(driver, "portal")
    return screen_of(driver)


@pytest.fixture(autouse=True)
def long_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every conversation take long to read, so that a switch asks."""
    monkeypatch.setattr("app.tui.chat.model_panel.SHORT_READING_S", 0.0)


async def change_model(driver: Driver, name: str, answer: str) -> None:
    """Open another model and answer the question about the conversation."""
    await driver.say(f"/model {name}")
    await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen))
    await driver.pilot.press(answer)


async def shows(driver: Driver, *words: str) -> str:
    await driver.until(
        lambda: all(word in driver.screen_text() for word in words), f"shown: {words}"
    )
    return driver.screen_text()


async def shows_no_more(driver: Driver, word: str) -> str:
    await driver.until(lambda: word not in driver.screen_text(), f"gone: {word}")
    return driver.screen_text()


def with_options(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    original: Callable[[Script], Any] = chat_driver.options_for
    monkeypatch.setattr(
        chat_driver, "options_for", lambda script: dataclasses.replace(original(script), **options)
    )


async def test_models_have_rows_and_other_files_reasons() -> None:
    async with chatting(size=(60, 20)) as driver:
        await opened(driver)
        for size in ((60, 20), (80, 24), (100, 30)):
            await driver.pilot.resize_terminal(*size)
            await shows(driver, "first", "second", "is a web", "F32", "On this machine")
            if size[0] != 60:
                await shows(driver, "128")
        await driver.until(lambda: speeds_of(driver, "first", "second"), "typical speeds")
        await driver.type("portal")
        await driver.pilot.press("enter")
        await shows(driver, "Can't open it: is a web page, not a model")
        assert len(driver.script.opened) == 1
        await driver.pilot.press("tab")
        await shows(driver, "portal.gguf: is a web page")
        await driver.pilot.press("escape", "escape")
        await driver.type("smollm2 135m")
        await shows(driver, "not downloaded: jalopy pull bartowski/SmolLM2-135M-Instruct-GGUF")
        await driver.pilot.press("escape")
        screen = screen_of(driver)
        await driver.type("q8")
        await shows_no_more(driver, "first")
        await shows(driver, "second", "filter: q8_")
        await driver.pilot.press("tab")
        await shows(driver, "parameters:", "layers:", "Q8_0")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is screen)
        await driver.type("zzz")
        await shows(driver, "No model has all these words")
        await driver.pilot.press("backspace", "backspace", "backspace")
        await shows(driver, "second", "filter: q8_")
        await driver.pilot.press("escape")
        await shows(driver, "first")
        await driver.until(lambda: screen._result.is_done)
        await driver.pilot.press("f3")
        await driver.until(lambda: driver.app.screen is driver.chat)
        # nothing is looked at while something else is shown
        assert not screen._timer._active.is_set()
        await driver.say("/models")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)


async def test_names_appear_before_headers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    may_read = threading.Event()

    def waits(path: Path) -> ModelHeader:
        may_read.wait(300)
        return read_header(path)

    monkeypatch.setattr(scan, "HeaderCache", lambda: HeaderCache(read=waits))
    async with chatting() as driver:
        await opened(driver)
        text = await shows(driver, "first", "second", "reading models: 0 of 3")
        assert "is a web" not in text
        may_read.set()
        await shows(driver, "is a web", "Q8_0")


async def test_downloadable_models_stay_during_a_rescan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scan, "places", lambda directories: [Place("here", tmp_path / "none")])
    monkeypatch.setattr(
        "app.models.library.measure.memory_for_models", lambda: MachineMemory(8 << 30, 6 << 30)
    )
    async with chatting() as driver:
        await driver.pilot.press("f3")
        await shows(driver, "To download", " SmolLM2")
        may_find = threading.Event()
        find_files = scan.find_files

        def waits(places: Any) -> Any:
            may_find.wait(300)
            return find_files(places)

        monkeypatch.setattr(scan, "find_files", waits)
        screen = screen_of(driver)
        screen.action_rescan()
        assert screen.poll()  # more is to come, and nothing has
        screen.show()
        await driver.pilot.pause()
        await shows(driver, "To download", " SmolLM2")
        may_find.set()


async def test_enter_opens_a_model_at_once_in_an_empty_chat(directory: Path) -> None:
    async with chatting(model=None) as driver:
        await driver.note("F3 or /models lists models")
        await opened(driver)
        await driver.type("second")
        await driver.pilot.press("enter")
        await driver.ready()
        assert driver.app.screen is driver.chat
        assert driver.chat.core.chat_session.model is not None
        assert driver.chat.core.chat_session.model.path == str(directory / "second.gguf")
        await opened(driver)
        await driver.until(lambda: "▶ second" in driver.screen_text(), "it is marked as open")


async def test_a_short_conversation_goes_on_without_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.tui.chat.model_panel.SHORT_READING_S", 2.0)
    async with chatting() as driver:
        await driver.ask("what is this")
        await driver.say("/model other.gguf")
        await driver.note("then reading the conversation · /new starts another")
        await driver.note("read the conversation again")
        assert driver.app.screen is driver.chat


async def test_a_conversation_continues_after_a_model_switch() -> None:
    async with chatting() as driver:
        await driver.ask("what is this")
        await opened(driver)
        await driver.type("second")
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen), "it asks")
        text = await shows(driver, "Open second?", "Continue here")
        assert "The new model has to read this conversation first (" in " ".join(text.split())
        await driver.pilot.press("enter")
        await driver.note("read the conversation again")
        assert driver.app.screen is driver.chat
        old, new = driver.script.opened
        assert old.is_closed
        assert new.sessions[-1].length > 5
        fed_before = sum(new.sessions[-1].fed_counts)
        await driver.ask("and this")
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "what is this", "Hello there.", "and this", "Hello there.",
        ]  # fmt: skip
        prompt_fed = sum(new.sessions[-1].fed_counts) - fed_before
        assert prompt_fed < new.sessions[-1].length - fed_before + 1
        assert len(driver.transcript.replies()) == 2


async def test_no_model_can_be_opened_during_a_reply() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("what is this")
        script.token_gate = Gate()
        await driver.say("and this")
        await driver.until(script.token_gate.waiting.is_set, "the reply comes")
        await driver.say("/model other.gguf")
        await driver.note("the engine is busy: Esc stops it")
        assert driver.app.screen is driver.chat
        await opened(driver)
        await driver.type("second")
        await driver.pilot.press("enter")
        await shows(driver, "the engine is busy: Esc in the chat stops it")
        assert screen_of(driver).filter_text == "second", "the choice stays"
        assert len(script.opened) == 1


async def test_a_switch_can_be_cancelled_or_start_a_new_chat() -> None:
    async with chatting() as driver:
        await driver.ask("what is this")
        await opened(driver)
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen))
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, ModelsScreen))
        assert len(driver.script.opened) == 1
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen))
        await driver.pilot.press("n")
        await driver.until(lambda: len(driver.script.opened) == 2)
        await driver.ready()
        assert driver.chat.core.chat_session.conversation.is_empty
        assert driver.transcript.replies() == []


async def test_a_stopped_rereading_resumes_with_the_next_message() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("one two three four five")
        script.prefill_gate = Gate()
        await change_model(driver, "other.gguf", "y")
        await driver.until(script.prefill_gate.waiting.is_set, "the model reads")
        await driver.say("a question that waits")
        assert len(driver.chat.core.chat_session.queued_texts) == 1
        await driver.pilot.press("escape")
        await driver.note("the rest will be read with your next message")
        script.prefill_gate.open()
        await driver.until(lambda: len(driver.transcript.replies()) == 2)
        await driver.last_reply()
        assert script.opened[-1].sessions[-1].length > 8


async def test_a_conversation_too_long_for_the_new_model_drops_turns() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("word " * 100)
        script.n_ctx = 64
        await change_model(driver, "small.gguf", "enter")
        await driver.note("this model's context holds 64: the oldest turns go")
        assert driver.chat.core.chat_session.model is not None
        await driver.say("/new")
        await driver.ask("short")


async def test_a_failed_switch_reopens_the_previous_model() -> None:
    script = Script(
        open_errors={"other.gguf": MemoryPlanError("other.gguf: there is not enough memory")}
    )
    async with chatting(script) as driver:
        await driver.ask("keep me")
        told = "other.gguf: there is not enough memory; opening the previous model again"
        for n_before, answer in ((2, "enter"), (4, "n")):
            await change_model(driver, "other.gguf", answer)
            await driver.until(lambda n=n_before // 2: driver.notes().count(told) == n)
            await driver.until(
                lambda n=n_before // 2: sum("read the conv" in one for one in driver.notes()) == n
            )
            assert driver.chat.core.chat_session.model is not None
            assert driver.chat.core.chat_session.model.path == "model.gguf"
            assert len(driver.chat.core.chat_session.conversation.messages) == n_before
            assert len(driver.transcript.replies()) == n_before // 2
            await driver.ask("and now?")
            assert len(driver.chat.core.chat_session.conversation.messages) == n_before + 2
        assert len(script.opened) == 3


async def test_a_bad_file_does_not_close_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(path: Path) -> None:
        raise GGUFError(f"{path.name}: is damaged")

    with_options(monkeypatch, check_model=check)
    async with chatting() as driver:
        await driver.ask("keep me")
        length = driver.script.opened[0].sessions[-1].length
        told = "other.gguf: is damaged; the previous model stays open"
        for n, answer in enumerate(("enter", "n"), 1):
            await change_model(driver, "other.gguf", answer)
            await driver.until(lambda n=n: driver.notes().count(told) == n)
            await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
            assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
                "keep me",
                "Hello there.",
            ]
            assert len(driver.transcript.replies()) == 1
            (model,) = driver.script.opened
            assert not model.is_closed
            assert model.sessions[-1].length == length
        await driver.ask("and now?")


async def test_esc_stops_the_opening_of_a_model() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("keep me")
        script.open_gate = Gate()
        await change_model(driver, "other.gguf", "n")
        await driver.until(script.open_gate.waiting.is_set, "the model is being opened")
        await driver.pilot.press("escape")
        script.open_gate.open()
        await driver.note("stopped before the model was open; opening the previous model again")
        await driver.note("read the conversation again")
        assert driver.chat.core.chat_session.model.path == "model.gguf"
        await driver.ask("and now?")
        assert len(driver.chat.core.chat_session.conversation.messages) == 4
        await driver.pilot.press("escape")
        assert driver.app.focused is driver.chat.prompt


async def test_a_message_for_a_failing_model_goes_to_the_previous() -> None:
    script = Script(
        open_errors={"other.gguf": MemoryPlanError("other.gguf: there is not enough memory")}
    )
    async with chatting(script) as driver:
        await driver.ask("one")
        script.open_gate = Gate()
        await change_model(driver, "other.gguf", "n")
        await driver.until(script.open_gate.waiting.is_set, "the model is being opened")
        await driver.say("two")
        assert len(driver.chat.core.chat_session.queued_texts) == 1
        script.open_gate.open()
        await driver.until(lambda: len(driver.transcript.replies()) == 2)
        await driver.last_reply()
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages][::2] == [
            "one",
            "two",
        ]


async def test_a_message_for_another_model_starts_its_conversation() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("one")
        script.open_gate = Gate()
        await change_model(driver, "other.gguf", "n")
        await driver.until(script.open_gate.waiting.is_set, "the model is being opened")
        await driver.say("two")
        script.open_gate.open()
        said = driver.chat.core.chat_session
        await driver.until(
            lambda: [m.text for m in said.conversation.messages][:1] == ["two"], "it has begun"
        )
        await driver.until(lambda: said.conversation.last_reply is not None)
        await driver.last_reply()
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "two",
            "Hello there.",
        ]
        assert len(driver.transcript.messages()) == 2


async def test_a_switch_by_path_shows_the_time_to_read(directory: Path) -> None:
    remember_rates(2, MachineRates(12.0, {"F32": 10.0, "Q8_0": 10.0}, {"F32": 5.0, "Q8_0": 40.0}))
    async with chatting() as driver:
        await driver.ask("what is this")
        await driver.say(f"/model {directory / 'second.gguf'}")
        await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen), "it asks")
        text = await shows(driver, "Open second.gguf?", "has to read this conversation")
        assert re.search(r" tokens, about [0-9]+ s\)\.", text), text


async def test_a_conversation_survives_a_model_that_fails_to_open() -> None:
    script = Script()
    async with chatting(script) as driver:
        await driver.ask("keep me")
        script.open_error = GGUFError("other.gguf: is damaged")
        await change_model(driver, "other.gguf", "enter")
        await driver.note("is damaged")
        script.open_error = None
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "keep me",
            "Hello there.",
        ]
        await change_model(driver, "third.gguf", "enter")
        await driver.note("read the conversation again")
        await driver.ask("still there?")


async def test_measuring_fills_in_the_speeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = SimpleNamespace(engine=EngineReadings(read_gbps=5.0, best_gbps=12.0))

    def fails(*_: Any) -> None:
        raise RuntimeError("no\x1b[31m memory")

    def succeeds(*_: Any) -> None:
        remember_rates(
            2, MachineRates(12.0, {"F32": 10.0, "Q8_0": 10.0}, {"F32": 5.0, "Q8_0": 40.0})
        )

    answers: list[Callable[..., Any]] = [fails, lambda *_: busy, succeeds]
    with_options(monkeypatch, examine=lambda *given: answers.pop(0)(*given))
    async with chatting(size=(100, 30)) as driver:
        await opened(driver)
        await shows(driver, "~ estimated", "ctrl+r measures")
        await driver.pilot.press("ctrl+r")
        text = await shows(driver, "not measured: RuntimeError")
        assert "\x1b" not in text
        await driver.pilot.press("ctrl+r")
        await shows(
            driver,
            "This machine is busy: 42 % of the usual speed. Estimates use the best measured speed",
        )
        await driver.pilot.press("ctrl+r")
        text = await shows(driver, "12.0 GB/s")
        assert "~" in next(line for line in text.splitlines() if "first" in line)


async def test_without_models_the_searched_folders_are_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scan, "places", lambda directories: [Place("the moon", tmp_path / "none")])
    async with chatting(model=None) as driver:
        await driver.pilot.press("f3")
        await shows(driver, "No model found", "Searched: the moon")


@pytest.mark.smoke
async def test_an_internal_error_is_a_line_and_the_screen_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(places: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(scan, "find_files", broken)
    async with chatting() as driver:
        await driver.pilot.press("f3")
        await shows(driver, "internal error: ZeroDivisionError")


def test_a_switch_shows_the_time_to_read_if_known() -> None:
    assert "about 2 min 0 s" in price_line(1200, 10.0)
    assert "The new model has to read this conversation first" in price_line(1200, None)


async def test_the_open_model_is_marked_for_any_path(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.gguf").symlink_to(directory / "second.gguf")
    for way in (os.path.relpath(directory / "second.gguf"), "link.gguf"):
        async with chatting(model=way, size=(100, 30)) as driver:
            await opened(driver)
            await driver.until(lambda: "▶ second" in driver.screen_text(), "it is marked as open")


async def test_the_open_model_is_listed_from_any_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "third.gguf"
    elsewhere.parent.mkdir()
    tiny_gguf.write(elsewhere, "llama", "F32")
    async with chatting(model=str(elsewhere), size=(100, 30)) as driver:
        await opened(driver)
        text = await shows(driver, "third")
        assert "▶" in next(line for line in text.splitlines() if "third" in line)
        await driver.type("open now")
        await driver.hides("second")
        await driver.shows("third")


async def test_memory_measured_in_the_chat_is_used() -> None:
    history = ReplyHistory(paths.speeds_file())
    history.remember_rates(rates_key(2), {READ_GBPS: 40.0}, is_quiet=True)
    async with chatting() as driver:
        await opened(driver)
        await shows(driver, "reads 40.0 GB/s")


def speeds_of(driver: Driver, *names: str) -> bool:
    """Whether each of these rows has an estimated speed."""
    rows = driver.screen_text().splitlines()
    return all(any(name in row and "~" in row for row in rows) for name in names)


async def test_every_row_has_a_speed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "app.models.library.measure.memory_for_models", lambda: MachineMemory(8 << 30, 6 << 30)
    )
    async with chatting(size=(100, 30)) as driver:
        await opened(driver)
        await shows(driver, "To download", " SmolLM2", "~ estimated", "ctrl+r measures")
        entries = [entry for entry in screen_of(driver).items() if not entry.reason]
        assert len(entries) > 5
        assert all(entry.outlook is not None and entry.outlook.decode_tps for entry in entries)
        offered = [
            entry for entry in entries if not entry.is_here and entry.outlook.verdict == "yes"
        ]
        assert {entry.quantization for entry in offered} == {"Q4_K_M"}
        assert any(entry.better.startswith("better quality, slower: ") for entry in offered)


async def test_the_cursor_starts_on_the_open_model() -> None:
    async with chatting(size=(100, 30)) as driver:
        screen = await opened(driver)
        await driver.type("second")
        await shows_no_more(driver, "portal")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.until(lambda: driver.script.opened[1:], "the other model is opened")
        session = driver.chat.core.chat_session
        await driver.until(lambda: session.model and session.model.path.endswith("second.gguf"))
        await opened(driver)
        await shows(driver, "To download")  # until all files are read, their order changes
        assert screen.filter_text == "", "the filter ends with the visit"
        await driver.until(
            lambda: (entry := screen.highlighted()) is not None and entry.title == "second"
        )
        await driver.pilot.press("up")
        await driver.until(lambda: screen.highlighted().title == "first")
        await driver.pilot.press("escape", "f3")
        await driver.until(lambda: screen.highlighted().title == "second")


async def test_the_filter_stays_behind_a_dialog() -> None:
    async with chatting(size=(100, 30)) as driver:
        await driver.ask("what is this")
        screen = await opened(driver)
        await driver.type("second")
        await shows_no_more(driver, "portal")
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, SwitchModelScreen))
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is screen)
        await shows(driver, "filter: second_")
        assert screen.highlighted().title == "second"


async def test_wide_details_have_labels_and_use_the_height() -> None:
    async with chatting(size=(120, 40)) as driver:
        await opened(driver)
        for label in ("writes", "memory", "context", "size", "type", "parameters", "kind", "file"):
            await driver.until(
                lambda label=label: re.search(rf"│ {label} +\S", driver.screen_text()), label
            )


async def test_a_model_is_deleted_after_a_question(directory: Path) -> None:
    async with chatting(size=(80, 24)) as driver:
        await opened(driver)
        await driver.type("second")
        await shows_no_more(driver, "portal")
        await driver.pilot.press("delete")
        await shows(driver, "Delete second (", "any other key cancels")
        await driver.pilot.press("n")
        await shows_no_more(driver, "any other key cancels")
        assert (directory / "second.gguf").exists()
        await driver.pilot.press("delete", "y")
        await shows(driver, "Deleted: second")
        assert not (directory / "second.gguf").exists()
        assert (directory / "first.gguf").exists()
