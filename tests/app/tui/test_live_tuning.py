"""Keys of the performance screen that change threads and memory, also while a reply is written."""

import os

import pytest

from app.machine.tuning.saved_tuning import SavedTuning
from app.machine.tuning.threads_in_use import name_threads
from app.program.bundled_model import starter_file
from app.program.state import TunedChoice
from app.tui.screens.performance import PerformanceScreen
from app.tui.speed import watch
from engine.errors import MemoryPlanError
from engine.machine import host, memory
from engine.machine.topology import Cores, read_cores
from tests.app.chat_driver import Driver, chatting, chatting_for_real
from tests.app.fake_engine import FakeModel, Gate, Script
from tests.app.tui.test_threads_screen import Memory, in_use, shown, tuning
from tests.engine import sysfs_trees

pytestmark = pytest.mark.slow

WORDS = [f" word{n}" for n in range(120)]


@pytest.fixture(autouse=True)
def laptop(monkeypatch, tmp_path):
    """Give the machine two cores with two threads each, used by no other program."""
    cores = read_cores([0, 1, 2, 3], sysfs_trees.two_cores_four_threads(tmp_path / "machine"))
    monkeypatch.setattr(host, "cores", lambda: cores)
    monkeypatch.setattr(memory, "gives_huge_pages", lambda: True)
    monkeypatch.setattr(watch, "_mean_others", lambda samples, begin_s, end_s: 0.0)


async def opened(driver: Driver) -> None:
    await driver.pilot.press("f2")
    await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
    await shown(driver, "Writing")


async def uses(driver: Driver, *choice: object) -> None:
    expected = TunedChoice(*choice)
    await driver.until(lambda: in_use(driver) == expected, f"{expected} in use")


async def test_keys_change_the_threads_and_name_their_cores():
    async with tuning(Script()) as driver:
        await opened(driver)
        await shown(driver, "- + threads · h huge pages · p pin · k KV type · ? words · Esc back")
        await driver.pilot.press("plus")
        await shown(driver, "3 threads: 2 cores + 1 sibling, for this run")
        await uses(driver, 3, 2)
        await shown(driver, "· 3 threads")
        await driver.pilot.press("equals_sign")
        await shown(driver, "4 threads: 2 cores + 2 siblings")
        await driver.pilot.press("plus")
        await shown(driver, "4 threads: one for each CPU of this machine")
        await driver.pilot.press("minus", "minus", "minus")
        await shown(driver, "1 thread: 1 core")
        await uses(driver, 1, 2)
        await driver.pilot.press("minus")
        await shown(driver, "1 thread is the least")


def test_kinds_of_cores_are_named_as_they_join():
    hybrid = Cores(tuple(range(8)), 6, None, n_efficiency=4)
    assert name_threads(1, hybrid.kind) == "1 thread: 1 core"
    assert name_threads(3, hybrid.kind) == "3 threads: 2 cores + 1 efficiency core"
    assert name_threads(8, hybrid.kind) == "8 threads: 2 cores + 4 efficiency cores + 2 siblings"


@pytest.mark.parametrize(
    ("write_tree", "n_cpus", "names"),
    [
        (
            sysfs_trees.two_cores_four_threads,
            4,
            {2: "2 threads: 2 cores", 4: "4 threads: 2 cores + 2 siblings"},
        ),
        (
            sysfs_trees.small_hybrid,
            16,
            {
                4: "4 threads: 4 cores",
                5: "5 threads: 4 cores + 1 efficiency core",
                13: "13 threads: 4 cores + 8 efficiency cores + 1 sibling",
            },
        ),
        (
            sysfs_trees.two_caches,
            16,
            {8: "8 threads: 8 cores", 9: "9 threads: 8 cores + 1 sibling"},
        ),
        (sysfs_trees.raspberry_pi, 4, {4: "4 threads: 4 cores"}),
    ],
)
def test_cores_of_made_machines_are_named_as_they_join(tmp_path, write_tree, n_cpus, names):
    cores = read_cores(range(n_cpus), write_tree(tmp_path / "machine"))
    assert {count: name_threads(count, cores.kind) for count in names} == names


async def test_nothing_is_kept_until_enter_and_u_undoes():
    saved = Memory(TunedChoice(2, 2))
    async with tuning(Script(), saved) as driver:
        await opened(driver)
        await driver.pilot.press("enter")
        await shown(driver, "nothing to keep: 2 threads")
        await driver.pilot.press("u")
        await shown(driver, "nothing to undo")
        await driver.pilot.press("minus")
        await shown(driver, "Enter keep 1 thread")
        await driver.pilot.press("p", "h")
        await shown(driver, "Enter keep 1 thread + huge pages + pinned")
        await shown(driver, "1 thread · pinned · huge pages")
        assert saved.remembered == TunedChoice(2, 2)
        await driver.pilot.press("u")
        await shown(driver, "undone: 1 thread writing, 2 reading, each fixed to one core")
        await shown(driver, "1 thread · pinned")
        await driver.until(lambda: in_use_now(driver).weights == "mmap", "in the mapped file")
        await driver.pilot.press("h", "enter")
        await shown(driver, "kept for this machine and model: 1 thread writing, 2 reading")
        kept = TunedChoice(1, 2, True, weights="huge")
        await driver.until(lambda: saved.remembered == kept, "kept")
        await driver.until(lambda: "Enter keep" not in driver.screen_text())
        await driver.pilot.press("h")
        await shown(driver, "Enter keep 1 thread + pinned")
        await driver.pilot.press("u", "u")
        await driver.until(lambda: saved.remembered == TunedChoice(2, 2), "as before")


async def test_leaving_keeps_the_choice_and_says_so_once():
    saved = Memory()
    async with tuning(Script(), saved) as driver:
        await opened(driver)
        await driver.pilot.press("plus", "minus", "minus")
        await uses(driver, 1, 2)
        await driver.pilot.press("escape")
        said = "now 1 thread writing, 2 reading (was 2 threads), for this run only"
        text = await shown(driver, said)
        assert text.count("now ") == 1
        assert in_use(driver) == TunedChoice(1, 2)
        assert saved.remembered is None
        await driver.pilot.press("f4")
        await shown(driver, "Enter keep 1 thread (2 reading)")
        await driver.pilot.press("u")
        await uses(driver, 2, 2)
        await driver.pilot.press("escape")
        await driver.say("/threads 3")
        await uses(driver, 3, 3)
        await opened(driver)
        await driver.pilot.press("u")
        await uses(driver, 2, 2)


async def test_a_help_screen_in_between_says_nothing_in_the_chat():
    async with tuning(Script(), size=(80, 40)) as driver:
        await opened(driver)
        await driver.pilot.press("minus", "f1")
        await shown(driver, "Use one more thread")
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        await driver.pilot.press("u")
        await uses(driver, 2, 2)
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert "for this run" not in driver.screen_text()


async def test_a_change_within_a_reply_is_marked_and_compared():
    script = Script(replies=[WORDS], token_gate=Gate(), seconds_per_token=0.25)
    async with tuning(script) as driver:
        gate = script.token_gate
        await driver.say("hello")
        gate.allow(50)
        await driver.until(gate.waiting.is_set)
        await opened(driver)
        await driver.pilot.press("minus")
        script.seconds_per_token = 0.5
        gate.allow(20)
        await driver.until(gate.waiting.is_set)
        await shown(driver, "1 thread: 15 of 32 tokens, then the comparison")
        await shown(driver, "▼1 thread")
        gate.allow(30)
        await driver.until(gate.waiting.is_set)
        await shown(driver, "2 threads: 4.0 ±0.0, 1 thread: 2.0 ±0.0 tok/s: 2.00 times as fast")
        await driver.pilot.press("plus")
        gate.open()
        await driver.until(lambda: not driver.app.engine_thread.status.is_busy)
        await shown(driver, "▼2 threads")
        history = driver.app.engine_thread.state.figures.earlier
        assert history is None, "a reply with several choices says nothing about either"


async def test_quick_keys_add_up_before_the_engine_follows():
    script = Script(replies=[WORDS], token_gate=Gate())
    async with tuning(script) as driver:
        await driver.say("hello")
        script.token_gate.allow(5)
        await driver.until(script.token_gate.waiting.is_set)
        await opened(driver)
        await driver.pilot.press("plus", "plus", "p")
        await shown(driver, "Enter keep 4 threads + pinned")
        assert in_use(driver).decode == 2
        script.token_gate.open()
        await uses(driver, 4, 2, True)


async def test_keys_while_reading_change_the_threads_that_read():
    script = Script(prefill_gate=Gate())
    async with tuning(script) as driver:
        await driver.say("hello")
        await driver.until(script.prefill_gate.waiting.is_set)
        await driver.pilot.press("f2")
        await shown(driver, "Reading")
        await driver.pilot.press("plus")
        await shown(driver, "reading the prompt with 3 threads: 2 cores + 1 sibling")
        script.prefill_gate.open()
        await uses(driver, 2, 3)


async def test_huge_pages_without_room_say_why():
    script = Script(weights_error=MemoryPlanError("needs 4.6 GB, 1.2 GB are free"))
    async with tuning(script) as driver:
        await opened(driver)
        await driver.pilot.press("h")
        await shown(driver, "weights stay where they are: needs 4.6 GB, 1.2 GB are free")
        await shown(driver, "· 2 threads")
        await driver.until(lambda: in_use_now(driver).weights == "mmap", "in the mapped file")


async def test_k_changes_the_kv_cache_and_enter_keeps_it():
    saved = Memory()
    async with tuning(Script(), saved, size=(100, 24)) as driver:
        await driver.ask("hello")
        await opened(driver)
        await driver.pilot.press("k")
        await shown(driver, "KV cache q8_0, for this run")
        await driver.until(lambda: in_use_now(driver).kv_type == "q8_0", "q8_0 in use")
        await shown(driver, "2 threads · KV q8_0")
        await shown(driver, "Enter keep 2 threads + KV q8_0")
        await driver.pilot.press("minus", "u")
        await uses(driver, 2, 2)
        assert in_use_now(driver).kv_type == "q8_0"
        await driver.pilot.press("enter")
        await shown(driver, "kept for this machine and model: 2 threads, KV cache q8_0")
        await driver.until(lambda: saved.remembered is not None, "kept")
        assert saved.remembered == TunedChoice(2, 2, kv_type="q8_0")
        await driver.until(lambda: "Enter keep" not in driver.screen_text())
        await driver.pilot.press("u", "u")
        await driver.until(lambda: in_use_now(driver).kv_type == "f16", "undone")
        await driver.until(lambda: saved.remembered is None, "forgotten")
        await driver.pilot.press("escape")
        assert (await driver.ask("hello again")).text


async def test_a_reply_ends_with_the_kv_cache_it_began_with():
    script = Script(replies=[WORDS], token_gate=Gate())
    async with tuning(script, size=(100, 24)) as driver:
        await driver.say("hello")
        await driver.until(script.token_gate.waiting.is_set)
        script.token_gate.allow(3)
        await opened(driver)
        await driver.pilot.press("k", "k")
        await shown(driver, "KV cache q4_0 after this reply")
        await shown(driver, "Enter keep 2 threads + KV q4_0")
        assert in_use_now(driver).kv_type == "f16"
        script.token_gate.allow(len(WORDS))
        await driver.until(lambda: in_use_now(driver).kv_type == "q4_0", "after the reply")


async def test_a_kv_cache_without_room_stays_as_it_was(monkeypatch):
    session = FakeModel.session

    def without_room(self, n_ctx=None, kv="f16", *rest, **options):
        if kv == "q8_0":
            raise MemoryPlanError("no room for 4,096 tokens")
        return session(self, n_ctx, kv, *rest, **options)

    monkeypatch.setattr(FakeModel, "session", without_room)
    async with tuning(Script(), size=(100, 24)) as driver:
        await driver.ask("hello")
        await opened(driver)
        await driver.pilot.press("k")
        await shown(driver, "the KV cache stays f16: no room for 4,096 tokens")
        await driver.until(lambda: "Enter keep" not in driver.screen_text())
        await driver.pilot.press("escape")
        assert (await driver.ask("hello again")).text


async def test_keys_say_why_they_do_nothing(monkeypatch):
    async with tuning(Script()) as driver:
        await opened(driver)
        monkeypatch.setattr(memory, "gives_huge_pages", lambda: False)
        await driver.pilot.press("h")
        await shown(driver, "this system gives no huge pages: F5 says how to allow them")
        monkeypatch.delattr(os, "sched_setaffinity")
        await driver.pilot.press("p")
        await shown(driver, "this system does not let a program bind its threads to cores")
    async with chatting(model=None, size=(80, 24)) as driver:
        await opened(driver)
        for key in ("plus", "minus", "h", "p", "k", "u", "enter"):
            await driver.pilot.press(key)
            await shown(driver, "no model is open: F3 opens one")
            driver.app.screen._note = ""


async def test_a_choice_that_cannot_be_saved_says_so():
    saved = Memory()
    saved.trouble = "no directory is writable"
    async with tuning(Script(), saved) as driver:
        await opened(driver)
        await driver.pilot.press("minus", "enter")
        await shown(driver, "threads not remembered: no directory is writable")
        assert saved.recall(None) == SavedTuning(None, None, "")


async def test_keys_change_a_real_engine_between_two_replies():
    async with chatting_for_real(starter_file()) as driver:
        first = await driver.ask("What is the capital of France?")
        state = driver.app.engine_thread.state
        assert state.threads is not None
        await opened(driver)
        while driver.app.engine_thread.state.threads.now.decode > 1:
            before = driver.app.engine_thread.state.threads
            await driver.pilot.press("minus")
            await driver.until(lambda before=before: in_use_now(driver) != before.now)
        await driver.pilot.press("h", "p")
        await driver.until(lambda: in_use_now(driver).weights == "huge", "in huge pages")
        await driver.until(lambda: in_use_now(driver).pinned, "pinned")
        await shown(driver, "1 thread · pinned · huge pages")
        await driver.pilot.press("k")
        await driver.until(lambda: in_use_now(driver).kv_type == "q8_0", "another KV cache")
        await driver.pilot.press("escape")
        second = await driver.ask("What is the capital of France?")
        assert "Paris" in first.text
        assert "Paris" in second.text


def in_use_now(driver: Driver) -> TunedChoice:
    return driver.app.engine_thread.state.threads.now
